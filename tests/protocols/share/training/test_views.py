"""What each party of a step sees is uniform, whatever the weights and the batch are, but for the one number at the end.

Three ways to look. Statistics of every kind of message for adversarial numbers, alone and together with what its
receiver knows. Simulators: a view made of public facts alone cannot be told from a real one. Sabotage: each way to do
it wrong is found by one of these tests.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from tests.protocols.share.harness import fill, uniform_words
from tests.protocols.share.statistics import LEVEL, assert_same_distribution, assert_uniform
from tests.protocols.share.training.stepping import Step, by_gates, converse, seed_of, step_of, tiny_terms
from torch import nn

from bilateral.errors import ProtocolError
from bilateral.protocols.share.circuit.description import Circuit, Dense, Relu
from bilateral.protocols.share.circuit.gradient_maps import weight_gradient
from bilateral.protocols.share.circuit.plaintext import PrivateLayer, linear_map
from bilateral.protocols.share.gates import sealed
from bilateral.protocols.share.ring.streams import Keystream, Stream
from bilateral.protocols.share.training import forward, roles
from bilateral.protocols.share.training.parties import FirstParty, deal, seed_of_step
from bilateral.protocols.share.training.roles import Dealing, First, Second
from bilateral.protocols.share.training.script import run, step
from bilateral.protocols.share.training.terms import StepTerms

BATCH, WIDE = 64, 64
"""Of the networks here: every kind of message has some thousand words."""


def network():
    """Every kind of gate: layers both ways, comparisons, pooling, truncations, products, dropout."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
        nn.Dropout(0.3),
        nn.Conv2d(16, 16, 2),
        nn.ReLU(),
        nn.AvgPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return fill(model)


def constant(made, number):
    return replace(made, inputs=torch.full_like(made.inputs, number))


def with_weights(made, number):
    layers = (
        PrivateLayer(torch.full_like(layer.weight, number), torch.full_like(layer.bias, number << 20))
        for layer in made.layers
    )
    return replace(made, layers=tuple(layers))


ADVERSARIAL = {
    "any": lambda made: made,
    "inputs of zero": lambda made: constant(made, 0.0),
    "constant inputs": lambda made: constant(made, 15.0),
    "one unit below zero": lambda made: constant(made, -(2.0**-20)),
    "weights of zero": lambda made: with_weights(made, 0),
    "weights of one": lambda made: with_weights(made, 1 << 20),
    "all zero": lambda made: constant(with_weights(made, 0), 0.0),
    "one class": lambda made: replace(made, targets=torch.zeros_like(made.targets)),
    "ends of the range": lambda made: constant(with_weights(made, -(1 << 19)), 15.9),
}


def made_of(name, loss="ce", number=0):
    return ADVERSARIAL[name](step_of(network(), (1, 8, 8), loss, BATCH, number=number))


every_adversary = pytest.mark.parametrize(
    ("name", "loss"),
    [
        pytest.param(name, loss, marks=[pytest.mark.long] * (loss == "mse" and name not in ("any", "all zero")))
        for name in ADVERSARIAL
        for loss in ("ce", "mse")
    ],
)
"""By default the squared error with two of them: no kind of its messages is missing with cross entropy."""


PACKED = "bits of a truncation"
PLANES = ("masked digits", "masked signs")
COUNT = "the number of sums beyond their limits"


def by_kind(view):
    """A flat tensor of each kind of message. Batches are of 64 samples: packed bits fill their words."""
    found = {}
    for name, words in view:
        found.setdefault(name, []).append(words.reshape(-1))
    return {name: torch.cat(parts) for name, parts in found.items()}


def view_of_second(made, taken):
    """All that the second party gets: masked weights, and what the first told."""
    return [*(("masked weights", part) for part in made.first().masked_weights()), *taken.told[0]]


