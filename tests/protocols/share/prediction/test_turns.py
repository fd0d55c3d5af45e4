"""Turns between the computing parties: once, in order, and of this batch; a batch that fails is over, others go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.protocols.share.harness import QUERIER, Group, fill, queries_like
from torch import nn

from bilateral.errors import BilateralError, MalformedMessageError, ProtocolError
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, predict
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED, SEALED
from bilateral.protocols.share.prediction.messages import (
    AnswererTurn,
    BatchRequest,
    Carries,
    Correlations,
    QueryRequest,
    QueryShare,
    ServerTurn,
    SummedLogits,
)

SHAPE = (6,)
QUERIES = queries_like(SHAPE, count=3)
TOLERANCE = 2.0**-12
styles = pytest.mark.parametrize("style", [SEALED, HARDENED], ids=lambda style: style.name)


def compiled(seed=0, **settings):
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    return compile_model(fill(network, seed), queries_like(SHAPE, count=8), **settings)


@pytest.fixture(scope="module")
def model():
    return compiled()


def recorded(model, style, seed=0):
    """A group after one prediction in one session, and that session."""
    group = Group(style=style, seed=seed)
    sessions = group.open(model)
    group.predict(QUERIES, sessions=sessions)
    return group, sessions


def until_turn(model, style, number, seed=0, group=None):
    """An answering party that waits for the server's turn `number`: (group, sessions, that turn)."""
    group = group or Group(style=style, seed=seed)
    sessions, seen = group.open(model), []

    def stop(exchange):
        if type(exchange.request) is ServerTurn and exchange.request.number == number - 1:
            raise ProtocolError("the line is cut")
        return exchange.reply

    whole, others = recorded(model, style, seed)  # the same seeds: the same messages
    seen = whole.received("anna", ServerTurn)
    group.tamper = stop
    with pytest.raises(ProtocolError, match="cut"):
        group.predict(QUERIES, sessions=sessions)
    group.tamper = None
    assert others[0].session_id == sessions[0].session_id
    return group, sessions, seen[number]


@styles
def test_turns_of_a_batch_are_counted_from_zero_and_answered_with_the_next_number(model, style):
    group, _ = recorded(model, style)
    turns, replies = group.received("anna", ServerTurn), group.replied("anna", AnswererTurn)
    assert [turn.number for turn in turns] == list(range(len(turns)))
    assert [turn.number for turn in replies] == list(range(len(turns) + 1))
    assert all(turn.parts for turn in turns)
    assert all(turn.parts for turn in replies[1:])


@styles
@pytest.mark.parametrize("wrong", [-1, 0, 2, 3, 2**40])
def test_a_turn_with_a_wrong_number_is_refused_and_ends_the_batch(model, style, wrong):
    group, _, turn = until_turn(model, style, 1)
    anna = group.clients["anna"]
    with pytest.raises(ProtocolError, match=f"sent turn {wrong} of batch 0, expected 1"):
        anna.handle(replace(turn, number=wrong))
    with pytest.raises(ProtocolError, match="not open"):
        anna.handle(turn)


@styles
def test_a_turn_that_comes_twice_is_refused_and_nothing_is_told_again(model, style):
    """An answer to other words under the same masks would show what the masks hide."""
    group, _, turn = until_turn(model, style, 1)
    anna = group.clients["anna"]
    first = anna.handle(turn)
    assert first.parts
    other = replace(turn, parts=tuple(part + 1 for part in turn.parts))
    with pytest.raises(ProtocolError, match="sent turn 1 of batch 0, expected 2"):
        anna.handle(other)


@styles
def test_turns_in_another_order_are_refused(model, style):
    group, _, _ = until_turn(model, style, 1)
    whole, _ = recorded(model, style)
    with pytest.raises(ProtocolError, match="sent turn 2 of batch 0, expected 1"):
        group.clients["anna"].handle(whole.received("anna", ServerTurn)[2])


