"""Accuracy over epsilon: `bench accuracy-over-epsilon` on one workload (P2 figure 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bilateral.bench.accuracy_over_epsilon import Workload, measure
from bilateral.reproduce.tables import Around, Measured


@dataclass(frozen=True)
class Noise:
    """Values are `mechanism/epsilon`, accuracies; curves are over epsilon. Sound noise counts the whole run."""

    settings: Mapping[str, Any]
    epsilons: tuple[float, ...]
    seeds: tuple[int, ...]
    clip_perturbed: float
    clip_plain: float

    def describe(self) -> Mapping[str, Any]:
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "settings": dict(self.settings)}

    def pilot(self) -> tuple[Noise, float]:
        rounds = int(self.settings["training.rounds"])
        settings = {**self.settings, "training.rounds": min(3, rounds)}
        times = rounds / min(3, rounds) * len(self.seeds) * len(self.epsilons)
        return replace(self, settings=settings, epsilons=self.epsilons[-1:], seeds=self.seeds[:1]), times

    def run(self, around: Around) -> Measured:
        workload = Workload(
            self.settings,
            self.epsilons,
            self.seeds,
            {"noise.clip": self.clip_perturbed},
            {"noise.clip": self.clip_plain},
        )
        rows = measure([workload], lambda done, total, what: around.note(f"{what}: {done} of {total}"))
        values: dict[str, list[float | None]] = {}
        words: dict[str, str] = {}
        curves: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            name = row["mechanism"] + ("" if row["perturbed"] or row["epsilon"] is None else ", model in the clear")
            key = name if row["epsilon"] is None else f"{name}/{row['epsilon']:g}"
            values[key] = [row["accuracy"] if row["diverged"] == 0 else None]
            if row["accuracy_spread"] is not None:
                values[f"{key}/spread"] = [row["accuracy_spread"]]
            if row["epsilon"] is not None and row["epsilon_total"] is not None:
                words[key] = f"{row['epsilon_meaning']}; the whole run adds up to {row['epsilon_total']:.3g}"
            if row["diverged"]:
                words[key] = f"{row['diverged']} of {row['seeds']} seeds diverged"
            if row["accuracy"] is not None and row["epsilon"] is not None:
                curves.setdefault(name, []).append((row["epsilon"], row["accuracy"]))
        return Measured(values, {name: sorted(points) for name, points in curves.items()}, words)
