"""Sizes of a layer: what is left in the hardened comparison, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bilateral.audit.topics.shared.attacks.activation_sizes import LOG_SIZES, read_adaptively, read_naively
from bilateral.protocols.share.gates.judged import Blinding
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED
from bilateral.protocols.share.ring.streams import Stream

BITS = 20


def seen(t, style=HARDENED, seed=1):
    """u of these numbers, as blinding makes it."""
    blinding = Blinding.draw(Stream.of(bytes([seed]) * 32, "comparison", 0, 0), tuple(t.shape), BITS, style)
    return blinding.signs * (blinding.factors * t + blinding.offsets)


@pytest.mark.parametrize("style", [HARDENED, PUBLISHED])
@pytest.mark.parametrize("octave", [16, 20, 24])
def test_the_mean_size_of_a_layer_is_read(style, octave):
    read = read_adaptively([seen(torch.full((1, 4000), 2**octave), style)[0]], style, BITS)
    assert abs(read.mean_log - octave) < 0.15
    assert abs(float(read.distribution @ LOG_SIZES) - octave) < 0.3


def test_two_sizes_in_one_layer_are_told_by_deconvolution():
    t = torch.cat([torch.full((1, 3000), 2**14), torch.full((1, 3000), 2**24)], dim=1)
    read = read_adaptively([seen(t)[0]], HARDENED, BITS)
    near = [read.distribution[np.abs(LOG_SIZES - octave) < 2].sum() for octave in (14, 24)]
    assert min(near) > 0.4


def test_zeros_are_counted():
    t = torch.cat([torch.zeros(1, 300, dtype=torch.int64), torch.full((1, 700), 2**20)], dim=1)
    assert abs(read_adaptively([seen(t)[0]], HARDENED, BITS).zeros - 0.3) < 0.01
    assert read_naively(seen(t)[0], BITS).zeros == 0.0


def test_sizes_do_not_tell_a_number_from_its_opposite():
    """The negative control: t and -t - 1 are read alike."""
    t = torch.full((1, 4000), 2**20)
    up, down = (read_adaptively([seen(x, seed=s)[0]], HARDENED, BITS) for x, s in ((t, 2), (-t - 1, 3)))
    assert abs(up.mean_log - down.mean_log) < 0.2