def view_of_first(made, taken):
    """All that the first party gets: what was dealt, and what the second told."""
    names = [f"dealt {len(shape)} {dtype}" for shape, dtype in made.terms.shape_of_step.dealt]
    return [*zip(names, made.dealt(), strict=True), *taken.told[1]]


def assert_view_is_uniform(view):
    checked = Counter()
    for name, words in by_kind(view).items():
        if name == COUNT:
            continue
        if words.numel() * words.element_size() < 4096:
            continue
        assert_uniform(words)
        checked[name] += 1
    return checked


@every_adversary
def test_everything_that_a_party_sees_is_uniform(name, loss):
    made = made_of(name, loss)
    taken = made.take(whatever_comes=True)
    first = assert_view_is_uniform(view_of_first(made, taken))
    second = assert_view_is_uniform(view_of_second(made, taken))
    both = {PACKED, *PLANES, "masked numbers", "masked factors"}
    assert set(first) >= {*both, "a masked value"}
    assert set(first) >= {f"dealt {kind}" for kind in ("1 torch.int64", "2 torch.int64", "4 torch.int32")}
    assert set(second) == {*both, "masked weights", "a blinded value"}


@pytest.mark.parametrize("party", ["first", "second"])
def test_no_two_words_of_a_view_are_equal_but_those_that_are_told_twice(party):
    """A mask that hides two values shows in their difference: no word of 64 bits may come twice."""
    made = made_of("all zero")
    taken = made.take(whatever_comes=True)
    view = view_of_first(made, taken) if party == "first" else view_of_second(made, taken)
    words = torch.cat([part.reshape(-1) for name, part in view if part.dtype == torch.int64 and name != COUNT])
    assert len(words) > 20_000
    assert len(words.unique()) == len(words)


# Together with what its receiver knows.


def correlated(a, b):
    """Whether the sum or the difference of two lists of words, or their xor, is anything but uniform."""
    count = min(len(a), len(b))
    for words in (a[:count] + b[:count], a[:count] - b[:count], a[:count] ^ b[:count]):
        try:
            assert_uniform(words)
        except AssertionError:
            return True
    return False


def layer_step(number=0, inputs=None):
    """One layer, then another: the second layer's value and delta are what the second party is curious about."""
    circuit = Circuit((WIDE,), (Dense((0,), WIDE), Relu((1,)), Dense((2,), 8)))
    layers = tuple(
        PrivateLayer(torch.full(shape, 1 << 16), torch.full(shape[:1], 1 << 30)) for shape in ((WIDE, WIDE), (8, WIDE))
    )
    terms = StepTerms(circuit, "mse", BATCH, ((True, True), (True, True)))
    inputs = torch.ones(BATCH, WIDE) if inputs is None else inputs
    return Step(terms, layers, inputs, torch.zeros(BATCH, 8), number=number).without_limits()


def streams(made):
    """Of a pair of parties, as each of them reads it."""
    dealer_first, dealer_second, _ = (seed_of_step(made.terms, seed) for seed in made.seeds)

    def first(purpose, number, *shape):
        return Stream.of(dealer_first, purpose, number, made.terms.batch_size).words(*shape)

    def second(purpose, number, *shape):
        return Stream.of(dealer_second, purpose, number, made.terms.batch_size).words(*shape)

    return first, second


def corrections(made):
    """The first party's parts of e, a layer each: the last things that it is dealt of a gradient."""
    pairs = zip(made.terms.linear_steps, made.terms.linear_sources, strict=True)
    wanted = [linear.weight_shape(source) for linear, source in pairs]
    dry = Dealing(made.terms, None)
    places = []
    original = dry.expect_gradient

    def gradient(*arguments):
        places.append(len(dry.dealt_shapes))
        return (yield from original(*arguments))

    dry.expect_gradient = gradient
    run(step(dry, None, None))
    dealt = made.dealt()
    found = [dealt[place] for place in places]
    assert [tuple(part.shape) for part in found] == wanted
    return found