@pytest.mark.parametrize("change", [lambda parts: parts[::-1], lambda parts: (*parts[1:], parts[0])])
def test_parts_of_a_turn_in_another_order_are_refused_by_the_name_of_what_was_expected(model, change):
    group, _, turn = until_turn(model, SEALED, 1)
    assert len(turn.parts) > 1
    with pytest.raises(MalformedMessageError, match="from server: expected `masked numbers`"):
        group.clients["anna"].handle(replace(turn, parts=change(turn.parts)))


@styles
def test_a_turn_without_anything_that_leads_on_is_refused(model, style):
    """Two parties that send each other empty turns would go on for ever."""
    group, _, turn = until_turn(model, style, 1)
    with pytest.raises(MalformedMessageError, match="from server: it ends before"):
        group.clients["anna"].handle(replace(turn, parts=()))


@styles
def test_an_answering_party_that_says_nothing_ends_the_prediction_and_does_not_hang_it(model, style):
    group = Group(style=style)

    def silent(exchange):
        assert len(group.log) < 50, "the server asks for ever"
        reply = exchange.reply
        return replace(reply, parts=()) if isinstance(reply, AnswererTurn) and reply.number else reply

    group.tamper = silent
    with pytest.raises(MalformedMessageError, match="from anna: it ends before"):
        group.predict(QUERIES, model)


def test_a_turn_in_two_pieces_is_more_rounds_and_the_same_answer(model):
    """What cannot be told from a slower server is not refused: every piece leads somewhere."""
    group, _, turn = until_turn(model, SEALED, 1)
    anna = group.clients["anna"]
    whole, _ = recorded(model, SEALED)
    expected = next(e.reply for e in whole.log if type(e.request) is ServerTurn and e.request.number == 1)
    first = anna.handle(replace(turn, parts=turn.parts[:1]))
    second = anna.handle(replace(turn, parts=turn.parts[1:], number=2))
    for a, b in zip((*first.parts, *second.parts), expected.parts, strict=True):
        assert torch.equal(a, b)


@styles
def test_words_after_the_end_are_refused_on_both_sides(model, style):
    extra = torch.zeros(1, dtype=torch.int64)
    whole, _ = recorded(model, style)
    last = len(whole.received("anna", ServerTurn)) - 1
    group, _, turn = until_turn(model, style, last)
    with pytest.raises(MalformedMessageError, match="from server: 1 parts more than expected"):
        group.clients["anna"].handle(replace(turn, parts=(*turn.parts, extra)))
    group = Group(style=style)
    group.tamper = lambda e: (
        replace(e.reply, parts=(*e.reply.parts, extra))
        if isinstance(e.reply, AnswererTurn) and e.reply.number == last + 1
        else e.reply
    )
    with pytest.raises(MalformedMessageError, match="from anna: 1 parts more than expected"):
        group.predict(QUERIES, model)


def test_words_after_the_end_are_refused_also_where_the_end_is_judged():
    """What came with the last blinded numbers waits behind the judgement: it is looked at all the same."""
    model = compile_model(fill(nn.Sequential(nn.Linear(6, 5), nn.ReLU())), QUERIES)
    group = Group(style=HARDENED)
    group.tamper = lambda e: (
        replace(e.reply, parts=(*e.reply.parts, torch.zeros(1, dtype=torch.int64)))
        if isinstance(e.reply, AnswererTurn) and e.reply.number == 1
        else e.reply
    )
    with pytest.raises(MalformedMessageError, match="anna did not finish its part of the circuit, or said too much"):
        group.predict(QUERIES, model)


FOREIGN = {
    "another session of the same parties": lambda: (compiled(), SEALED, 0, 3),
    "other parties": lambda: (compiled(), SEALED, 5, 3),
    "another batch size": lambda: (compiled(), SEALED, 0, 2),
    "another style": lambda: (compiled(), HARDENED, 0, 3),
    "a narrower circuit": lambda: (compiled(value_bits=8), SEALED, 0, 3),
    "a circuit of other layers": lambda: (other_layers(), SEALED, 0, 3),
}


def other_layers():
    return compile_model(fill(nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))), QUERIES)


