"""Which networks each protection trains, and how far the gradient it recovers is off: a table for the docs.

    python benchmarks/module_table.py [--only "ViT-tiny" ...] [--torchvision] [--rows FILE.json] [--markdown FILE.md]

Every cell is one round of a real run with three clients in this process, in float64, on random samples with 5 classes.
The oracle is plain autograd on the same batches with the same weights. `--torchvision` adds torchvision's image
networks (see torchvision_families.py for what has to be installed). Sealed training of networks with more than a
million parameters is asked whether it takes them, and not run. `--rows` keeps what was measured, so that the table can
be made in several calls; `--markdown` writes all of it into a page, between its marks.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from bilateral import Dataset, RunPlan, Split
from bilateral.data.task import Task
from bilateral.engine.federation import load_federation
from bilateral.engine.setup import initial_model, layout_of, make_blueprint
from bilateral.errors import BilateralError
from bilateral.learning.client import TrainingClient
from bilateral.models.modes import training_copy
from torch import Tensor, nn

import module_families
import torchvision_families
from module_families import SHAPES, WORDS, Kind

CLASSES: Final = 5
LARGE: Final = 1_000_000
MARKS: Final = ("<!-- table of module_table.py -->", "<!-- end of the table -->")
COLUMNS: Final[dict[str, dict[str, Any]]] = {
    "fedavg": {"protection": "fedavg"},
    "masks": {"protection": "masks"},
    "sound noise": {"protection": "fedavg", "noise.mechanism": "sound", "noise.noise_multiplier": 1.0},
    "perturbation": {"protection": "perturbation"},
    "sealed": {"protection": "sealed"},
}


@dataclass(frozen=True)
class Cell:
    """One network under one protection. `error`: of the recovered gradient, None where it was not recovered."""

    refusal: str = ""
    error: float | None = None
    remark: str = ""

    def __str__(self) -> str:
        if self.refusal:
            return f"refused: {self.refusal}"
        return self.remark or ("trains" if self.error is None else f"{self.error:.0e}")


def samples(kind: Kind = "table", side: int = 0, num_train: int = 24) -> Dataset:
    """Random samples; texts are numbers of words."""
    shape = (3, side, side) if side else SHAPES[kind]
    draws = torch.Generator().manual_seed(1)
    inputs = torch.randn(num_train + 6, *shape, generator=draws)
    if kind == "text":
        inputs = torch.randint(WORDS, (num_train + 6, *shape), generator=draws)
    targets = torch.arange(num_train + 6) % CLASSES
    if kind == "segmentation":
        targets = torch.randint(CLASSES, (num_train + 6, *shape[1:]), generator=draws)
    train, test = (Split(inputs[part], targets[part]) for part in (slice(num_train), slice(num_train, None)))
    task: Task = "segmentation" if kind == "segmentation" else "classification"
    return Dataset("random", task, train, test, CLASSES)


def torchvision_network(network: str, num_outputs: int) -> nn.Module:
    """One of torchvision's, without dropout and stochastic depth: the oracle would draw others."""
    model, _ = torchvision_families.build(torchvision_families.import_models(), network, num_outputs)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__ == "StochasticDepth":
            module.p = 0.0  # type: ignore[assignment]
    return model


def plan_for(model: Mapping[str, Any], protection: str) -> RunPlan:
    small = {
        "federation.clients": 3,
        "federation.allow_single_class": True,
        "training.rounds": 1,
        "training.batch_size": 4,
        "training.loss": "ce",
        "training.dtype": "float64",
    }
    return RunPlan().with_settings({**small, **model, **COLUMNS[protection]})


def measure(model: Mapping[str, Any], protection: str) -> Cell:
    """One round of this plan, and its recovered gradient beside plain autograd's."""
    plan = plan_for(model, protection)
    federation = load_federation(plan)
    try:
        blueprint = make_blueprint(plan, federation)
        if plan.traits.computes_on_shares and blueprint.layout.num_parameters > LARGE:
            return Cell(remark="takes it (not run)")
        training = blueprint.server()
        exchange = blueprint.local_exchange(lambda *_: None)
        before = copy.deepcopy(training.model)
        training.check_recovery()
        training.advance(0, federation.names, exchange)
    except BilateralError as error:
        return Cell(refusal=reason_of(error))
    assert training.last_gradient is not None
    if plan.traits.adds_noise:
        return Cell()
    clients = [client for client in exchange.clients.values() if isinstance(client, TrainingClient)]
    trained = [p.name for p in blueprint.layout.parameters]
    return Cell(error=_error(training.last_gradient, oracle(before, clients, trained)))


