"""What the querying party sees of a comparison: nothing of the sign and the place, a little of the size.

The published comparison fails the same tests, and the attack on it is here (docs/leakage-ledger.md, line 5).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from tests.protocols.share.harness import compared, generator
from tests.protocols.share.statistics import LEVEL, assert_same_distribution, differential_entropy

from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED

SIZES = [0, 1, 2, 37, 2**10, 2**20 - 1, 2**20, 123_456_789, 2**31, 2**32 - 1]
COUNT = 20_000


def seen(t, style=HARDENED, seed=0, count=COUNT):
    """What the querying party sees of `count` comparisons of the number t."""
    return compared(torch.full((1, count), t), 20, style, seed)[0][0]


@pytest.mark.parametrize("t", SIZES)
def test_querier_sees_nothing_of_the_sign(t):
    """Independent draws for t and for -t - 1: no test tells them apart."""
    assert_same_distribution(seen(t, seed=1), seen(-t - 1, seed=2))


@pytest.mark.parametrize("t", [0, 5, 2**20, 2**31])
def test_the_view_of_t_is_the_mirrored_view_of_its_opposite_draw_by_draw(t):
    """s (k t + e) and s (k (-t - 1) + (k - e)) differ in the sign only: the reason for the test above."""
    plus, minus = seen(t, seed=1).abs(), seen(-t - 1, seed=1).abs()
    k_bound = 2**30
    assert bool(((plus - minus).abs() < k_bound).all())
    assert_same_distribution(plus, minus)


@pytest.mark.parametrize("t", [*SIZES, *(-size for size in SIZES[1:])])
def test_the_sign_that_the_querier_sees_is_a_fair_coin(t):
    u = seen(t, seed=3)
    assert stats.binomtest(int((u > 0).sum()), len(u)).pvalue > LEVEL
    assert not bool((u == 0).any())


def test_the_sign_that_the_querier_sees_says_nothing_about_size_and_neighbours():
    u = seen(2**20, seed=4)
    signs = (u > 0).double().numpy()
    assert stats.ks_2samp(u[u > 0].double().numpy(), -u[u < 0].double().numpy()).pvalue > LEVEL
    assert abs(np.corrcoef(signs[1:], signs[:-1])[0, 1]) < 5 / np.sqrt(len(signs))


def test_the_place_that_the_querier_sees_is_uncorrelated_with_the_neuron():
    """The first half of the neurons is huge, the second tiny: in the view both halves look the same."""
    t = torch.cat([torch.full((400, 64), 2**31), torch.full((400, 64), -3)], dim=1)
    u = compared(t, 20, HARDENED, seed=5)[0].abs().double().log2()
    assert_same_distribution(u[:, :64], u[:, 64:])
    by_place = u.mean(0).numpy()
    assert abs(stats.spearmanr(by_place, np.arange(128)).statistic) < 5 / np.sqrt(128)


def test_orders_of_samples_and_batches_are_independent():
    t = torch.arange(32).mul(2**26).repeat(300, 1)
    largest = compared(t, 20, HARDENED, seed=6)[0].abs().argmax(1)
    counts = torch.bincount(largest, minlength=32).numpy()
    assert stats.chisquare(counts).pvalue > LEVEL


@pytest.mark.parametrize("t", [0, 37, 2**20, 2**31])
def test_the_published_comparison_shows_the_sign(t):
    """The control: the tests above can fail, and on P4's comparison they do."""
    assert bool((seen(t, PUBLISHED, seed=1) > 0).all())
    assert bool((seen(-t - 1, PUBLISHED, seed=2) < 0).all())
    with pytest.raises(AssertionError):
        assert_same_distribution(seen(t, PUBLISHED, seed=1), seen(-t - 1, PUBLISHED, seed=2))


def test_the_published_comparison_shows_which_neuron_is_which():
    t = torch.randint(-(2**22), 2**22, (3, 200), generator=generator(7))
    u, _ = compared(t, 20, PUBLISHED, seed=7)
    assert torch.equal(u > 0, t >= 0)


def divisors(number):
    """Of an odd number below 2^40 or so, by trial division."""
    factors, rest, p = {}, number, 3
    while p * p <= rest:
        while rest % p == 0:
            factors[p] = factors.get(p, 0) + 1
            rest //= p
        p += 2
    if rest > 1:
        factors[rest] = factors.get(rest, 0) + 1
    found = [1]
    for prime, power in factors.items():
        found = [d * prime**i for d in found for i in range(power + 1)]
    return found


