"""Terms of single samples: against a loop over batches of one, and against ordinary uploads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.harness import randomised
from torch import nn

from bilateral.errors import UnsoundPlanError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

SHAPE, OUTPUTS = (1, 8, 8), 4


def with_group_norm(model):
    """Every BatchNorm as a GroupNorm of the same size."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(2, child.num_features))
    return model


class Halved(torch.autograd.Function):
    """A function of a user's own whose backward pass leaves torch, so that vmap has no rule for it."""

    @staticmethod
    def forward(ctx, x):
        return 0.5 * x

    @staticmethod
    def backward(ctx, gradient):
        return torch.from_numpy(0.5 * gradient.numpy())


class Double(nn.ReLU):
    """Looks like a ReLU to the scale graph and runs a function of its own: relu(x) either way."""

    def forward(self, x):
        return super().forward(Halved.apply(x)) + super().forward(Halved.apply(x))


def small_network(frozen=False, dropout=0.0, width=6):
    layers = [nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 5), nn.LeakyReLU()]
    model = nn.Sequential(*layers)
    model.add_module("head", nn.Linear(5, OUTPUTS))
    if frozen:
        model[1].weight.requires_grad_(False)
        model.head.bias.requires_grad_(False)
    return model


NETWORKS = {
    "mlp-3": lambda: build_model("mlp-3", input_shape=SHAPE, num_outputs=OUTPUTS, width=7),
    "lenet": lambda: build_model("lenet", input_shape=SHAPE, num_outputs=OUTPUTS),
    "resnet-8 with GroupNorm": lambda: with_group_norm(
        build_model("resnet-8", input_shape=SHAPE, num_outputs=OUTPUTS, width=4)
    ),
    "frozen layers": lambda: small_network(frozen=True),
}


def prepared(name, seed=0):
    model = randomised(NETWORKS[name]().double(), seed)
    return model, ScaleGraph.of(model, torch.zeros(1, *SHAPE))


def batch(count, loss, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *SHAPE, generator=generator, dtype=torch.float64)
    targets = torch.randn(count, OUTPUTS, generator=generator, dtype=torch.float64)
    return inputs, targets.argmax(1) if loss == "ce" else targets


def halves(name, protection, clip, seed=0):
    """(message, an ordinary client, a client that clips samples)"""
    model, graph = prepared(name, seed)
    if protection in ("mse", "ce"):
        message = FedAvgServer(model, graph).start_round(0)
        return (
            message,
            FedAvgClient("plain", model, graph, protection),
            FedAvgClient("clipping", model, graph, protection, clip=clip),
        )
    loss, _, noise = protection.rpartition(" ")
    plan = PerturbationSettings(loss or "mse", noise, num_partitions=2)
    message = PerturbServer(model, graph, plan, SeededRandomness(seed)).start_round(0)
    return message, PerturbClient("plain", model, graph, plan), PerturbClient("clipping", model, graph, plan, clip=clip)


def loop_over_batches_of_one(message, plain, inputs, targets, clip):
    """The slow, obvious oracle: an ordinary upload of each sample alone, clipped in plain arithmetic, then added."""
    total = 0.0
    for x, t in zip(inputs, targets, strict=True):
        terms = plain.train(message, x[None], t[None], 1).terms.double()
        scaled = terms * torch.tensor(clip.term_scales or [1.0] * len(terms), dtype=torch.float64)[:, None]
        norm = float(scaled.square().sum()) ** 0.5
        total = total + terms * min(1.0, clip.norm / norm)
    return total / clip.expected_batch_size


PROTECTIONS = ("mse", "ce", "activation", "offset", "ce activation", "ce offset")


