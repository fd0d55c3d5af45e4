"""Sealed comparisons that are weaker than they look come out broken: the real protocol, with one thing taken away.

Each sabotage but the last leaves all answers right, so that nothing but an audit can see it. The dealer and both
computing parties are changed alike; so is what the attacker reads, who knows the protocol as it is.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
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


def broken(evidence):
    return {one.tests for one in evidence if judge(one).verdict == "broken"}


class Weakened:
    """A stream of one comparison whose r or own planes (row 0 the beta, then the masks) are changed as they come.

    The first party's planes are those in the places of the dealt ones, then its own; the second's are its own alone.
    """

    def __init__(self, stream, width, change_r, change_own):
        self._stream, self._width, self._change_r, self._change_own = stream, width, change_r, change_own
        self.device = stream.device

    def words(self, *shape):
        drawn = self._stream.words(*shape)
        num_own = 1 + self._width.num_masks
        if len(shape) == 1:
            return self._change_r(drawn)
        if shape[0] >= num_own and shape[1] == self._width.words:
            drawn[-num_own:] = self._change_own(drawn[-num_own:])
        return drawn


def unchanged(drawn):
    return drawn


def weakened(change_r=unchanged, change_own=unchanged):
    real_first, real_second, real_deal = sealed.first_part, sealed.second_part, sealed.deal

    def weak(stream, width):
        return stream if isinstance(stream, Weakened) else Weakened(stream, width, change_r, change_own)

    return [
        (sealed, "first_part", lambda stream, width: real_first(weak(stream, width), width)),
        (sealed, "second_part", lambda stream, dealt, width: real_second(weak(stream, width), dealt, width)),
        (sealed, "deal", lambda one, other, width: real_deal(weak(one, width), weak(other, width), width)),
    ]


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


@pytest.mark.parametrize("changes", SEALINGS.values(), ids=SEALINGS)
def test_weak_sealing_shows_activations_to_both_computing_parties(setting, monkeypatch, changes):
    for owner, name, value in changes:
        monkeypatch.setattr(owner, name, value)
    assert answers_are_right()
    assert broken(hiding_experiment(setting, quiet)) == {SERVER, ANSWERER}


class BetaOfR(Weakened):
    """Beta is bit 32 of r, and all else is uniform to the server: the first party alone draws the low bits of r."""

    def __init__(self, stream, width, *, is_first):
        super().__init__(stream, width, self._draw_r, self._draw_own)
        self._is_first = is_first

    def _draw_r(self, drawn):
        if not self._is_first:
            return drawn & ~((1 << (self._width.sign_bit + 1)) - 1)
        self._r = drawn
        return drawn

    def _draw_own(self, own):
        own = own.clone()
        own[0] = planes.to_planes(self._r, self._width.sign_bit + 1)[-1] if self._is_first else 0
        return own


def test_a_beta_that_has_to_do_with_r_is_seen_in_both_together(setting, monkeypatch):
    """y and m are each uniform to the server, and m xor bit 32 of y is nearly the sign."""
    real_first, real_second, real_deal = sealed.first_part, sealed.second_part, sealed.deal

    def weak(stream, width, *, is_first):
        return stream if isinstance(stream, Weakened) else BetaOfR(stream, width, is_first=is_first)

    def first_part(stream, width):
        return real_first(weak(stream, width, is_first=True), width)

    def second_part(stream, dealt, width):
        return real_second(weak(stream, width, is_first=False), dealt, width)

    def deal(one, other, width):
        return real_deal(weak(one, width, is_first=True), weak(other, width, is_first=False), width)

    for name, value in (("first_part", first_part), ("second_part", second_part), ("deal", deal)):
        monkeypatch.setattr(sealed, name, value)
    assert answers_are_right()
    assert SERVER in broken(hiding_experiment(setting, quiet))


def test_right_sealing_does_not(setting):
    """In 20 trials a game may look suspicious by chance; then nothing is concluded from that row."""
    found = [judge(one) for one in hiding_experiment(setting, quiet)]
    assert not [one.reason for one in found if one.verdict == "broken"]
    assert {one.evidence.tests for one in found if one.verdict == "holds"} == {SERVER, ANSWERER}


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
    assert broken(attack(setting, quiet)) == {"activations"}


@pytest.mark.parametrize("attack", [signs_experiment, learned_experiment, hidden_layer_experiment])
def test_a_dealer_who_only_deals_does_not(setting, attack):
    found = [judge(one) for one in attack(setting, quiet)]
    assert not [one.reason for one in found if one.verdict == "broken"]
    assert [one for one in found if one.verdict == "holds" and one.evidence.adaptive]


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
