"""What a client's step costs on large networks, in plain steps: torchvision's, with squared error and activation noise.

    python benchmarks/large_steps.py [--only alexnet ...] [--repeats 5]

Needs torchvision, as `torchvision_families.py` does. Three steps are taken in turn on one thread, and processor time is
compared: the perturbed one, that of our FedSGD client, and a bare one of torch (forward, backward, gradients anew). By
counting passes the first is 7/3 of the second. Prints the median ratio, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from bilateral.bench.bed import make_batch, make_bed
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from torch import nn

from torchvision_families import import_models

NUM_OUTPUTS: Final = 10
NETWORKS: Final[dict[str, tuple[str, int, int, dict[str, Any]]]] = {
    "alexnet": ("alexnet", 224, 8, {}),
    "resnet18": ("resnet18", 64, 16, {}),
    "resnet18 with GroupNorm": ("resnet18", 32, 32, {"norm_layer": partial(nn.GroupNorm, 32)}),
}
"""Builder, side of the pictures, samples a batch, options."""


def steps_of(model: nn.Module, side: int, samples: int) -> dict[str, Callable[[], object]]:
    """The three steps on one batch."""
    batch = make_batch(samples, torch.float32, (3, side, side))
    graph = ScaleGraph.of(model, batch.inputs)
    targets = batch.targets("mse", NUM_OUTPUTS)
    plain = FedAvgClient("plain", model, graph, "mse", channels_last=False)
    message = FedAvgServer(model, graph).start_round(0)
    bed = make_bed(model, graph, PerturbationSettings("mse"), batch, channels_last=False)
    bare = copy.deepcopy(model).train()

    def torch_step() -> None:
        bare.zero_grad()
        torch.autograd.backward(F.mse_loss(bare(batch.inputs), targets))

    return {
        "perturbed": partial(bed.client_step, bed.server.start_round(0), batch),
        "plain": partial(plain.train, message, batch.inputs, targets, samples),
        "torch": torch_step,
    }


def ratios(steps: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Of the perturbed step to each of the others, by repetition; the first one warms up."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, step in steps.items():
            started = time.process_time()
            step()
            taken[name].append(time.process_time() - started)
    own = taken.pop("perturbed")
    return {name: sorted(a / b for a, b in zip(own[1:], times[1:], strict=True)) for name, times in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        models = import_models()
    except ImportError:
        sys.stderr.write("torchvision is not installed: nothing was measured.\n")
        return 2
    for name in options.only:
        builder, side, samples, more = NETWORKS[name]
        torch.manual_seed(0)
        model = getattr(models, builder)(num_classes=NUM_OUTPUTS, **more)
        found = ratios(steps_of(model, side, samples), options.repeats)
        told = [f"{statistics.median(r):.2f} ({r[0]:.2f}-{r[-1]:.2f}) {other} steps" for other, r in found.items()]
        sys.stdout.write(f"| {name} | {' | '.join(told)} |\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
