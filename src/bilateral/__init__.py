"""Federated deep learning with privacy in both directions, on PyTorch.

    import bilateral
    report = bilateral.inspect(model, example_input)     # what would be hidden, layer by layer
    plan   = bilateral.RunPlan()                         # or bilateral.load_plan("plan.toml")
    bilateral.privacy_of(plan)                           # what it spends, if it adds noise
    result = bilateral.run(plan)                         # curves, costs, the trained model
    bilateral.audit_plan(plan).verdicts                  # attacks with controls: which claims hold
    bilateral.run_hetero(bilateral.HeteroPlan())         # clients with different networks teach each other

For a loop of your own: `Cohort`, `CohortServer` and `CohortSite` sum under masks over any transport; below them are
`Identity`, `KeyRing`, `MaskServer`, `MaskClient`, `MaskSettings` and `digest`. `ScaleGraph`, `PerturbServer`,
`PerturbClient`, `PerturbationSettings` and `check_recovery` perturb; `aggregate` sums in the clear. `PredictionServer`,
`PredictionClient` and `compile_model` predict; `spent` and `noise_for` account.

Each is imported when it is first asked for: `import bilateral` alone loads neither torch nor anything else of size.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from bilateral.audit.auditor import AuditResult
    from bilateral.audit.auditor import audit as audit_plan
    from bilateral.data import Dataset, Split, load_dataset
    from bilateral.engine.named_code import load_plan
    from bilateral.engine.plan import RunPlan
    from bilateral.engine.privacy import privacy_of
    from bilateral.errors import BilateralError
    from bilateral.learning.cohort import Cohort, CohortServer
    from bilateral.learning.cohort_site import CohortSite
    from bilateral.models.coverage import inspect
    from bilateral.models.scale_graph import ScaleGraph
    from bilateral.models.zoo import build_model
    from bilateral.protocols.mask.client import MaskClient
    from bilateral.protocols.mask.keys import Identity, KeyRing
    from bilateral.protocols.mask.server import MaskServer
    from bilateral.protocols.mask.settings import MaskSettings
    from bilateral.protocols.messages import aggregate
    from bilateral.protocols.noise.accounting import noise_for, spent
    from bilateral.protocols.perturb.both_halves import check_recovery
    from bilateral.protocols.perturb.client import PerturbClient
    from bilateral.protocols.perturb.server import PerturbServer
    from bilateral.protocols.perturb.settings import PerturbationSettings
    from bilateral.protocols.share.circuit.compiler import compile_model
    from bilateral.protocols.share.prediction.parties import PredictionClient, PredictionServer
    from bilateral.protocols.wire import digest
    from bilateral.randomness import Randomness, SecureRandomness, SeededRandomness
    from bilateral.report.tracking import MLflow, TensorBoard, WandB
    from bilateral.runs.hetero.in_process import run_hetero
    from bilateral.runs.hetero.plan import HeteroPlan
    from bilateral.runs.rounds.callbacks import Callback
    from bilateral.runs.rounds.compare import compare
    from bilateral.runs.rounds.export import export_run, load_exported
    from bilateral.runs.rounds.in_process import run
    from bilateral.runs.rounds.result import RunResult
    from bilateral.version import __version__ as __version__

_FROM = {
    "AuditResult": "audit.auditor",
    "BilateralError": "errors",
    "Callback": "runs.rounds.callbacks",
    "Cohort": "learning.cohort",
    "CohortServer": "learning.cohort",
    "CohortSite": "learning.cohort_site",
    "Dataset": "data",
    "HeteroPlan": "runs.hetero.plan",
    "Identity": "protocols.mask.keys",
    "KeyRing": "protocols.mask.keys",
    "MLflow": "report.tracking",
    "MaskClient": "protocols.mask.client",
    "MaskServer": "protocols.mask.server",
    "MaskSettings": "protocols.mask.settings",
    "PerturbClient": "protocols.perturb.client",
    "PerturbServer": "protocols.perturb.server",
    "PerturbationSettings": "protocols.perturb.settings",
    "PredictionClient": "protocols.share.prediction.parties",
    "PredictionServer": "protocols.share.prediction.parties",
    "Randomness": "randomness",
    "RunPlan": "engine.plan",
    "RunResult": "runs.rounds.result",
    "ScaleGraph": "models.scale_graph",
    "SecureRandomness": "randomness",
    "SeededRandomness": "randomness",
    "Split": "data",
    "TensorBoard": "report.tracking",
    "WandB": "report.tracking",
    "aggregate": "protocols.messages",
    "audit_plan": "audit.auditor:audit",
    "build_model": "models.zoo",
    "check_recovery": "protocols.perturb.both_halves",
    "compare": "runs.rounds.compare",
    "compile_model": "protocols.share.circuit.compiler",
    "digest": "protocols.wire",
    "export_run": "runs.rounds.export",
    "inspect": "models.coverage",
    "load_dataset": "data",
    "load_exported": "runs.rounds.export",
    "load_plan": "engine.named_code",
    "noise_for": "protocols.noise.accounting",
    "privacy_of": "engine.privacy",
    "run": "runs.rounds.in_process",
    "run_hetero": "runs.hetero.in_process",
    "spent": "protocols.noise.accounting",
}
"""Where each public name comes from: a module, and after a colon what it is called there if that differs."""

__all__ = [
    "AuditResult",
    "BilateralError",
    "Callback",
    "Cohort",
    "CohortServer",
    "CohortSite",
    "Dataset",
    "HeteroPlan",
    "Identity",
    "KeyRing",
    "MLflow",
    "MaskClient",
    "MaskServer",
    "MaskSettings",
    "PerturbClient",
    "PerturbServer",
    "PerturbationSettings",
    "PredictionClient",
    "PredictionServer",
    "Randomness",
    "RunPlan",
    "RunResult",
    "ScaleGraph",
    "SecureRandomness",
    "SeededRandomness",
    "Split",
    "TensorBoard",
    "WandB",
    "aggregate",
    "audit_plan",
    "build_model",
    "check_recovery",
    "compare",
    "compile_model",
    "digest",
    "export_run",
    "inspect",
    "load_dataset",
    "load_exported",
    "load_plan",
    "noise_for",
    "privacy_of",
    "run",
    "run_hetero",
    "spent",
]


def __getattr__(name: str) -> Any:
    """A public name, or a room of the package, imported the first time that it is asked for."""
    if name == "__version__":
        return importlib.import_module("bilateral.version").__version__
    if name in _FROM:
        module, _, called = _FROM[name].partition(":")
        value = getattr(importlib.import_module(f"bilateral.{module}"), called or name)
        globals()[name] = value
        return value
    if any(room.name == name for room in pkgutil.iter_modules(__path__)) and name != "__main__":
        return importlib.import_module(f"bilateral.{name}")
    raise AttributeError(f"module 'bilateral' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
