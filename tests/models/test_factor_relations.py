"""Factors that are products of others: every draw of the free ones fulfils every relation."""

from __future__ import annotations

import random

import pytest
import torch

from bilateral.models.factor_relations import LARGEST_POWER, Derived, ScaleClasses


def line(*numbers):
    return torch.tensor(numbers)


def completed(classes, seed=0):
    """A factor for every class that was ever made, as the scale graph does it."""
    generator = torch.Generator().manual_seed(seed)
    roots = torch.from_numpy(classes.roots())
    free = torch.empty(len(roots), dtype=torch.float64).uniform_(-1, 1, generator=generator).exp()
    free[0] = 1.0
    powers = [(t, s, float(p)) for t, row in classes.derived().items() for s, p in row.items()]
    return Derived.of(powers).complete(free)[roots]


def test_a_product_with_a_pinned_factor_is_the_other():
    classes = ScaleClasses()
    x = classes.fresh(2)
    assert torch.equal(classes.product(x, line(0), "why"), x)
    assert torch.equal(classes.product(line(0), x, "why"), x)


def test_queries_and_keys_have_inverse_factors():
    classes = ScaleClasses()
    q, k = classes.fresh(3), classes.fresh(3)
    scores = classes.product(q, k, "scores")
    classes.merge_over(scores, [0], "summed")
    classes.pin(scores, "softmax")
    classes.settle()
    factors = completed(classes)
    assert torch.allclose(factors[q] * factors[k], torch.ones(3, dtype=torch.float64), rtol=1e-14)
    assert len(classes.derived()) == 3
    assert float(factors[q].log().abs().min()) > 1e-3


def test_a_factor_that_equals_its_own_square_is_one():
    classes = ScaleClasses()
    x = classes.fresh(1)
    classes.union(x, classes.product(x, x, "squared"), "added")
    classes.settle()
    assert classes.find(int(x)) == 0
    assert classes.reason_for_pin(int(x)) == "squared"


def test_high_powers_are_pinned():
    classes = ScaleClasses()
    x = classes.fresh(1)
    y = x
    for _ in range(4):
        y = classes.product(y, y, "squared")
    classes.settle()
    assert classes.find(int(y)) == 0


def test_a_class_that_must_be_free_is_pinned_where_it_would_be_a_product():
    classes = ScaleClasses()
    x, y = classes.fresh(1), classes.fresh(1)
    z = classes.product(x, y, "product")
    classes.settle(kept_free=z)
    assert classes.find(int(z)) == 0


@pytest.mark.parametrize("seed", range(60))
def test_any_relations_are_fulfilled_by_any_draw(seed):
    """The oracle is the list of all relations, evaluated on the completed factors."""
    rng = random.Random(seed)
    classes = ScaleClasses()
    items = classes.fresh(6).tolist()
    relations, unions = [], []
    for _ in range(rng.randint(1, 25)):
        a, b = rng.choice(items), rng.choice(items)
        if rng.random() < 0.6:
            power = rng.choice([1, 1, -1])
            made = int(classes.product(line(a), line(b), "product", power))
            relations.append((made, a, b, power))
            items.append(made)
        elif rng.random() < 0.8:
            classes.union(line(a), line(b), "union")
            unions.append((a, b))
        else:
            classes.pin(line(a), "pin")
            unions.append((a, 0))
    classes.settle()
    for draw in range(3):
        factors = completed(classes, draw)
        for made, a, b, power in relations:
            assert float(factors[made]) == pytest.approx(float(factors[a] * factors[b] ** power), rel=1e-11)
        for a, b in unions:
            assert float(factors[a]) == pytest.approx(float(factors[b]), rel=1e-11)
    for row in classes.derived().values():
        assert sum(abs(power) for power in row.values()) <= LARGEST_POWER