def oracle(model: nn.Module, clients: list[TrainingClient], names: list[str]) -> Tensor:
    """The mean of the clients' gradients by their weights, by autograd."""
    total, weights = torch.zeros(0), 0
    for client in clients:
        own, batch = training_copy(model), client.batch(0)
        torch.autograd.backward(F.cross_entropy(own(batch.inputs), batch.targets))
        found = dict(own.named_parameters())
        flat = torch.cat([_gradient(found[name]).reshape(-1) for name in names])
        total = flat * client.weight + (total if len(total) else 0)
        weights += client.weight
    return total / weights


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def reason_of(error: BilateralError) -> str:
    """The first sentence, which names what is refused and why."""
    return str(error).removesuffix(error.remedy).strip().split(". ")[0].rstrip(".")


def networks(*, torchvision: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names as the table has them, and the settings of a plan that trains them."""
    for name, family in module_families.FAMILIES.items():
        yield (
            name,
            {
                "model.name": f"module_families:{family.builder}",
                "data.name": "module_table:samples",
                "data.options": {"kind": family.kind},
            },
        )
    for zoo in ("lenet", "vgg-7", "resnet-8", "densenet"):
        shape = {"data.name": "module_table:samples", "data.options": {"kind": "picture", "side": 32}}
        yield f"{zoo} (ours)", {"model.name": zoo, **shape}
    if torchvision:
        for name, (side, _) in torchvision_families.FAMILIES.items():
            yield (
                name,
                {
                    "model.name": "module_table:torchvision_network",
                    "model.options": {"network": name},
                    "data.name": "module_table:samples",
                    "data.options": {"kind": "picture", "side": side},
                },
            )


def num_parameters(model: Mapping[str, Any]) -> int:
    """How many numbers travel without a disguise."""
    plan = plan_for(model, "fedavg")
    problem = load_federation(plan).problem
    return layout_of(plan, initial_model(plan, problem), problem).num_parameters


def table(rows: Mapping[str, tuple[int, dict[str, Cell]]]) -> str:
    """Markdown; reasons as footnotes, each once."""
    notes: dict[str, int] = {}
    lines = ["| network | parameters | " + " | ".join(COLUMNS) + " |", "|---|---:|" + "---|" * len(COLUMNS)]
    for name, (count, cells) in rows.items():
        shown = []
        for cell in cells.values():
            if cell.refusal:
                shown.append(f"no ({notes.setdefault(cell.refusal, len(notes) + 1)})")
            else:
                shown.append(str(cell))
        lines.append(f"| {name} | {count:,} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, "", *(f"{number}. {reason}." for reason, number in notes.items())]) + "\n"


def _kept(path: Path | None) -> dict[str, tuple[int, dict[str, Cell]]]:
    if path is None or not path.exists():
        return {}
    values = json.loads(path.read_text(encoding="utf-8"))
    return {name: (count, {key: Cell(**one) for key, one in cells.items()}) for name, (count, cells) in values.items()}


def _write_into(page: Path, text: str) -> None:
    """Between the two marks of a page that has them; or as a page of its own."""
    whole = page.read_text(encoding="utf-8") if page.exists() else f"{MARKS[0]}\n{MARKS[1]}\n"
    before, _, rest = whole.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    page.write_text(f"{before}{MARKS[0]}\n\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", help="names of networks")
    parser.add_argument("--torchvision", action="store_true", help="torchvision's too")
    parser.add_argument(
        "--rows", type=Path, help="measured rows are kept here, and those that are there are not repeated"
    )
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = _kept(options.rows)
    for name, model in networks(torchvision=options.torchvision):
        if (options.only and name not in options.only) or name in rows:
            continue
        rows[name] = num_parameters(model), {}
        for protection in COLUMNS:
            rows[name][1][protection] = cell = measure(model, protection)
            sys.stdout.write(f"{name:32} {protection:14} {cell}\n")
            sys.stdout.flush()
        if options.rows is not None:
            values = {
                name: [count, {key: asdict(one) for key, one in cells.items()}] for name, (count, cells) in rows.items()
            }
            options.rows.write_text(json.dumps(values, indent=1), encoding="utf-8")
    if options.markdown is not None:
        _write_into(options.markdown, table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
