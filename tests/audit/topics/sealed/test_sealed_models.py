"""What a client makes of sealed models is nothing; where the weights are bare, the same attacks find them."""

from dataclasses import replace

import pytest
import torch
from tests.audit.chance import each_holds
from tests.audit.topics.sealed.harness import context_for, relative, with_effort
from tests.audit.topics.sealed.test_weak_sealing import bare_weights

from bilateral.audit.recording import record
from bilateral.audit.sealed_recording import SealedRecording
from bilateral.audit.topics.sealed.attacks.extraction import read_batch_by_pair, read_by_pair, read_model
from bilateral.audit.topics.sealed.sealed_models import run
from bilateral.audit.verdict import judge
from bilateral.protocols.transport import SERVER

SETTINGS = {"federation.clients": 3, "training.loss": "ce", "data.name": "digits", "model.options": {"width": 16}}


def briefly(seed=0):
    context = with_effort(context_for(**SETTINGS, seed=seed), seeds=2)
    short = {loss: replace(size, fold=30, rounds=12) for loss, size in context.effort.memorising.items()}
    return with_effort(context, memorising=short, seeds=2)


def by_attack(evidence):
    return {(one.attack, one.adaptive, one.positive.what): judge(one) for one in evidence}


@pytest.mark.parametrize("is_bare", [False, True], ids=["sealed", "weights without masks"])
def test_attacks_on_models_find_nothing_but_where_weights_are_bare(is_bare, monkeypatch):
    if is_bare:
        bare_weights(monkeypatch)
    found = by_attack(run(briefly()))
    attacks = [
        (attack, True, "the same models under FedSGD")
        for attack in ("the model's function", "values of the parameters")
    ]

    def of(seed):
        rows = by_attack(run(briefly(seed))) if seed else found
        return {attack: rows[attack] for attack in attacks}

    if is_bare:
        assert {of(0)[attack].verdict for attack in attacks} == {"broken"}
    else:
        each_holds(of)
    colluding = [one for one in found.values() if one.evidence.tests == 17]
    assert len(colluding) == 2
    assert all(one.verdict == "broken" for one in colluding)


def test_a_client_and_its_dealer_have_the_model_and_the_server_with_it_the_batch():
    context = context_for(**{"training.rounds": 1, "training.loss": "ce", "data.name": "digits"})
    sealed = SealedRecording(record(context.plan, context.federation()))
    client = "client-1"
    pair = sealed.view("client with its dealer", lambda dealers: frozenset({client, dealers[client]}))
    truth = sealed.recording.server_round(0).parameters
    assert relative(read_by_pair(pair, 0, client), truth) < 0.05
    alone = sealed.view("curious client", lambda _: frozenset({client}))
    assert relative(read_model(alone, 0, client, adaptive=True), truth) > 1.0
    server = sealed.view("server with a client's dealer", lambda dealers: frozenset({SERVER, dealers[client]}))
    inputs, errors = read_batch_by_pair(server.step(0, client))
    batch = sealed.batch_of(client, 0)
    assert relative(inputs, batch.inputs.double().reshape(inputs.shape)) < 1e-5
    assert torch.equal(errors.argmax(1), batch.targets)
