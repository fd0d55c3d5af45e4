"""What a prediction costs: counted bytes are those of the wire, rounds are as documented, clients never meet."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.protocols.share.harness import QUERIER, Group, fill, queries_like
from torch import nn

from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.description import Dense
from bilateral.protocols.share.prediction import messages

SHAPE = (3, 8, 8)
QUERIES = queries_like(SHAPE, count=4)
FRAMING = 1024
"""Bytes a message: names, shapes and types in the header of the wire."""


@pytest.fixture(scope="module")
def model():
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )
    return compile_model(fill(nn.Sequential(*layers)), QUERIES)


@pytest.fixture(scope="module")
def group(model):
    group = Group()
    group.predict(QUERIES, model, model)
    return group


def by_phase_and_party(log):
    sent, received, counts = Counter(), Counter(), Counter()
    for exchange in log:
        phase = messages.phase_of(exchange.request)
        for sender, receiver, size in (
            ("server", exchange.party, exchange.request_bytes),
            (exchange.party, "server", exchange.reply_bytes),
        ):
            sent[phase, sender] += size
            received[phase, receiver] += size
            counts[phase, sender] += 1
            counts[phase, receiver] += 1
    return sent, received, counts


def test_counted_bytes_are_those_of_the_wire_for_every_phase_and_party(group):
    sent, received, counts = by_phase_and_party(group.log)
    traffic = group.server.traffic
    assert set(sent) == set(traffic.sent)
    assert set(received) == set(traffic.received)
    for counted, real in ((traffic.sent, sent), (traffic.received, received)):
        for key, num_bytes in real.items():
            assert counted[key] <= num_bytes <= counted[key] + FRAMING * counts[key]
    assert {party for _, party in sent} == {"server", QUERIER, "anna", "bela"}


def test_what_is_sent_is_received(group):
    traffic = group.server.traffic
    for phase in messages.PHASES:
        sent = sum(count for (found, _), count in traffic.sent.items() if found == phase)
        received = sum(count for (found, _), count in traffic.received.items() if found == phase)
        assert sent == received == traffic.total_bytes(phase)
    assert traffic.total_bytes() == sum(traffic.total_bytes(phase) for phase in messages.PHASES)


def test_every_message_goes_between_the_server_and_one_client(group):
    """The transport is asked by the server only, and clients reply to it only: there is no other channel."""
    allowed = {QUERIER: (messages.TO_QUERIER, messages.FROM_QUERIER)}
    for exchange in group.log:
        requests, replies = allowed.get(exchange.party, (messages.TO_ANSWERER, messages.FROM_ANSWERER))
        assert type(exchange.request) in requests
        assert type(exchange.reply) in replies


def test_rounds_are_one_a_linear_layer_and_one_a_comparison(model):
    """Online: the query, a value for every linear layer, every comparison, the sum. Two before, two to open."""
    circuit = model.circuit
    for answerers in (1, 2):
        group = Group()
        group.predict(QUERIES, *[model] * answerers)
        expected = 2 + len(circuit.linear_steps) + len(circuit.comparison_sizes)
        assert dict(group.server.traffic.rounds) == {"session": 2, "offline": 2, "online": expected}


def test_the_bytes_of_a_prediction_follow_from_the_circuit(model):
    """A formula for every phase, so that a message that grew is noticed."""
    group, batch = Group(), len(QUERIES)
    group.predict(QUERIES, model)
    circuit, traffic = model.circuit, group.server.traffic
    outputs = sum(value.size for value in circuit.linear_values)
    inputs = sum(circuit.values[step.sources[0]].size for step in circuit.linear_steps)
    compared = sum(circuit.comparison_sizes)
    weights = sum(layer.weight.numel() for layer in model.layers)
    expected = {
        "session": 8 * weights + 2 * len(circuit.to_json()),
        "offline": batch * outputs * (8 + 4 + 1 / 8),
        "online": batch
        * (8 * circuit.values[0].size + 8 * inputs + outputs / 8 + 4 * 8 * compared + 2 * 8 * circuit.output.size),
    }
    for phase, num_bytes in expected.items():
        found = traffic.total_bytes(phase)
        assert num_bytes <= found <= num_bytes + 64 * len(group.log), phase
    assert any(isinstance(step, Dense) for step in circuit.steps)


def test_a_session_is_paid_once_and_batches_grow_with_their_size(model):
    group = Group()
    sessions = group.open(model)
    opened = group.server.traffic.total_bytes("session")
    costs = []
    for size in (1, 4):
        before = group.server.traffic.total_bytes("offline", "online")
        group.predict(QUERIES[:size], sessions=sessions)
        costs.append(group.server.traffic.total_bytes("offline", "online") - before)
    assert group.server.traffic.total_bytes("session") == opened
    assert 3.5 < costs[1] / costs[0] <= 4.0
