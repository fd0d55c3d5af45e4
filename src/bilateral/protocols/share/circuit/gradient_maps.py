"""The linear maps of a backward step, by the circuit's layers: through a layer, and to its weights."""

from __future__ import annotations

from torch import Tensor

from bilateral.protocols.share.circuit.description import Conv, Linear, Shape
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring import gradients
from bilateral.protocols.share.ring.window import Window


def input_gradient_map(step: Linear, weight: Tensor, source_shape: Shape, weight_bits: int = 64) -> ring.LinearMap:
    """What a gradient of the layer's output makes of its input, (batch, ...) to (batch, *source_shape)."""
    if isinstance(step, Conv):
        size = (source_shape[1], source_shape[2])
        return gradients.prepare_conv2d_transpose(weight, _window(step), size, weight_bits=weight_bits)
    return gradients.prepare_linear_transpose(weight, weight_bits=weight_bits)


def weight_gradient(step: Linear, delta: Tensor, source: Tensor) -> Tensor:
    """The sum over the batch of a gradient of the layer's output times its input, in the shape of its weights.

    Bilinear modulo 2^64 in both: it may be taken of shares and masks.
    """
    if isinstance(step, Conv):
        return gradients.conv2d_weight_gradient(delta, source, _window(step))
    return gradients.linear_weight_gradient(delta, source)


def bias_gradient(step: Linear, delta: Tensor) -> Tensor:
    """The same for its bias: a sum over the batch and all pixels."""
    return delta.sum((0, 2, 3) if isinstance(step, Conv) else 0)


def _window(step: Conv) -> Window:
    return Window(step.kernel, step.stride, step.padding, step.dilation, step.groups)
