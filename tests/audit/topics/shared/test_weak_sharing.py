"""Secret sharing that is weaker than it looks comes out broken: the real protocol, with one thing taken away.

Each sabotage leaves all answers right, so that nothing but an audit can see it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.audit.chance import each_holds, none_is_broken

from bilateral.audit.effort import EFFORTS
from bilateral.audit.topics.shared.shared_games import hiding_experiment, single_answers_experiment
from bilateral.audit.topics.shared.shared_setting import prepare
from bilateral.audit.topics.shared.shared_signs import signs_experiment
from bilateral.audit.verdict import judge
from bilateral.protocols.share.gates import judged
from bilateral.protocols.share.gates.judged import Blinding, factor_bits
from bilateral.protocols.share.gates.shuffling import random_orders
from bilateral.protocols.share.gates.styles import HARDENED
from bilateral.protocols.share.prediction import parties as prediction
from bilateral.protocols.share.prediction.parties import PredictionClient
from bilateral.protocols.share.ring.streams import SessionAgreement, Stream
from bilateral.randomness import SeededRandomness
from bilateral.runs.hetero.plan import HeteroPlan

SERVER, ANSWERER = "shared prediction, server", "shared prediction, answering party"
MASKS = ("weights", "input", "linear", "output")
TOP_BIT = -(1 << 63)
PLAN = HeteroPlan().with_settings(
    {
        "clients.number": 3,
        "clients.architectures": [{"name": "mlp-3"}],
        "training.epochs": 5,
        "queries.number": 16,
    }
)


def quiet(_fraction, _note):
    pass


@pytest.fixture(scope="module")
def setting():
    made = prepare(PLAN, HARDENED, EFFORTS["smoke"].shared, SeededRandomness(3, "weak sharing"), quiet)
    return replace(made, effort=replace(made.effort, examples=12, trials=20))


def at(seed, setting):
    """The same parties and networks; keys, attackers and worlds are others."""
    return replace(setting, randomness=SeededRandomness(3, "weak sharing", seed))


def by_row(evidence):
    return {(one.tests, one.adversary, one.attack, one.adaptive): judge(one) for one in evidence}


def best(rows, tests):
    """One about this that holds, if there is any: a naive attacker's may prove nothing."""
    about = [found for (claim, *_), found in rows.items() if claim == tests]
    return max(about, key=lambda found: found.verdict == "holds")


def broken(evidence):
    return {one.tests for one in evidence if judge(one).verdict == "broken"}


real_init, real_words, real_seed = Stream.__init__, Stream.words, SessionAgreement.seed


def weak_words(change):
    """Masks (but not blinding) are changed after they are drawn, by both parties alike."""

    def init(self, seed, purpose, *others):
        self.purpose = purpose
        real_init(self, seed, purpose, *others)

    def words(self, *shape):
        drawn = real_words(self, *shape)
        return change(drawn) if self.purpose in MASKS else drawn

    return [(Stream, "__init__", init), (Stream, "words", words)]


def period(length):
    """The first so many words of a tensor, again and again."""
    return lambda drawn: drawn.reshape(-1)[torch.arange(drawn.numel()) % length].reshape(drawn.shape)


def without_batch(self, seed, purpose, _batch_index, *others):
    real_init(self, seed, purpose, 0, *others)


def without_session(self, pair_secret):
    return real_seed(replace(self, session_id=bytes(16)), pair_secret)


MASKINGS = {
    "one word a tensor": weak_words(period(1)),
    "words that come again": weak_words(period(37)),
    "low bits bare": weak_words(lambda drawn: drawn & ~255),
    "short masks": weak_words(lambda drawn: drawn & ((1 << 48) - 1)),
    "streams of no batch": [(Stream, "__init__", without_batch)],
    "seeds of no session": [(SessionAgreement, "seed", without_session)],
}


MILDER = {"words that come again": "one word a tensor", "short masks": "low bits bare"}
"""Of a kind that is tried as well, and further from it: by name of the other."""


def unless_milder(changes):
    """The milder ones by name, with the long tests."""
    return [pytest.param(one, id=name, marks=[pytest.mark.long] * (name in MILDER)) for name, one in changes.items()]


