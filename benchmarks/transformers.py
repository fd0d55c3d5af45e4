"""A vision and a text Transformer under perturbation: what is hidden, what a step costs, and whether they learn.

    python benchmarks/transformers.py [--rounds 200] [--only-training] [--json]

ViT-tiny (192 channels, 3 heads, 12 layers, patches of 4, a class token, learned positions) on pictures of 3 x 32 x 32
for coverage and cost; a smaller one (48 channels, 3 layers) on digits, and a text Transformer on windows of 48
characters of three packages of Python's standard library, for training: perturbed FedSGD beside plain FedSGD, same
seeds and batches. In a plan: `--model transformers:vit_small --data digits`, in this folder.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from bilateral.bench.clock import alternate, ratio_row
from bilateral.data import Dataset, Split
from bilateral.engine.plan import RunPlan
from bilateral.models.coverage import Coverage, coverage
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness
from bilateral.runs.rounds.in_process import run
from torch import Tensor, nn

LENGTH: Final = 48
PACKAGES: Final = ("json", "email", "unittest")
LARGEST_CHARACTER: Final = 128
BATCH: Final = 16


class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, layers with the norm first."""

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, size: int, heads: int, layers: int, patch: int
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.patches = nn.Conv2d(channels, size, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, size))
        self.places = nn.Parameter(0.02 * torch.randn(1, (height // patch) * (width // patch) + 1, size))
        layer = nn.TransformerEncoderLayer(size, heads, 4 * size, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        found: Tensor = self.head(self.norm(self.encoder(x)[:, 0]))
        return found


class TextTransformer(nn.Module):
    """Characters, learned positions, two layers with the norm last, the mean over what is no filling."""

    def __init__(self, num_outputs: int, size: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(LARGEST_CHARACTER, size)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, size))
        layer = nn.TransformerEncoderLayer(size, heads, 2 * size, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(size, num_outputs)

    def forward(self, characters: Tensor) -> Tensor:
        filling = characters == 0
        x = self.encoder(self.characters(characters) + self.places, src_key_padding_mask=filling)
        kept = (~filling).unsqueeze(-1).to(x.dtype)
        found: Tensor = self.head((x * kept).sum(1) / kept.sum(1))
        return found


def vit_tiny(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return VisionTransformer(input_shape, num_outputs, 192, 3, 12, 4)


def vit_small(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return VisionTransformer(input_shape, num_outputs, 48, 3, 3, 2)


def text_transformer(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    assert input_shape == (LENGTH,)
    return TextTransformer(num_outputs)


def library_text() -> Dataset:
    """Which package of Python's standard library a line of source comes from, by its characters; 0 fills up."""
    root = Path(sysconfig.get_paths()["stdlib"])
    rows, labels = [], []
    for label, package in enumerate(PACKAGES):
        text = "\n".join(p.read_text("utf-8", "ignore") for p in sorted((root / package).glob("*.py")))
        lines = [line.strip() for line in text.splitlines() if len(line.strip()) >= LENGTH // 2]
        for line in lines[:1200]:
            known = [min(ord(c), LARGEST_CHARACTER - 1) for c in line[:LENGTH]]
            rows.append(known + [0] * (LENGTH - len(known)))
            labels.append(label)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    inputs, targets = torch.tensor(rows)[order], torch.tensor(labels)[order]
    cut = len(rows) * 4 // 5
    return Dataset(
        "library text",
        "classification",
        Split(inputs[:cut], targets[:cut]),
        Split(inputs[cut:], targets[cut:]),
        len(PACKAGES),
        class_names=PACKAGES,
    )


def covered(model: nn.Module, example: Tensor) -> dict[str, Any]:
    found: Coverage = coverage(ScaleGraph.of(model, example))
    return {
        "parameters": found.num_parameters,
        "with_a_factor": 1 - found.fraction_clear,
        "changing_place": sum(row.num_moved for row in found.rows) / found.num_parameters,
        "factors": found.num_scale_factors,
        "channels": found.num_hidden_channels,
        "movable_channels": found.num_movable_channels,
    }


def step_cost(repeats: int) -> dict[str, Any]:
    """A client's step on ViT-tiny beside plain autograd's, and how far recovery is off in float64."""
    torch.manual_seed(0)
    model = vit_tiny((3, 32, 32), 10)
    graph = ScaleGraph.of(model, torch.zeros(2, 3, 32, 32))
    inputs, targets = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    settings = PerturbationSettings("ce")
    plain = copy.deepcopy(model).train()
    server = PerturbServer(model, graph, settings, SeededRandomness(0))
    client = PerturbClient("a", model, graph, settings, SeededRandomness(1))
    message = server.start_round(0)

    def plainly() -> None:
        F.cross_entropy(plain(inputs), targets).backward()  # type: ignore[no-untyped-call]

    seconds = alternate(
        {
            "plain": plainly,
            "client": lambda: client.train(message, inputs, targets, BATCH),
            "server": lambda: server.start_round(0),
        },
        repeats,
    )
    return {
        "client": ratio_row(seconds["client"], seconds["plain"]),
        "server": ratio_row(seconds["server"], seconds["plain"]),
        "recovery_error": recovery_error(model, graph, inputs[:4], targets[:4]),
    }


def recovery_error(model: nn.Module, graph: ScaleGraph, inputs: Tensor, targets: Tensor) -> float:
    """Largest difference to plain autograd over the largest entry, in float64."""
    wide, settings = copy.deepcopy(model).double().train(), PerturbationSettings("ce")
    x = inputs.double() if inputs.is_floating_point() else inputs
    server = PerturbServer(wide, graph, settings, SeededRandomness(2))
    client = PerturbClient("a", wide, graph, settings, SeededRandomness(3))
    upload: Any = client.train(server.start_round(0), x, targets, len(x))
    got = server.recover(aggregate({"a": upload}, 0)).gradient
    named = {n: p for n, p in wide.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(F.cross_entropy(wide(x), targets), list(named.values()))
    expected = graph.flatten(dict(zip(named, found, strict=True)), torch.float64)
    return float((got - expected).abs().max() / expected.abs().max())


def trained(model: str, data: str, rounds: int, rate: float) -> dict[str, Any]:
    """Perturbed training and plain FedSGD on the same seeds."""
    plan = RunPlan().with_settings(
        {
            "protection": "perturbation",
            "data.name": data,
            "model.name": model,
            "federation.clients": 4,
            "training.rounds": rounds,
            "training.batch_size": 64,
            "training.optimiser": "adam",
            "training.learning_rate": rate,
            "training.evaluate_every": rounds,
        }
    )
    result = run(plan, save=False)
    assert result.recovery is not None and result.metrics_of_fedavg is not None
    return {
        "model": model,
        "data": data,
        "rounds": rounds,
        "accuracy": result.metrics["test_accuracy"],
        "accuracy_of_fedsgd": result.metrics_of_fedavg["test_accuracy"],
        "difference_of_weights": result.difference_to_fedavg,
        "recovery": str(result.recovery),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only-training", action="store_true")
    chosen = parser.parse_args()
    text = TextTransformer(3)
    trainings = (
        ("transformers:vit_small", "digits", 0.003),
        ("transformers:text_transformer", "transformers:library_text", 0.003),
    )
    if chosen.only_training:  # a line each, as they come
        for model, data, rate in trainings:
            print(json.dumps(trained(model, data, chosen.rounds, rate)), flush=True)  # noqa: T201
        return
    found = {
        "coverage": {
            "vit_tiny": covered(vit_tiny((3, 32, 32), 10), torch.zeros(2, 3, 32, 32)),
            "text": covered(text, torch.zeros(2, LENGTH, dtype=torch.int64)),
        },
        "vit_tiny_step": step_cost(chosen.repeats),
        "training": [trained(model, data, chosen.rounds, rate) for model, data, rate in trainings],
    }
    print(json.dumps(found, indent=None if chosen.json else 1))  # noqa: T201


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
