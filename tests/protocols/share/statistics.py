"""Tests of distributions at one strict level: the seeds are fixed, so a failure is a finding, not bad luck."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

LEVEL = 1e-6


def assert_uniform(words):
    """Every byte, every bit, and neighbouring bits of these ring elements are as those of uniform ones."""
    data = words.contiguous().reshape(-1).view(torch.uint8).numpy()
    assert len(data) >= 4096, "too little to say anything"
    counts = np.bincount(data, minlength=256)
    assert stats.chisquare(counts).pvalue > LEVEL, "bytes"
    bits = np.unpackbits(data)
    for name, ones in (("bits", bits), ("neighbours", bits[1:] ^ bits[:-1])):
        assert stats.binomtest(int(ones.sum()), len(ones)).pvalue > LEVEL, name
    # The top byte is where a small number that was not masked would show.
    size = words.element_size()
    top = np.bincount(data[size - 1 :: size] >> 4, minlength=16)
    assert stats.chisquare(top).pvalue > LEVEL, "top bits"


def assert_uniform_bits(packed):
    """Packed bits, all of them used."""
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8))
    assert len(bits) >= 512, "too little to say anything"
    for name, ones in (("bits", bits), ("neighbours", bits[1:] ^ bits[:-1])):
        assert stats.binomtest(int(ones.sum()), len(ones)).pvalue > LEVEL, name


def assert_same_distribution(first, second):
    """Two samples of numbers: Kolmogorov and Smirnov's test, and the share of positive ones."""
    a, b = first.reshape(-1).double().numpy(), second.reshape(-1).double().numpy()
    assert stats.ks_2samp(a, b).pvalue > LEVEL
    table = [[int((x > 0).sum()), int((x <= 0).sum())] for x in (a, b)]
    if all(sum(column) for column in zip(*table, strict=True)):
        assert stats.chi2_contingency(table).pvalue > LEVEL


def differential_entropy(values, step=0.125):
    """Bits, of a sample of real numbers, by a histogram with the usual correction for its bias."""
    counts = np.unique(np.floor(values / step).astype(np.int64), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum() + (len(counts) - 1) / (2 * np.log(2) * counts.sum()) + np.log2(step))
