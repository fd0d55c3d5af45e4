"""Batch statistics: collected in the scaled and permuted channels, unscaled to the plain ones."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.reference.harness import draw, perturbed_copy, randomised, relative_error, run, run_round, with_epsilon
from torch import nn

from bilateral.errors import ModelError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.protocols.statistics import (
    batch_statistics,
    collect_batch_statistics,
    scaled_buffers,
    update_running_statistics,
)

torch.set_num_threads(1)
SHAPE = (3, 8, 8)


def network(**options):
    model = build_model("resnet-20", input_shape=SHAPE, num_outputs=4, width=4, batch_norm=True, **options)
    return randomised(model.double(), 0)


def inputs(count, seed):
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shortcut", ["add", "concat"])
def test_unscaled_statistics_equal_those_of_the_plain_model(shortcut):
    model = with_epsilon(network(shortcut=shortcut), 1e-60)
    graph = ScaleGraph.of(model, torch.zeros(1, *SHAPE))
    batches = [(inputs(4, 1), torch.tensor([0, 1, 2, 3])), (inputs(6, 2), torch.zeros(6, dtype=torch.int64))]
    update, _ = run_round(model, PerturbationSettings("ce"), batches, SHAPE)
    expected = 0.0
    for batch, _ in batches:
        plain = copy.deepcopy(model).train()
        collect_batch_statistics(plain)
        with torch.no_grad():
            plain(batch)
        expected = expected + len(batch) / 10 * batch_statistics(plain, graph)
    assert relative_error(update.statistics, expected) < 1e-10


def test_the_servers_running_statistics_move_as_torchs_own_do():
    model = with_epsilon(network(), 1e-60)
    graph = ScaleGraph.of(model, torch.zeros(1, *SHAPE))
    trained, served = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    data = (inputs(8, 3), torch.zeros(8, dtype=torch.int64))
    with torch.no_grad():
        trained(data[0])
    update, _ = run_round(model, PerturbationSettings("ce"), [data], SHAPE)
    update_running_statistics(served, graph, update.statistics)
    for name, buffer in trained.named_buffers():
        assert relative_error(dict(served.named_buffers())[name], buffer) < 1e-10


def test_exported_statistics_make_evaluation_exact_with_a_large_eps():
    model = with_epsilon(network(), 0.3).eval()
    graph = ScaleGraph.of(model, torch.zeros(1, *SHAPE))
    factors, exchange = draw(graph, 4)
    exported = perturbed_copy(model, graph, factors, exchange)
    exported.load_state_dict(scaled_buffers(model, graph, factors, exchange), strict=False)
    assert relative_error(run(exported, inputs(4, 5)), run(model, inputs(4, 5))) < 1e-12


def test_the_exported_variance_is_never_negative():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5, eps=0.5), nn.ReLU(), nn.Linear(5, 2)).double().eval()
    model[1].running_var.zero_()
    graph = ScaleGraph.of(model, torch.zeros(1, 3))
    for seed in range(5):
        buffers = scaled_buffers(model, graph, *draw(graph, seed))
        assert bool((buffers["1.running_var"] >= 0).all())


def untracked():
    return nn.Sequential(
        nn.Linear(3, 5),
        nn.BatchNorm1d(5, track_running_stats=False),
        nn.ReLU(),
        nn.Linear(5, 4),
        nn.BatchNorm1d(4),
        nn.Linear(4, 2),
    ).double()


def test_a_batch_norm_without_running_statistics_trains():
    model = untracked()
    data = (torch.randn(6, 3).double(), torch.randn(6, 2).double())
    update, _ = run_round(model, PerturbationSettings("mse"), [data], (3,))
    assert len(update.statistics) == 8  # those of the second BatchNorm
    update_running_statistics(model, ScaleGraph.of(model, torch.zeros(1, 3)), update.statistics)


def test_a_batch_norm_without_running_statistics_cannot_be_exported():
    model = untracked()
    graph = ScaleGraph.of(model, torch.zeros(1, 3))
    with pytest.raises(ModelError, match=r"`1` keeps no running statistics.*track_running_stats"):
        scaled_buffers(model, graph, *draw(graph, 0))
