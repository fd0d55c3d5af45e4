"""Checked softmax answers: exact recovery with fewer terms, and clients that refuse what their outputs deny."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bilateral.errors import ProtocolError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb import cross_entropy, scheme
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.messages import SoftmaxQuery
from bilateral.protocols.perturb.server import PerturbServer, guarantee
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.protocols.perturb.softmax_check import check_softmax
from bilateral.randomness import SeededRandomness
from reference.gradients import plain_gradient
from reference.harness import randomised, relative_error, run_round

torch.set_num_threads(1)
NOISES = ("activation", "offset")


def checked(noise="activation", partitions=1):
    return PerturbationSettings("ce", noise, partitions, softmax="checked")


def mlp(outputs=5, dtype=torch.float64):
    body = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU())
    body.add_module("head", nn.Linear(7, outputs))
    return randomised(body.to(dtype), 0)


def batch(count=8, outputs=5, shape=(6,), dtype=torch.float64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=generator, dtype=dtype)
    return inputs, torch.randint(outputs, (count,), generator=generator)


@pytest.mark.parametrize("partitions", [1, 2, 5])
@pytest.mark.parametrize("noise", NOISES)
def test_recovery_is_exact_with_fewer_terms(noise, partitions):
    model, data = mlp(), batch()
    plan = checked(noise, partitions)
    update, _ = run_round(model, plan, [data, batch(3, seed=2)], (6,), seed=partitions)
    graph = ScaleGraph.of(model, torch.zeros(1, 6))
    exact = (
        8 * plain_gradient(model, graph, *data, "ce") + 3 * plain_gradient(model, graph, *batch(3, seed=2), "ce")
    ) / 11
    assert relative_error(update.gradient, exact) < 1e-12
    fewer = len(scheme.term_names(replace(plan, softmax="blinded"))) - len(scheme.term_names(plan))
    assert fewer == (2 * partitions if noise == "activation" else partitions)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("lenet", {}, (1, 8, 8)),
        ("resnet-20", {"width": 4}, (3, 8, 8)),
        ("densenet", {"growth": 4, "layers": [2, 2]}, (3, 16, 16)),
    ],
)
def test_an_honest_answer_passes_in_single_precision_too(name, options, shape, noise):
    """The check is about what the client sent, in double precision: rounding of the forward pass does not matter."""
    model = build_model(name, input_shape=shape, num_outputs=5, **options).train()
    update, _ = run_round(model, checked(noise), [batch(8, 5, shape, torch.float32)], shape)
    assert bool(torch.isfinite(update.gradient).all())


def exchanged(seed, outputs, samples, size, noise_size, groups):
    """(softmax as the client gets it, its noisy outputs, the patterns) of an honest exchange."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    alpha, directions = draw(samples), draw(outputs)
    partition = torch.arange(outputs) % groups
    patterns = alpha[None, :, None] * (scheme.group_masks(partition, groups, torch.float64) * directions)[:, None, :]
    secrets = noise_size * draw(groups)
    noisy = size * draw(samples, outputs) + torch.einsum("s,snc->nc", secrets, patterns)
    query, blinders = cross_entropy.query(0, noisy, alpha, SeededRandomness(seed))
    reply = cross_entropy.reply(
        query, secrets[partition] * directions, torch.ones(outputs), True, cross_entropy.no_sample_blinders(query)
    )
    return cross_entropy.unblind(reply, blinders).blinded, noisy, patterns


@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from([0.1, 1.0, 30.0]), st.sampled_from([0.1, 1.0, 15.0]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_honest_answers_pass_however_large_outputs_and_noise_are(seed, outputs, size, noise_size):
    check_softmax("client", *exchanged(seed, outputs, 7, size, noise_size, 2))


@given(st.integers(0, 10_000), st.sampled_from([1e-4, 1e-2, 1.0, 100.0]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_an_answer_that_is_no_softmax_of_the_outputs_is_refused(seed, by):
    softmax, noisy, patterns = exchanged(seed, 5, 7, 1.0, 1.0, 2)
    moved = softmax.log()
    moved[3, seed % 5] += by
    with pytest.raises(ProtocolError, match="away from every softmax"):
        check_softmax("client", torch.softmax(moved, 1), noisy, patterns)


@pytest.mark.parametrize("forged", ["one-hot", "even", "another sample's", "scaled", "towards a class"])
def test_forged_answers_are_refused(forged):
    softmax, noisy, patterns = exchanged(0, 5, 7, 1.0, 1.0, 1)
    lies = {
        "one-hot": torch.softmax(1e2 * softmax.log(), 1).clamp_min(1e-280),
        "even": torch.full_like(softmax, 0.2),
        "another sample's": softmax.roll(1, 0),
        "scaled": 1000 * softmax,
        "towards a class": torch.softmax(softmax.log() + torch.tensor([5.0, 0, 0, 0, 0]), 1),
    }
    with pytest.raises(ProtocolError, match="softmax answer is not about this model"):
        check_softmax("client", lies[forged], noisy, patterns)


def test_group_secrets_are_the_servers_to_choose_and_nothing_else_is():
    """The stated limit: an answer under other group secrets passes. They are the same for a client's whole batch."""
    softmax, noisy, patterns = exchanged(0, 5, 7, 1.0, 1.0, 1)
    check_softmax("client", torch.softmax(softmax.log() + 2.0 * patterns[0], 1), noisy, patterns)


def asked(noise="activation"):
    model, (inputs, targets) = mlp(), batch()
    graph, plan = ScaleGraph.of(model, torch.zeros(1, 6)), checked(noise)
    server = PerturbServer(model, graph, plan, (6,), SeededRandomness(0))
    client = PerturbClient("client-1", mlp(), graph, plan, SeededRandomness(1))
    query = client.train(server.start_round(0), inputs, targets, 1)
    assert isinstance(query, SoftmaxQuery)
    return server, client, server.answer("client-1", query)


@pytest.mark.parametrize("noise", NOISES)
def test_a_client_refuses_blinders_and_lies_and_uploads_after_the_truth(noise):
    for spoil, words in (
        (lambda r: replace(r, corrections=r.corrections + 1e-12), "is blinded"),
        (lambda r: replace(r, blinded_denominators=2 * r.blinded_denominators), "softmax answer is not about"),
        (lambda r: replace(r, blinder_coefficients=0.9 * r.blinder_coefficients), "softmax answer is not about"),
    ):
        _, client, reply = asked(noise)
        with pytest.raises(ProtocolError, match=words):
            client.receive(spoil(reply))
    server, client, reply = asked(noise)
    assert server.recover(aggregate({"client-1": client.receive(reply)}, 0)).gradient.norm() > 0


def test_checked_answers_do_not_have_ledger_line_16():
    lines = {leak.ledger_line for leak in guarantee(checked()).leaks}
    assert 16 not in lines
    assert {2, 8, 10} <= lines
