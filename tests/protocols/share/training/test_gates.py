"""Where a sealed gradient is more than 1e-4 from float64's, ReLUs or poolings next to zero were decided otherwise, and
that is all: with its decisions, float64 has the same gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.protocols.share.training.stepping import float_gradients, step_of
from tests.protocols.share.training.test_gradients import TOLERANCE, largest_error

from bilateral.bench.step_networks import NETWORKS, StepNetwork, make_batch
from bilateral.models.zoo import build_model
from bilateral.protocols.share.circuit.description import MaxPool, Relu
from bilateral.protocols.share.circuit.walk import windows
from bilateral.protocols.share.training import roles

UNITS = 2.0**-20


def vgg7():
    return build_model("vgg-7", input_shape=(3, 32, 32), num_outputs=10)


def taken(network, loss, batch_size, monkeypatch):
    """A step of a network of the benchmark on its batch; the gradient's words, and every bit that was decided."""
    inputs, targets = make_batch(network, batch_size)
    made = step_of(network.build(), network.input_shape, loss, batch_size)
    made = replace(made, inputs=inputs, targets=targets.argmax(1) if loss == "ce" else targets)
    decided = {True: [], False: []}
    compare = roles._Computing.compare

    def listened(self, x, bits):
        bit = yield from compare(self, x, bits)
        decided[self.is_first].append(bit.share())
        return bit

    monkeypatch.setattr(roles._Computing, "compare", listened)
    words = made.take().words
    bits = iter([(one + other).bool() for one, other in zip(decided[True], decided[False], strict=True)])
    found = {}
    for index, made_by in enumerate(made.terms.circuit.steps):
        if isinstance(made_by, Relu):
            found[index] = [next(bits)]
        elif isinstance(made_by, MaxPool):
            found[index] = [next(bits) for _ in range((made_by.kernel[0] * made_by.kernel[1] - 1).bit_length())]
    return made, words, found


class Decided:
    """ReLU and pooling in float64: as `bits` say, or by their own numbers. `otherwise`: how far from zero those were
    that the bits decided differently."""

    def __init__(self, made, bits, *, follow):
        self.steps, self.bits, self.follow, self.otherwise = made.terms.circuit.steps, bits, follow, []
        self.order = iter([index for index, step in enumerate(self.steps) if isinstance(step, Relu | MaxPool)])

    def relu(self, x):
        return x * self._decide(x, self.bits[next(self.order)][0])

    def max_pool2d(self, x, kernel, stride, padding):
        bits = self.bits[next(self.order)]
        candidates = torch.stack(windows(x, kernel, stride, padding), dim=1)
        for bit in bits:
            half = candidates.shape[1] // 2
            first, second, odd = candidates[:, :half], candidates[:, half : 2 * half], candidates[:, 2 * half :]
            chosen = self._decide(first - second, bit)
            candidates = torch.cat([torch.where(chosen, first, second), odd], dim=1)
        return candidates[:, 0]

    def _decide(self, x, bit):
        own = x > 0
        self.otherwise += x.detach()[own != bit].abs().tolist()
        return bit if self.follow else own


def decided_by(made, bits, monkeypatch, *, follow):
    decided = Decided(made, bits, follow=follow)
    with monkeypatch.context() as patch:
        patch.setattr(F, "relu", decided.relu)
        patch.setattr(F, "max_pool2d", decided.max_pool2d)
        return float_gradients(made), decided.otherwise


CASES = [
    (NETWORKS["lenet"], "ce", 8),
    pytest.param(NETWORKS["lenet"], "ce", 32, marks=pytest.mark.long),
    pytest.param(NETWORKS["resnet-8"], "ce", 32, marks=pytest.mark.long),
    pytest.param(NETWORKS["resnet-8"], "mse", 32, marks=pytest.mark.long),
    pytest.param(StepNetwork(vgg7, (3, 32, 32), 10, (32,)), "ce", 32, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("network", "loss", "batch_size"), CASES)
def test_a_gradient_is_float64s_once_numbers_next_to_zero_are_decided_alike(network, loss, batch_size, monkeypatch):
    made, words, bits = taken(network, loss, batch_size, monkeypatch)
    found = made.terms.decode(words)
    assert largest_error(found, float_gradients(made)) > TOLERANCE, "the control: here something was decided otherwise"
    alike, _ = decided_by(made, bits, monkeypatch, follow=True)
    assert largest_error(found, alike) < TOLERANCE
    _, otherwise = decided_by(made, bits, monkeypatch, follow=False)
    decisions = sum(bit.numel() for levels in bits.values() for bit in levels)
    assert 0 < len(otherwise) < 1e-5 * decisions + 2
    assert max(otherwise) < 100 * UNITS
