"""What anybody sees of a sealed comparison is uniform, whatever is compared; sabotage is caught by the same tests.

Three ways to look. Statistics of everything that is opened, alone, pairwise, and in random parities together with all
that a party holds. The other world: for any other x there is a correlation, just as likely, under which a party sees
the same bits to the last. And the dealer, who hears nothing.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.protocols.share.gates.sealing import PLANES, Planned, R, compare, converse, dealing, explained
from tests.protocols.share.harness import generator, uniform_words
from tests.protocols.share.statistics import LEVEL, assert_same_distribution, assert_uniform

from bilateral.protocols.share.gates import sealed
from bilateral.protocols.share.gates.sealed import Width

COUNT, LIMIT = 1 << 15, 2**32
ADVERSARIAL = {
    "all zero": lambda: torch.zeros(COUNT, dtype=torch.int64),
    "all -1": lambda: torch.full((COUNT,), -1),
    "constant": lambda: torch.full((COUNT,), 123_456_789),
    "two values": lambda: torch.where(torch.arange(COUNT) % 2 == 0, 3 << 20, -(5 << 20)),
    "both sides of zero": lambda: -(torch.arange(COUNT) % 2),
    "the ends of the range": lambda: torch.where(torch.arange(COUNT) % 2 == 0, LIMIT - 1, 1 - LIMIT),
    "negative, then positive": lambda: torch.where(torch.arange(COUNT) < COUNT // 2, -1, 1) << 24,
    "any": lambda: torch.randint(1 - LIMIT, LIMIT, (COUNT,), generator=generator(1)),
}
adversarial = pytest.mark.parametrize("name", ADVERSARIAL)


def bits_of(words, num_bits):
    """The low bits of numbers, as rows of booleans."""
    return ((words >> torch.arange(num_bits)[:, None]) & 1).bool().numpy()


def bits_of_planes(planes, count):
    """Planes as rows of booleans."""
    return np.unpackbits(planes.contiguous().numpy().view(np.uint8), axis=-1, bitorder="little")[..., :count].astype(
        bool
    )


def opened_bits(done):
    """Everything that is opened of each element, a row each: 64 bits of y, 18 masked digits' bits, the masked sign."""
    planes = bits_of_planes(torch.cat([done.digits, done.bits[None]]), len(done.y))
    return np.concatenate([bits_of(done.y, 64), planes])


def held_bits(done, found, is_first):
    """All that one party holds of each element, and what it does not tell: its part of the correlation."""
    own, count = (found.first, found.second)[0 if is_first else 1], len(done.y)
    planes = torch.cat([own.tables, own.top[None], own.products, own.blind[None], own.masks])
    words = [bits_of(part, 40) for part in (own.r, own.beta, own.r_beta)]
    return np.concatenate([bits_of_planes(planes, count), *words])


def assert_fair(rows, what):
    """Each row of booleans is tosses of a fair coin."""
    ones = np.asarray(rows).sum(1)
    count = rows.shape[1]
    worst = np.abs(2 * ones - count).max() / np.sqrt(count)
    assert 2 * stats.norm.sf(worst) * len(rows) > LEVEL, f"{what}: {worst:.1f} standard deviations"


def assert_uniform_jointly(rows):
    """All values of a few bits together are equally likely."""
    codes = (rows.astype(np.int64) << np.arange(len(rows))[:, None]).sum(0)
    counts = np.bincount(codes, minlength=1 << len(rows))
    assert stats.chisquare(counts).pvalue > LEVEL, "jointly"


def assert_pairs_are_independent(rows):
    """All four values of every two bits of one element are equally likely."""
    for first, second in itertools.combinations(range(len(rows)), 2):
        both = 2 * rows[first].astype(np.int8) + rows[second]
        assert stats.chisquare(np.bincount(both, minlength=4)).pvalue > LEVEL, f"pair {first}, {second}"


def parities(rows, num_parities, seed):
    """Parities of random subsets of bits, small and large ones."""
    source = np.random.default_rng(seed)
    found = []
    for number in range(num_parities):
        size = source.integers(1, 4 if number % 2 else len(rows) + 1)
        chosen = source.choice(len(rows), size=size, replace=False)
        found.append(np.logical_xor.reduce(rows[chosen], axis=0))
    return np.stack(found)


