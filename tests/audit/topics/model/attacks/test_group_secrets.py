"""Fitting the head's secrets: against the server's own, and where nothing can be fitted."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.threat import client_view, eavesdropper_view, facts_of
from bilateral.audit.topics.model.attacks.group_secrets import (
    ReceivedModel,
    fit_group_secrets,
    fit_outputs,
    guess_outputs,
    naive_outputs,
    parameters_without_noise,
)
from bilateral.data import Split
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError

torch.set_num_threads(1)
BASE = {"model.name": "mlp-3", "model.options": {"width": 16}, "aggregation.masks": "none", "training.rounds": 2}


def recording(**settings):
    plan = RunPlan().with_settings({**BASE, **settings})
    return Context(plan, EFFORTS["smoke"]).record(plan)


def truth(run, round_index, inputs):
    with torch.no_grad():
        return facts_of(run).network(run.server_round(round_index).parameters.double())(inputs.double())


def labelled_by_the_model(run, round_index, inputs):
    """Labels that are the true outputs: then least squares must be exact."""
    return Split(inputs, truth(run, round_index, inputs))


@pytest.mark.parametrize("noise", ["activation", "offset"])
@pytest.mark.parametrize("partitions", [1, 10])
def test_least_squares_finds_the_secrets_where_labels_are_the_true_outputs(noise, partitions):
    settings = {"training.loss": "mse", "perturbation.noise": noise, "perturbation.partitions": partitions}
    run = recording(**settings)
    view = client_view(run, "client-1")
    samples = labelled_by_the_model(run, 1, run.shares["client-1"].inputs)
    secrets = fit_group_secrets(ReceivedModel.of(view, 1, None), samples, "mse")
    true = run.server_round(1).secrets.group_secrets
    assert float((secrets - true).norm() / true.norm()) < 1e-3
    unseen = run.test.inputs
    error = (fit_outputs(view, 1, samples)(unseen) - truth(run, 1, unseen)).norm() / truth(run, 1, unseen).norm()
    assert float(error) < 1e-3
    assert float((naive_outputs(view, 1)(unseen) - truth(run, 1, unseen)).norm() / truth(run, 1, unseen).norm()) > 0.1


def test_likelihood_finds_the_secrets_where_labels_are_drawn_from_the_true_softmax():
    run = recording()
    view, inputs = client_view(run, "client-1"), run.shares["client-1"].inputs.repeat(10, 1, 1, 1)
    drawn = torch.multinomial(torch.softmax(truth(run, 1, inputs), 1), 1, generator=torch.Generator().manual_seed(0))
    secrets = fit_group_secrets(ReceivedModel.of(view, 1, None), Split(inputs, drawn[:, 0]), "ce")
    true = run.server_round(1).secrets.group_secrets
    assert float((secrets - true).abs() / true.abs()) < 0.1


def test_labels_of_another_function_do_not_give_the_outputs():
    """The negative control: labels that have nothing to do with the model leave the client with its prior."""
    run = recording(**{"training.loss": "mse", "perturbation.partitions": 10})
    view, inputs = client_view(run, "client-1"), run.shares["client-1"].inputs
    noise = 5 * torch.randn(len(inputs), 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    right = fit_outputs(view, 1, labelled_by_the_model(run, 1, inputs))(run.test.inputs)
    wrong = fit_outputs(view, 1, Split(inputs, noise))(run.test.inputs)
    true = truth(run, 1, run.test.inputs)
    assert float((wrong - true).norm() / true.norm()) > 0.3 > float((right - true).norm() / true.norm())


def test_every_attacker_has_the_model_itself_under_fedavg():
    run = recording(protection="fedavg")
    view, own = client_view(run, "client-1"), run.shares["client-1"]
    true = truth(run, 1, run.test.inputs)
    for outputs in (naive_outputs(view, 1), guess_outputs(view, 1, own.inputs), fit_outputs(view, 1, own)):
        assert float((outputs(run.test.inputs) - true).norm() / true.norm()) < 1e-6


def test_outputs_are_differentiable_in_the_inputs():
    run = recording()
    inputs = run.test.inputs[:3].clone().requires_grad_()
    outputs = fit_outputs(client_view(run, "client-1"), 1, run.shares["client-1"])(inputs)
    (slope,) = torch.autograd.grad(outputs.sum(), inputs)
    assert float(slope.abs().sum()) > 0


def test_batch_norm_normalises_single_samples_with_the_clients_own_statistics():
    settings = {"model.name": "convnet", "model.options": {"batch_norm": True, "width": 4}}
    run = recording(**settings)
    outputs = naive_outputs(client_view(run, "client-1"), 1)
    together, alone = outputs(run.test.inputs[:4]), outputs(run.test.inputs[:1])
    assert torch.allclose(together[:1], alone, atol=1e-5)


def test_the_expanded_network_of_published_noise_is_understood():
    settings = {"training.loss": "mse", "noise.mechanism": "published", "noise.epsilon": 10.0}
    run = recording(**settings)
    samples = labelled_by_the_model(run, 1, run.shares["client-1"].inputs)
    true = truth(run, 1, run.test.inputs)
    fitted = fit_outputs(client_view(run, "client-1"), 1, samples)(run.test.inputs)
    assert float((fitted - true).norm() / true.norm()) < 1e-3


@pytest.mark.parametrize("noise", ["activation", "offset"])
def test_parameters_without_noise_are_the_true_ones_scaled_and_permuted(noise):
    run = recording(**{"perturbation.noise": noise})
    kept = run.server_round(1)
    clean = parameters_without_noise(client_view(run, "client-1"), 1, kept.secrets.group_secrets)
    expected = (kept.secrets.ratio * kept.parameters.double())[kept.secrets.source]
    assert float((clean - expected).norm() / expected.norm()) < 1e-6


def test_a_round_that_was_not_seen_is_refused():
    run = recording()
    with pytest.raises(DataError, match="saw no model in round 7"):
        naive_outputs(eavesdropper_view(run), 7)