def test_the_published_comparison_can_be_factored():
    """2u - 1 = k (2t + 1). A querier that sees one activation under two factors takes the greatest common divisor.

    The hardened comparison gives 1 or 3 there as often as any two numbers do.
    """
    t = torch.randint(1, 2**22, (500,), generator=generator(8))
    recovered = {}
    for style in (PUBLISHED, HARDENED):
        hits = 0
        pairs = [compared(t[:, None], 20, style, seed)[0][:, 0].tolist() for seed in (11, 12)]
        for first, second, true in zip(*pairs, t.tolist(), strict=True):
            common = int(np.gcd(2 * abs(first) - 1, 2 * abs(second) - 1))
            hits += common == 2 * true + 1
        recovered[style.name] = hits / len(t)
    assert recovered["published"] > 0.75  # two odd factors have no common divisor with probability 8 / pi^2
    assert recovered["hardened"] == 0.0


def test_one_published_number_has_few_explanations():
    """Even a single view: t is half of a divisor of 2u - 1, and of those only a handful are in range."""
    t = torch.randint(2**9, 2**10, (1, 20), generator=generator(9))
    u, _ = compared(t, 30, PUBLISHED, seed=9)  # at 30 fraction bits factors are below 2^20: trial division is quick
    for number, true in zip(u[0].tolist(), t[0].tolist(), strict=True):
        candidates = [(d - 1) // 2 for d in divisors(2 * number - 1) if 2**9 <= (d - 1) // 2 < 2**10]
        assert true in candidates
        assert len(candidates) <= 12


def leaked_bits(t, style, seed=0):
    """Mutual information of log2 |t| and log2 |u|, for one activation.

    log2 |u| = log2 |t| + log2 k up to the offset, and k is independent of t: it is h(log2 |u|) - h(log2 |u| given t),
    and the second is the entropy of log2 k, measured on comparisons of one large number.
    """
    u = compared(t, 20, style, seed)[0].abs().double().log2().numpy().reshape(-1)
    constant = torch.full_like(t, 2**31)
    noise = compared(constant, 20, style, seed + 1)[0].abs().double().log2().numpy().reshape(-1)
    return differential_entropy(u) - differential_entropy(noise)


def activations(kind, count=400_000):
    """Fixed-point activations before a ReLU, 20 fraction bits."""
    drawn = torch.randn(10, count // 10, generator=generator(10), dtype=torch.float64)
    spread = {
        "normal": 1.0,
        "small normal": 0.05,
        "layers of many scales": torch.linspace(-6, 4, 10, dtype=torch.float64)[:, None].exp2(),
    }[kind]
    return (drawn * spread * 2**20).round().long()


@pytest.mark.parametrize("kind", ["normal", "small normal", "layers of many scales"])
def test_the_size_that_still_leaks_is_less_than_the_published_one_leaks(kind, record_property):
    t = activations(kind)
    found = {style.name: leaked_bits(t, style) for style in (PUBLISHED, HARDENED)}
    for name, bits in found.items():
        record_property(f"bits about the size of {kind} activations, {name}", round(bits, 3))
    assert 0 < found["hardened"] < found["published"]


def most_likely_size(u, largest_factor=2**14):
    """The querier's best guess of |t| (or |t + 1|), if activations are normal and factors are uniform over octaves.

    A factor k explains u by t = u // k, unless k divides u. Factors beyond `largest_factor` explain u in so many ways
    that no guess is better than chance.
    """
    k = np.arange(3, largest_factor, 2)
    weight = 2.0 ** -np.floor(np.log2(k)) / (k - 1)
    t = u // k
    weight = weight * np.exp(-0.5 * (t / 2**20) ** 2) * (u % k != 0)
    return int(t[weight.argmax()])


def test_the_querier_cannot_read_the_size_of_an_activation_exactly():
    t = activations("normal", 40_000)[:1]
    size = torch.where(t >= 0, t, -t - 1)
    u = compared(t, 20, HARDENED, seed=0)[0][0].abs().tolist()
    sizes = set(size[0].tolist())  # the order is hidden: a guess is a hit if any neuron has just this size
    hits = sum(most_likely_size(number) in sizes for number in u if number < 2**35)
    expected = len(u) * len(sizes) / 2**21  # by chance
    assert hits < 5 + 5 * expected, f"{hits} of {len(u)} read"
