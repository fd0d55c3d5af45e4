"""From an `nn.Module`, as it is in evaluation, to a circuit that answers on shares: all of it, without a public front.

What can be trained on shares can be served so, and BatchNorm too: it is folded, with its running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from bilateral.arguments import checked
from bilateral.errors import NumericalRangeError
from bilateral.protocols.share.circuit.compiler import check_agreement
from bilateral.protocols.share.circuit.description import AvgPool, Circuit, Scale
from bilateral.protocols.share.circuit.graph_compiler import GraphCompiler, Purpose, Rule, encoded_layers
from bilateral.protocols.share.circuit.layer_rules import MODULE_RULES
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, predict_in_batches
from bilateral.protocols.share.circuit.training_rules import TRAINING_FUNCTION_RULES, TRAINING_MODULE_RULES

SERVING: Final = Purpose(
    "served on shares",
    "Supported: Linear, Conv2d, BatchNorm, ReLU, LeakyReLU, max and average pooling, flatten and reshape, residual "
    "sums, concatenation of channels, Dropout (which does nothing here).",
)
_RULES: Final[dict[Any, Rule]] = TRAINING_MODULE_RULES | {
    norm: MODULE_RULES[norm] for norm in (nn.BatchNorm1d, nn.BatchNorm2d)
}


@checked
def compile_served(model: nn.Module, examples: Tensor) -> FixedPointModel:
    """The network as it answers on shares. `examples`: a few inputs of the owner's own, batch first.

    What cannot be served so is refused by name (`UnsupportedLayerError`), and so is a network whose circuit computes
    something else than the network does (`NumericalRangeError`).
    """
    compiler = _ServedCompiler(model, tuple(examples.shape[1:]), _RULES, TRAINING_FUNCTION_RULES)
    circuit = compiler.compile()
    circuit.expect_trainable()
    with torch.no_grad():
        served = FixedPointModel(circuit, encoded_layers(circuit, compiler.layers))
    largest = float(examples.abs().max())
    if not largest <= circuit.largest_input:
        raise NumericalRangeError(
            f"An input of the server's own is {largest:.3g}; sealed answers take inputs up to {circuit.largest_input}.",
            remedy="Normalise the inputs, and train with them.",
        )
    check_agreement(model, examples, predict_in_batches(served, examples))
    return served


@dataclass
class _ServedCompiler(GraphCompiler):
    purpose: Purpose = SERVING

    def append_average(self, step: AvgPool) -> int:
        value = self.append(step)
        averaged = Circuit(self.input_shape, tuple(self.steps)).output
        return value if averaged.is_whole else self.append(Scale.of(value, averaged.divisor))
