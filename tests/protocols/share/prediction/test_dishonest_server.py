"""A server that tells the clients different things gets noise, not their secrets. (Found by a hostile review.)"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.protocols.share.harness import QUERIER, Group, fill, queries_like
from torch import nn

from bilateral.errors import BilateralError
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.description import Circuit, Dense, Relu
from bilateral.protocols.share.gates.styles import HARDENED
from bilateral.protocols.share.prediction.messages import (
    BatchRequest,
    BlindedValues,
    Carries,
    ServerTurn,
    SessionNotice,
    SessionRequest,
)
from bilateral.protocols.share.ring.packing import num_words
from bilateral.protocols.share.ring.streams import SessionAgreement, Stream

ID = b"substituted name"
QUERIES = queries_like((6,), count=1)


@pytest.fixture
def parties():
    model = compile_model(fill(nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 3))), QUERIES)
    group = Group()
    group.clients["anna"].offer(model)
    group.clients[QUERIER].ask(QUERIES)
    return group, model


def test_a_server_that_shows_another_circuit_does_not_learn_masks_of_activations(parties):
    """With equal seeds, bits that the querying party tells would be words that the answering party masked with."""
    _, model = parties
    group = Group(style=HARDENED)
    anna, querier = group.clients["anna"], group.clients[QUERIER]
    anna.offer(model)
    querier.ask(QUERIES)
    anna.handle(SessionRequest(ID, QUERIER))
    (first, *_), shape = model.circuit.steps, model.circuit.input_shape
    ones = [Dense((1,), 1), *(Relu((2 + i,)) for i in range(10))]  # ten comparisons of one number each
    other = Circuit(shape, (first, *ones), model.circuit.largest_input)
    querier.handle(SessionNotice(ID, "anna", other.to_json()))
    querier.handle(BatchRequest(ID, 0, 1))
    told = [querier.handle(BlindedValues(ID, 0, torch.zeros(1, 1, dtype=torch.int64))).bits for _ in range(10)]

    sizes = [value.size for value in model.circuit.linear_values]
    bits = tuple(torch.zeros(num_words(size), dtype=torch.int64) for size in sizes)
    anna.handle(Carries(ID, 0, 1, bits))
    anna.handle(ServerTurn(ID, 0, 0, (torch.zeros(1, 6, dtype=torch.int64),)))
    terms = SessionAgreement(ID, QUERIER, "anna", model.circuit.to_json(), "hardened")
    stream = Stream.of(terms.seed(group.rings[QUERIER].pair_secret("anna")), "comparison", 0, 1)
    masks = set(stream.words(90).tolist())
    guesses = {int(word) for bit in told for word in (-bit, 1 - bit)}
    assert not guesses & masks


def test_batches_of_different_sizes_have_different_masks(parties):
    group, model = parties
    terms = SessionAgreement(ID, QUERIER, "anna", model.circuit.to_json(), "hardened")
    seed = terms.seed(group.rings[QUERIER].pair_secret("anna"))
    words = [set(Stream.of(seed, "comparison", 0, size).words(50).tolist()) for size in (1, 2)]
    assert not words[0] & words[1]


def test_a_server_that_names_another_style_or_circuit_has_other_seeds(parties):
    group, model = parties
    terms = SessionAgreement(ID, QUERIER, "anna", model.circuit.to_json(), "hardened")
    secret = group.rings["server"].pair_secret("anna")
    styles = [replace(terms, style=style) for style in ("sealed", "hardened", "published")]
    others = [*styles, replace(terms, circuit=replace(model.circuit, value_bits=8).to_json())]
    assert len({other.seed(secret) for other in others}) == len(others)


def test_after_a_failed_run_the_same_server_and_clients_go_on(parties):
    """What waits in the transport, and replies to it, belong to the run that failed."""
    group, model = parties
    group.clients["anna"].offer(model)
    with pytest.raises(BilateralError):
        group.server.open_sessions(QUERIER, ["anna", "bela"])  # bela has no network
    for _ in range(3):
        found = group.predict(QUERIES, model)
        assert found.shape == (1, 3)


def test_rounding_of_the_logits_is_random_to_the_querying_party():
    """Same model, same queries, same seeds of the querier with both others: the last unit still varies.

    It depends on what the answering party and the server have in common. Else the querier could work it out from its
    own masks and a guess of the last weights, and so test the guess.
    """
    model = compile_model(fill(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))), QUERIES)
    sums = []
    for common in (bytes(32), bytes([1] * 32)):
        group = Group(seed=3)
        for name, other in (("anna", "server"), ("server", "anna")):
            group.rings[name].pair_secret(other)
            group.rings[name]._pair_secrets[other] = common
        sums.append((group.predict(QUERIES.repeat(64, 1), model) * 2**20).round().long())
    assert not torch.equal(sums[0], sums[1])
    assert int((sums[0] - sums[1]).abs().max()) <= 16