@pytest.mark.parametrize("changes", unless_milder(MASKINGS))
def test_weak_masks_do_not_hide_queries_and_weights(setting, monkeypatch, changes):
    for owner, name, value in changes:
        monkeypatch.setattr(owner, name, value)
    assert broken(hiding_experiment(setting, quiet)) >= {SERVER, ANSWERER}


def test_right_masks_do(setting):
    def of(seed):
        return by_row(hiding_experiment(at(seed, setting), quiet))

    of = cache(of)
    none_is_broken(of)
    each_holds(lambda seed: {party: best(of(seed), party) for party in (SERVER, ANSWERER)})


def weak_blinding(change):
    """Both who blind draw as always, and then change words (factors, signs) or orders alike."""

    def draw(cls, stream, shape, fraction_bits, style):
        words, spread = real_words(stream, *shape), real_words(stream, *shape)
        orders = random_orders(stream, *shape) if style.reorders else None
        words, orders = change(words, orders)
        return cls(words, spread, orders, factor_bits(fraction_bits), style)

    return [(Blinding, "draw", classmethod(draw))]


def no_flips(words, orders):
    return words & ~TOP_BIT, orders


def no_orders(words, orders):
    return words, None if orders is None else torch.arange(words.shape[1]).repeat(len(words), 1)


def three_factors(words, orders):
    choices = torch.tensor([0x111112222233333, 0x555556666677777, 0x123451234512345])
    return choices[words.abs() % 3] | (words & TOP_BIT), orders


def one_factor(words, orders):
    return (words[:, :1] & ~TOP_BIT) | (words & TOP_BIT), orders


BLINDINGS = {
    "no flips": weak_blinding(no_flips),
    "no orders": weak_blinding(no_orders),
    "three factors": weak_blinding(three_factors),
    "one factor a query": weak_blinding(one_factor),
    "streams of no batch": [(Stream, "__init__", without_batch)],
    "seeds of no session": [(SessionAgreement, "seed", without_session)],
}


@pytest.mark.parametrize("changes", BLINDINGS.values(), ids=BLINDINGS)
def test_weak_blinding_does_not_hide_activations(setting, monkeypatch, changes):
    for owner, name, value in changes:
        monkeypatch.setattr(owner, name, value)
    assert broken(signs_experiment(setting, quiet)) >= {"signs of activations"}


@pytest.mark.parametrize("constant", [False, True])
def test_weak_factors_are_found_by_a_control_that_does_not_draw_them(setting, monkeypatch, constant):
    """Inside the protocol's own factors: one a query, or one for all. The compiled loops would not see it."""
    right = judged._factors

    def weak(words, top, is_logarithmic):
        found = right(words, top, is_logarithmic)
        chosen = found[:1, :1] * 0 + 0x35A7B1 if constant else found[:, :1]
        return chosen.expand_as(found).contiguous()

    monkeypatch.setattr(judged, "_factors", weak)
    monkeypatch.setattr(Blinding, "_is_fused", property(lambda _self: False))
    assert "signs of activations" in broken(signs_experiment(setting, quiet))


def test_right_blinding_does(setting):
    each_holds(lambda seed: by_row(signs_experiment(at(seed, setting), quiet)))


real_deliver, real_receive = prediction._deliver, PredictionClient._receive


def apart(batch, shares):
    """The server sends what it should have added up."""
    for part, share in zip(batch, shares, strict=True):
        yield from real_deliver([part], [share])


def forgetful(self, message):
    """A client that does not notice that its queries were answered before: the right one refuses that."""
    before, self._answers = self._answers, {}
    reply = real_receive(self, message)
    self._answers = before | self._answers
    return reply


SUMS = {
    "no flips": weak_blinding(no_flips),
    "no orders": weak_blinding(no_orders),
    "answers apart": [(prediction, "_deliver", apart), (PredictionClient, "_receive", forgetful)],
}


@pytest.mark.parametrize("changes", SUMS.values(), ids=SUMS)
def test_weak_sums_do_not_hide_single_answers(setting, monkeypatch, changes):
    for owner, name, value in changes:
        monkeypatch.setattr(owner, name, value)
    assert broken(single_answers_experiment(setting, quiet)) >= {"single answers"}


def test_right_sums_do(setting):
    each_holds(lambda seed: by_row(single_answers_experiment(at(seed, setting), quiet)))
