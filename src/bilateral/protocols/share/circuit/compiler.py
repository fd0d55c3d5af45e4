"""From an `nn.Module` to a circuit and ring weights, by its `torch.fx` graph.

BatchNorm is folded into the layer before it, or becomes a 1x1 convolution of its own where there is none. A ReLU
followed by max pooling is done after it: both orders give the same numbers, and this one compares half as often. What
has no rule is refused by name.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from bilateral.arguments import checked
from bilateral.errors import ModelError, NumericalRangeError
from bilateral.protocols.share.circuit.description import LARGEST_INPUT, VALUE_BITS
from bilateral.protocols.share.circuit.graph_compiler import GraphCompiler
from bilateral.protocols.share.circuit.layer_rules import FUNCTION_RULES, MODULE_RULES
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, PlainArithmetic, predict_in_batches

_HEADROOM: Final = 4
"""Numbers of the answering party's own samples must stay this far below the bound; a stranger's query may be larger."""
_AGREEMENT: Final = 2.0**-6


@checked
def compile_model(model: nn.Module, samples: Tensor, *, value_bits: int = VALUE_BITS) -> FixedPointModel:
    """The network as a circuit with ring weights.

    `samples` (the owner's own, batch first) fix the shapes, and no number in the network may come near the bound of
    comparisons, 2^value_bits, on them (`NumericalRangeError`). Sealed comparisons are cheaper the smaller the bound is,
    in steps of four bits, and wrong beyond it.
    """
    if not len(samples):
        raise ModelError(f"{type(model).__name__} has no samples to be checked on.", remedy="Give one or more.")
    compiled = GraphCompiler(model, tuple(samples.shape[1:]), MODULE_RULES, FUNCTION_RULES).run()
    largest_input = min(LARGEST_INPUT, 2 ** math.ceil(math.log2(max(1.0, float(samples.abs().max())))))
    compiled = FixedPointModel(
        replace(compiled.circuit, largest_input=largest_input, value_bits=value_bits), compiled.layers
    )
    arithmetic = PlainArithmetic(compiled)
    found = predict_in_batches(compiled, samples, arithmetic=arithmetic)
    where, largest = max(arithmetic.largest.items(), key=lambda item: item[1], default=("", 0.0))
    if largest * _HEADROOM >= 2**value_bits:
        raise NumericalRangeError(
            f"{type(model).__name__} reaches {largest:.0f} at {where}; secret-shared prediction compares numbers below "
            f"{2**value_bits} and wants {_HEADROOM} times of room.",
            remedy="Normalise the inputs, use BatchNorm, or train with weight decay.",
        )
    check_agreement(model, samples, found)
    return compiled


def check_agreement(model: nn.Module, samples: Tensor, found: Tensor) -> None:
    """What wrapped around the ring, or was overwritten in place, gives other logits than the network itself."""
    with torch.no_grad():
        expected = copy.deepcopy(model).cpu().double().eval()(samples.double())
    difference = float((found - expected).abs().max())
    if not difference <= _AGREEMENT * (1 + float(expected.abs().max())):
        raise NumericalRangeError(
            f"{type(model).__name__} in fixed point differs from itself by {difference:.3g} on the samples.",
            remedy="Normalise the inputs, and do not read a tensor after an in-place operation has changed it.",
        )
