"""Bringing the logits of different architectures to one scale before they are summed, without anybody's help.

A network with large logits outvotes the others in a sum. P4 ("impact of the normalization operation") compares sums of
raw logits with sums of normalised ones, and normalising every answer under secret sharing costs multiplications,
divisions and exponentials. Two ways here:

- `scale`: an answerer multiplies its own output layer by one constant that it finds from its own samples. That is
  local, free, and works with secret sharing, since the scaled network is a network like any other. It evens out
  architectures, not single answers.
- `softmax`: every answer becomes probabilities. Exact, for plaintext only; a yardstick for the first.
"""

from __future__ import annotations

import copy
from typing import Final

import torch
from torch import Tensor, nn

from bilateral.errors import ModelError
from bilateral.learning.hetero.fitting import output_layer, predict
from bilateral.learning.hetero.settings import Normalisation

COMMON_SPREAD: Final = 3.0
"""The standard deviation over the classes that scaled logits have on average: public, the same for everybody."""
_MIN_SPREAD: Final = 1e-6
_NUM_CHECKED: Final = 8


def answering_copy(model: nn.Module, normalisation: Normalisation, samples: Tensor) -> nn.Module:
    """A frozen copy that answers queries, in eval mode and torch's default memory format."""
    answering = copy.deepcopy(model).eval().requires_grad_(False)
    answering.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    match normalisation:
        case "none":
            return answering
        case "scale":
            _scale_outputs(answering, common_spread_factor(answering, samples), samples[:_NUM_CHECKED])
            return answering
        case "softmax":
            return nn.Sequential(answering, nn.Softmax(dim=1)).eval()
    raise ModelError(f"There is no normalisation {normalisation!r}.")


def common_spread_factor(model: nn.Module, samples: Tensor) -> float:
    """The factor that brings the mean spread of the logits over `samples` to `COMMON_SPREAD`.

    The spread of a row is its standard deviation over the classes: what a constant shift of all logits, which softmax
    ignores, does not change.
    """
    spread = float(predict(model, samples).std(dim=1, correction=0).mean())
    return COMMON_SPREAD / max(spread, _MIN_SPREAD)


def _scale_outputs(model: nn.Module, factor: float, samples: Tensor) -> None:
    """Multiply weight and bias of the output layer, and make sure that it is the output layer."""
    before = predict(model, samples)
    layer = output_layer(model)
    layer.weight.mul_(factor)
    if layer.bias is not None:
        layer.bias.mul_(factor)
    if not torch.allclose(predict(model, samples), factor * before, rtol=1e-3, atol=1e-4):
        raise ModelError(
            "Scaling the last Linear layer does not scale the network's outputs.",
            remedy="Name the output layer `head`, or use normalisation = 'none'.",
        )