def solved_for_masks(made, layer, correction):
    """What the equations that the first party could set up leave over, for the true B and B'.

    It knows P and P', and e = P' (x) B + B' (x) P is linear in the masks of what it hears. If what it was dealt is e,
    they fit exactly, and solving for them gives them away.
    """
    first, second = streams(made)
    linear, source = made.terms.linear_steps[layer], made.terms.source_values[layer]
    value_shape = (BATCH, *made.terms.linear_sources[layer].shape)
    delta_shape = (BATCH, *made.terms.linear_values[layer].shape)
    mask, delta_mask = second("value mask", source, *value_shape), second("delta mask", layer, *delta_shape)
    blind, delta_blind = first("value blind", source, *value_shape), first("delta blind", layer, *delta_shape)
    return correction - weight_gradient(linear, delta_blind, mask) - weight_gradient(linear, delta_mask, blind)


def test_the_correction_of_a_gradient_is_dealt_as_a_share_that_is_uniform_given_all_that_first_knows():
    """Over many steps: what is left of it after the true masks is uniform, so that no equation holds for them."""
    left = []
    for number in range(3):
        made = layer_step(number)
        left += [solved_for_masks(made, layer, part).reshape(-1) for layer, part in enumerate(corrections(made))]
    assert_uniform(torch.cat(left))


def test_solving_a_correction_that_is_dealt_in_the_clear_gives_the_masks(monkeypatch):
    """Sabotage: without the second party's stream the first has e, and with it the second party's values."""
    original = Dealing._streams

    class Nothing:
        def words(self, *shape):
            return torch.zeros(shape, dtype=torch.int64)

    def streams_without_share(self, purpose, number):
        if purpose == "gradient":
            return Nothing(), Nothing()
        return original(self, purpose, number)

    monkeypatch.setattr(Dealing, "_streams", streams_without_share)
    made = layer_step()
    for layer, part in enumerate(corrections(made)):
        assert not solved_for_masks(made, layer, part).any()


def told_by_first(made):
    """(t + P, t' + P') of each layer, as the second party hears them."""
    taken = made.take(whatever_comes=True)
    parts = [part for name, part in taken.told[0] if name == "a blinded value"]
    return taken, list(zip(parts[::2], parts[1::2], strict=True))


def test_blinded_values_are_independent_of_all_that_second_knows():
    """t + P with its masks B and with its parts of what was dealt: sums and differences are uniform."""
    made = layer_step()
    _, pairs = told_by_first(made)
    _, second = streams(made)
    for layer, (value, delta) in enumerate(pairs):
        source = made.terms.source_values[layer]
        known = [
            second("value mask", source, *value.shape).reshape(-1),
            second("delta mask", layer, *delta.shape).reshape(-1),
            *(second("linear", number, *value.shape).reshape(-1) for number in range(3)),
            *(second("gate", number, *value.shape).reshape(-1) for number in range(2)),
        ]
        for words in known:
            assert not correlated(value.reshape(-1), words)
            if delta.numel() >= 512:
                assert not correlated(delta.reshape(-1), words)


def test_masked_values_are_independent_of_all_that_first_knows():
    """x - B with weights' masks A, with its blinds P and with all that it was dealt."""
    made = layer_step()
    taken = made.take(whatever_comes=True)
    first, _ = streams(made)
    masked = [part.reshape(-1) for name, part in taken.told[1] if name == "a masked value"]
    assert len(masked) == 4
    known = [first("weights", layer, WIDE, WIDE).reshape(-1) for layer in range(2)]
    known += [first("value blind", source, BATCH, WIDE).reshape(-1) for source in (0, 2)]
    dealt = torch.cat([part.reshape(-1) for part in made.dealt() if part.dtype == torch.int64])
    known += [dealt[start : start + BATCH * WIDE] for start in range(0, len(dealt) - BATCH * WIDE, 1 << 13)]
    for part in masked:
        for words in known:
            assert not correlated(part, words)
    for a in range(4):
        for b in range(a):
            assert not correlated(masked[a], masked[b])


