"""Scales of terms, and a whole round with perturbation, clipping and noise: what is left in the recovered gradient."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from tests.reference.gradients import plain_gradient

from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.messages import aggregate
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.noise.sound import DistributedGaussian, SoundNoiseSettings
from bilateral.protocols.noise.term_scales import public_term_scales
from bilateral.protocols.perturb import scheme
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

SHAPE, OUTPUTS, CLIENTS = (20,), 5, 6


def prepared(noise, num_partitions=1):
    model = build_model("mlp-3", input_shape=SHAPE, num_outputs=OUTPUTS, width=24).double()
    graph = ScaleGraph.of(model, torch.zeros(1, *SHAPE))
    plan = PerturbationSettings("mse", noise, num_partitions, scale_range=(0.5, 2.0))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(CLIENTS, 8, *SHAPE, generator=generator, dtype=torch.float64)
    labels = torch.randint(OUTPUTS, (CLIENTS, 8), generator=generator)
    return model, graph, plan, inputs, torch.nn.functional.one_hot(labels, OUTPUTS).double()


def coefficients_of(plan, server):
    secrets = server._secrets
    return scheme.recovery_coefficients(
        plan, secrets.group_secrets, secrets.group_blinders, secrets.output_directions, secrets.partition
    )


def noise_left(coefficients, norms, scales):
    """Recovered noise for a clipping norm that just holds a sample with these norms of terms."""
    return float((coefficients / scales).square().sum().sqrt() * (scales * norms).square().sum().sqrt())


@pytest.mark.parametrize("noise", ["activation", "offset"])
@pytest.mark.parametrize("num_partitions", [1, 3])
def test_public_scales_leave_little_more_noise_than_the_best_ones(noise, num_partitions):
    model, graph, plan, inputs, targets = prepared(noise, num_partitions)
    calibration = torch.randn(16, *SHAPE, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    scales = torch.tensor(public_term_scales(model, graph, plan, calibration), dtype=torch.float64)
    assert len(scales) == len(scheme.term_names(plan))
    gains = []
    for seed in range(6):
        server = PerturbServer(model, graph, plan, SeededRandomness(seed), calibration)
        client = PerturbClient("c", model, graph, plan)
        norms = client.train(server.start_round(0), inputs[0][:1], targets[0][:1], 1).terms.norm(dim=1)
        coefficients = coefficients_of(plan, server).abs()
        best = noise_left(coefficients, norms, (coefficients / norms).sqrt())
        left = noise_left(coefficients, norms, scales)
        assert left < 2.5 * best
        gains.append(noise_left(coefficients, norms, torch.ones_like(scales)) / left)
    # Offset noise is of the size of the logits, about 1 in this model: there is nothing to gain, and nothing is lost.
    assert sorted(gains)[2] > (5.0 if noise == "activation" else 0.9)


@pytest.mark.parametrize("noise", ["activation", "offset"])
def test_a_whole_round_recovers_the_mean_gradient_plus_the_stated_noise(noise):
    model, graph, plan, inputs, targets = prepared(noise)
    scales = public_term_scales(model, graph, plan, inputs[0])
    clip = ClipSettings(1e3, "sample", 8.0, scales)  # so large that nothing is clipped
    settings = SoundNoiseSettings(clip, 0.5, min_honest=4)
    server = PerturbServer(model, graph, plan, SeededRandomness(1))
    message, uploads = server.start_round(0), {}
    for k in range(CLIENTS):
        client = PerturbClient(f"client-{k}", model, graph, plan, clip=clip)
        upload = client.train(message, inputs[k], targets[k], 1)
        uploads[client.name] = DistributedGaussian(client.name, settings, SeededRandomness(2, k)).add_noise(upload, 0)
    recovered = server.recover(aggregate(uploads, 0)).gradient
    expected = plain_gradient(model, graph, inputs.flatten(0, 1), targets.flatten(0, 1), "mse")
    coefficients = coefficients_of(plan, server)
    per_client = torch.tensor(settings.term_deviations(len(coefficients)), dtype=torch.float64)
    deviation = server._secrets.ratio * math.sqrt(float((coefficients * per_client).square().sum()) / CLIENTS)
    standardised = ((recovered - expected) / deviation).square().sum()
    low, high = stats.chi2.ppf([0.5e-9, 1 - 0.5e-9], recovered.numel())
    assert low < float(standardised) < high
