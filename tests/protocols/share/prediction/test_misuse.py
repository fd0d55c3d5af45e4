"""Messages out of order, replayed, or to the wrong party: refused, and no mask ever hides two values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.protocols.share.harness import QUERIER, Group, fill, queries_like, session_seed
from torch import nn

from bilateral.errors import BilateralError, MalformedMessageError, NumericalRangeError, ProtocolError
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.gates.styles import HARDENED, SEALED
from bilateral.protocols.share.prediction.messages import (
    Acknowledged,
    BatchRequest,
    BlindedValues,
    Carries,
    MaskedModel,
    QueryRequest,
    ServerTurn,
    SessionEnd,
    SessionNotice,
    SessionRequest,
    SummedLogits,
    TablesRequest,
)
from bilateral.protocols.share.prediction.parties import PredictionClient
from bilateral.protocols.share.ring.packing import num_words
from bilateral.protocols.share.ring.streams import Stream

SHAPE = (6,)
ID = b"0123456789abcdef"
QUERIES = queries_like(SHAPE, count=2)
EMPTY = torch.zeros(0, dtype=torch.int64)


def network(seed=0):
    return fill(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), seed)


@pytest.fixture(scope="module")
def model():
    return compile_model(network(), queries_like(SHAPE, count=8))


@pytest.fixture(params=(SEALED, HARDENED), ids=lambda style: style.name)
def group(request, model):
    group = Group(style=request.param)
    group.clients["anna"].offer(model)
    return group


@pytest.fixture
def opened(group, model):
    """A group with one open session: its name, and both clients."""
    (session,) = group.open(model)
    group.clients[QUERIER].ask(QUERIES)
    return session.session_id, group.clients[QUERIER], group.clients["anna"]


def carries_for(model, session_id, index=0, batch=2):
    words = (num_words(batch * value.size) for value in model.circuit.linear_values)
    bits = tuple(torch.zeros(count, dtype=torch.int64) for count in words)
    return Carries(session_id, index, batch, bits)


def turn_for(session_id, index=0, number=0):
    """The server's first turn: an input under a mask."""
    return ServerTurn(session_id, index, number, (torch.zeros(2, 6, dtype=torch.int64),))


def test_a_session_name_is_taken_once_in_every_role(group, model):
    circuit = model.circuit.to_json()
    anna, querier = group.clients["anna"], group.clients[QUERIER]
    assert isinstance(anna.handle(SessionRequest(ID, QUERIER)), MaskedModel)
    assert isinstance(querier.handle(SessionNotice(ID, "anna", circuit)), Acknowledged)
    for client, message in (
        (anna, SessionRequest(ID, QUERIER)),
        (anna, SessionRequest(ID, "bela")),
        (anna, SessionNotice(ID, "bela", circuit)),
        (querier, SessionNotice(ID, "anna", circuit)),
        (querier, SessionNotice(ID, "bela", circuit)),
    ):
        with pytest.raises(ProtocolError, match="not a new one"):
            client.handle(message)


def test_an_ended_session_is_over_and_its_name_stays_taken(group, model):
    sessions = group.open(model)
    group.server.close(sessions)
    with pytest.raises(ProtocolError, match="not open"):
        group.predict(QUERIES, sessions=sessions)
    name = sessions[0].session_id
    with pytest.raises(ProtocolError, match="not a new one"):
        group.clients["anna"].handle(SessionRequest(name, QUERIER))
    with pytest.raises(ProtocolError, match="not a new one"):
        group.clients[QUERIER].handle(SessionNotice(name, "anna", model.circuit.to_json()))
    with pytest.raises(ProtocolError, match="not open"):
        group.clients["anna"].handle(SessionEnd(name))


def test_a_second_model_cannot_be_masked_with_the_first_ones_masks(group, model):
    """Two models under one mask would show their difference."""
    anna = group.clients["anna"]
    anna.handle(SessionRequest(ID, QUERIER))
    anna.offer(compile_model(network(1), queries_like(SHAPE, count=8)))
    with pytest.raises(ProtocolError, match="not a new one"):
        anna.handle(SessionRequest(ID, QUERIER))
    with pytest.raises(ProtocolError, match="not open"):
        anna.handle(carries_for(model, ID))


def test_a_second_client_object_with_the_same_keys_is_refused_or_refuses_the_replay(group, model):
    first = group.clients["anna"].handle(SessionRequest(ID, QUERIER))
    with pytest.raises(ProtocolError):
        again = PredictionClient(group.rings["anna"])
        again.offer(compile_model(network(1), queries_like(SHAPE, count=8)))
        second = again.handle(SessionRequest(ID, QUERIER))
        difference = (first.weights[0] - second.weights[0]).abs().max()
        assert difference > 2**40, "the difference of two models is seen"


