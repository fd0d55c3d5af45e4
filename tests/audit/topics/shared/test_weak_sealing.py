"""Sealed comparisons that are weaker than they look come out broken: the real protocol, with one thing taken away.

Each sabotage but the last leaves all answers right, so that nothing but an audit can see it. The dealer and both
computing parties are changed alike; so is what the attacker reads, who knows the protocol as it is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.audit.chance import each_holds, none_is_broken
from tests.audit.shared_samples import asked

from bilateral.audit.effort import EFFORTS
from bilateral.audit.topics.shared.shared_games import hiding_experiment
from bilateral.audit.topics.shared.shared_hidden_layer import hidden_layer_experiment
from bilateral.audit.topics.shared.shared_learned import learned_experiment
from bilateral.audit.topics.shared.shared_setting import prepare
from bilateral.audit.topics.shared.shared_signs import signs_experiment
from bilateral.audit.verdict import judge
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.computing.second import SecondParty
from bilateral.protocols.share.gates import planes, sealed
from bilateral.protocols.share.gates.styles import SEALED
from bilateral.protocols.share.gates.talk import Judge
from bilateral.protocols.share.prediction.messages import SelectedValues
from bilateral.protocols.share.prediction.querying import QueryingSession
from bilateral.protocols.share.ring.streams import Stream
from bilateral.randomness import SeededRandomness
from bilateral.runs.hetero.plan import HeteroPlan

SERVER, ANSWERER = "shared prediction, server", "shared prediction, answering party"
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
    made = prepare(PLAN, SEALED, EFFORTS["smoke"].shared, SeededRandomness(3, "weak sealing"), quiet)
    return replace(made, effort=replace(made.effort, examples=12, trials=20))


def at(seed, setting):
    """The same parties and networks; keys, attackers and worlds are others."""
    return replace(setting, randomness=SeededRandomness(3, "weak sealing", seed))


def by_row(evidence):
    return {(one.tests, one.adversary, one.attack, one.adaptive): judge(one) for one in evidence}


def some_adaptive(rows):
    """One that holds if there is any."""
    return max((found for (*_, adaptive), found in rows.items() if adaptive), key=lambda one: one.verdict == "holds")


def best(rows, tests):
    """One about this that holds, if there is any: a naive attacker's may prove nothing."""
    about = [found for (claim, *_), found in rows.items() if claim == tests]
    return max(about, key=lambda found: found.verdict == "holds")


def broken(evidence):
    return {one.tests for one in evidence if judge(one).verdict == "broken"}


def unchanged(drawn):
    return drawn


def weakened(change_r=unchanged, change_own=unchanged):
    """What both computing parties draw of r, and of their own planes (row 0 the beta, then the masks), is changed.

    The dealer draws with them, by the same functions.
    """
    real_first, real_second = sealed._drawn_whole, sealed.drawn_own

    def first(stream, width):
        r, dealt, own, selection = real_first(stream, width)
        return change_r(r), dealt, change_own(own), selection

    def second(stream, width):
        r, own = real_second(stream, width)
        return change_r(r), change_own(own)

    return [(sealed, "_drawn_whole", first), (sealed, "drawn_own", second)]


def always_the_same(drawn):
    """As if one r were dealt for all comparisons, each of which reads it from its beginning."""
    generator = torch.Generator().manual_seed(7)
    return torch.randint(-(2**63), 2**63 - 1, (1 << 16,), generator=generator)[: len(drawn)]


def no_beta(own):
    own = own.clone()
    own[0] = 0
    return own


def bare_digits(own):
    own = own.clone()
    own[1:] = 0
    return own


real_init = Stream.__init__


def without_batch(self, seed, purpose, batch_index, *others):
    real_init(self, seed, purpose, 0 if purpose == "comparison" else batch_index, *others)


SEALINGS = {
    "one r for all comparisons": weakened(change_r=always_the_same),
    "correlations of no batch": [(Stream, "__init__", without_batch)],
    "beta always 0": weakened(change_own=no_beta),
    "r of 40 bits": weakened(change_r=lambda r: r & ((1 << 40) - 1)),
    "r without its low bits": weakened(change_r=lambda r: r & ~((1 << 16) - 1)),
    "digits without masks": weakened(change_own=bare_digits),
}


MILDER = ("r without its low bits",)
"""Found in the same way as r of 40 bits."""