@pytest.mark.parametrize("kind", [Correlations, Carries, AnswererTurn, ServerTurn, QueryShare])
@pytest.mark.parametrize("what", FOREIGN)
def test_a_message_of_another_session_batch_style_or_circuit_is_refused_or_makes_noise_and_no_answer(model, what, kind):
    """By its name, number or shapes; what only masks tell apart gives noise, which no bound hides."""
    other_model, style, seed, size = FOREIGN[what]()
    other = Group(style=style, seed=seed)
    if what == "another session of the same parties":
        other.open(model)
    other.log.clear()
    other.predict(QUERIES[:size], other_model)
    foreign = [m for e in other.log for m in (e.request, e.reply) if type(m) is kind]
    nth = len(foreign) // 2
    group = Group(style=SEALED)
    expected, seen = predict(model, QUERIES), [0]

    def exchange_foreign(exchange):
        """With the session's name put right, as a confused server or client would."""
        if type(exchange.reply) is not kind:
            return exchange.reply
        seen[0] += 1
        return replace(foreign[nth], session_id=exchange.reply.session_id) if seen[0] == nth + 1 else exchange.reply

    if kind in (Carries, ServerTurn):
        deliver = group.clients["anna"].handle

        def handle(message):
            seen[0] += type(message) is kind
            swap = type(message) is kind and seen[0] == nth + 1
            return deliver(replace(foreign[nth], session_id=message.session_id) if swap else message)

        group.clients["anna"].handle = handle
    else:
        group.tamper = exchange_foreign
    try:
        found = group.predict(QUERIES, model)
    except BilateralError:
        return
    assert (found - expected).abs().max() > 1e-3


@styles
def test_a_message_under_its_own_sessions_name_never_reaches_another_session(model, style):
    """Two sessions of the same parties side by side: a turn of one is none of the other, and both end well."""
    group = Group(style=style)
    group.clients["anna"].offer(model)
    group.clients[QUERIER].ask(QUERIES)
    first, second = (group.server.open_sessions(QUERIER, ["anna"]) for _ in range(2))
    one, two = group.server.prepare(first, 3), group.server.prepare(second, 3)
    anna = group.clients["anna"]
    spoiled = ServerTurn(first[0].session_id, 0, 7, (torch.zeros(3, 6, dtype=torch.int64),))
    with pytest.raises(ProtocolError, match="expected 0"):
        anna.handle(spoiled)  # ends this batch, and nothing else
    group.server.answer(two)
    assert (group.clients[QUERIER].take_answers() - predict(model, QUERIES)).abs().max() < TOLERANCE
    group.clients[QUERIER].ask(QUERIES)
    with pytest.raises(ProtocolError, match="not open"):
        group.server.answer(one)
    assert (group.predict(QUERIES, sessions=first) - predict(model, QUERIES)).abs().max() < TOLERANCE


@styles
@pytest.mark.parametrize("number", [0, 1, 2])
def test_after_a_party_stopped_in_the_middle_other_sessions_go_on_and_nothing_is_used_again(model, style, number):
    group = Group(style=style)
    sessions = group.open(model, model)

    def stop(exchange):
        if exchange.party == "anna" and type(exchange.request) is ServerTurn and exchange.request.number == number:
            raise ProtocolError("anna is gone")
        return exchange.reply

    group.tamper = stop
    with pytest.raises(ProtocolError, match="gone"):
        group.predict(QUERIES, sessions=sessions)
    group.tamper = None
    found = group.predict(QUERIES, sessions=sessions[1:])
    assert (found - predict(model, QUERIES)).abs().max() < TOLERANCE
    found = group.predict(QUERIES, sessions=sessions)
    assert (found - 2 * predict(model, QUERIES)).abs().max() < TOLERANCE
    indices = {
        party: [(m.session_id, m.batch_index) for m in group.received(party, kind)]
        for party, kind in ((QUERIER, BatchRequest), ("anna", Carries), ("bela", Carries))
    }
    assert all(len(set(found)) == len(found) for found in indices.values())
    shares = [m.share for m in group.replied(QUERIER, QueryShare)]
    assert len({tuple(share.reshape(-1).tolist()) for share in shares}) == len(shares)


