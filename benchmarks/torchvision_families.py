"""torchvision's image networks under perturbation: accepted or refused, and how far the recovered gradient is off.

    python benchmarks/torchvision_families.py [--only resnet18 ...] [--norm-inputs scaled] [--json]

Needs torchvision beside `bilateral`; its compiled operators are not needed, so a wheel for another CUDA version will do
(`pip install --no-deps --target FOLDER torchvision`, then PYTHONPATH=FOLDER). Every network is in float64, in training
mode, with torch's own initial weights and 10 outputs, on a batch of random pictures. The oracle is plain autograd.
Dropout stays in evaluation mode: the two draw alike, but channels that changed places would lose other elements.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from bilateral.errors import BilateralError, UnsupportedLayerError
from bilateral.models.builder import NormInputs
from bilateral.models.modes import training_copy
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness
from torch import Tensor, nn

NUM_OUTPUTS: Final = 10
BATCH: Final = 6
FAMILIES: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "alexnet": (64, {}),
    "vgg11": (32, {}),
    "vgg11_bn": (32, {}),
    "resnet18": (64, {}),
    "resnext50_32x4d": (64, {}),
    "densenet121": (64, {}),
    "squeezenet1_1": (64, {}),
    "googlenet": (64, {"aux_logits": False, "init_weights": False}),
    "googlenet with auxiliary heads": (64, {"aux_logits": True, "init_weights": False}),
    "inception_v3": (96, {"aux_logits": False, "init_weights": False}),
    "mobilenet_v2": (64, {}),
    "mobilenet_v3_small": (64, {}),
    "mobilenet_v3_large": (64, {}),
    "mnasnet0_5": (64, {}),
    "shufflenet_v2_x0_5": (64, {}),
    "efficientnet_b0": (64, {}),
    "efficientnet_v2_s": (64, {}),
    "regnet_x_400mf": (64, {}),
    "regnet_y_400mf": (64, {}),
    "convnext_tiny": (64, {}),
    "swin_t": (64, {}),
    "vit_b_16": (64, {"image_size": 64}),
}
"""Name of the builder (its first word): the side of the pictures, and the builder's options."""
_OPERATORS: Final = (
    *("nms", "qnms", "qroi_align", "deform_conv2d", "_deform_conv2d_backward"),
    *("roi_align", "_roi_align_backward", "roi_pool", "_roi_pool_backward"),
    *("ps_roi_align", "_ps_roi_align_backward", "ps_roi_pool", "_ps_roi_pool_backward"),
)


@dataclass(frozen=True)
class Row:
    """One network; `relative_error` is the largest difference over the largest entry of the gradient."""

    name: str
    verdict: str
    reason: str = ""
    num_parameters: int = 0
    fraction_clear: float = 0.0
    relative_error: float = 0.0


def import_models() -> Any:
    """`torchvision.models`. Operators that its library does not bring are declared: image networks call none."""
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError:  # "operator torchvision::nms does not exist"
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in _OPERATORS:
            torch.library.define(f"torchvision::{name}", "(Tensor x) -> Tensor")
        return importlib.import_module("torchvision.models")


def measure(name: str, model: nn.Module, side: int, norm_inputs: NormInputs = "exact") -> Row:
    """One round of cross entropy with activation noise against plain autograd, both in float64."""
    shape = (3, side, side)
    num_parameters = sum(p.numel() for p in model.parameters())
    try:
        graph = ScaleGraph.of(model, torch.zeros(2, *shape), norm_inputs=norm_inputs)
    except BilateralError as error:
        kind = "refused (a layer)" if isinstance(error, UnsupportedLayerError) else "refused"
        return Row(name, kind, str(error).split("\n")[0], num_parameters)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64)
    targets = torch.randint(NUM_OUTPUTS, (BATCH,), generator=generator)
    plain = training_copy(model)
    torch.manual_seed(1)  # stochastic depth, the same for both
    named = dict(plain.named_parameters())
    found = torch.autograd.grad(F.cross_entropy(plain(inputs), targets), list(named.values()))
    expected = graph.flatten(dict(zip(named, found, strict=True)), torch.float64)
    settings = PerturbationSettings("ce", norm_inputs=norm_inputs)
    draws = SeededRandomness(0, "torchvision")
    server = PerturbServer(model, graph, settings, draws)
    message = server.start_round(0)
    client = PerturbClient("client", model, graph, settings, draws)
    torch.manual_seed(1)
    upload: Any = client.train(message, inputs, targets, BATCH)
    got = server.recover(aggregate({"client": upload}, 0)).gradient
    clear = sum(p.numel for p in graph.parameters if p.binding is None or p.binding.numerator is None)
    return Row(name, "accepted", "", num_parameters, clear / num_parameters, _relative(got, expected))


def _relative(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected).abs().max() / expected.abs().max())


def build(models: Any, name: str, num_outputs: int = NUM_OUTPUTS) -> tuple[nn.Module, int]:
    side, options = FAMILIES[name]
    make: Callable[..., nn.Module] = getattr(models, name.split(maxsplit=1)[0])
    torch.manual_seed(0)
    model = make(num_classes=num_outputs, **options).double().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    return model, side


def mobilenet_v3_small(num_outputs: int) -> nn.Module:
    """For training: `bilateral compare --model torchvision_families:mobilenet_v3_small`, in this folder.

    Without dropout, whose masks fall on channels that changed places.
    """
    model: nn.Module = import_models().mobilenet_v3_small(num_classes=num_outputs, dropout=0.0)
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--norm-inputs", choices=("exact", "scaled"), default="exact")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tolerance", type=float, default=1e-9, help="largest error of an accepted network")
    options = parser.parse_args()
    try:
        models = import_models()
    except ImportError:
        sys.stderr.write("torchvision is not installed: nothing was measured.\n")
        return 2
    rows = []
    for name in options.only:
        row = measure(name, *build(models, name), options.norm_inputs)
        rows.append(row)
        if not options.json:
            told = f"{row.relative_error:.1e}" if row.verdict == "accepted" else row.reason
            sys.stdout.write(f"| {name} | {row.verdict} | {told} |\n")
            sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(any(row.verdict == "accepted" and not row.relative_error < options.tolerance for row in rows))


if __name__ == "__main__":
    sys.exit(main())