def test_masked_weights_are_independent_of_what_second_draws():
    """It multiplies (W + A) by its own mask B, and draws its share of A B itself."""
    made = layer_step()
    weights = made.first().masked_weights()
    _, second = streams(made)
    mask = second("value mask", 0, BATCH, WIDE)
    mine = linear_map(made.terms.linear_steps[0], weights[0])(mask)
    for number in range(3):
        assert not correlated(mine.reshape(-1), second("linear", number, BATCH, WIDE).reshape(-1))
    for weight in weights:
        if weight.numel() >= 512:
            assert_uniform(weight)


def test_a_product_of_masks_is_dealt_as_a_share_that_is_uniform_given_all_that_first_knows():
    """It knows A: of A B itself it could solve for B, and with it for the second party's values."""
    made = layer_step()
    first, _ = streams(made)
    mask = first("weights", 0, WIDE, WIDE)
    products = [part for part in made.dealt() if tuple(part.shape) == (BATCH, WIDE) and part.dtype == torch.int64]
    assert products
    for product in products:
        assert_uniform(product)
        assert not correlated(product.reshape(-1), mask.reshape(-1))
        assert_uniform(linear_map(made.terms.linear_steps[0], mask)(product))


def test_parts_of_the_gradient_are_uniform_each_alone():
    """Before they meet in the sum: the server's part, and the client's, which goes into the masked sum."""
    made = layer_step()
    taken = made.take()
    weights = [part for part in made.terms.shape_of_step.parts if not part.is_bias]
    assert len(weights) == 2
    for part in (taken.first, taken.second):
        assert_uniform(part[: WIDE * WIDE])
        assert_uniform(part[WIDE * WIDE + WIDE : WIDE * WIDE + WIDE + 8 * WIDE])


def test_shares_of_the_count_tell_only_the_count():
    """Each party tells a share of one number; over many steps that share is uniform while the number is zero."""
    told = []
    for number in range(520):

        def walk(role, share):
            role.watch("x", share)
            return torch.tensor([(yield from role.settle())])

        taken = by_gates(walk, torch.zeros(1, 1, dtype=torch.int64), number=number, limits={"x": 5})
        assert int(taken.first) == int(taken.second) == 0
        told.append(taken.told[1][-1][1])
    assert_uniform(torch.cat(told))


# Gates alone, on adversarial numbers that are shared in adversarial ways.


def truncations(role, x):
    return (yield from role.truncate(x, 20))


def products(role, x):
    return (yield from role.multiply(x, x))


def bits_and_products(role, x):
    bit = yield from role.compare(x, 32)
    return (yield from bit.times(x)) + bit.share()


GATES = {"truncation": truncations, "product": products, "bit": bits_and_products}
NUMBERS = {
    "zero": lambda count: torch.zeros(count, dtype=torch.int64),
    "one": lambda count: torch.ones(count, dtype=torch.int64),
    "minus one": lambda count: -torch.ones(count, dtype=torch.int64),
    "ends": lambda count: torch.where(torch.arange(count) % 2 == 0, (1 << 32) - 1, 1 - (1 << 32)),
}


