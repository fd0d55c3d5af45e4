"""A network and data of your own: three sites, each with a Dataset, train under masks."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

import bilateral


def site(seed: int, count: int) -> TensorDataset:
    """What would be a hospital's own Dataset: any map-style one will do."""
    inputs = torch.randn(count, 12, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())


class Network(nn.Module):
    """Nothing about it is special: masks take any module."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.GELU())
        self.head = nn.Linear(32, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(inputs))
        return result


def main() -> bilateral.RunResult:
    plan = bilateral.RunPlan().with_settings(
        {"protection": "masks", "training.rounds": 60, "training.optimiser": "adam", "training.learning_rate": 0.01}
    )
    sites = {"north": site(1, 300), "south": site(2, 200), "west": site(3, 250)}
    result = bilateral.run(plan, model=Network(), data=sites, test=site(4, 200), save=False)
    print(f"accuracy {result.metrics['test_accuracy']:.3f}; the server saw {result.rounds} sums over three sites")
    return result


if __name__ == "__main__":
    main()