@pytest.mark.parametrize("name", [b"", b"short", bytes(15), bytes(17)])
def test_a_session_name_of_another_length_is_refused(group, model, name):
    with pytest.raises(ProtocolError):
        group.clients["anna"].handle(SessionRequest(name, QUERIER))
    with pytest.raises(ProtocolError):
        group.clients[QUERIER].handle(SessionNotice(name, "anna", model.circuit.to_json()))


@pytest.mark.parametrize("other", ["anna", "nobody", ""])
def test_a_client_cannot_ask_itself_or_a_stranger(group, model, other):
    with pytest.raises(ProtocolError, match="no other client"):
        group.clients["anna"].handle(SessionRequest(ID, other))
    client = group.clients["anna"]
    with pytest.raises(ProtocolError, match="no other client"):
        client.handle(SessionNotice(b"f" * 16, other, model.circuit.to_json()))
    with pytest.raises(ProtocolError):
        group.server.open_sessions("anna", ["anna"])


def test_the_server_cannot_be_the_querying_party(group, model):
    with pytest.raises(ProtocolError):
        reply = group.clients["anna"].handle(SessionRequest(ID, "server"))
        secret = group.rings["server"].pair_secret("anna")
        seed = session_seed(secret, ID, "server", "anna", model.circuit, group.style)
        stolen = reply.weights[0] - Stream.of(seed, "weights", 0, 0).words(*reply.weights[0].shape)
        assert not torch.equal(stolen, model.layers[0].weight), "all weights are stolen"


def test_the_server_cannot_be_the_answering_party(group, model):
    querier = group.clients[QUERIER]
    querier.ask(QUERIES)
    with pytest.raises(ProtocolError):
        querier.handle(SessionNotice(ID, "server", model.circuit.to_json()))
        querier.handle(BatchRequest(ID, 0, 2))
        share = querier.handle(QueryRequest(ID, 0)).share
        secret = group.rings["server"].pair_secret(QUERIER)
        seed = session_seed(secret, ID, QUERIER, "server", model.circuit, group.style)
        stolen = (share + Stream.of(seed, "input", 0, 2).words(*share.shape)).double() / 2**20
        assert (stolen - QUERIES.double()).abs().max() > 1e-3, "all queries are stolen"


