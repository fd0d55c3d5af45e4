"""Sizing the additive noise: how large the head's inputs and weights are, and how far the logits are spread.

Noise a hundred times what the gradient is made of cancels only to 1e-3 in float32; noise of that size cancels as well
as plain float32 computes (spec 1.5). A gradient is made of residuals, and where training gets anywhere they are of the
size of the *spread* of the logits from sample to sample. Their mean says nothing about that: with targets of 2000 +- 1
it is 2000, and noise of that size would cost three digits. The server measures on inputs of its own: public data if it
has some, otherwise standard normal numbers in the shape of the data, which are good enough for a size.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bilateral.models.integer_inputs import integers_below
from bilateral.models.modes import kept_in_evaluation
from bilateral.models.scale_graph import ScaleGraph
from bilateral.randomness import Randomness


@dataclass(frozen=True, repr=False)
class Calibration:
    """True head inputs of a few samples (samples x features, float64), the head's weights, the spread of the logits."""

    head_inputs: Tensor
    head_weight_sizes: Tensor
    """Root mean square of the head's weights on each feature, over the outputs; 1 / sqrt(features) if all are 0."""
    logit_spread: float


class Calibrator:
    """Looks at the true model through a copy of its own, so that the model itself is not touched.

    BatchNorm takes the statistics of the batch if it does so at the clients: before the first rounds the running ones
    can be off by orders of magnitude. Everything else (dropout) is in evaluation mode.
    """

    def __init__(self, model: nn.Module, head: str, inputs: Tensor) -> None:
        self._model = model
        self._inputs = inputs
        self._copy = copy.deepcopy(model).eval()
        kept = kept_in_evaluation(model)
        for name, module in self._copy.named_modules():
            if isinstance(module, _BatchNorm) and len(inputs) > 1 and name not in kept:
                module.train()
        captured: list[Tensor] = []
        self._captured = captured
        self._head = self._copy.get_submodule(head)
        self._head.register_forward_pre_hook(
            lambda _, args: captured.append(args[0])
        )  # a hook that knew `self` would keep the copy alive

    def measure(self) -> Calibration:
        self._copy.load_state_dict(self._model.state_dict())
        with torch.no_grad():
            logits = self._copy(self._inputs).double()
            sizes = self._head.get_parameter("weight").double().square().mean(0).sqrt()
        if not bool(sizes.any()):
            sizes = torch.full_like(sizes, len(sizes) ** -0.5)
        return Calibration(self._captured.pop().double(), sizes, logit_spread(logits))


def logit_spread(logits: Tensor) -> float:
    """How far logits (samples x outputs) lie from their mean over the samples, as a root mean square.

    At least a thousandth of their own size, which costs no digits: float32 rounds them by more. A model of all zeros
    still gets noise: of the size of a target.
    """
    size = float(logits.square().mean().sqrt())
    around = float(logits.var(0).mean().sqrt()) if len(logits) > 1 else size
    return max(around, 1e-3 * size) or 1.0


def inputs_for(graph: ScaleGraph, input_shape: tuple[int, ...], randomness: Randomness, count: int = 8) -> Tensor:
    """Inputs of the server's own for a network: normal numbers, or integers within its tables."""
    if graph.vocabulary is None:
        return normal_inputs(input_shape, randomness, count)
    return integers_below(graph.vocabulary, randomness.uniform(count, *input_shape, low=0.0, high=1.0))


def normal_inputs(input_shape: tuple[int, ...], randomness: Randomness, count: int = 8) -> Tensor:
    """Standard normal inputs for a server without data."""
    return randomness.normal(count, *input_shape).float()
