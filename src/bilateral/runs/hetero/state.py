"""What a site of a heterogeneous run keeps on its own disk: its network, the sums that wait, and how far it is.

The state is written after each of its stages (`steps.py`), before the server hears of it, and never leaves the site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from bilateral.engine.checkpoint import Checkpoint, matching_checkpoint, putting_back, save_checkpoint
from bilateral.errors import CheckpointError
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.steps import num_measured, waits_for_retraining

_MODEL, _SUMS = "model/", "sums"


@dataclass(frozen=True, eq=False, repr=False)
class ClientState:
    """After `stage` stages. `sums`: answers that were not learned from yet; None except between asking and retraining.

    `accuracies` and `num_queries`: trained alone (no queries), then after every iteration.
    """

    stage: int = 0
    model: Mapping[str, Tensor] = field(default_factory=dict)
    sums: Tensor | None = None
    accuracies: Sequence[float] = ()
    num_queries: Sequence[int] = ()


class SiteStore:
    """The state of one site in one run, in a directory that only this site uses."""

    def __init__(self, path: Path, plan: HeteroPlan) -> None:
        self._path = path
        self._plan = plan

    def load(self) -> ClientState:
        """What was kept last; a fresh state if there is nothing yet."""
        if not self._file.exists():
            return ClientState()
        found = matching_checkpoint(self._plan.digest(), self._file)
        model = {k.removeprefix(_MODEL): t for k, t in found.tensors.items() if k.startswith(_MODEL)}
        with putting_back(self._file):
            state = ClientState(
                found.next_round,
                model,
                found.tensors.get(_SUMS),
                [float(row["accuracy"]) for row in found.rows],
                [int(row["queries"]) for row in found.rows],
            )
        waits = waits_for_retraining(state.stage)
        if len(state.accuracies) != num_measured(state.stage) or (state.sums is not None) != waits:
            raise CheckpointError(f"{self._file} is not a state that a site keeps.", remedy="Start a new run.")
        return state

    def save(self, state: ClientState) -> None:
        """Replace what was kept, atomically."""
        self._path.mkdir(parents=True, exist_ok=True)
        tensors = {f"{_MODEL}{key}": tensor for key, tensor in state.model.items()}
        if state.sums is not None:
            tensors[_SUMS] = state.sums
        rows: list[dict[str, Any]] = [
            {"accuracy": accuracy, "queries": queries}
            for accuracy, queries in zip(state.accuracies, state.num_queries, strict=True)
        ]
        save_checkpoint(Checkpoint(self._plan.digest(), state.stage, tensors, rows), self._file)

    @property
    def _file(self) -> Path:
        return self._path / "checkpoint.safetensors"
