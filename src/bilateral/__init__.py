"""Federated deep learning with privacy in both directions, on PyTorch.

    import bilateral
    report = bilateral.inspect(model, example_input)     # what would be hidden, layer by layer
    plan   = bilateral.RunPlan()                         # or bilateral.load_plan("plan.toml")
    result = bilateral.run(plan)                         # curves, costs, the trained model

The parts for a loop of your own: `ScaleGraph`, `PerturbServer`, `PerturbClient`, `PerturbationSettings`, `aggregate`.
"""

from importlib.metadata import PackageNotFoundError, version

from bilateral.data import Dataset, Split, load_dataset
from bilateral.engine.compare import compare
from bilateral.engine.export import export_run, load_exported
from bilateral.engine.in_process import RunResult, run
from bilateral.engine.plan import RunPlan, load_plan
from bilateral.errors import BilateralError
from bilateral.models.coverage import inspect
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings

try:
    __version__ = version("bilateral")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0.0.0"

__all__ = [
    "BilateralError",
    "Dataset",
    "PerturbClient",
    "PerturbServer",
    "PerturbationSettings",
    "RunPlan",
    "RunResult",
    "ScaleGraph",
    "Split",
    "aggregate",
    "build_model",
    "compare",
    "export_run",
    "inspect",
    "load_dataset",
    "load_exported",
    "load_plan",
    "run",
]
