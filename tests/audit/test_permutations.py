"""The permutation test against SciPy's, which draws anew for every pair of samples."""

import numpy as np
import pytest
from scipy import stats

from bilateral.audit.permutations import NUM_RESAMPLES, chance_of_a_larger_mean


def by_scipy(ours, theirs, *, paired):
    found = stats.permutation_test(
        (ours, theirs),
        lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        permutation_type="samples" if paired else "independent",
        vectorized=True,
        n_resamples=NUM_RESAMPLES,
        alternative="greater",
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def real_numbers(draws, count):
    return draws.normal(size=count)


def nearly_equal(draws, count):
    """Means whose difference is near to rounding."""
    return -1.0 + 1e-5 * draws.random(count)


def zeros_and_ones(draws, count):
    return (draws.random(count) < 0.5).astype(float)


ENUMERATED, DRAWN = [(2, 2, True), (12, 12, True), (13, 13, True), (2, 5, False), (3, 20, False)], [
    (14, 14, True), (20, 20, True), (120, 120, True), (5, 60, False), (20, 21, False), (40, 400, False),
]  # fmt: skip


@pytest.mark.parametrize("kind", [real_numbers, zeros_and_ones, nearly_equal])
@pytest.mark.parametrize(("ours", "theirs", "paired"), [*ENUMERATED, *DRAWN])
def test_the_value_is_scipys(kind, ours, theirs, paired):
    draws = np.random.default_rng(1)
    for shift in (0.0, 0.5) if kind is not nearly_equal else (0.0,):
        first, second = kind(draws, ours) + shift, kind(draws, theirs)
        assert chance_of_a_larger_mean(first, second, paired=paired) == by_scipy(first, second, paired=paired)


def test_the_draws_do_not_depend_on_what_was_asked_before():
    draws = np.random.default_rng(2)
    first, second = draws.normal(size=(2, 30))
    alone = chance_of_a_larger_mean(first, second, paired=True)
    for count in range(20, 40):
        chance_of_a_larger_mean(first[:count], second[:count], paired=count % 2 == 0)
    assert chance_of_a_larger_mean(first, second, paired=True) == alone
