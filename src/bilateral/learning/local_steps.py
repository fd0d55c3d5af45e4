"""Local steps: what clients do between two models of the server, and how the server takes their changes.

With local steps a round is FedAvg: each client trains the round's model on batches of its own, and uploads the change.
The server moves its model by the mean of the changes, weighted like gradients, in one of four ways (`ServerRule`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

from bilateral.errors import CheckpointError
from bilateral.learning.client import BatchSchedule
from bilateral.learning.optimiser import OptimiserSettings
from bilateral.models.layout import ModelLayout

ServerRule = Literal["average", "momentum", "adam", "yogi"]
"""FedAvg (McMahan et al. 2017), FedAvgM (Hsu et al. 2019), FedAdam and FedYogi (Reddi et al. 2021, Algorithm 2)."""
_SECOND_DECAY: Final = 0.99
_RATES: Final[dict[ServerRule, float]] = {"average": 1.0, "momentum": 1.0, "adam": 0.01, "yogi": 0.01}


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains in a round. `steps` batches, or all of its samples `epochs` times.

    The optimiser begins anew every round: no momentum is carried over. `proximal`: FedProx' mu (Li et al. 2020), a pull
    to the round's model.
    """

    optimiser: OptimiserSettings
    num_rounds: int
    steps: int = 0
    epochs: int = 0
    proximal: float = 0.0

    def make_optimiser(self, parameters: list[nn.Parameter], round_index: int) -> torch.optim.Optimizer:
        chosen, rate = self.optimiser, self.optimiser.rate(round_index, self.num_rounds)
        if chosen.name == "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=chosen.weight_decay)
        return torch.optim.SGD(parameters, lr=rate, momentum=chosen.momentum, weight_decay=chosen.weight_decay)


@dataclass(frozen=True)
class LocalSchedule:
    """The batches of each round: those that the rounds of `BatchSchedule` have, some of them in each round here."""

    batches: BatchSchedule
    settings: LocalSettings

    @property
    def steps(self) -> int:
        return self.settings.steps or self.settings.epochs * self.batches.batches_per_epoch

    def of_round(self, round_index: int) -> Iterator[Tensor]:
        """Indices of the samples of each step."""
        for step in range(self.steps):
            yield self.batches.batch(round_index * self.steps + step)

    def batch(self, round_index: int) -> Tensor:
        """All samples of a round, each once."""
        used = torch.zeros(self.batches.num_samples, dtype=torch.bool)
        for indices in self.of_round(round_index):
            used[indices] = True
        return used.nonzero().flatten()


@dataclass(frozen=True)
class ServerRuleSettings:
    """`momentum`: of momentum, adam and yogi. `adaptivity`: tau of adam and yogi."""

    rule: ServerRule = "average"
    learning_rate: float | None = None
    """None is 1 for average and momentum, 0.01 for adam and yogi."""
    momentum: float = 0.9
    adaptivity: float = 1e-3

    @property
    def rate(self) -> float:
        return _RATES[self.rule] if self.learning_rate is None else self.learning_rate


class ChangeTaker:
    """Moves the server's model by the mean change of the clients: a `ServerOptimiser` for local steps.

    A change is told as `before - after`, so that it stands where a gradient would.
    """

    def __init__(self, model: nn.Module, layout: ModelLayout, settings: ServerRuleSettings) -> None:
        own = dict(model.named_parameters())
        self._parameters = [own[p.name] for p in layout.parameters]
        self._layout = layout
        self._settings = settings
        self._state: dict[str, Tensor] = {}
        if settings.rule != "average":
            self._state["first"] = torch.zeros(layout.num_parameters, dtype=torch.float64)
        if settings.rule in ("adam", "yogi"):
            self._state["second"] = torch.full_like(self._state["first"], settings.adaptivity**2)

    def step(self, change: Tensor, round_index: int, num_rounds: int) -> None:  # noqa: ARG002
        moved = self._moved(change.double()).mul_(self._settings.rate)
        with torch.no_grad():
            for place, parameter in zip(self._layout.parameters, self._parameters, strict=True):
                parameter.sub_(moved[place.slice].view(place.shape).to(parameter.dtype))

    def _moved(self, change: Tensor) -> Tensor:
        rule, momentum = self._settings.rule, self._settings.momentum
        if rule == "average":
            return change.clone()
        first = self._state["first"]
        if rule == "momentum":
            return first.mul_(momentum).add_(change).clone()
        first.mul_(momentum).add_(change, alpha=1 - momentum)
        second, square = self._state["second"], change.square()
        if rule == "adam":
            second.mul_(_SECOND_DECAY).add_(square, alpha=1 - _SECOND_DECAY)
        else:
            second.sub_(square * (second - square).sign(), alpha=1 - _SECOND_DECAY)
        return first / (second.sqrt() + self._settings.adaptivity)

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        expected = {name: tensor.shape for name, tensor in self._state.items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise CheckpointError(
                f"The stored optimiser has {', '.join(sorted(tensors))[:80] or 'nothing'}, which is not of this plan.",
                remedy="Resume with the plan it was made with.",
            )
        for name, tensor in tensors.items():
            self._state[name].copy_(tensor)
