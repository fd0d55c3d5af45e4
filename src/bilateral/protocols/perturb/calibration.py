"""Sizing the additive noise: how large the head's inputs and the logits of the true model are.

Noise a hundred times the logits cancels only to 1e-3 in float32; noise of their own size cancels as well as plain
float32 computes (spec 1.5). The server measures both on inputs of its own: public data if it has some, otherwise
standard normal numbers in the shape of the data, which are good enough for a size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.randomness import Randomness


@dataclass(frozen=True)
class Calibration:
    """True head inputs of a few samples (samples x features, float64), and the spread of their logits."""

    head_inputs: Tensor
    logit_spread: float


def calibrate(model: nn.Module, head: str, inputs: Tensor) -> Calibration:
    """Run `inputs` through the true model in evaluation mode and look at its head."""
    captured: list[Tensor] = []
    handle = model.get_submodule(head).register_forward_pre_hook(lambda _, args: captured.append(args[0]))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(inputs).double()
    finally:
        handle.remove()
        model.train(was_training)
    spread = float(logits.square().mean().sqrt())
    # A model of all zeros still gets noise: of the size of a target.
    return Calibration(captured[0].double(), spread if spread > 1e-6 else 1.0)


def normal_inputs(input_shape: tuple[int, ...], randomness: Randomness, count: int = 8) -> Tensor:
    """Standard normal inputs for a server without data."""
    return randomness.normal(count, *input_shape).float()