@pytest.mark.parametrize(
    "message",
    [
        Carries(ID, 0, 2, ()),
        turn_for(ID),
        BatchRequest(ID, 0, 2),
        QueryRequest(ID, 0),
        BlindedValues(ID, 0, torch.zeros(2, 5, dtype=torch.int64)),
        SummedLogits((ID,), (0,), 20, torch.zeros(2, 3, dtype=torch.int64)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_of_an_unknown_session_are_refused(group, message):
    group.clients[QUERIER].ask(QUERIES)
    for client in group.clients.values():
        with pytest.raises(ProtocolError, match="not open"):
            client.handle(message)


def test_messages_that_are_not_for_clients_are_refused(group):
    with pytest.raises(MalformedMessageError, match="not for clients"):
        group.clients["anna"].handle(Acknowledged(ID))


def test_old_and_repeated_batches_are_refused_by_both_clients(opened, model):
    session_id, querier, anna = opened
    querier.ask(queries_like(SHAPE, count=20))
    for index in (5, 6, 2**40):
        querier.handle(BatchRequest(session_id, index, 2))
        anna.handle(carries_for(model, session_id, index))
    for index in (2**40, 6, 5, 0, -1, -(2**40)):
        with pytest.raises(ProtocolError, match="new index"):
            querier.handle(BatchRequest(session_id, index, 2))
        with pytest.raises(ProtocolError, match="new index"):
            anna.handle(carries_for(model, session_id, index))


@pytest.mark.parametrize("index", [-1, 0, 1])
def test_nothing_is_said_about_a_batch_that_was_not_opened(opened, index):
    session_id, querier, anna = opened
    for client, message in (
        (querier, QueryRequest(session_id, index)),
        (querier, BlindedValues(session_id, index, torch.zeros(2, 5, dtype=torch.int64))),
        (querier, SummedLogits((session_id,), (index,), 20, torch.zeros(0, 3, dtype=torch.int64))),
        (anna, turn_for(session_id, index)),
    ):
        with pytest.raises(ProtocolError, match="not open"):
            client.handle(message)


def test_a_mask_never_hides_two_queries(opened):
    """A batch failed, other queries are asked, and the server goes on with the old batch."""
    session_id, querier, _ = opened
    querier.handle(BatchRequest(session_id, 0, 2))
    first = querier.handle(QueryRequest(session_id, 0)).share
    other = queries_like(SHAPE, count=2, seed=7)
    querier.ask(other)
    with pytest.raises(ProtocolError):
        second = querier.handle(QueryRequest(session_id, 0)).share
        learned = (second - first).double() / 2**20
        assert (learned - (other - QUERIES).double()).abs().max() > 1e-3


def test_tables_of_a_batch_are_dealt_once(opened):
    session_id, querier, _ = opened
    with pytest.raises(ProtocolError, match="not open"):
        querier.handle(TablesRequest(session_id, 0))
    querier.handle(BatchRequest(session_id, 0, 2))
    if querier._style is SEALED:
        assert querier.handle(TablesRequest(session_id, 0)).comparisons
    with pytest.raises(ProtocolError, match="has all that it needs"):
        querier.handle(TablesRequest(session_id, 0))


def test_the_share_of_a_batchs_queries_is_given_once(opened):
    session_id, querier, _ = opened
    querier.handle(BatchRequest(session_id, 0, 2))
    querier.handle(QueryRequest(session_id, 0))
    with pytest.raises(ProtocolError):
        querier.handle(QueryRequest(session_id, 0))


def test_a_finished_batch_cannot_be_gone_on_with(group, model):
    sessions = group.open(model)
    group.predict(QUERIES, sessions=sessions)
    querier, anna, session_id = group.clients[QUERIER], group.clients["anna"], sessions[0].session_id
    querier.ask(queries_like(SHAPE, count=2, seed=7))
    for client, message in (
        (querier, QueryRequest(session_id, 0)),
        *((querier, message) for message in group.received(QUERIER, BlindedValues)),
        (querier, group.received(QUERIER, SummedLogits)[0]),
        *((anna, turn) for turn in group.received("anna", ServerTurn)),
    ):
        with pytest.raises(ProtocolError, match="not open"):
            client.handle(message)
    for client, message in (
        (querier, group.received(QUERIER, BatchRequest)[0]),
        (anna, group.received("anna", Carries)[0]),
    ):
        with pytest.raises(ProtocolError, match="new index"):
            client.handle(message)


def test_more_comparisons_than_the_circuit_has_are_refused(model):
    group = Group(style=HARDENED)
    (session,) = group.open(model)
    session_id, querier = session.session_id, group.clients[QUERIER]
    querier.ask(QUERIES)
    querier.handle(BatchRequest(session_id, 0, 2))
    message = BlindedValues(session_id, 0, torch.zeros(2, 5, dtype=torch.int64))
    querier.handle(message)
    with pytest.raises(ProtocolError, match="more comparisons"):
        querier.handle(message)


def test_a_refused_comparison_leaves_the_stream_where_the_answering_party_has_it():
    """Otherwise shares of a later judgement would be made of masks of this one."""
    layers = nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)
    model = compile_model(fill(nn.Sequential(*layers)), QUERIES)
    group = Group(style=HARDENED)
    (session,) = group.open(model)
    querier = group.clients[QUERIER]
    querier.ask(QUERIES)
    querier.handle(BatchRequest(session.session_id, 0, 2))
    for shape in ((2, 4), (5, 2), (2,)):
        with pytest.raises(MalformedMessageError):
            querier.handle(BlindedValues(session.session_id, 0, torch.zeros(shape, dtype=torch.int64)))
    values = torch.zeros(2, 5, dtype=torch.int64)
    found = querier.handle(BlindedValues(session.session_id, 0, values))
    secret = group.rings[QUERIER].pair_secret("anna")
    seed = session_seed(secret, session.session_id, QUERIER, "anna", model.circuit, HARDENED)
    stream = Stream.of(seed, "comparison", 0, 2)
    u, product, bit = values - stream.words(2, 5), stream.words(2, 5), stream.words(2, 5)
    assert torch.equal(found.products, u.clamp_min(0) - product)
    assert torch.equal(found.bits, (u > 0).long() - bit)


def test_after_a_refused_value_the_batch_is_over(opened, model):
    session_id, _, anna = opened
    anna.handle(carries_for(model, session_id))
    good = turn_for(session_id)
    with pytest.raises(MalformedMessageError):
        anna.handle(replace(good, parts=(torch.zeros(2, 7, dtype=torch.int64),)))
    with pytest.raises(ProtocolError, match="not open"):
        anna.handle(good)
    with pytest.raises(ProtocolError, match="new index"):
        anna.handle(carries_for(model, session_id))
    assert anna.handle(carries_for(model, session_id, index=1)).batch_index == 1


def test_a_failed_batch_does_not_spoil_the_next_one(group, model):
    sessions = group.open(model)
    group.clients[QUERIER].ask(QUERIES)

    def refuse(exchange):
        raise ProtocolError("the line is cut")

    for cut in (BatchRequest, Carries, QueryRequest, ServerTurn, BlindedValues):
        group.tamper = lambda e, cut=cut: refuse(e) if type(e.request) is cut else e.reply
        if cut is BlindedValues and group.style is SEALED:
            continue  # nobody judges
        with pytest.raises(ProtocolError, match="cut"):
            group.predict(QUERIES, sessions=sessions)
        group._waiting.clear()
    group.tamper = None
    found = group.predict(QUERIES, sessions=sessions)
    assert (found - predict(model, QUERIES)).abs().max() < 2**-12


@pytest.mark.parametrize("size", [0, -1, -(2**40), 3, 2**40, 2**62])
def test_the_querying_party_refuses_batches_of_other_sizes_than_it_asked(opened, size):
    session_id, querier, _ = opened
    with pytest.raises(ProtocolError, match="queries"):
        querier.handle(BatchRequest(session_id, 0, size))
    querier.handle(BatchRequest(session_id, 0, 2))  # a refused request costs no index


@pytest.mark.parametrize("size", [-2, -9, 2**40, 2**62])
def test_the_answering_party_refuses_batches_of_impossible_sizes(opened, model, size):
    session_id, _, anna = opened
    for bits in (tuple(EMPTY for _ in model.layers), carries_for(model, session_id).bits):
        with pytest.raises(ProtocolError):
            anna.handle(Carries(session_id, 0, size, bits))


@pytest.mark.parametrize("size", [0, -1])
def test_the_answering_party_refuses_batches_without_samples(opened, model, size):
    session_id, _, anna = opened
    with pytest.raises(ProtocolError):
        anna.handle(Carries(session_id, 0, size, tuple(EMPTY for _ in model.layers)))


def test_the_answering_party_refuses_a_huge_batch_of_a_network_without_layers():
    group = Group()
    (session,) = group.open(compile_model(nn.Sequential(nn.ReLU()), QUERIES))
    with pytest.raises(ProtocolError):
        group.clients["anna"].handle(Carries(session.session_id, 0, 2**50, ()))


@pytest.mark.parametrize("size", [-1, 1, 3])
def test_the_server_cannot_predict_more_or_less_than_nothing(group, model, size):
    sessions = group.open(model)
    group.clients[QUERIER].ask(QUERIES)
    with pytest.raises(BilateralError):
        group.server.predict(sessions, size)
        group.clients[QUERIER].take_answers()


def test_a_client_without_network_queries_or_answers_says_so(model):
    group = Group()
    with pytest.raises(ProtocolError, match="no network"):
        group.clients["anna"].handle(SessionRequest(ID, QUERIER))
    with pytest.raises(ProtocolError, match="answers"):
        group.clients[QUERIER].take_answers()
    (session,) = group.open(model)
    with pytest.raises(ProtocolError, match="asked nothing"):
        group.clients[QUERIER].handle(BatchRequest(session.session_id, 0, 2))


@pytest.mark.parametrize("queries", [torch.zeros(2, 7), torch.zeros(2, 6, 1), torch.zeros(2)])
def test_queries_of_another_shape_are_refused(group, model, queries):
    with pytest.raises(ProtocolError):
        group.predict(queries, model)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e14])
