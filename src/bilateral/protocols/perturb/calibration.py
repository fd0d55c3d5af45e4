"""Sizing the additive noise: how large the head's inputs and the logits of the true model are.

Noise a hundred times the logits cancels only to 1e-3 in float32; noise of their own size cancels as well as plain
float32 computes (spec 1.5). The server measures both on inputs of its own: public data if it has some, otherwise
standard normal numbers in the shape of the data, which are good enough for a size.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bilateral.randomness import Randomness


@dataclass(frozen=True, repr=False)
class Calibration:
    """True head inputs of a few samples (samples x features, float64), and the spread of their logits."""

    head_inputs: Tensor
    logit_spread: float


class Calibrator:
    """Looks at the true model through a copy of its own, so that the model itself is not touched.

    BatchNorm takes the statistics of the batch, as it does at the clients: before the first rounds the running ones
    can be off by orders of magnitude. Everything else (dropout) is in evaluation mode.
    """

    def __init__(self, model: nn.Module, head: str, inputs: Tensor) -> None:
        self._model = model
        self._inputs = inputs
        self._copy = copy.deepcopy(model).eval()
        for module in self._copy.modules():
            if isinstance(module, _BatchNorm) and len(inputs) > 1:
                module.train()
        self._captured: list[Tensor] = []
        self._copy.get_submodule(head).register_forward_pre_hook(lambda _, args: self._captured.append(args[0]))

    def measure(self) -> Calibration:
        self._copy.load_state_dict(self._model.state_dict())
        with torch.no_grad():
            logits = self._copy(self._inputs).double()
        spread = float(logits.square().mean().sqrt())
        # A model of all zeros still gets noise: of the size of a target.
        return Calibration(self._captured.pop().double(), spread if spread > 1e-6 else 1.0)


def normal_inputs(input_shape: tuple[int, ...], randomness: Randomness, count: int = 8) -> Tensor:
    """Standard normal inputs for a server without data."""
    return randomness.normal(count, *input_shape).float()
