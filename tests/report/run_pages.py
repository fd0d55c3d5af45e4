"""Short runs of every rung of the ladder, and the pages of them: made once, for all tests of pages."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from bilateral.audit.auditor import stored_result
from bilateral.engine.plan import RunPlan
from bilateral.report.audit_html import write_html
from bilateral.report.run_page.page import write_run_page, write_service_page
from bilateral.runs.hetero.in_process import run_hetero
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.rounds.in_process import run
from bilateral.serving.guarantee import serving_guarantee
from bilateral.serving.hosted.plan import ServingPlan
from bilateral.serving.hosted.server import ServingResult
from bilateral.serving.model import ServedModel

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


HETERO = {
    "clients.number": 3,
    "clients.architectures": [{"name": "mlp-3", "options": {"width": 8}}, {"name": "mlp-5", "options": {"width": 8}}],
    "data.samples_per_client": 12,
    "training.epochs": 2,
    "queries.number": 4,
    "retraining.epochs": 2,
}
_AUDITS = Path(__file__).resolve().parents[2] / "docs" / "audits"


@cache
def folder() -> Path:
    """For all pages of this process."""
    return Path(_FOLDERS.enter_context(TemporaryDirectory(prefix="bilateral-pages-")))


@cache
def directory_of(name: str) -> Path:
    """The directory of a finished run."""
    path = folder() / name
    if name == "hetero":
        run_hetero(HeteroPlan().with_settings(HETERO), output=path)
    else:
        run(RunPlan().with_settings({**SMALL, **RUNS[name]}), output=path)
    return path


@cache
def page_of(name: str) -> Path:
    """The page of a run; of a service that ended; of a stored audit."""
    if name == "serving":
        return _service()
    if name == "audit":
        (folder() / name).mkdir()
        stored = _AUDITS / "fedsgd"
        return write_html(stored_result(stored / "audit.json"), stored / "pictures", folder() / name / "audit.html")
    return write_run_page(directory_of(name))


def _service() -> Path:
    """Of the model of the smallest run: 41 and 7 of 100 questions were asked."""
    plan = ServingPlan(
        run="fedavg", clients=("ward-3", "ward-7"), dealer="auditor", answers={"questions": 100, "reveal": "class"}
    )
    served = ServedModel.of_run(directory_of("fedavg"), ("bilateral", "serve", "fedavg"), reveal="class")
    guarantee = serving_guarantee("auditor", served.circuit, "class", 100)
    (folder() / "serving").mkdir()
    ended = ServingResult(plan, guarantee, {"ward-3": 41, "ward-7": 7}, False, 12.5, folder() / "serving")
    return write_service_page(folder() / "serving", ended)


def let_go() -> None:
    """Nothing of the runs is left; who asks again has them run again."""
    _FOLDERS.close()
    folder.cache_clear()
    directory_of.cache_clear()
    page_of.cache_clear()