@pytest.mark.parametrize(
    "changes",
    [pytest.param(one, id=name, marks=[pytest.mark.long] * (name in MILDER)) for name, one in SEALINGS.items()],
)
def test_weak_sealing_shows_activations_to_both_computing_parties(setting, monkeypatch, changes):
    for owner, name, value in changes:
        monkeypatch.setattr(owner, name, value)
    assert answers_are_right()
    assert broken(hiding_experiment(setting, quiet)) >= {SERVER, ANSWERER}


def beta_of_r():
    """Beta is bit 32 of r, and all else is uniform to the server: the first party alone draws the low bits of r."""
    real_first, real_second = sealed._drawn_whole, sealed.drawn_own

    def first(stream, width):
        r, dealt, own, selection = real_first(stream, width)
        own = own.clone()
        own[0] = planes.to_planes(r.clone(), width.sign_bit + 1)[-1]
        return r, dealt, own, selection

    def second(stream, width):
        r, own = real_second(stream, width)
        return r & ~((1 << (width.sign_bit + 1)) - 1), no_beta(own)

    return [(sealed, "_drawn_whole", first), (sealed, "drawn_own", second)]


def test_a_beta_that_has_to_do_with_r_is_seen_in_both_together(setting, monkeypatch):
    """y and m are each uniform to the server, and m xor bit 32 of y is nearly the sign."""
    for owner, name, value in beta_of_r():
        monkeypatch.setattr(owner, name, value)
    assert answers_are_right()
    assert SERVER in broken(hiding_experiment(setting, quiet))


def test_right_sealing_does_not(setting):
    def of(seed):
        return by_row(hiding_experiment(at(seed, setting), quiet))

    of = cache(of)
    none_is_broken(of)
    each_holds(lambda seed: {party: best(of(seed), party) for party in (SERVER, ANSWERER)})


def shown_to_the_dealer():
    """The server sends what it opens to the querying party, who answers anything: y, of which it knows r."""
    real = sealed.compare

    def compare(x, own, width, *, is_first):
        found = yield from real(x, own, width, is_first=is_first)
        if not is_first:
            yield Judge(found.y)
        return found

    def judge_nothing(self, message):
        return SelectedValues(self._seeds.session_id, message.batch_index, message.values, message.values)

    real_evaluate = SecondParty.evaluate

    def evaluate(self, x):
        """`Judge` takes (queries, numbers)."""
        work, answer = real_evaluate(self, x), None
        while True:
            try:
                said = work.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield Judge(said.values.reshape(self._batch.size, -1)) if isinstance(said, Judge) else said

    return [
        (sealed, "compare", compare),
        (SecondParty, "evaluate", evaluate),
        (QueryingSession, "judge", judge_nothing),
    ]


@pytest.mark.parametrize("attack", [signs_experiment, learned_experiment, hidden_layer_experiment])
def test_a_dealer_who_is_shown_what_is_opened_reads_activations(setting, monkeypatch, attack):
    for owner, name, value in shown_to_the_dealer():
        monkeypatch.setattr(owner, name, value)
    assert answers_are_right()
    assert broken(attack(setting, quiet)) >= {"activations"}


@pytest.mark.parametrize("attack", [signs_experiment, learned_experiment, hidden_layer_experiment])
def test_a_dealer_who_only_deals_does_not(setting, attack):
    def of(seed):
        return by_row(attack(at(seed, setting), quiet))

    of = cache(of)
    none_is_broken(of)
    each_holds(lambda seed: {"one of the adaptive": some_adaptive(of(seed))})


def test_a_table_of_the_wrong_digit_makes_wrong_answers(monkeypatch):
    """Nothing leaks, and no audit of views can see it: the answers must be looked at."""
    assert answers_are_right()
    real = planes.thermometers

    def exchanged(r_planes, share, out=None):
        digits = r_planes.clone()
        digits[:4], digits[4:8] = r_planes[4:8], r_planes[:4]
        digits[24:28], digits[28:32] = r_planes[28:32], r_planes[24:28]
        return real(digits, share, out)

    monkeypatch.setattr(planes, "thermometers", exchanged)
    assert not answers_are_right()


def answers_are_right():
    (run,) = asked(SEALED)
    expected = sum(predict(model, run.queries) for model in run.models.values())
    return bool((run.answers - expected).abs().max() < 1e-3)
