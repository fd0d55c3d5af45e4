"""How layers become steps of a circuit that is trained, where that differs from prediction (`layer_rules`)."""

from __future__ import annotations

from typing import Any, Final

import torch.nn.functional as F
from torch import nn

from bilateral.protocols.share.circuit.description import (
    FACTOR_BITS,
    ChannelDropout,
    Dropout,
    LeakyRelu,
    Relu,
)
from bilateral.protocols.share.circuit.graph_compiler import Call, GraphCompiler, Purpose, Rule
from bilateral.protocols.share.circuit.layer_rules import FUNCTION_RULES, MODULE_RULES

TRAINING: Final = Purpose(
    "trained on shares",
    "Supported: Linear, Conv2d, frozen BatchNorm, ReLU, LeakyReLU, max and average pooling, flatten and reshape, "
    "residual sums, concatenation of channels, Dropout.",
)
UNFROZEN: Final = (
    "Freeze it (`.eval()` on this layer after `model.train()`, and `requires_grad_(False)` on its parameters), or "
    "train the network without normalisation layers."
)


def _batch_norm(compiler: GraphCompiler, call: Call) -> int:
    assert call.module is not None
    if call.module.training:
        raise call.refuse("it would normalise by statistics of a batch that nobody sees", UNFROZEN)
    return MODULE_RULES[type(call.module)](compiler, call)


def _other_norm(_compiler: GraphCompiler, call: Call) -> int:
    raise call.refuse(
        "it normalises by statistics of what nobody sees",
        "Train the network without normalisation layers, or with BatchNorm that is frozen.",
    )


def _leaky_relu(compiler: GraphCompiler, call: Call) -> int:
    (slope,) = call.settings("negative_slope", negative_slope=0.01)
    units, source = round(slope * (1 << FACTOR_BITS)), compiler.source(call)
    if not 0 <= units < 1 << FACTOR_BITS:
        raise call.refuse(f"its slope is {slope}, and only slopes from 0 to less than 1 have a rule")
    return compiler.append(LeakyRelu((source,), units) if units else Relu((source,)))


def _dropout(compiler: GraphCompiler, call: Call) -> int:
    p, is_training = call.settings("p", "training", p=0.5, training=True)
    source = compiler.source(call)
    threshold = round(p * (1 << FACTOR_BITS))
    if not (is_training and threshold):
        return source
    if p > 1 - 2**-4:
        raise call.refuse(f"it drops {p:.4g} of all numbers; at most 15 of 16 have a rule")
    step: type[Dropout | ChannelDropout] = Dropout
    drops_channels = isinstance(call.module, nn.Dropout2d) or call.node.target is F.dropout2d
    if drops_channels and len(compiler.shape_of(source)) == 3:
        step = ChannelDropout
    return compiler.append(step((source,), threshold))


TRAINING_MODULE_RULES: Final[dict[type[nn.Module] | None, Rule]] = MODULE_RULES | {
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _other_norm,
    nn.LayerNorm: _other_norm,
    nn.InstanceNorm2d: _other_norm,
    nn.LeakyReLU: _leaky_relu,
    nn.Dropout: _dropout,
    nn.Dropout2d: _dropout,
}
TRAINING_FUNCTION_RULES: Final[dict[Any, Rule]] = FUNCTION_RULES | {
    F.leaky_relu: _leaky_relu,
    F.dropout: _dropout,
    F.dropout2d: _dropout,
}
