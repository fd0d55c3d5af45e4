"""What a prediction costs: counted bytes are those of the wire, rounds are as documented, clients never meet."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from tests.protocols.share.harness import QUERIER, Group, fill, queries_like
from torch import nn

from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.description import Conv, Dense, MaxPool, Relu
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.gates.styles import HARDENED, SEALED
from bilateral.protocols.share.prediction import messages

SHAPE = (3, 8, 8)
QUERIES = queries_like(SHAPE, count=4)
FRAMING = 1024
"""Bytes a message: names, shapes and types in the header of the wire."""


styles = pytest.mark.parametrize("style", [SEALED, HARDENED], ids=lambda style: style.name)


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


def online_rounds(circuit, style):
    """Online: the query, a turn for every linear layer, what comparisons take, the sum."""
    if style.is_judged:
        return 2 + len(circuit.linear_steps) + len(circuit.comparisons)
    return 2 + sealed_turns(circuit)


def sealed_turns(circuit):
    """The server's turns, by counting who can speak when: +1 is a part to tell, -1 one to wait for."""
    server, answerer = [], []
    compared = iter(circuit.comparisons)
    for step, value in zip(circuit.steps, circuit.values[1:], strict=True):
        if isinstance(step, Conv | Dense):  # the input under its mask, bits of a truncation
            server += [1, -1]
            answerer += [-1, 1]
        left = value.size if isinstance(step, Relu) else 0
        left = (math.prod(step.kernel) - 1) * value.size if isinstance(step, MaxPool) else left
        while left:
            comparison = next(compared)
            left -= comparison.size
            digits = -(-(circuit.value_bits + comparison.fraction_bits) // 4)
            exchanges = 2 + math.ceil(math.log2(digits))  # numbers, levels, signs
            server += [1, -1] * exchanges
            answerer += [1, -1] * exchanges
    server, answerer = [*server, -1], [*answerer, 1]  # the output
    turns = 0
    from_answerer = _speak(answerer, 0)
    from_server = _speak(server, from_answerer)
    while server:
        turns += 1
        from_answerer = _speak(answerer, from_server)
        from_server = _speak(server, from_answerer)
    return turns


def _speak(script, num_heard):
    """Go on as far as these parts lead. How many are told; what is done is taken off the script."""
    told = 0
    while script and (script[0] == 1 or num_heard):
        told, num_heard = (told + 1, num_heard) if script.pop(0) == 1 else (told, num_heard - 1)
    return told


@styles
def test_rounds_are_as_many_as_the_gates_must_wait(model, style):
    """Two before, two to open; five exchanges of a sealed comparison are two and a half rounds."""
    for answerers in (1, 2):
        group = Group(style=style)
        group.predict(QUERIES, *[model] * answerers)
        expected = online_rounds(model.circuit, style)
        assert dict(group.server.traffic.rounds) == {"session": 2, "offline": 2, "online": expected}


def words(count):
    """Bytes of so many bits, packed in 64-bit words."""
    return 8 * -(-count // 64)


def sealed_bytes(circuit, batch):
    """(dealt, told by both parties) for all comparisons of a batch."""
    dealt = told = 0
    for comparison in circuit.comparisons:
        count, digits = batch * comparison.size, -(-(circuit.value_bits + comparison.fraction_bits) // 4)
        masks = products = 0
        while digits > 1:
            pairs = digits // 2
            masks, products, digits = masks + 3 * pairs - 1, products + 2 * pairs - 1, digits - pairs
        digits = -(-(circuit.value_bits + comparison.fraction_bits) // 4)
        dealt += (15 * digits + 1 + products) * words(count) + 2 * 8 * count
        told += 2 * (8 * count + (masks + 1) * words(count))
    return dealt, told


@styles
@pytest.mark.parametrize("value_bits", [4, 8, 12])
def test_the_bytes_of_a_prediction_follow_from_the_circuit(model, style, value_bits):
    """A formula for every phase, so that a message that grew is noticed."""
    model = FixedPointModel(replace(model.circuit, value_bits=value_bits), model.layers)
    group, batch = Group(style=style), len(QUERIES)
    group.predict(QUERIES, model)
    circuit, traffic = model.circuit, group.server.traffic
    outputs = sum(value.size for value in circuit.linear_values)
    inputs = sum(circuit.values[step.sources[0]].size for step in circuit.linear_steps)
    bits = sum(words(batch * value.size) for value in circuit.linear_values)
    compared = sum(comparison.size for comparison in circuit.comparisons)
    dealt, told = (0, 4 * 8 * batch * compared) if style.is_judged else sealed_bytes(circuit, batch)
    weights = sum(layer.weight.numel() for layer in model.layers)
    expected = {
        "session": 8 * weights + 2 * len(circuit.to_json()),
        "offline": batch * outputs * (8 + 4) + bits + dealt,
        "online": batch * (8 * circuit.values[0].size + 8 * inputs + 2 * 8 * circuit.output.size) + bits + told,
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
    for size in (4, 16):  # planes of bits are filled up to 64 numbers
        before = group.server.traffic.total_bytes("offline", "online")
        group.predict(queries_like(SHAPE, count=size), sessions=sessions)
        costs.append(group.server.traffic.total_bytes("offline", "online") - before)
    assert group.server.traffic.total_bytes("session") == opened
    assert 3.5 < costs[1] / costs[0] <= 4.0
