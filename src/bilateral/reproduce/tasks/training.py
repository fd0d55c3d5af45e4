"""Protections beside FedSGD on the same batches: `compare`, on every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bilateral.engine.plan import RunPlan
from bilateral.errors import NumericalRangeError, ThresholdError
from bilateral.protections.fedavg.protection import FEDAVG
from bilateral.reproduce.tables import Around, Measured
from bilateral.runs.rounds.compare import REORDERED, compare

CONTROL: Final = f"{REORDERED}-1"
"""FedSGD on batches in another order."""
BASE: Final = FEDAVG
DIVERGED: Final = (NumericalRangeError, ThresholdError)
"""A model that has become NaN, or uploads of which none is finite."""
_PILOT_ROUNDS: Final = 3
_SHOWN: Final = ("seconds_ratio", "bytes_ratio", "weights_relative_difference")


@dataclass(frozen=True)
class Training:
    """`lanes`: names that `compare` knows; `stacks`: further ones as settings. A value is named `lane/metric`."""

    settings: Mapping[str, Any]
    lanes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2)
    stacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def describe(self) -> Mapping[str, Any]:
        stacks = {name: dict(settings) for name, settings in self.stacks.items()}
        return {"settings": dict(self.settings), "lanes": self.lanes, "seeds": self.seeds, "stacks": stacks}

    def pilot(self) -> tuple[Training, float]:
        rounds = int(self.settings["training.rounds"])
        few = min(_PILOT_ROUNDS, rounds)
        settings = {**self.settings, "training.rounds": few}
        return replace(self, settings=settings, seeds=self.seeds[:1]), len(self.seeds) * rounds / few

    def run(self, around: Around) -> Measured:
        found: dict[str, list[dict[str, Any] | None]] = {}
        for seed in self.seeds:
            for name, row in self._trained(seed, around).items():
                found.setdefault(name, []).append(row)
        values: dict[str, list[float | None]] = {}
        for name, rows in found.items():
            known = next((row for row in rows if row is not None), None)
            for metric in known["metrics"] if known else ("test_accuracy", "test_mse"):
                values[f"{name}/{metric}"] = [None if row is None else row["metrics"][metric] for row in rows]
            for metric in _SHOWN if known else ():
                values[f"{name}/{metric}"] = [None if row is None else row[metric] for row in rows]
        curves = {name: rows[0]["curve"] for name, rows in found.items() if rows[0] is not None}
        words = {f"{name}/test_accuracy": "diverged" for name, rows in found.items() if None in rows}
        return Measured(values, curves, words)

    def _trained(self, seed: int, around: Around) -> dict[str, dict[str, Any] | None]:
        """The rows of a seed, by lane. If one diverges all are trained again, each by itself, and that one is None."""
        try:
            return self._compared(seed, self.lanes, self.stacks, around)
        except DIVERGED:
            alone = self._compared(seed, (), {}, around)
        rows: dict[str, dict[str, Any] | None] = dict(alone)
        for name in (*self.lanes, *self.stacks):
            one = {name: self.stacks[name]} if name in self.stacks else {}
            try:
                rows[name] = self._compared(seed, () if one else (name,), one, around)[name]
            except DIVERGED:
                rows[name] = None
        return rows

    def _compared(
        self, seed: int, lanes: Sequence[str], stacks: Mapping[str, Mapping[str, Any]], around: Around
    ) -> dict[str, Any]:
        plan = RunPlan(seed=seed).with_settings(dict(self.settings))

        def tell(done: int, total: int) -> None:
            around.note(f"seed {seed}: round {done} of {total}")

        rows = compare(plan, lanes, stacks=stacks, num_controls=1, data_dir=around.data_dir, on_round=tell)
        return {row["protection"]: row for row in rows}