@pytest.mark.parametrize("shared_as", ["uniform", "all at first", "all at second"])
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("gate", GATES)
def test_what_a_gate_opens_is_uniform_however_its_number_is_shared(gate, numbers, shared_as):
    """Even where a share is no secret (the second party's inputs), masks alone hide it."""
    x = NUMBERS[numbers](1 << 14)
    zero = torch.zeros_like(x)
    shares = {"uniform": None, "all at first": ((x,), (zero,)), "all at second": ((zero,), (x,))}[shared_as]
    taken = by_gates(GATES[gate], x, shares=shares)
    for party in taken.told:
        for name, words in party:
            assert len(words.reshape(-1)) * 8 >= 2048, name
            whole = words.reshape(-1)
            if whole.numel() >= 512:
                assert_uniform(whole)
            else:
                ones = np.unpackbits(whole.numpy().view(np.uint8))
                assert stats.binomtest(int(ones.sum()), len(ones)).pvalue > LEVEL, name


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_bits_of_truncations_and_masked_signs_do_not_follow_the_number(sign):
    """The same count of ones, whatever the sign of what is truncated or compared."""
    x = torch.full((1 << 14,), sign * 123_456_789)
    for gate in ("truncation", "bit"):
        for party in by_gates(GATES[gate], x).told:
            for name, words in party:
                if name in (PACKED, *PLANES):
                    ones = np.unpackbits(words.reshape(-1).numpy().view(np.uint8))
                    assert stats.binomtest(int(ones.sum()), len(ones)).pvalue > LEVEL


# Simulators: public facts in, a view out.


class Uniform:
    """Words from nowhere."""

    def __init__(self, seed):
        self._seed = 40_000_000 + 1000 * seed

    def __call__(self, shape, dtype=torch.int64):
        self._seed += 1
        words = uniform_words(tuple(shape), self._seed)
        return words if dtype == torch.int64 else words.to(dtype)


def simulated(shapes, draw):
    """A view of these kinds and shapes, which are public: they follow from the terms."""
    return [(name, draw(shape, dtype)) for name, shape, dtype in shapes]


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("name", ["any", "all zero", "ends of the range"])
def test_a_simulator_that_knows_the_terms_alone_makes_a_view_that_cannot_be_told_from_a_real_one(name, loss):
    """Kinds and shapes are those of another step with the same terms; all words are drawn, all but the count."""
    made, other = made_of(name, loss), made_of("any", loss, number=5)
    taken, of_other = made.take(whatever_comes=True), other.take(whatever_comes=True)
    for real, shapes in (
        (view_of_first(made, taken), view_of_first(other, of_other)),
        (view_of_second(made, taken), view_of_second(other, of_other)),
    ):
        public = [(name, words.shape, words.dtype) for name, words in shapes]
        assert [(name, words.shape, words.dtype) for name, words in real] == public
        imagined = by_kind(simulated(public, Uniform(1)))
        for kind, words in by_kind(real).items():
            if kind != COUNT and words.numel() >= 512:
                assert_same_distribution(words, imagined[kind])


def test_the_dealer_hears_nothing_and_deals_the_same_whatever_the_weights_and_the_batch_are():
    """All that it has is terms and two seeds: none of its inputs depends on a secret of the parties."""
    made, other = made_of("any"), made_of("ends of the range")
    for a, b in zip(made.dealt(), other.dealt(), strict=True):
        assert torch.equal(a, b)
    other.number = 1
    assert not torch.equal(made.dealt()[0], other.dealt()[0])


# Streams are read once.


def noting(note):
    """Keystreams that tell which of their streams are opened: `note(seed, purpose, number)`."""

    class Noting(Keystream):
        def __init__(self, seed, batch_size):
            super().__init__(seed, batch_size)
            self._seed = seed

        def stream(self, purpose, index):
            note(self._seed, purpose, index)
            return super().stream(purpose, index)

    return Noting


def test_no_stream_is_read_twice_for_two_purposes(monkeypatch):
    """Each of (seed, purpose, number) is opened once by a party, but for masks that are known to be one and the same.

    The second party reads its masks of values where it tells them and where it multiplies them ahead; a value that two
    layers read is blinded once for both.
    """
    opened = []
    monkeypatch.setattr(roles, "Keystream", noting(lambda *named: opened.append(named)))
    made = made_of("any")
    first, second = made.first(), made.second(made.first().masked_weights())
    opened.clear()
    converse(first.work(), second.work(made.inputs, made.targets))
    dealer = seed_of_step(made.terms, made.seeds[0]), seed_of_step(made.terms, made.seeds[1])
    of_parties = [key for key in opened if key[0] in dealer]
    assert of_parties
    assert max(Counter(of_parties).values()) == 1
    common = Counter(key for key in opened if key[0] not in dealer)
    assert {purpose for _, purpose, _ in common} == {"signs"}
    assert set(common.values()) == {2}, "each of the two parties reads it once"


