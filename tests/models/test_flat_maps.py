"""The prepared maps of the flat vector against loops over single elements."""

import pytest
import torch
from tests.reference.flat_maps import slow_ratio, slow_source, slow_unscale
from torch import nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.randomness import SeededRandomness


class _Everything(nn.Module):
    """Grouped, depthwise and transposed convolutions, all normalisations, tied scalars, an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.PReLU(6),
            nn.Conv2d(6, 9, 3, groups=3, padding=1),
            nn.PReLU(),
            nn.Conv2d(9, 18, 3, groups=9, bias=False),
            nn.GroupNorm(3, 18),
            nn.ConvTranspose2d(18, 4, 2, groups=2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * 5 * 5, 7),
            nn.LayerNorm(7),
            nn.BatchNorm1d(7, track_running_stats=False),
            nn.ReLU(),
        )
        self.head = nn.Linear(7, 3)
        self.unused = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.head(self.body(x))


@pytest.fixture(scope="module")
def graph():
    return ScaleGraph.of(_Everything(), torch.zeros(2, 2, 6, 6))


@pytest.mark.parametrize("seed", range(3))
def test_ratio_source_and_unscale_equal_the_loops(graph, seed):
    randomness = SeededRandomness(seed)
    factors = randomness.log_uniform(graph.num_scale_classes, low=0.1, high=10.0)
    exchange = graph.cells.draw(randomness)
    assert torch.allclose(graph.ratio(factors), slow_ratio(graph, factors), rtol=1e-14)
    assert torch.equal(graph.source(exchange), slow_source(graph, exchange))
    statistics = randomness.normal(graph.num_statistics)
    expected = slow_unscale(graph, statistics, factors, exchange)
    assert torch.allclose(graph.unscale(statistics, factors, exchange), expected, rtol=1e-14)


def test_statistics_that_are_not_tracked_are_not_counted(graph):
    assert graph.num_statistics == 2 * (6 + 4)


@pytest.mark.parametrize("seed", range(3))
def test_large_and_small_vectors_are_moved_back_alike(graph, seed, monkeypatch):
    exchange = graph.cells.draw(SeededRandomness(seed))
    source = graph.source(exchange)
    plain = torch.arange(graph.num_parameters, dtype=torch.float64)
    small = graph.move_back(plain[source], source, exchange)
    monkeypatch.setattr("bilateral.models.scale_graph._LARGE", 0)
    large = graph.move_back(plain[source], source, exchange)
    assert torch.equal(small, plain)
    assert torch.equal(large, plain)
