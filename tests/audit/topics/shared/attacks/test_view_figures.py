"""Figures of a view: every weakness of the table moves its figure, and uniform words move none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bilateral.audit.topics.shared.attacks.view_figures import Part, mean_figures, weakness_figures


def words(seed, *shape):
    drawn = np.random.default_rng(seed).integers(-(2**63), 2**63, shape, dtype=np.int64)
    return torch.from_numpy(drawn)


def of(*batches, has_order=False):
    return weakness_figures([Part("x", 0, batch, has_order) for batch in batches])


def strongest(changed, ordinary):
    """How far the figure that differs most is from those of uniform words, in standard deviations."""
    spread = np.maximum(ordinary.std(0), 1e-6 * np.abs(ordinary).max(0) + 1e-9)
    return float(np.max(np.abs(changed - ordinary.mean(0)) / spread))


@pytest.fixture(scope="module")
def ordinary():
    return np.stack([of(words(2 * i, 4, 100), words(2 * i + 1, 4, 100), has_order=True) for i in range(60)])


def not_masked_low(first, second):
    return first & ~7, second & ~7


def one_mask(first, second):
    flat = torch.arange(400).reshape(4, 100)
    return first[:1, :1] + flat, second[:1, :1] + flat


def a_word_again(first, second):
    first[3, 99] = first[0, 0]
    return first, second


def the_same_masks(first, _second):
    return first, first + 5


def in_order(first, second):
    return tuple(batch >> torch.linspace(0, 20, 100).long() for batch in (first, second))


@pytest.mark.parametrize("weak", [not_masked_low, one_mask, a_word_again, the_same_masks, in_order])
def test_a_weakness_moves_a_figure(ordinary, weak):
    changed = weak(words(1000, 4, 100), words(1001, 4, 100))
    assert strongest(of(*changed, has_order=True), ordinary) > 20


def test_uniform_words_move_none(ordinary):
    assert strongest(of(words(1000, 4, 100), words(1001, 4, 100), has_order=True), ordinary) < 6


def test_parts_of_one_kind_are_put_together_and_kinds_keep_their_order():
    parts = [Part("b", 0, torch.tensor([4])), Part("a", 0, torch.tensor([1])), Part("b", 1, torch.tensor([8]))]
    assert mean_figures(parts).tolist() == [1.0, 6.0]
    assert mean_figures(parts[::-1]).tolist() == [1.0, 6.0]