def test_other_terms_have_other_masks_from_the_same_seeds():
    """Who is told of another batch, loss or network reads other streams: noise, and not a mask of something else."""
    terms = tiny_terms(4)
    seeds = seed_of("a"), seed_of("b")
    found = deal(terms, *seeds)
    for changed in (
        replace(terms, factor=5),
        replace(terms, loss="ce"),
        replace(terms, trains=((True, False),)),
        replace(terms, circuit=Circuit((1,), (Dense((0,), 1), Relu((1,))))),
    ):
        for part in deal(changed, *seeds):
            for own in found:
                same = torch.isin(part.reshape(-1), own.reshape(-1)) & (part.reshape(-1) != 0)
                assert part.dtype == torch.int32 or not same.any()


# What is opened: a party has its own share of it too.


def opened_in(taken):
    """What both told a share of: kinds, and the opened words or bits."""
    found = []
    told = [[(name, part) for name, part in side if name in OPENED] for side in taken.told]
    for (name, a), (other, b) in zip(*told, strict=True):
        assert name == other
        found.append((name, a ^ b if name in PLANES else a + b))
    return found


OPENED = (*PLANES, "masked numbers", "masked factors")


def held_by_first(made, monkeypatch):
    """What the first party has of every value that it takes further: t = x - B, and the step."""
    held, original = [], First.mask

    def mask(self, purpose, number, x):
        masked = yield from original(self, purpose, number, x)
        held.append(masked.part)
        return masked

    monkeypatch.setattr(First, "mask", mask)
    return held, made.take(whatever_comes=True)


def assert_opened_hides_everything(made, monkeypatch):
    """Raises AssertionError if what is opened, or left of a masked value, is not uniform or comes twice."""
    held, taken = held_by_first(made, monkeypatch)
    opened, left = opened_in(taken), torch.cat([part.reshape(-1) for part in held])
    whole = torch.cat([left, *(part.reshape(-1) for name, part in opened if name not in PLANES)])
    assert len(whole.unique()) == len(whole), "a mask that was used twice"
    assert_view_is_uniform([*opened, ("what is left of masked values", left)])


@every_adversary
def test_everything_that_is_opened_is_uniform_and_nothing_is_opened_twice_under_one_mask(name, loss, monkeypatch):
    """With numbers that are all alike, two of them under one mask would give the same word twice."""
    assert_opened_hides_everything(made_of(name, loss), monkeypatch)


# Sabotage.


def test_the_control_of_sabotage_finds_nothing(monkeypatch):
    assert_opened_hides_everything(layer_step(), monkeypatch)


def test_a_missing_blind_is_found(monkeypatch):
    """The first party tells t as it is: uniform alone, but not with B, which the second has."""
    original = First._stream

    def stream(self, purpose, number):
        return Zeros() if purpose in ("value blind", "delta blind") else original(self, purpose, number)

    monkeypatch.setattr(First, "_stream", stream)
    made = layer_step()
    _, pairs = told_by_first(made)
    _, second = streams(made)
    for layer, (value, _) in enumerate(pairs):
        source = made.terms.source_values[layer]
        assert_uniform(value)
        assert correlated(value.reshape(-1), second("value mask", source, *value.shape).reshape(-1))


class Zeros:
    """A stream that hides nothing."""

    def words(self, *shape):
        return torch.zeros(shape, dtype=torch.int64)


