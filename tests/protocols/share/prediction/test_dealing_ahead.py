"""Dealing before there are queries: in memory, by `PredictionClient.expect` (on disk: `test_store`)."""

from __future__ import annotations

import pytest
import torch
from tests.protocols.share.harness import QUERIER, Group, fill, queries_like
from tests.protocols.share.statistics import assert_uniform
from torch import nn

from bilateral.errors import MalformedMessageError, ProtocolError
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.gates.styles import HARDENED, SEALED
from bilateral.protocols.share.prediction import messages
from bilateral.protocols.share.prediction.messages import (
    BatchRequest,
    BlindedValues,
    QueryRequest,
    QueryShare,
    SessionNotice,
    SummedLogits,
    TablesRequest,
)

SHAPE = (6,)
TOLERANCE = 2.0**-12


@pytest.fixture(scope="module")
def model():
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return compile_model(fill(network), queries_like(SHAPE, count=8))


@pytest.fixture(params=(SEALED, HARDENED), ids=lambda style: style.name)
def group(request):
    return Group(style=request.param)


def queries(count, seed=0):
    return queries_like(SHAPE, count=count, seed=seed)


def answered(group, model, asked, batches, num_answerers=1):
    group.server.answer(batches)
    found = group.clients[QUERIER].take_answers()
    assert (found - num_answerers * predict(model, asked)).abs().max() < TOLERANCE


def test_what_is_dealt_before_the_queries_are_there_answers_them_later(group, model):
    sessions = group.open(model, model)
    querier = group.clients[QUERIER]
    querier.expect(5)
    batches = group.server.prepare(sessions, 5)
    traffic = group.server.traffic
    assert traffic.total_bytes("online") == 0
    offline = traffic.total_bytes("offline")
    assert offline > 0
    asked = queries(5)
    querier.ask(asked)
    answered(group, model, asked, batches, num_answerers=2)
    assert traffic.total_bytes("offline") == offline  # nothing was dealt while they were answered


def test_a_sealed_dealer_hears_nothing_between_its_queries_and_the_sum(model):
    group = Group(style=SEALED)
    sessions = group.open(model)
    group.clients[QUERIER].expect(2)
    batches = group.server.prepare(sessions, 2)
    asked = queries(2)
    group.clients[QUERIER].ask(asked)
    answered(group, model, asked, batches)
    heard = [type(exchange.request) for exchange in group.log if exchange.party == QUERIER]
    assert heard == [SessionNotice, BatchRequest, TablesRequest, QueryRequest, SummedLogits]
    assert BlindedValues not in heard


def test_nothing_is_dealt_for_a_client_that_neither_asks_nor_expects_to(group, model):
    sessions = group.open(model)
    with pytest.raises(ProtocolError, match="asked nothing"):
        group.server.prepare(sessions, 1)
    group.clients[QUERIER].expect(2)
    with pytest.raises(ProtocolError, match="not so many queries are left to ask"):
        group.server.prepare(sessions, 3)


@pytest.mark.parametrize("size", [0, -1, -(2**40), 3, 2**62])
def test_no_more_is_dealt_ahead_in_one_batch_than_is_expected(group, model, size):
    (session,) = group.open(model)
    querier = group.clients[QUERIER]
    querier.expect(2)
    with pytest.raises(ProtocolError, match="queries"):
        querier.handle(BatchRequest(session.session_id, 0, size))
    assert querier.handle(BatchRequest(session.session_id, 0, 2)).products


def test_a_server_that_asks_for_more_and_more_does_not_make_the_dealer_hold_more_and_more(group, model):
    """Those that wait the longest are forgotten: they hid nothing yet. Their indices stay used."""
    (session,) = group.open(model)
    querier = group.clients[QUERIER]
    querier.expect(4)
    for index in range(50):
        querier.handle(BatchRequest(session.session_id, index, 2))
    held = querier._querying[session.session_id]
    assert held.num_dealt_ahead == 4
    assert sorted(held._open) == [48, 49]
    querier.ask(queries(4))
    with pytest.raises(ProtocolError, match="not open"):
        querier.handle(QueryRequest(session.session_id, 0))
    with pytest.raises(ProtocolError, match="new index"):
        querier.handle(BatchRequest(session.session_id, 0, 2))
    assert querier.handle(QueryRequest(session.session_id, 48)).share.shape == (2, 6)


def test_a_dealing_whose_reply_was_lost_is_dealt_anew_and_not_in_the_way(group, model):
    sessions = group.open(model)
    querier, asked = group.clients[QUERIER], queries(3)

    def cut(exchange):
        if type(exchange.request) is BatchRequest:
            raise ProtocolError("the line is cut")
        return exchange.reply

    querier.expect(3)
    for _ in range(3):
        group.tamper = cut
        with pytest.raises(ProtocolError, match="cut"):
            group.server.prepare(sessions, 3)
    group.tamper = None
    batches = group.server.prepare(sessions, 3)
    querier.ask(asked)
    answered(group, model, asked, batches)


