"""Clients with different networks that teach each other (P4): cases of one seed, from the same stand-alone models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from bilateral.bench.heterogeneous import HeteroTable, rows_of_case
from bilateral.reproduce.tables import Around, Measured
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.result import AVERAGE, HeteroProgress

STAND_ALONE: Final = "stand-alone"
CONTROL: Final = "as long without answers"


@dataclass(frozen=True)
class Teaching:
    """`cases`: settings on top, by name. A value is `case/architecture`, one a seed; `average` is of all clients."""

    settings: Mapping[str, Any]
    cases: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...] = (1, 2)

    def describe(self) -> Mapping[str, Any]:
        cases = {name: dict(case) for name, case in self.cases.items()}
        return {"settings": dict(self.settings), "cases": cases, "seeds": self.seeds}

    def pilot(self) -> tuple[Teaching, float]:
        """One client stage of each kind, in small: a case with a tenth of the steps."""
        first = dict(list(self.cases.items())[:1])
        steps = int(self.settings["retraining.max_steps"])
        epochs = int(self.settings["training.epochs"])
        small = {"retraining.max_steps": max(1, steps // 10), "training.epochs": max(1, epochs // 10)}
        times = 10.0 * len(self.seeds) * (1 + len(self.cases)) / 2
        return replace(self, settings={**self.settings, **small}, cases=first, seeds=self.seeds[:1]), times

    def run(self, around: Around) -> Measured:
        values: dict[str, list[float | None]] = {}
        output = around.folder / "taught"
        for seed in self.seeds:
            for name, case in self.cases.items():

                def tell(at: HeteroProgress, what: str = f"seed {seed}, {name}") -> None:
                    around.note(f"{what}: {at}")

                plan = HeteroPlan(seed=seed, answers="plain").with_settings({**self.settings, **case})
                rows = rows_of_case(plan, HeteroTable(output=output, data_dir=around.data_dir), tell)
                before = f"{STAND_ALONE}/{AVERAGE}"
                for row in rows:
                    values.setdefault(f"{name}/{row['architecture']}", []).append(row["accuracy_after"])
                    if row["architecture"] == AVERAGE and len(values.get(before, [])) < len(
                        values[f"{name}/{AVERAGE}"]
                    ):
                        values.setdefault(before, []).append(row["accuracy_before"])
        return Measured(values)
