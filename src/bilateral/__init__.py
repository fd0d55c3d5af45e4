"""Federated deep learning with privacy in both directions, on PyTorch.

    import bilateral
    report = bilateral.inspect(model, example_input)     # what would be hidden, layer by layer
    plan   = bilateral.RunPlan()                         # or bilateral.load_plan("plan.toml")
    bilateral.privacy_of(plan)                           # what it spends, if it adds noise
    result = bilateral.run(plan)                         # curves, costs, the trained model
    bilateral.audit_plan(plan).verdicts                  # attacks with controls: which claims hold
    bilateral.run_hetero(bilateral.HeteroPlan())         # clients with different networks teach each other

The parts for a loop of your own: `ScaleGraph`; `PerturbServer`, `PerturbClient`, `PerturbationSettings`, `aggregate`;
`Identity`, `KeyRing`, `MaskServer`, `MaskClient`, `MaskSettings`; `PredictionServer`, `PredictionClient`,
`compile_model`; and the accountants `spent` and `noise_for`.
"""

from bilateral.audit.auditor import AuditResult
from bilateral.audit.auditor import audit as audit_plan
from bilateral.data import Dataset, Split, load_dataset
from bilateral.engine.named_code import load_plan
from bilateral.engine.plan import RunPlan
from bilateral.engine.privacy import privacy_of
from bilateral.errors import BilateralError
from bilateral.models.coverage import inspect
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.messages import aggregate
from bilateral.protocols.noise.accounting import noise_for, spent
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.prediction.parties import PredictionClient, PredictionServer
from bilateral.runs.hetero.in_process import run_hetero
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.rounds.compare import compare
from bilateral.runs.rounds.export import export_run, load_exported
from bilateral.runs.rounds.in_process import run
from bilateral.runs.rounds.result import RunResult
from bilateral.version import __version__ as __version__

__all__ = [
    "AuditResult",
    "BilateralError",
    "Dataset",
    "HeteroPlan",
    "Identity",
    "KeyRing",
    "MaskClient",
    "MaskServer",
    "MaskSettings",
    "PerturbClient",
    "PerturbServer",
    "PerturbationSettings",
    "PredictionClient",
    "PredictionServer",
    "RunPlan",
    "RunResult",
    "ScaleGraph",
    "Split",
    "aggregate",
    "audit_plan",
    "build_model",
    "compare",
    "compile_model",
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