@pytest.mark.parametrize("other", [HARDENED, PUBLISHED], ids=lambda style: style.name)
@pytest.mark.parametrize("who", ["server", QUERIER, "anna"])
def test_a_party_that_compares_in_another_style_is_refused_and_gets_no_answer(model, who, other):
    group = Group(style=SEALED)
    if who == "server":
        group.server._style = other
    else:
        group.clients[who]._style = other
    with pytest.raises(BilateralError):
        found = group.predict(QUERIES, model)
        assert (found - predict(model, QUERIES)).abs().max() < TOLERANCE, "noise"
        pytest.fail("parties that disagree found an answer")


@pytest.mark.parametrize("size", [10**9, 2**62])
def test_no_batch_is_begun_that_a_party_would_be_out_of_memory_with(model, size):
    """Before anything is made for it, and without using up an index."""
    group = Group()
    (session,) = group.open(model)
    querier, anna = group.clients[QUERIER], group.clients["anna"]
    querier.expect(size)
    for client, message in (
        (querier, BatchRequest(session.session_id, 0, size)),
        (anna, Carries(session.session_id, 0, size, tuple(torch.zeros(0, dtype=torch.int64) for _ in model.layers))),
    ):
        with pytest.raises(ProtocolError, match=f"1 to {model.circuit.largest_batch} of this circuit fit"):
            client.handle(message)
    querier.ask(QUERIES)
    assert (group.predict(QUERIES, sessions=[session]) - predict(model, QUERIES)).abs().max() < TOLERANCE


def test_bits_that_do_not_fit_a_batch_are_refused_before_anything_is_made_for_it(model, monkeypatch):
    group = Group()
    (session,) = group.open(model)
    size = model.circuit.largest_batch
    asked = []
    monkeypatch.setattr(
        "bilateral.protocols.share.prediction.answering.FirstParty", lambda *_: asked.append(1) or pytest.fail("made")
    )
    with pytest.raises(MalformedMessageError, match="from server: expected `bits`"):
        bits = tuple(torch.zeros(1, dtype=torch.int64) for _ in model.layers)
        group.clients["anna"].handle(Carries(session.session_id, 0, size, bits))
    assert not asked


def test_the_same_queries_are_not_answered_twice(model):
    """A confused server that sums one answering party's batches for overlapping queries is told so."""
    group = Group()
    sessions = group.open(model, model)
    querier = group.clients[QUERIER]
    querier.ask(QUERIES)
    batches = group.server.prepare(sessions, 3)
    group.server.answer([[part] for batch in batches for part in batch][:1])
    with pytest.raises(ProtocolError, match="answered queries twice"):
        group.server.answer([[part] for batch in batches for part in batch][1:])


def test_a_narrower_circuit_changes_what_is_dealt_and_not_what_is_answered():
    queries, found = QUERIES, {}
    for value_bits in (12, 8, 4):
        model = compiled(value_bits=value_bits) if value_bits > 4 else narrowed(compiled(), 4)
        group = Group()
        answer = group.predict(queries, model)
        assert (answer - predict(model, queries)).abs().max() < TOLERANCE
        found[value_bits] = group.server.traffic.total_bytes("offline", "online")
        assert group.server.traffic.rounds["online"] <= 20
    assert found[4] < found[8] < found[12]


def narrowed(model, value_bits):
    return FixedPointModel(replace(model.circuit, value_bits=value_bits), model.layers)


def test_summed_logits_of_a_batch_whose_queries_were_not_asked_are_refused(model):
    group = Group()
    sessions = group.open(model)
    group.clients[QUERIER].ask(QUERIES)
    group.server.prepare(sessions, 3)
    message = SummedLogits((sessions[0].session_id,), (0,), 20, torch.zeros(3, 3, dtype=torch.int64))
    with pytest.raises(ProtocolError, match="not asked the queries of"):
        group.clients[QUERIER].handle(message)
    share = group.clients[QUERIER].handle(QueryRequest(sessions[0].session_id, 0))
    assert share.share.shape == (3, 6)