def loss_of(protection):
    return "ce" if protection.startswith("ce") else "mse"


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_mean_of_unclipped_sample_terms_is_the_ordinary_upload(name, protection):
    message, plain, clipping = halves(name, protection, ClipSettings(1e12, expected_batch_size=5.0))
    data = batch(5, loss_of(protection), 1)
    expected, got = plain.train(message, *data, 5).terms, clipping.train(message, *data, 5)
    assert float((got.terms - expected).norm() / expected.norm()) < 1e-12
    assert got.weight == 1
    assert got.statistics.numel() == 0


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(sorted(NETWORKS)),
    st.sampled_from(PROTECTIONS),
    st.integers(1, 6),
    st.floats(1e-3, 1e2),
    st.integers(0, 99),
    st.booleans(),
)
def test_clipped_upload_is_what_a_loop_over_batches_of_one_sample_gives(name, protection, count, norm, seed, scaled):
    num_terms = {"activation": 4, "offset": 3}.get(protection, 1)
    clip = ClipSettings(norm, "sample", 3.5, tuple(0.5 + k for k in range(num_terms)) if scaled else ())
    message, plain, clipping = halves(name, protection, clip, seed)
    data = batch(count, loss_of(protection), seed)
    expected = loop_over_batches_of_one(message, plain, *data, clip)
    got = clipping.train(message, *data, 1).terms
    assert float((got - expected).norm() / expected.norm()) < 1e-5  # the rounding margin of clipping is 1e-6


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_an_empty_poisson_batch_uploads_zeros_and_looks_like_any_other(protection):
    message, _, clipping = halves("mlp-3", protection, ClipSettings(1.0))
    loss = loss_of(protection)
    empty, full = (clipping.train(message, *batch(count, loss, 0), 1) for count in (0, 3))
    assert not bool(empty.terms.any())
    assert empty.terms.shape == full.terms.shape
    assert (empty.weight, empty.terms.dtype, empty.num_bytes) == (full.weight, full.terms.dtype, full.num_bytes)


def test_a_function_without_a_vmap_rule_takes_one_pass_a_term_with_the_same_result():
    model = randomised(small_network().double(), 4)
    graph = ScaleGraph.of(model, torch.zeros(1, *SHAPE))
    custom = randomised(small_network().double(), 4)
    custom[2] = Double()
    clip, plan = ClipSettings(0.3, expected_batch_size=4.0), PerturbationSettings("mse", "activation")
    message = PerturbServer(model, graph, plan, SeededRandomness(0)).start_round(0)
    data = batch(4, "mse", 2)
    batched, looped = (PerturbClient("c", m, graph, plan, clip=clip) for m in (model, custom))
    expected = batched.train(message, *data, 1).terms
    torch.testing.assert_close(looped.train(message, *data, 1).terms, expected, rtol=1e-10, atol=1e-14)
    assert batched._samples._batches_terms is True
    assert looped._samples._batches_terms is False


def test_dropout_falls_differently_on_each_sample_and_on_equal_ones():
    model = randomised(small_network(dropout=0.5, width=32).double(), 5)
    graph = ScaleGraph.of(model, torch.zeros(1, *SHAPE))
    client = FedAvgClient("c", model, graph, "mse", clip=ClipSettings(1.0))
    client.train(FedAvgServer(model, graph).start_round(0), *batch(1, "mse", 0), 1)
    inputs, targets = (value.expand(16, *value.shape[1:]) for value in batch(1, "mse", 0))
    rows = torch.cat(list(client._samples.chunks(inputs, targets, client.objective)))
    assert len({tuple(row) for row in rows[:, 0].tolist()}) > 8


def test_batch_norm_is_refused_by_name():
    model = build_model("resnet-8", input_shape=SHAPE, num_outputs=OUTPUTS)
    graph = ScaleGraph.of(model, torch.zeros(1, *SHAPE))
    for unit in ("sample", "client"):
        for make in (
            lambda clip: FedAvgClient("c", model, graph, "mse", clip=clip),
            lambda clip: PerturbClient("c", model, graph, PerturbationSettings("mse"), clip=clip),
        ):
            with pytest.raises(UnsoundPlanError, match=r"`stem\.norm`.*GroupNorm"):
                make(ClipSettings(1.0, unit))


def test_the_published_exchange_of_cross_entropy_is_refused_with_its_reason():
    model, graph = prepared("mlp-3")
    for unit in ("sample", "client"):
        with pytest.raises(UnsoundPlanError, match="line 8"):
            PerturbClient(
                "c", model, graph, PerturbationSettings("ce", softmax="blinded"), clip=ClipSettings(1.0, unit)
            )