def assert_opened_is_uniform(done, x):
    """The test of the guarantee, for one comparison of `x`. Raises AssertionError if what is opened tells anything."""
    assert_uniform(done.y)
    for row in (*done.digits, done.bits):
        assert_uniform(row[: len(x) // 64])
    rows = opened_bits(done)
    assert_fair(rows, "a bit")
    assert_fair(rows ^ (x >= 0).numpy(), "a bit and the sign")
    assert_fair(rows[1:] ^ rows[:-1], "two bits of one element")
    assert_fair(rows[:, 1:] ^ rows[:, :-1], "a bit of two elements")
    assert_uniform_jointly(rows[[0, 1, 2, 3, *range(-7, 0)]])  # low bits of y, the last levels' digits, m
    assert_uniform_jointly(rows[[31, 32, 63, 64, 75, 80, 82]])  # high bits of y, digits of every level, m
    for signs in (x >= 0, x < 0):
        if signs.any():
            assert_fair(rows[:, signs.numpy()], "a bit, given the sign")


@adversarial
def test_all_that_is_opened_is_uniform_whatever_is_compared(name):
    """y, masked digits, masked signs: alone, jointly for one element, and whatever sign that element has."""
    x = ADVERSARIAL[name]()
    found = dealing(Width(COUNT, 8), seed=11)
    done = compare(x, found)
    assert torch.equal(done.positive, x.clamp_min(0))
    assert_opened_is_uniform(done, x)
    assert_same_distribution(done.y, uniform_words((COUNT,), 4))


@pytest.mark.parametrize("digits", [1, 2, 3, 5, 6, 9, 10, 11])
@pytest.mark.parametrize("sign", [-1, 1])
def test_all_that_is_opened_is_uniform_for_any_number_of_digits(digits, sign):
    x = torch.full((COUNT,), sign * (2 ** (4 * digits) - 1))
    done = compare(x, dealing(Width(COUNT, digits), seed=12))
    rows = opened_bits(done)
    assert_fair(rows, "a bit")
    assert_fair(parities(rows, 300, seed=digits), "a parity")


@pytest.mark.parametrize("name", ["all zero", "the ends of the range"])
def test_any_two_bits_that_are_opened_of_one_element_are_independent(name):
    """All 1,326 pairs of the 33 bits of y that count, the masked digits and the masked sign."""
    done = compare(ADVERSARIAL[name](), dealing(Width(COUNT, 8), seed=13))
    assert_pairs_are_independent(opened_bits(done)[[*range(33), *range(64, 83)]])


@adversarial
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_no_parity_of_what_a_party_holds_and_sees_tells_anything(name, is_first):
    """All that is opened with all that it was dealt and drew, in random subsets, with and without the sign.

    Its own share of x is in none of them: together with y it would give the other's masked share, which is y again.
    """
    x = ADVERSARIAL[name]()
    found = dealing(Width(COUNT, 8), seed=14)
    done = compare(x, found)
    rows = np.concatenate([opened_bits(done), held_bits(done, found, is_first)])
    sums = parities(rows, 400, seed=15)
    assert_fair(sums, "a parity")
    assert_fair(sums ^ (x >= 0).numpy(), "a parity and the sign")


@adversarial
def test_what_is_dealt_is_uniform_to_the_second_party_given_its_seed_whatever_r_and_beta_are(name):
    """r is fixed for each element, and so is beta, and the second party's seed is one and the same.

    Only the first's seed varies. r is as it would be if x were as named and y zero.
    """
    width, r = Width(COUNT, 8), -ADVERSARIAL[name]()
    own = dealing(width, 16).second
    for beta in (0, -1):
        views = []
        for seed in (17, 18):
            planned = {
                R: lambda drawn: r - own.r,
                PLANES: lambda drawn, beta=beta: torch.cat([
                    drawn[: width.dealt_shapes[0][0]], (own.blind ^ beta)[None], drawn[width.dealt_shapes[0][0] + 1 :]
                ]),
            }  # fmt: skip
            sent = sealed.deal(Planned(seed, "first", planned, width), Planned(16, "second"), width)
            betas = sealed.beta_of(Planned(seed, "first", planned, width), Planned(16, "second"), width)
            assert bool((betas == -beta).all())
            views.append(sent)
            for part in sent:
                assert_uniform(part)
            rows = np.concatenate([bits_of_planes(sent[0], COUNT), *(bits_of(part, 64) for part in sent[1])])
            assert_fair(rows, "a dealt bit")
            assert_fair(parities(np.concatenate([rows, bits_of(own.r, 64)]), 200, seed), "a parity of dealt bits")
        for first, second in zip(*views, strict=True):
            assert_uniform(first ^ second)


@given(
    digits=st.integers(1, 11), seed=st.integers(0, 2**31), count=st.integers(1, 130), is_first=st.booleans()
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_for_any_other_number_there_is_a_world_that_a_party_cannot_tell_from_this_one(digits, seed, count, is_first):
    """The proof, run: what a party holds and hears stays the same to the last bit, and the result is another number's.

    The other's part of that world is found from what is seen by one addition or xor a field, so both worlds are exactly
    as likely: this is the simulator of each party, and it is perfect. The dealer hears nothing at all.
    """
    limit = 2 ** (4 * digits)
    x, other = torch.randint(1 - limit, limit, (2, count), generator=generator(seed))
    found = dealing(Width(count, digits), seed)
    done = compare(x, found, shares=seed)
    mine, yours = done.told if is_first else done.told[::-1]
    first_share = uniform_words((count,), 5_000_000 + seed)
    my_share = first_share if is_first else x - first_share
    part = explained(found, yours, mine, other - my_share, is_first=not is_first)
    pair = (found.first, part) if is_first else (part, found.second)
    shares = (my_share, other - my_share) if is_first else (other - my_share, my_share)
    again, *told = converse(
        sealed.compare(shares[0], pair[0], found.width, is_first=True),
        sealed.compare(shares[1], pair[1], found.width, is_first=False),
    )
    for before, after in zip(done.told, told, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(sum(result.positive_part() for result in again), other.clamp_min(0))


@adversarial
def test_masked_factors_are_uniform_whatever_is_multiplied_and_compared(name):
    """`times_bit` opens a value under a mask of its own, also the second time with the same bit."""
    x = ADVERSARIAL[name]()
    found = dealing(Width(COUNT, 8), seed=19)
    done = compare(x, found)
    seen = []
    for seed in (20, 21):
        sent = sealed.deal_bit_product(Planned(seed, "first"), Planned(seed, "second"), found.betas)
        assert_uniform(sent)
        parts = (
            sealed.drawn_bit_product(Planned(seed, "first"), COUNT),
            sealed.dealt_bit_product(Planned(seed, "second"), sent),
        )
        share = uniform_words((COUNT,), seed)
        works = (sealed.times_bit(*three) for three in zip((share, x - share), done.results, parts, strict=True))
        results, first, second = converse(*works)
        assert torch.equal(sum(results), x.clamp_min(0))
        seen.append(first[0] + second[0])
        assert_uniform(seen[-1])
        assert_fair(bits_of(seen[-1], 64) ^ (x >= 0).numpy(), "a factor and the sign")
        assert_uniform(seen[-1] - done.y)
    assert_uniform(seen[0] - seen[1])


# Sabotage: the tests above can fail, and do.


def test_a_mask_that_is_used_twice_is_caught():
    """Two comparisons under one r: each is uniform, and their difference is that of the numbers."""
    first, second = ADVERSARIAL["two values"](), ADVERSARIAL["any"]()
    found = dealing(Width(COUNT, 8), seed=22)
    with pytest.raises(AssertionError):
        assert_uniform(compare(first, found).y - compare(second, found, shares=1).y)
    other = dealing(Width(COUNT, 8), seed=23)
    assert_uniform(compare(first, found).y - compare(second, other, shares=1).y)


@pytest.mark.parametrize("name", ["all zero", "two values", "the ends of the range"])
def test_a_biased_beta_is_caught(name):
    """beta is one with probability 9/16."""
    width = Width(COUNT, 8)
    second = dealing(width, 24).second

    def biased(drawn):
        changed, place = drawn.clone(), width.dealt_shapes[0][0]
        a, b, c = drawn[place], *uniform_words((2, width.words), 25)
        changed[place] = second.blind ^ (a | (b & c & ~uniform_words((width.words,), 26)))
        return changed

    found = dealing(width, 24, first={PLANES: biased})
    x = ADVERSARIAL[name]()
    done = compare(x, found)
    assert torch.equal(done.positive, x.clamp_min(0))  # results do not show it
    with pytest.raises(AssertionError):
        assert_opened_is_uniform(done, x)


def test_masks_of_digits_that_are_not_fresh_are_caught():
    """One plane masks two digits: each is uniform, and together they tell whether the digits agree."""
    width = Width(COUNT, 8)
    place = width.dealt_shapes[0][0] + 1

    def twice(offset):
        def change(drawn):
            changed = drawn.clone()
            changed[offset + 1] = drawn[offset]
            return changed

        return change

    found = dealing(width, 27, first={PLANES: twice(place)}, second={PLANES: twice(1)})
    x = ADVERSARIAL["all zero"]()
    done = compare(x, found)
    assert torch.equal(done.positive, x.clamp_min(0))
    with pytest.raises(AssertionError):
        assert_opened_is_uniform(done, x)


@pytest.mark.parametrize("num_bits", [33, 40, 62, 63])
def test_a_truncated_mask_is_caught(num_bits):
    """r of 40 bits hides a number of 32 only statistically, and shows where it begins: y must be uniform to the top."""
    width = Width(COUNT, 8)
    second = dealing(width, 28).second
    found = dealing(width, 28, first={R: lambda drawn: (drawn & ((1 << num_bits) - 1)) - second.r})
    x = ADVERSARIAL["constant"]()
    done = compare(x, found)
    assert torch.equal(done.positive, x.clamp_min(0))
    with pytest.raises(AssertionError):
        assert_opened_is_uniform(done, x)


def test_tables_that_are_dealt_in_the_clear_are_caught():
    """If the first party's part were zeros, what is sent would be r's digits themselves."""
    width, r = Width(COUNT, 8), ADVERSARIAL["constant"]()
    own = dealing(width, 29).second
    planned = {R: lambda drawn: r - own.r, PLANES: torch.zeros_like}
    sent = sealed.deal(Planned(29, "first", planned, width), Planned(29, "second"), width)
    with pytest.raises(AssertionError):
        assert_uniform(sent[0])
