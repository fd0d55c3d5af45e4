"""Reading the cross-entropy exchange: against the slow null-space oracle, and against the true model."""

from __future__ import annotations

import itertools

import pytest
import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.threat import client_view, eavesdropper_view, facts_of, server_view
from bilateral.audit.topics.model.attacks import softmax_exchange as attacks
from bilateral.engine.plan import RunPlan
from bilateral.protocols.perturb.cross_entropy import query
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)


def recording(**settings):
    model = {"model.name": "mlp-3", "model.options": {"width": 16}, "training.rounds": 2}
    published = {"aggregation.masks": "none", "perturbation.softmax": "blinded"}
    plan = RunPlan().with_settings({**model, **published, **settings})
    return Context(plan, EFFORTS["smoke"]).record(plan)


def true_softmax(run, client, round_index):
    network = facts_of(run).network(run.server_round(round_index).parameters.double())
    with torch.no_grad():
        return torch.softmax(network(run.batches[client, round_index].inputs.double()), 1)


def null_space(blinded):
    """The oracle: z_i (mu_ij - mu_ik) - z_j + z_k = 0 for all different i, j, k."""
    classes = len(blinded)
    mu = {(i, j): blinded[i, j - (j > i)] for i in range(classes) for j in range(classes) if i != j}
    rows = []
    for i, j, k in itertools.permutations(range(classes), 3):
        row = torch.zeros(classes, dtype=torch.float64)
        row[i], row[j], row[k] = mu[i, j] - mu[i, k], -1.0, 1.0
        rows.append(row / row.norm())
    solution = torch.linalg.svd(torch.stack(rows)).Vh[-1]
    return solution / solution[solution.abs().argmax()]


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_exponentials_equal_the_null_space_of_the_querys_differences(classes):
    outputs = torch.randn(20, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent, _ = query(0, outputs, torch.zeros(20), SeededRandomness(1))
    found = attacks.exponentials_of(sent.blinded_exponentials)
    oracle = torch.stack([null_space(one) for one in sent.blinded_exponentials])
    assert torch.allclose(found, oracle, atol=1e-9)


def test_small_exponentials_are_exact_to_their_own_size():
    """Peaked outputs: a class that is 1e-26 of the largest is still read, as noise may have pushed it there."""
    outputs = torch.tensor([[0.0, -60.0, -30.0, -5.0], [-60.0, 0.0, -1.0, -2.0]], dtype=torch.float64)
    sent, _ = query(0, outputs, torch.zeros(2), SeededRandomness(1))
    found = attacks.exponentials_of(sent.blinded_exponentials).log()
    assert torch.allclose(found, outputs, atol=1e-6)


@pytest.mark.parametrize("noise", ["activation", "offset"])
@pytest.mark.parametrize("partitions", [1, 10])
def test_client_server_and_eavesdropper_read_every_softmax_to_1e_6(noise, partitions):
    run = recording(**{"perturbation.noise": noise, "perturbation.partitions": partitions})
    true = true_softmax(run, "client-1", 1)
    client, server, wire = client_view(run, "client-1"), server_view(run), eavesdropper_view(run)
    for read in (
        attacks.softmax_of_reply(client, 1, "client-1")["client-1"],
        attacks.softmax_of_query(server, 1, "client-1"),
        attacks.softmax_of_reply(wire, 1, *run.shares)["client-1"],
    ):
        assert float((read - true).abs().max()) < 1e-6
    for naive in (
        attacks.naive_softmax_of_reply(client, 1, "client-1"),
        attacks.naive_softmax_of_query(server, 1, "client-1"),
    ):
        assert float((naive - true).abs().max()) > 1e-2


def test_secrets_from_exchange_are_the_servers_own():
    run = recording(**{"perturbation.partitions": 3})
    found = attacks.secrets_from_exchange(client_view(run, "client-1"), 1, "client-1")
    true = run.server_round(1).secrets.group_secrets
    assert float((found - true).norm() / true.norm()) < 1e-6


def test_too_few_samples_for_the_linear_system_do_not_give_the_softmax():
    """Ten unknown blinders and a batch of two: the attack must fail."""
    run = recording(**{"perturbation.partitions": 10, "training.batch_size": 2})
    read = attacks.softmax_of_reply(client_view(run, "client-1"), 1, "client-1")["client-1"]
    assert float((read - true_softmax(run, "client-1", 1)).abs().max()) > 1e-3


def test_two_classes_are_exact_for_the_client_and_bracketed_for_the_server():
    run = recording(**{"data.name": "breast-cancer"})
    true = true_softmax(run, "client-1", 1)
    read = attacks.softmax_of_reply(client_view(run, "client-1"), 1, "client-1")["client-1"]
    assert float((read - true).abs().max()) < 1e-6
    bracketed = attacks.softmax_of_query(server_view(run), 1, "client-1")
    error = float((bracketed - true).abs().mean())
    assert 1e-4 < error < float((true.roll(1, 0) - true).abs().mean())


def test_the_activation_sum_is_the_scaled_head_inputs():
    run = recording()
    kept = run.server_round(1)
    network = facts_of(run).network(kept.parameters.double())
    inputs = run.batches["client-1", 1].inputs.double().flatten(1)
    for layer in network.hidden:
        inputs = torch.relu(layer(inputs))
    expected = (inputs @ kept.secrets.scale_factors[run.graph.head_input_classes]).detach()
    read = attacks.activation_sums(server_view(run), 1, "client-1")
    assert float((read - expected).norm() / expected.norm()) < 1e-5
