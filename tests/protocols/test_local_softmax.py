"""Cross entropy without an exchange: the noise comes with the model, one term goes up, and recovery is exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.gradients import plain_gradient
from tests.reference.harness import randomised, relative_error, run_round
from torch import nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import Upload
from bilateral.protocols.perturb import scheme
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.protocols.wire import digest
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
NOISES = ("activation", "offset")


def local(noise="activation", partitions=1, **others):
    return PerturbationSettings("ce", noise, partitions, softmax="local", **others)


def mlp(outputs=5):
    body = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU())
    body.add_module("head", nn.Linear(7, outputs))
    return randomised(body.double(), 0)


def batch(count=8, outputs=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator, dtype=torch.float64), torch.randint(
        outputs, (count,), generator=generator
    )


@pytest.mark.parametrize("noise", NOISES)
@given(outputs=st.integers(2, 8), seed=st.integers(0, 99), ratio=st.sampled_from([0.1, 1.0, 30.0]), data=st.data())
@settings(max_examples=20, deadline=None)
def test_recovery_is_exact_however_large_the_noise_is(noise, outputs, seed, ratio, data):
    plan = local(noise, data.draw(st.integers(1, outputs)), noise_ratio=ratio)
    model, samples = mlp(outputs), batch(6, outputs, seed)
    update, _ = run_round(model, plan, [samples], (6,), seed=seed)
    exact = plain_gradient(model, ScaleGraph.of(model, torch.zeros(1, 6)), *samples, "ce")
    assert relative_error(update.gradient, exact) < 1e-11


@pytest.mark.parametrize("noise", NOISES)
def test_one_term_is_uploaded_and_nothing_is_asked(noise):
    model, plan = mlp(), local(noise, 3)
    graph = ScaleGraph.of(model, torch.zeros(1, 6))
    server = PerturbServer(model, graph, plan, SeededRandomness(0))
    client = PerturbClient("anna", model, graph, plan, SeededRandomness(1))
    sent = client.train(server.start_round(0), *batch(), 8)
    assert isinstance(sent, Upload)
    assert scheme.term_names(plan) == ("error",)
    assert sent.terms.shape == (1, graph.num_parameters)


def test_cotangents_equal_autograd_of_the_loss_by_who_knows_the_noise():
    """The oracle: cross entropy of the outputs less the noise, differentiated by torch."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    alpha = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (6,), generator=generator)
    for kind in NOISES:
        carrier = alpha if kind == "activation" else torch.ones_like(alpha)
        lost = nn.functional.cross_entropy(outputs - carrier[:, None] * noise, labels)
        of_outputs, of_alpha = torch.autograd.grad(lost, (outputs, alpha), allow_unused=True)
        target = nn.functional.one_hot(labels, 4).double()
        found = scheme.local_cross_entropy_cotangents(local(kind), outputs.detach(), alpha.detach(), target, noise)
        assert torch.allclose(found.outputs[0], of_outputs, atol=1e-14)
        if kind == "activation":
            assert torch.allclose(found.activation_sum[0], of_alpha, atol=1e-14)
        else:
            assert found.activation_sum is None


def test_told_noise_is_part_of_what_masks_are_bound_to():
    """A server that tells two clients different noise gets no sum: masks depend on the digest of the model message."""
    model = mlp()
    server = PerturbServer(model, ScaleGraph.of(model, torch.zeros(1, 6)), local(), SeededRandomness(0))
    message = server.start_round(0)
    assert len(message.group_secrets) == 1
    assert digest(message) != digest(replace(message, group_secrets=message.group_secrets + 1e-9))
    assert digest(message) == digest(replace(message, group_secrets=message.group_secrets.clone()))


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_without_a_local_softmax_no_secret_is_told(loss):
    model, plan = mlp(), PerturbationSettings(loss, softmax="blinded")
    server = PerturbServer(model, ScaleGraph.of(model, torch.zeros(1, 6)), plan, SeededRandomness(0))
    assert not len(server.start_round(0).group_secrets)
