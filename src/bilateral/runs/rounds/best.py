"""The best model of a run so far, by a metric on data that no result is reported on; and when to give up waiting."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from bilateral.engine.checkpoint import Checkpoint
from bilateral.errors import CheckpointError, PlanError
from bilateral.learning.metrics import is_better

PREFIX = "best/model/"
"""Of its tensors in a checkpoint."""


@dataclass
class BestModel:
    """`name`: the metric, without its part. `patience`: rounds without a better one after which training ends; 0: none.

    Nothing is kept where nothing is looked at: a run without validation data has no best model but its last.
    """

    name: str
    patience: int = 0
    round_index: int | None = field(default=None, init=False)
    """After so many rounds it was best."""
    value: float | None = field(default=None, init=False)
    _state: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def look(self, rounds: int, metrics: dict[str, float], model: nn.Module) -> None:
        """Keep this model if it is better than all before."""
        key = f"validation_{self.name}"
        if key not in metrics:
            known = ", ".join(name.removeprefix("validation_") for name in metrics)
            raise PlanError(
                f"evaluation.monitor is {self.name!r}, which these data do not have.", remedy=f"Use {known}."
            )
        if is_better(self.name, metrics[key], self.value):
            self.round_index, self.value = rounds, metrics[key]
            self._state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    def is_over(self, rounds: int) -> bool:
        """Whether the patience is at its end: a function of the state alone, so that a resumed run agrees."""
        return self.patience > 0 and self.round_index is not None and rounds - self.round_index >= self.patience

    def model(self, last: nn.Module) -> nn.Module:
        """The best one, or the last where none was kept."""
        if not self._state:
            return last
        best = copy.deepcopy(last)
        best.load_state_dict(self._state)
        return best

    def counters(self) -> dict[str, float]:
        """What a checkpoint keeps besides the tensors."""
        if self.round_index is None or self.value is None:
            return {}
        return {"best_round": self.round_index, "best_value": self.value}

    def tensors(self) -> dict[str, Tensor]:
        return {PREFIX + name: tensor for name, tensor in self._state.items()}

    def load(self, checkpoint: Checkpoint, model: nn.Module) -> None:
        """Put it back; the model says what its tensors must be like."""
        state = best_of(checkpoint.tensors)
        if not state:
            return
        expected = {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()}
        if {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()} != expected:
            raise CheckpointError(
                "The checkpoint's best model is another model than the plan's.",
                remedy="Resume with the plan it was made with.",
            )
        self.round_index = int(checkpoint.counters["best_round"])
        self.value = float(checkpoint.counters["best_value"])
        self._state = state


def best_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The best model among a checkpoint's tensors; empty if none was kept."""
    return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