def test_queries_that_fixed_point_cannot_hold_are_refused(group, model, value):
    with pytest.raises(NumericalRangeError):
        group.predict(torch.full((2, 6), value), model)


def test_queries_far_beyond_the_range_are_refused_or_answered_rightly(group, model):
    queries = torch.full((2, 6), 1e6)
    try:
        found = group.predict(queries, model)
    except NumericalRangeError:
        return
    with torch.no_grad():
        expected = network().double()(queries.double())
    assert ((found - expected).abs() < 1e-3 * expected.abs()).all()


def test_a_session_needs_an_answering_party(group):
    with pytest.raises(BilateralError):
        group.server.open_sessions(QUERIER, [])


def test_circuits_for_other_samples_than_the_queries_are_refused_before_anything_is_made_for_them(group):
    querier = group.clients[QUERIER]
    querier.ask(QUERIES)
    other = compile_model(fill(nn.Sequential(nn.Linear(7, 3)), 0), queries_like((7,), count=8))
    with pytest.raises(MalformedMessageError, match=r"samples of shape \(7,\), but the queries have the shape \(6,\)"):
        querier.handle(SessionNotice(ID, "anna", other.circuit.to_json()))
    assert not querier._querying


def test_queries_of_another_shape_than_an_open_session_takes_are_not_dealt_for(opened):
    session_id, querier, _ = opened
    querier.ask(queries_like((7,), count=2))
    with pytest.raises(MalformedMessageError, match="samples of shape"):
        querier.handle(BatchRequest(session_id, 0, 2))
