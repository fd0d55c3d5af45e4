"""The maps of a backward step are the derivatives of a layer, by torch's autograd on small whole numbers."""

import pytest
import torch
import torch.nn.functional as F

from bilateral.protocols.share.circuit.description import Conv, Dense, Value
from bilateral.protocols.share.circuit.gradient_maps import bias_gradient, input_gradient_map, weight_gradient

LAYERS = {
    "dense": (Dense((0,), 5), (7,)),
    "strided": (Conv((0,), 6, (3, 2), (2, 3), (1, 0), (1, 2), 1), (4, 9, 12)),
    "grouped": (Conv((0,), 6, (3, 3), (1, 1), (1, 1), (1, 1), 2), (4, 6, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_maps_are_the_derivatives_of_the_layer(name):
    step, shape = LAYERS[name]
    generator = torch.Generator().manual_seed(1)

    def numbers(*sizes):
        return torch.randint(-99, 99, sizes, generator=generator).double().requires_grad_()

    x, weight = numbers(3, *shape), numbers(*step.weight_shape(Value(shape, 20)))
    bias = numbers(len(weight))
    if isinstance(step, Conv):
        y = F.conv2d(x, weight, bias, step.stride, step.padding, step.dilation, step.groups)
    else:
        y = F.linear(x, weight, bias)
    delta = numbers(*y.shape).detach()
    expected = torch.autograd.grad(y, (x, weight, bias), delta)
    words = delta.long()
    found = (
        input_gradient_map(step, weight.detach().long(), shape, weight_bits=20)(words),
        weight_gradient(step, words, x.detach().long()),
        bias_gradient(step, words),
    )
    assert all(torch.equal(a.double(), b) for a, b in zip(found, expected, strict=True))