def test_batches_that_hid_no_queries_survive_other_queries_and_those_that_did_do_not(group, model):
    """One mask, two queries: their difference would be seen."""
    (session,) = group.open(model)
    querier, name = group.clients[QUERIER], session.session_id
    querier.expect(4)
    for index in (0, 1):
        querier.handle(BatchRequest(name, index, 2))
    first, second = queries(4), queries(4, seed=1)
    querier.ask(first)
    querier.handle(QueryRequest(name, 0))
    querier.ask(second)
    with pytest.raises(ProtocolError, match="not open"):
        querier.handle(QueryRequest(name, 0))
    assert querier.handle(QueryRequest(name, 1)).share.shape == (2, 6)
    with pytest.raises(ProtocolError, match="asked twice"):
        querier.handle(QueryRequest(name, 1))


def test_after_an_answer_the_next_queries_are_dealt_for_before_they_are_there(group, model):
    sessions = group.open(model)
    querier = group.clients[QUERIER]
    for seed in range(3):
        querier.expect(4)
        batches = group.server.prepare(sessions, 4)
        asked = queries(4, seed)
        querier.ask(asked)
        answered(group, model, asked, batches)


def test_batches_that_are_dealt_ahead_may_be_used_in_any_order_but_by_all_sessions_alike(group, model):
    """The queries go to batches in the order in which batches come for them; an answer says which it is to."""
    sessions = group.open(model, model)
    querier, asked = group.clients[QUERIER], queries(5)
    querier.expect(5)
    early, late = group.server.prepare(sessions, 2), group.server.prepare(sessions, 3)
    querier.ask(asked)
    answered(group, model, asked, [*late, *early], num_answerers=2)
    querier.expect(5)
    early, late = group.server.prepare(sessions, 2), group.server.prepare(sessions, 3)
    querier.ask(asked)
    crossed = [[early[0][0], late[0][1]], [late[0][0], early[0][1]]]
    with pytest.raises(ProtocolError, match=r"for \[2, 3\] queries cannot be answered together"):
        group.server.answer(crossed)
    assert [type(e.request) for e in group.log].count(QueryRequest) == 4  # nothing was shared for them
    group.server.answer([*early, *late])


def test_more_queries_than_were_dealt_for_are_answered_after_more_dealing_and_not_before(group, model):
    sessions = group.open(model)
    querier, asked = group.clients[QUERIER], queries(5)
    querier.expect(3)
    batches = group.server.prepare(sessions, 3)
    querier.ask(asked)
    group.server.answer(batches)
    with pytest.raises(ProtocolError, match="answers to 3 of its queries"):
        querier.take_answers()
    answered(group, model, asked, group.server.prepare(sessions, 2))


def test_fewer_queries_than_were_dealt_for_are_answered_and_padding_is_uniform_to_the_server(model):
    group = Group(style=SEALED)
    sessions = group.open(model)
    querier, asked = group.clients[QUERIER], queries(1)
    querier.expect(200)
    batches = group.server.prepare(sessions, 200)
    querier.ask(asked)
    answered(group, model, asked, batches)
    (share,) = (message.share for message in group.replied(QUERIER, QueryShare))
    assert share.shape == (200, 6)
    assert_uniform(share)


def test_queries_of_another_shape_do_not_use_up_what_was_dealt_ahead(group, model):
    sessions = group.open(model)
    querier, asked = group.clients[QUERIER], queries(2)
    querier.expect(2)
    batches = group.server.prepare(sessions, 2)
    querier.ask(torch.zeros(2, 7))
    with pytest.raises(MalformedMessageError, match="samples of shape"):
        group.server.answer(batches)
    querier.ask(asked)
    answered(group, model, asked, group.server.prepare(sessions, 2))


def test_rounds_that_wait_for_queries_are_only_those_that_must(model):
    """Dealt ahead, an answer takes the query, the turns, and the sum."""
    group = Group(style=SEALED)
    sessions = group.open(model)
    group.clients[QUERIER].expect(2)
    batches = group.server.prepare(sessions, 2)
    before = dict(group.server.traffic.rounds)
    assert before == {"session": 2, "offline": 2, "online": 0}
    asked = queries(2)
    group.clients[QUERIER].ask(asked)
    answered(group, model, asked, batches)
    turns = len(group.received("anna", messages.ServerTurn))
    assert group.server.traffic.rounds["online"] == 2 + turns
    assert turns == 4  # a layer, five exchanges and the next layer: 1 + 3