def test_a_missing_mask_is_found(monkeypatch):
    """The second party tells its inputs as they are: its share is all of them."""
    monkeypatch.setattr(Second, "_mask", lambda self, purpose, number, shape: torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(AssertionError):
        step_without = layer_step()
        assert_view_is_uniform(view_of_first(step_without, step_without.take(whatever_comes=True)))


def test_masks_of_values_that_are_used_twice_are_found(monkeypatch):
    """The same mask for every value: what is left of equal values is equal."""

    def mask(self, purpose, number, shape):
        del purpose, number
        return self._stream("value mask", 0).words(*shape)

    monkeypatch.setattr(Second, "_mask", mask)
    made = with_weights(replace(layer_step(), inputs=torch.zeros(BATCH, WIDE)), 0)
    with pytest.raises(AssertionError, match="used twice"):
        assert_opened_hides_everything(made, monkeypatch)


def test_masks_of_gates_that_are_used_twice_are_found(monkeypatch):
    """Every gate has the number of the first one; numbers that are all zero come out alike then."""
    monkeypatch.setattr(roles.Role, "_next_gate", lambda self: 0)
    monkeypatch.setattr(forward, "ZERO_UNITS", 0)
    with pytest.raises(AssertionError, match="used twice"):
        assert_opened_hides_everything(with_weights(layer_step(), 0), monkeypatch)


@pytest.mark.parametrize("numbers", [lambda drawn: drawn & 0, lambda drawn: drawn & (drawn >> 1)])
def test_a_biased_beta_is_found(monkeypatch, numbers):
    """The bit that hides the sign is zero, or more often zero than one, in both parties' parts."""
    by_first, by_second = sealed._drawn_whole, sealed.drawn_own

    def first(stream, width):
        r, bits, own, selection = by_first(stream, width)
        own[0] = numbers(own[0])
        return r, bits, own, selection

    def second(stream, width):
        r, own = by_second(stream, width)
        own[0] = numbers(own[0])
        return r, own

    def opened_signs():
        taken = by_gates(GATES["bit"], torch.ones(1 << 15, dtype=torch.int64))
        return torch.cat([words for name, words in opened_in(taken) if name == "masked signs"])

    assert_uniform(opened_signs())
    monkeypatch.setattr(sealed, "_drawn_whole", first)
    monkeypatch.setattr(sealed, "drawn_own", second)
    with pytest.raises(AssertionError):
        assert_uniform(opened_signs())


def test_a_seed_in_common_with_the_dealer_would_tell_it_what_is_dropped():
    """Why the two parties have a seed of their own: it is another one than those that the dealer has, and checked."""
    made = made_of("any")
    with pytest.raises(ProtocolError, match="two different seeds"):
        FirstParty(made.terms, made.model, made.dealt(), made.seeds[0], made.seeds[0], dealer="dora")
    dealt = made.dealt()
    made_again = replace(made, number=0)
    assert all(torch.equal(a, b) for a, b in zip(dealt, made_again.dealt(), strict=True))
    # None of the dealer's streams has the purposes of the common one.
    opened = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(roles, "Keystream", noting(lambda _seed, purpose, _number: opened.append(purpose)))
        made.dealt()
    assert opened and not {"dropout", "signs"} & set(opened)


def test_what_dropout_keeps_is_unknown_to_the_first_party():
    """Whoever has a sum over few samples and knows who was dropped tells the samples apart."""
    made = step_of(nn.Sequential(nn.Linear(4, 3)), (4,), "ce", 3)
    first = roles.First(made.terms, made.model, (), b"a" * 32, b"b" * 32, "dealer")
    assert not first.kept(4, (3, 8), 1 << 19).any()
    second = roles.Second(made.terms, (), b"c" * 32, b"b" * 32)
    other = roles.Second(made.terms, (), b"d" * 32, b"b" * 32)
    assert not torch.equal(second.kept(4, (64, 64), 1 << 19), other.kept(4, (64, 64), 1 << 19))
