"""Experiments of the audit on a plan and on its controls, by their names in the audit's registry.

Values are named `experiment/adaptive/metric` (or `/naive/`) for the best of the experiment's attacks by that metric,
and `experiment/attack/adaptive/metric` for each; what is read out of sums is under `experiment of sums`. Controls have
`/positive` or `/negative` behind them. Names that nobody has registered are left out, and said: a table may ask for an
experiment that comes later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, Final

import numpy as np
from PIL import Image
from torch import Tensor

from bilateral.audit.auditor import audit
from bilateral.audit.effort import EffortName
from bilateral.audit.evidence import Condition, Evidence
from bilateral.audit.evidence import Picture as Grid
from bilateral.audit.scores import Scores
from bilateral.audit.topics.registry import experiments_for
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan
from bilateral.reproduce.tables import Around, Measured, Picture

MOST_PICTURES: Final = 1
_ROWS, _CELL, _GAP = 4, 48, 4
_SUMS: Final = 12
"""The ledger's line on what sums show, which is another question than what single uploads do."""
_KEPT: Final = 2
"""Of what is kept of an audit: rows from before it was changed are done again."""
_PILOT: Final = 12.0
"""How many times as long a standard audit takes as a smoke one, roughly: five seeds in place of two, and more steps."""


@dataclass(frozen=True)
class Attacks:
    """Of all that is handed in, for each experiment: means over trials, by attack and attacker, and the verdict."""

    settings: Mapping[str, Any]
    experiments: tuple[str, ...]
    effort: EffortName = "smoke"
    seed: int = 1
    shown: bool = field(default=False)
    """Whether pictures are kept."""

    def describe(self) -> Mapping[str, Any]:
        return {
            "settings": dict(self.settings),
            "experiments": self.experiments,
            "effort": self.effort,
            "kept": _KEPT,
            "seed": self.seed,
            "shown": self.shown,
        }

    def pilot(self) -> tuple[Attacks, float]:
        return replace(self, effort="smoke"), 1.0 if self.effort == "smoke" else _PILOT

    def run(self, around: Around) -> Measured:
        plan = RunPlan(seed=self.seed).with_settings(dict(self.settings))
        known = {one.name for one in experiments_for(plan)}
        values: dict[str, list[float | None]] = {}
        words: dict[str, str] = {
            name: "not among the experiments here" for name in self.experiments if name not in known
        }
        pictures: list[Picture] = []
        for name in self.experiments:
            if name not in known:
                continue
            result = audit(
                plan,
                effort=self.effort,
                only=(name,),
                data_dir=around.data_dir,
                save=False,
                num_workers=1,
                on_progress=lambda progress: around.note(f"{progress.experiment}: {progress.note}"),
            )
            reasons = [one.reason for one in result.skipped if one.name == name]
            if reasons:
                words[name] = reasons[0]
            for evidence in result.evidence:
                _add(values, words, name, evidence)
                if self.shown:
                    pictures += [Picture(f"{one.title}: {evidence.attack}", png_of(one)) for one in evidence.pictures]
        return Measured(values, words=words, pictures=tuple(pictures[:MOST_PICTURES]))


def _add(values: dict[str, list[float | None]], words: dict[str, str], experiment: str, evidence: Evidence) -> None:
    """An attack's figures under its own name, and under the experiment's where it is the best so far."""
    way = way_of(evidence)
    experiment = f"{experiment} of sums" if evidence.tests == _SUMS else experiment
    conditions: dict[str, Condition | None] = {
        "": evidence.target,
        "/positive": evidence.positive,
        "/negative": evidence.negative,
    }
    said = f"{evidence.attack}: {judge(evidence).verdict}"
    for scores in evidence.target.scores:
        metric, mean = scores.metric, _mean(scores)
        best, own = f"{experiment}/{way}/{metric.name}", f"{experiment}/{evidence.attack}/{way}/{metric.name}"
        (before,) = values.get(best, (None,))
        sign = 1 if metric.better == "high" else -1
        leads = before is None or (mean is not None and sign * mean > sign * before)
        for key in (own, best) if leads else (own,):
            words[key] = said
            for behind, condition in conditions.items():
                found = condition.of(metric) if condition is not None else None
                values[f"{key}{behind}"] = [None if found is None else _mean(found)]


def way_of(evidence: Evidence) -> str:
    return "adaptive" if evidence.adaptive else "naive"


def _mean(scores: Scores) -> float | None:
    return scores.mean if math.isfinite(scores.mean) else None


def png_of(grid: Grid) -> bytes:
    """Images side by side, each enlarged pixel by pixel: a row a trial, a column a condition."""
    rows = [[_pixels(image) for image in row] for row in grid.rows[:_ROWS]]
    step = _CELL + _GAP
    sheet = Image.new("RGB", (step * len(rows[0]) + _GAP, step * len(rows) + _GAP), "white")
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            sheet.paste(image.resize((_CELL, _CELL), Image.Resampling.NEAREST), (_GAP + step * x, _GAP + step * y))
    buffer = BytesIO()
    sheet.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _pixels(image: Tensor) -> Image.Image:
    values = (image.detach().float().clamp(0, 1).numpy() * 255).round().astype(np.uint8)
    return Image.fromarray(values[0]).convert("RGB") if len(values) == 1 else Image.fromarray(values.transpose(1, 2, 0))
