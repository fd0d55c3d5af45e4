"""The server's optimiser: torch's own, fed with recovered gradients, and learning-rate schedules by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from bilateral.errors import CheckpointError
from bilateral.models.layout import ModelLayout

OptimiserName = Literal["sgd", "adam"]
ScheduleName = Literal["constant", "step", "cosine", "linear"]


@dataclass(frozen=True)
class OptimiserSettings:
    """`schedule`: constant; step (a tenth at 1/2 and 3/4 of the rounds); cosine or linear (down to 0)."""

    name: OptimiserName = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: ScheduleName = "constant"
    warmup_rounds: int = 0

    def rate(self, round_index: int, num_rounds: int) -> float:
        """The learning rate of a round: a function of the round alone, so that resuming needs no state."""
        warm = min(1.0, (round_index + 1) / self.warmup_rounds) if self.warmup_rounds else 1.0
        progress = round_index / max(1, num_rounds)
        match self.schedule:
            case "constant":
                factor = 1.0
            case "step":
                factor = 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01
            case "cosine":
                factor = 0.5 * (1.0 + math.cos(math.pi * progress))
            case "linear":
                factor = 1.0 - progress
        return self.learning_rate * warm * factor


class Optimiser(Protocol):
    """The server's: moves its model by what was recovered from a round."""

    def step(self, gradient: Tensor, round_index: int, num_rounds: int) -> None: ...

    def state_tensors(self) -> dict[str, Tensor]: ...

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None: ...


class ServerOptimiser:
    """Applies a flat recovered gradient to the server's model."""

    def __init__(self, model: nn.Module, layout: ModelLayout, settings: OptimiserSettings) -> None:
        own = dict(model.named_parameters())
        self._layout = layout
        self._settings = settings
        self._parameters = {p.name: own[p.name] for p in layout.parameters if own[p.name].requires_grad}
        ordered = list(self._parameters.values())
        self._optimiser: torch.optim.Optimizer
        if settings.name == "adam":
            self._optimiser = torch.optim.Adam(ordered, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        else:
            self._optimiser = torch.optim.SGD(
                ordered, lr=settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
            )

    def step(self, gradient: Tensor, round_index: int, num_rounds: int) -> None:
        named = self._layout.unflatten(gradient)
        for name, parameter in self._parameters.items():
            parameter.grad = named[name].to(parameter.dtype)
        for group in self._optimiser.param_groups:
            group["lr"] = self._settings.rate(round_index, num_rounds)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must keep, as named tensors."""
        state = self._optimiser.state_dict()["state"]
        return {
            f"{index}.{key}": torch.as_tensor(value).clone()
            for index, entries in state.items()
            for key, value in entries.items()
            if value is not None
        }

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Any]] = {}
        ordered = list(self._parameters.values())
        for name, tensor in tensors.items():
            index, _, key = name.partition(".")
            known = index.isdecimal() and int(index) < len(ordered)
            if not known or tensor.shape not in ((), ordered[int(index)].shape):
                raise CheckpointError(
                    f"The stored optimiser has {name[:80]} of shape {list(tensor.shape)}, which fits no parameter.",
                    remedy="Resume with the plan it was made with.",
                )
            state.setdefault(int(index), {})[key] = tensor.clone()  # of its own: steps write into it
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": state, "param_groups": groups})
