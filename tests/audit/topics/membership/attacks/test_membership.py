"""Reading a model and telling its members, on small cases."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bilateral.audit.membership_metrics import as_values, auc
from bilateral.audit.recording import record
from bilateral.audit.threat import client_view
from bilateral.audit.topics.membership.attacks.lira import joined
from bilateral.audit.topics.membership.attacks.membership import (
    Known,
    ModelReading,
    attack_network,
    confidence,
    loss_threshold,
    read_model,
)
from bilateral.data import Split
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.randomness import SeededRandomness

DRAWS = SeededRandomness(1, "test")


def test_confidence_is_the_logit_of_the_right_class():
    outputs, targets = torch.randn(20, 5, dtype=torch.float64), torch.arange(20) % 5
    p = outputs.softmax(1).gather(1, targets[:, None])[:, 0]
    assert torch.allclose(confidence(outputs, targets), (p / (1 - p)).log())


@pytest.mark.parametrize("classes", [True, False])
def test_a_higher_confidence_is_a_smaller_loss(classes):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    if classes:
        targets = torch.arange(50) % 4
        losses = F.cross_entropy(outputs, targets, reduction="none")
    else:
        targets = torch.randn(50, 4, generator=generator, dtype=torch.float64)
        losses = (outputs - targets).square().mean(1)
    assert torch.equal(confidence(outputs, targets).argsort(), losses.argsort(descending=True))


def small_run(**settings):
    base = {"model.name": "mlp-3", "training.rounds": 30, "federation.clients": 2}
    plan = RunPlan().with_settings({**base, **settings})
    recording = record(plan, load_federation(plan), keep={29})
    return recording, client_view(recording, "client-1")


@pytest.mark.parametrize("settings", [{}, {"training.loss": "mse", "perturbation.partitions": 3}])
def test_the_adaptive_client_reads_true_outputs_and_the_naive_one_does_not(settings):
    recording, view = small_run(**settings)
    samples = view.data["client-1"]
    true = view.facts.network(recording.server_round(29).parameters)
    with torch.no_grad():
        expected = true(recording.test.inputs.double())
        errors = [
            float((read_model(view, 29, samples, adaptive=a).outputs(recording.test.inputs) - expected).square().mean())
            for a in (False, True)
        ]
    assert errors[1] < 0.05 * errors[0]


def test_layers_come_last_first_without_the_head():
    _, view = small_run(**{"protection": "fedavg"})
    layers = read_model(view, 29, view.data["client-1"], adaptive=True).layers(view.data["client-1"].inputs[:7])
    widths = [p.shape[0] for p in view.facts.graph.parameters if p.name.endswith("weight")][:-1]
    assert [tuple(layer.shape) for layer in layers] == [(7, width) for width in reversed(widths)]


def made_up_reading(seen, hidden_tells=False):
    """A model that is sure of what it has seen; or whose hidden layer alone marks it."""

    def is_seen(inputs):
        return (inputs[:, :1] == seen).double()

    def outputs(inputs):
        return torch.cat([4 * is_seen(inputs) * (not hidden_tells), torch.zeros(len(inputs), 2).double()], 1)

    def layers(inputs):
        return [torch.cat([3 * is_seen(inputs), inputs[:, 1:].double()], 1)]

    return ModelReading(outputs, layers)


def lot(mark, count, seed):
    inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    inputs[:, 0] = mark
    return Split(inputs, torch.zeros(count, dtype=torch.int64))


KNOWN = Known(lot(1.0, 60, 0), lot(0.0, 60, 1))
CANDIDATES = joined(lot(1.0, 50, 2), lot(0.0, 50, 3))


def auc_of(scores):
    return auc(as_values(scores[:50]), as_values(scores[50:]))


def test_the_threshold_finds_what_a_model_is_sure_of():
    assert auc_of(loss_threshold(made_up_reading(1.0), CANDIDATES)) == 1.0


def test_the_attack_network_learns_from_known_members_what_hidden_layers_say_of_others():
    reading = made_up_reading(1.0, hidden_tells=True)
    assert auc_of(attack_network(reading, KNOWN, CANDIDATES, 2, DRAWS)) > 0.95
    assert auc_of(attack_network(reading, KNOWN, CANDIDATES, 1, DRAWS)) == 0.5  # outputs alone say nothing


def test_the_attack_network_finds_nothing_in_a_model_that_saw_neither():
    found = [
        auc_of(attack_network(made_up_reading(7.0), KNOWN, CANDIDATES, depth, DRAWS.child(depth))) for depth in (1, 2)
    ]
    assert all(0.35 < value < 0.65 for value in found)
