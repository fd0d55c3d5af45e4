"""Short runs of every rung of the ladder, and the pages of them: made once, for all tests of pages."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from bilateral.engine.plan import RunPlan
from bilateral.report.run_page.page import write_run_page
from bilateral.runs.rounds.in_process import run

SMALL = {
    "data.name": "breast-cancer",
    "model.name": "mlp-3",
    "training.loss": "mse",
    "training.rounds": 4,
    "training.evaluate_every": 2,
    "federation.clients": 3,
}
RUNS = {
    "fedavg": {"protection": "fedavg"},
    "masks": {"protection": "masks"},
    "perturbation": {"protection": "perturbation", "federation.clients": 5, "federation.dropout": 0.2},
    "sealed": {"protection": "sealed", "federation.dealer": "auditor", "training.rounds": 2},
    "noise": {
        "protection": "masks",
        "noise.mechanism": "sound",
        "noise.epsilon": 8.0,
        "perturbation.noise": "offset",
    },
}

_FOLDERS = ExitStack()


@cache
def directory_of(name: str) -> Path:
    """The directory of a finished run."""
    path = Path(_FOLDERS.enter_context(TemporaryDirectory(prefix=f"bilateral-{name}-"))) / name
    run(RunPlan().with_settings({**SMALL, **RUNS[name]}), output=path)
    return path


@cache
def page_of(name: str) -> Path:
    return write_run_page(directory_of(name))


def let_go() -> None:
    """Nothing of the runs is left; who asks again has them run again."""
    _FOLDERS.close()
    directory_of.cache_clear()
    page_of.cache_clear()
