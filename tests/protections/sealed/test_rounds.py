"""Sealed rounds in one process: the gradient is plain autograd's, and whoever is missing or wrong is left out."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from tests.protections.sealed.harness import Sealed, dropouts, plan_of, relative

from bilateral.errors import OutOfRangeError, ProtocolError, ThresholdError
from bilateral.learning.exchange import Unusable
from bilateral.protections.sealed.messages import (
    DealComplaint,
    DealRequest,
    Dealt,
    RangeLeft,
    SealedModel,
    SealedTurn,
    SealedTurnReply,
    SealedWeights,
)
from bilateral.protocols.mask.messages import MaskedUpload, MaskOpening, RoutedShares, SealedShares
from bilateral.protocols.messages import Message

NAMED = {"federation.dealer": "auditor"}
FIVE = {"federation.clients": 5}


def reasons(sealed):
    return {(incident.client, incident.reason) for incident in sealed.training.aggregation.incidents}


@pytest.mark.parametrize("loss", ["mse", "ce"])
@pytest.mark.parametrize("dealer", ["rotating", "auditor"])
def test_the_gradient_is_plain_autograds(loss, dealer):
    sealed = Sealed(plan_of(**{"training.loss": loss, "federation.dealer": dealer}))
    for round_index in range(2):
        expected = sealed.mean_gradient(round_index)
        assert sealed.advance(round_index) == tuple(sealed.names)
        assert relative(sealed.training.last_gradient, expected) < 1e-4
    assert not reasons(sealed)


def test_clients_count_by_their_samples():
    """Whole batches of unequal clients: each sample counts the same."""
    unequal = {"training.batch_size": 0, "federation.proportions": [0.6, 0.3, 0.1]}
    sealed = Sealed(plan_of(**unequal))
    assert len({len(share) for share in sealed.federation.shares.values()}) == 3
    expected = sealed.mean_gradient(0)
    sealed.advance(0)
    assert relative(sealed.training.last_gradient, expected) < 1e-4


def test_clients_of_unequal_size_count_alike_in_batches_of_one_size():
    sealed = Sealed(plan_of(**{"training.batch_size": 8, "federation.proportions": [0.6, 0.3, 0.1]}))
    expected = sealed.mean_gradient(0)
    sealed.advance(0)
    assert relative(sealed.training.last_gradient, expected) < 1e-4


def test_a_client_is_sent_no_parameters_and_sends_no_gradient():
    sealed = Sealed()
    sealed.advance(0)
    (model,) = {id(m): m for m in sealed.messages(SealedModel, receiver="client-1")}.values()
    assert model.parameters.numel() == 0
    for weights in sealed.messages(SealedWeights):
        words = torch.cat([part.reshape(-1) for part in weights.weights])
        assert words.dtype == torch.int64
        assert float((words.double() / 2**63).abs().mean()) > 0.4  # uniform, not 20 bits of a weight
        assert words.numel() == 30 * 32 + 32 * 32 + 32 * 2


def test_each_client_has_its_weights_under_a_mask_of_its_own():
    sealed = Sealed()
    sealed.advance(0)
    sealed.advance(1)
    seen = [tuple(m.weights[0].reshape(-1).tolist()) for m in sealed.messages(SealedWeights)]
    assert len(set(seen)) == len(seen) == 6


def test_the_dealer_is_told_who_and_when_and_nothing_else():
    sealed = Sealed(plan_of(**NAMED))
    sealed.advance(0)
    received = [m for _, _, whom, m in sealed.seen if whom == "auditor"]
    assert {type(m).__name__ for m in received} == {"KeyRequest", "Roster", "DealRequest"}
    (request,) = sealed.messages(DealRequest)
    assert (request.round_index, request.clients) == (0, tuple(sealed.names))


def test_a_participants_dealer_is_another_participant_drawn_anew():
    sealed = Sealed(plan_of(**FIVE))
    pairs = []
    for round_index in range(3):
        sealed.advance(round_index)
        dealers = {name: sealed.messages(SealedWeights, receiver=name)[-1].dealer for name in sealed.names}
        assert sorted(dealers.values()) == sorted(sealed.names)
        assert all(name != dealer for name, dealer in dealers.items())
        pairs.append(tuple(dealers.items()))
    assert len(set(pairs)) == 3


def test_an_invited_part_of_the_clients_will_do():
    sealed = Sealed(plan_of(**{**FIVE, "federation.participation": 0.6}))
    expected = sealed.mean_gradient(0, ["client-1", "client-3", "client-4"])
    assert sealed.advance(0, ["client-1", "client-3", "client-4"]) == ("client-1", "client-3", "client-4")
    assert relative(sealed.training.last_gradient, expected) < 1e-4


def lost(kind, who, *, after=0):
    """From the message of this kind with that many before it, nothing comes from `who` any more."""
    state = {"count": 0, "gone": False}

    def change(round_index, sender, receiver, message):
        if sender == who and isinstance(message, kind):
            state["gone"] = state["gone"] or state["count"] >= after
            state["count"] += 1
        return None if sender == who and state["gone"] else message

    return change


@pytest.mark.parametrize(
    ("kind", "after"),
    [(SealedTurn, 0), (SealedTurn, 3), (SealedTurn, 8), (MaskedUpload, 0)],
    ids=["before its first word", "in the forward pass", "in the backward pass", "before its upload"],
)
def test_a_client_that_dies_in_its_step_is_missing_and_the_others_go_on(kind, after):
    sealed = Sealed(plan_of(**FIVE), change=lost(kind, "client-2", after=after))
    others = [name for name in sealed.names if name != "client-2"]
    expected = sealed.mean_gradient(0, others)
    assert sealed.advance(0) == tuple(others)
    assert relative(sealed.training.last_gradient, expected) < 1e-4


def test_whose_dealer_dies_is_out_of_the_round_with_it():
    sealed = Sealed(plan_of(**{"federation.clients": 8}), change=lost(Dealt, "client-2"))
    contributors = sealed.advance(0)
    assert len(contributors) == 6
    (client,) = set(sealed.names) - {"client-2", *contributors}
    assert (client, f"client-2 did not deal for {client}.") in reasons(sealed)
    assert ("client-2", "client-2, who deals, did not answer.") in reasons(sealed)


def test_who_never_shared_deals_for_nobody():
    sealed = Sealed(plan_of(**{"federation.clients": 8}), change=lost(SealedShares, "client-2"))
    contributors = sealed.advance(0)
    assert len(contributors) == 6
    assert any("client-2, who would deal for" in reason for _, reason in reasons(sealed))


def test_a_named_dealer_that_is_silent_ends_the_round_by_name_and_the_model_stays():
    sealed = Sealed(plan_of(**NAMED), change=lost(Dealt, "auditor"))
    before = sealed.training.weights()
    with pytest.raises(ThresholdError, match="Round 1 cannot be dealt for: auditor, who deals, did not answer"):
        sealed.advance(0)
    assert torch.equal(sealed.training.weights(), before)
    sealed.change = None
    expected = sealed.mean_gradient(1)
    sealed.advance(1)
    assert relative(sealed.training.last_gradient, expected) < 1e-4


def test_without_the_keys_of_a_named_dealer_no_round_begins_and_it_is_asked_again():
    def mute(round_index, sender, receiver, message):
        return None if sender == "auditor" else message

    sealed = Sealed(plan_of(**NAMED), change=mute)
    with pytest.raises(ThresholdError, match="no keys of auditor"):
        sealed.advance(0)
    sealed.change = None
    assert sealed.advance(1) == tuple(sealed.names)


def test_a_box_that_does_not_open_leaves_its_client_out_and_nobody_else():
    def spoil(round_index, sender, receiver, message):
        if isinstance(message, SealedWeights) and receiver == "client-3":
            return replace(message, box=message.box[:-1] + bytes([message.box[-1] ^ 1]))
        return message

    sealed = Sealed(plan_of(**FIVE), change=spoil)
    others = [name for name in sealed.names if name != "client-3"]
    expected = sealed.mean_gradient(0, others)
    assert sealed.advance(0) == tuple(others)
    assert relative(sealed.training.last_gradient, expected) < 1e-4
    assert sealed.messages(DealComplaint, sender="client-3")
    assert any("client-3 cannot use what" in reason for _, reason in reasons(sealed))


WRONG_DEALT = [
    lambda m: replace(m, round_index=m.round_index + 1),
    lambda m: replace(m, clients=()),
    lambda m: replace(m, clients=("client-9",)),
    lambda m: replace(m, seeds=()),
    lambda m: replace(m, seeds=(b"short",)),
    lambda m: replace(m, boxes=()),
    lambda m: replace(m, words=()),
    lambda m: replace(m, words=(*m.words, m.words[-1])),
    lambda m: replace(m, words=(m.words[0][:-1],)),
    lambda m: replace(m, words=(torch.cat([m.words[0], m.words[0]]),)),
    lambda m: replace(m, words=(m.words[0].to(torch.int32),)),
    lambda m: replace(m, words=(m.words[0][None],)),
    lambda m: DealComplaint(m.round_index, "client-1"),
    lambda m: Unusable("it cannot be read"),
]


@pytest.mark.parametrize("wrong", WRONG_DEALT)
def test_what_is_no_dealing_leaves_out_whom_it_was_for(wrong):
    sealed = Sealed(plan_of(**{"federation.clients": 8}))
    sealed._travel = passing(lambda m: wrong(m) if isinstance(m, Dealt) else m, "client-2")
    contributors = sealed.advance(0)
    assert len(contributors) == 7
    assert any(client == "client-2" for client, _ in reasons(sealed))


def passing(change, who):
    """Messages as they are, without the wire format: some are none of those that travel."""
    return lambda round_index, sender, receiver, message, kinds: change(message) if sender == who else message


WRONG_TURNS = [
    lambda m: replace(m, round_index=m.round_index + 1),
    lambda m: replace(m, number=m.number + 1),
    lambda m: replace(m, number=m.number - 1),
    lambda m: replace(m, parts=()),
    lambda m: replace(m, parts=m.parts[:-1]),
    lambda m: replace(m, parts=(*m.parts, torch.zeros(3, dtype=torch.int64))),
    lambda m: replace(m, parts=tuple(part.double() for part in m.parts)),
    lambda m: replace(m, parts=tuple(part.int() for part in m.parts)),
    lambda m: replace(m, parts=tuple(part.reshape(1, -1) for part in m.parts)),
    lambda m: DealRequest(m.round_index, ("client-1",), b""),
    lambda m: Unusable("it cannot be read"),
]


@pytest.mark.parametrize("wrong", WRONG_TURNS)
@pytest.mark.parametrize("at", [0, 4])
def test_a_turn_that_makes_no_sense_leaves_its_sender_out(wrong, at):
    sealed = Sealed(plan_of(**FIVE))
    state = {"count": -1}

    def change(message):
        if isinstance(message, SealedTurn):
            state["count"] += 1
            return wrong(message) if state["count"] == at else message
        return message

    sealed._travel = passing(change, "client-2")
    others = [name for name in sealed.names if name != "client-2"]
    expected = sealed.mean_gradient(0, others)
    assert sealed.advance(0) == tuple(others)
    assert relative(sealed.training.last_gradient, expected) < 1e-4
    assert [client for client, _ in reasons(sealed)] == ["client-2"]


def test_an_upload_before_its_step_is_done_is_not_in_the_sum():
    sealed = Sealed(plan_of(**FIVE))

    def change(message):
        if isinstance(message, SealedTurn) and message.number == 2:
            return MaskedUpload(
                message.round_index, 0, torch.zeros(sealed.training.aggregation._shape.num_values).long()
            )
        return message

    sealed._travel = passing(change, "client-2")
    assert "client-2" not in sealed.advance(0)
    assert ("client-2", "client-2 sent its upload before its step was done; it is not used.") in reasons(sealed)


def told_by_server(change, who="client-2", **settings):
    """The error with which a client refuses what the server was made to say; in one process it ends the run."""
    sealed = Sealed(plan_of(**settings))

    def travel(round_index, sender, receiver, message, kinds):
        return change(message) if receiver == who else message

    sealed._travel = travel
    with pytest.raises(ProtocolError) as caught:
        sealed.advance(0)
    return str(caught.value)


def when(kind, wrong):
    return lambda m: wrong(m) if isinstance(m, kind) else m


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (when(DealRequest, lambda m: replace(m, round_index=5)), "which is not open"),
        (when(DealRequest, lambda m: replace(m, terms=b"other")), "about other terms"),
        (when(DealRequest, lambda m: replace(m, clients=())), "there is none"),
        (when(DealRequest, lambda m: replace(m, clients=(*m.clients, *m.clients))), "one comes twice"),
        (when(DealRequest, lambda m: replace(m, clients=("client-2",))), "does not deal for 'client-2'"),
        (when(SealedWeights, lambda m: replace(m, round_index=5)), "which is not open"),
        (when(SealedWeights, lambda m: replace(m, dealer="client-2")), "is said to have dealt"),
        (when(SealedWeights, lambda m: replace(m, seed=b"short")), "expected a seed of 32 bytes"),
        (when(SealedWeights, lambda m: replace(m, weights=m.weights[:-1])), "masked weights"),
        (when(SealedWeights, lambda m: replace(m, weights=tuple(w.double() for w in m.weights))), "masked weights"),
        (when(SealedModel, lambda m: replace(m, round_index=5)), "sent no weights for round 5"),
        (when(SealedModel, lambda m: replace(m, terms=b"other")), "trains on other terms"),
        (when(SealedModel, lambda m: replace(m, front=(torch.zeros(3),))), "public front"),
        (when(SealedWeights, lambda m: SealedTurnReply(0, 0, ())), "no step is under way"),
        (when(SealedTurnReply, lambda m: replace(m, round_index=5)), "no step is under way"),
        (when(SealedTurnReply, lambda m: replace(m, number=m.number + 1)), "expected turn"),
        (when(SealedTurnReply, lambda m: replace(m, parts=(*m.parts[:-1], m.parts[-1][:-1]))), "Malformed message"),
        (when(SealedTurnReply, lambda m: replace(m, parts=tuple(p.int() for p in m.parts))), "Malformed message"),
        (when(SealedTurnReply, lambda m: RangeLeft(0)), "which sealed training has not"),
    ],
)
def test_what_the_server_may_not_say_is_refused_by_the_client(change, said):
    assert said in told_by_server(change)


def test_a_server_cannot_choose_who_deals():
    """The client computes the draw itself."""

    def another(message):
        if isinstance(message, SealedWeights):
            return replace(message, dealer=next(n for n in ("client-1", "client-3", "client-4") if n != message.dealer))
        return message

    assert "a server cannot choose who deals" in told_by_server(another, **FIVE)


def test_weights_come_after_the_shares_of_the_others():
    """Shares are bound to the opening: without them each client could be shown another circle of dealers."""
    first = Sealed()
    weights = []
    first.change = lambda r, sender, receiver, m: weights.append(m) or m if isinstance(m, SealedWeights) else m
    first.advance(0)
    # In place of the shares come the weights (of whichever client: they are refused before they are looked at).
    early = when(RoutedShares, lambda m: weights[0])
    assert "they came before the shares of the others" in told_by_server(early)


def test_a_client_whose_others_were_shown_other_participants_trains_on_nothing():
    sealed = Sealed(plan_of(**FIVE))

    def split(round_index, sender, receiver, message):
        if isinstance(message, MaskOpening) and receiver == "client-1":
            return replace(message, participants=message.participants[:-1])
        return message

    turns = []

    def seen(round_index, sender, receiver, message):
        if isinstance(message, SealedTurn):
            turns.append(sender)
        return split(round_index, sender, receiver, message)

    sealed.change = seen
    with suppress(ProtocolError):
        sealed.advance(0)
    assert "client-1" not in turns


def test_a_server_cannot_open_a_round_with_the_named_dealer_in_it():
    def with_dealer(message):
        if isinstance(message, MaskOpening):
            return replace(message, participants=("auditor", *message.participants))
        return message

    assert "auditor deals in this run" in told_by_server(with_dealer, **NAMED)


def test_a_box_and_a_round_are_taken_once():
    sealed = Sealed()
    replayed: list[Message] = []

    def twice(round_index, sender, receiver, message):
        if receiver == "client-2" and isinstance(message, SealedWeights):
            replayed.append(message)
        return message

    sealed.change = twice
    sealed.advance(0)
    client = sealed.local.clients["client-2"]
    with pytest.raises(ProtocolError, match="round 0 had its weights before"):
        client.half.receive(replayed[0])
    sealed.advance(1)
    with pytest.raises(ProtocolError, match="is of round 0, which is not open"):
        client.half.receive(replayed[0])


def test_a_round_is_dealt_for_once():
    for dealer in ("rotating", "auditor"):
        sealed = Sealed(plan_of(**{"federation.dealer": dealer}))
        sealed.advance(0)
        request = sealed.messages(DealRequest)[0]
        asked = next(whom for _, _, whom, m in sealed.seen if m is request)
        party = {**sealed.local.clients, **sealed.local.helpers}[asked]
        with pytest.raises(ProtocolError, match="round 0 was dealt for, or is over"):
            party.handle((request,))


def test_a_named_dealer_answers_nothing_else():
    sealed = Sealed(plan_of(**NAMED))
    sealed.advance(0)
    party = sealed.local.helpers["auditor"]
    with pytest.raises(ProtocolError, match="auditor deals, and was sent MaskOpening"):
        party.handle((MaskOpening(0, 0, ("a", "b"), ()),))
    with pytest.raises(ProtocolError, match="nothing that has an answer"):
        party.handle(())


@pytest.mark.parametrize("found_by", ["client", "server"])
def test_a_number_that_left_its_range_ends_the_round_with_an_error_and_the_model_stays(found_by, monkeypatch):
    from bilateral.errors import NumericalRangeError
    from bilateral.protocols.share.training import parties

    sealed = Sealed()
    before = sealed.training.weights()
    kind = parties.SecondParty if found_by == "client" else parties.FirstParty
    whole = kind.work

    def beyond(self, *batch):
        yield from whole(self, *batch)
        raise NumericalRangeError("3 of its random sums are beyond their limits")

    monkeypatch.setattr(kind, "work", beyond)
    if found_by == "server":
        with pytest.raises(OutOfRangeError, match="Round 1: a number of client-1's sealed step left its range"):
            sealed.advance(0)
    else:  # the server sees for itself that nothing did: each of them is out of the round
        with pytest.raises(ThresholdError):
            sealed.advance(0)
        said = [incident.reason for incident in sealed.training.aggregation.incidents]
        assert sum("says that numbers of its batch are out of range" in reason for reason in said) >= 2
    assert torch.equal(sealed.training.weights(), before)
    monkeypatch.undo()
    expected = sealed.mean_gradient(1)
    sealed.advance(1)
    assert relative(sealed.training.last_gradient, expected) < 1e-4


def test_weights_that_are_not_those_that_were_told_lose_the_sum():
    sealed = Sealed()
    sealed.local.clients["client-2"]._uploader._masks._encoded = lambda upload, form: wrong_weight(upload)
    with pytest.raises(ThresholdError, match="its clients have told"):
        sealed.advance(0)


def wrong_weight(upload):
    from bilateral.protocols.mask.ring_words import words_of

    return words_of(replace(upload, weight=upload.weight + 1), "client-2")


def test_clients_may_die_anywhere_in_a_round():
    sealed = Sealed(plan_of(**{"federation.clients": 8}), dropouts=dropouts(0.1))
    outcomes = []
    for round_index in range(4):
        try:
            contributors = sealed.advance(round_index)
        except ThresholdError:
            outcomes.append(0)
        else:
            outcomes.append(len(contributors))
    assert max(outcomes) >= 6
    assert min(outcomes) < 8


def test_the_checked_recovery_is_that_of_a_whole_step():
    report = Sealed().training.check_recovery()
    assert report is not None
    assert report.error < 1e-3
    assert report.dtype == "fixed point"


def test_shares_that_do_not_open_are_complained_about_as_ever():
    def spoil(round_index, sender, receiver, message):
        if isinstance(message, RoutedShares) and receiver == "client-1":
            return replace(message, sealed=(message.sealed[0][:-1] + b"?", *message.sealed[1:]))
        return message

    sealed = Sealed(plan_of(**FIVE), change=spoil)
    assert "client-1" not in sealed.advance(0)
    assert any("could not open the shares" in reason for _, reason in reasons(sealed))
