"""`bench heterogeneous`: what clients with different networks gain by asking each other (P4 table 1, in small).

Nine clients with 500 samples each, three architectures, on CIFAR-10 or SVHN shrunk to 16x16 pixels: small enough that
a table takes some ten minutes on one core. Answers are in the clear: secret sharing changes the logits by less than
2^-12, and time is not what is measured here. All cases of a seed start from the same stand-alone models and take the
same number of gradient steps, however many queries they ask.

Tables: `queries` (private samples and 2,500 to 10,000 mixups), `fraction` of the others that answer, `selection` of
the queries, `dirichlet` (uneven classes), `pools`, `normalisation`.

Everything is kept in a directory, stage by stage: a stopped table goes on where it stopped, and tables share models
and cases.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from bilateral.engine.run_directory import DEFAULT_PARENT, RunDirectory
from bilateral.errors import PlanError
from bilateral.runs.hetero.in_process import run_hetero
from bilateral.runs.hetero.plan import HeteroPlan, load_hetero_plan
from bilateral.runs.hetero.result import HeteroProgress

STAND_ALONE = "stand-alone"
DEFAULT_OUTPUT = DEFAULT_PARENT / "bench-heterogeneous"
NUM_CLIENTS: Final = 9

_NETWORKS: Final = [
    {"name": "vgg-7", "options": {"width": 16, "batch_norm": True}},
    {"name": "resnet-8", "options": {"width": 16}},
    {"name": "lenet"},
]
_SETTINGS: Final[Mapping[str, Any]] = {
    "answers": "plain",
    "data.samples_per_client": 500,
    "data.shrink": 2,
    "clients.number": NUM_CLIENTS,
    "clients.architectures": _NETWORKS,
    "training.epochs": 25,
    "training.batch_size": 20,
    "training.learning_rate": 0.02,
    "queries.number": 2500,
    "retraining.epochs": 50,
    "retraining.max_steps": 600,
    "retraining.batch_size": 64,
}
WORKLOADS: Final[Mapping[str, Mapping[str, Any]]] = {
    name: {**_SETTINGS, "data.name": name} for name in ("cifar10", "svhn")
}
_QUICK: Final[Mapping[str, Any]] = {
    "data.samples_per_client": 50,
    "training.epochs": 1,
    "queries.number": 50,
    "retraining.max_steps": 2,
}

_PRIVATE: Final = {"queries.pool": "private"}
TABLES: Final[Mapping[str, tuple[Mapping[str, Any], ...]]] = {
    "queries": (_PRIVATE, *({"queries.number": number} for number in (2500, 5000, 10000))),
    "fraction": tuple({"queries.fraction": fraction} for fraction in (0.6, 0.8, 1.0)),
    "selection": tuple({"queries.selection": name} for name in ("random", "margin", "entropy", "k-center", "icd")),
    "dirichlet": tuple({"data.partition": "dirichlet", "data.alpha": alpha} for alpha in (0.5, 1.0, 100.0)),
    "pools": tuple({"queries.pool": pool} for pool in ("mixup", "cutmix", "cutout", "flips", "gaussian", "private")),
    "normalisation": tuple({"queries.normalisation": name} for name in ("none", "scale", "softmax")),
}

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class HeteroTable:
    """What to measure, where the data are, and where results are kept. Settings were chosen with seed 0."""

    table: str = "queries"
    data: str = "cifar10"
    data_dir: Path | None = None
    output: Path = DEFAULT_OUTPUT
    seeds: tuple[int, ...] = (1,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """On top of the workload's."""

    def plans(self) -> Iterator[HeteroPlan]:
        """The plan of each case, for each seed."""
        if self.table not in TABLES:
            raise PlanError(f"There is no table {self.table!r}.", remedy=f"Choose {', '.join(TABLES)}.")
        if self.data not in WORKLOADS:
            raise PlanError(f"There is no workload {self.data!r}.", remedy=f"Choose {', '.join(WORKLOADS)}.")
        for seed in self.seeds:
            for case in TABLES[self.table]:
                yield HeteroPlan(seed=seed, answers="plain").with_settings(
                    {**WORKLOADS[self.data], **case, **self.settings}
                )


def measure_heterogeneous(quick: bool, progress: Progress, chosen: HeteroTable | None = None) -> list[dict[str, Any]]:
    """The rows of a table; `quick` trains for a moment only, to see that it runs."""
    chosen = chosen or HeteroTable()
    plans = list(chosen.plans())
    if quick:
        plans = [plan.with_settings(dict(_QUICK)) for plan in plans]
    rows: list[dict[str, Any]] = []
    told: set[str] = set()
    for number, plan in enumerate(plans):
        tell = partial(_tell, progress, number, len(plans), chosen.table)
        result = rows_of_case(plan, chosen, tell)
        if plan.training_digest() not in told:
            told.add(plan.training_digest())
            rows += [_as_stand_alone(row) for row in result]
        rows += [_with_gain(row) for row in result]
    progress(len(plans), len(plans), "done")
    return rows


def rows_of_case(plan: HeteroPlan, chosen: HeteroTable, tell: Callable[[HeteroProgress], None]) -> list[dict[str, Any]]:
    """The rows of one plan, from models that trained alone, which plans share; what is there is not redone."""
    return _case(plan, _stand_alone(plan, chosen, tell), chosen, tell)


def _tell(progress: Progress, done: int, total: int, table: str, at: HeteroProgress) -> None:
    progress(done, total, f"{table}: {at.stage or 'done'} ({at.stages_done} of {at.num_stages} stages)")


def _stand_alone(plan: HeteroPlan, chosen: HeteroTable, tell: Callable[[HeteroProgress], None]) -> Path:
    """The directory of the models that trained alone; trained now, if they are not there."""
    path = chosen.output / f"alone-{plan.data.name}-{plan.training_digest()}"
    resume = _goes_on(path)
    run_hetero(
        RunDirectory.open(path, load_hetero_plan)[1] if resume else plan,
        output=path,
        data_dir=chosen.data_dir,
        resume=resume,
        training_only=True,
        on_progress=tell,
    )
    return path


def _goes_on(path: Path) -> bool:
    """Whether there is something to go on with. What a kill left before the first checkpoint is nothing, and goes."""
    if RunDirectory(path).checkpoint.exists():
        return True
    if path.exists():
        shutil.rmtree(path)
    return False


def _case(
    plan: HeteroPlan, alone: Path, chosen: HeteroTable, tell: Callable[[HeteroProgress], None]
) -> list[dict[str, Any]]:
    """The rows of one case: from its directory, or after running what is left of it."""
    path = chosen.output / f"case-{plan.data.name}-{plan.digest()}"
    result_file = path / "result.json"
    if not result_file.exists():
        resume = _goes_on(path)
        run_hetero(
            plan,
            output=path,
            data_dir=chosen.data_dir,
            resume=resume,
            trained=None if resume else alone,
            on_progress=tell,
        )
    rows: list[dict[str, Any]] = json.loads(result_file.read_text(encoding="utf-8"))["rows"]
    return rows


def _with_gain(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "gain_points": 100 * (row["accuracy_after"] - row["accuracy_before"])}


def _as_stand_alone(row: dict[str, Any]) -> dict[str, Any]:
    """The row of the same clients before they asked anybody."""
    nothing = {"queries": 0, "fraction": None, "selection": None, "normalisation": None}
    return {**row, **nothing, "method": STAND_ALONE, "accuracy_after": row["accuracy_before"], "gain_points": 0.0}
