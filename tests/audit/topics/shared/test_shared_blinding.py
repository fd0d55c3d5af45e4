"""The auditor's own blinding: the distribution that the hardened comparison has, by other code."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from bilateral.audit.topics.shared.shared_blinding import _blinded
from bilateral.protocols.share.gates.judged import Blinding, factor_bits
from bilateral.protocols.share.gates.styles import HARDENED
from bilateral.randomness import SeededRandomness

BITS = 20
COUNT = 20_000


def by_the_protocol(numbers):
    generator = torch.Generator().manual_seed(0)
    words, spread = (torch.randint(-(2**63), 2**63 - 1, numbers.shape, generator=generator) for _ in range(2))
    drawn = Blinding(words, spread, None, factor_bits(BITS), HARDENED)
    return drawn.signs * (drawn.factors * numbers + drawn.offsets)


@pytest.mark.parametrize("number", [-(1 << 20), -1, 0, 12345])
def test_ideal_blinding_has_the_distribution_of_the_protocols(number):
    numbers = torch.full((1, COUNT), number)
    ours, theirs = _blinded(numbers, BITS, SeededRandomness(1), spoilt=False), by_the_protocol(numbers)
    sizes = [blinded.abs().double().log2().flatten().numpy() for blinded in (ours, theirs)]
    assert stats.ks_2samp(*sizes).pvalue > 0.01
    assert abs(float((ours > 0).double().mean()) - 0.5) < 0.02
    assert bool((ours != 0).all())


def test_spoilt_blinding_shows_signs_and_relative_sizes():
    numbers = torch.tensor([[5000, -3000, 70000], [1 << 20, -(1 << 10), 0]])
    blinded = _blinded(numbers, BITS, SeededRandomness(1), spoilt=True)
    assert torch.equal(blinded > 0, numbers >= 0)
    ratios = blinded[0].double() / blinded[0, 0]
    assert torch.allclose(ratios, numbers[0].double() / 5000, rtol=1e-3)
