"""What figures say: questions that the papers' tables answer, asked of ours.

Each judge looks at cells or values and returns a finding: agrees, does not, or nothing to compare. Words come with the
figures that decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bilateral.reproduce.tables import Finding, Found, Judge


@dataclass(frozen=True)
class Trial:
    """One row of a comparison with FedSGD: the row's name, the metric, and the lanes' names in it."""

    row: str
    metric: str
    plain: str
    control: str


def equal_within_seed_noise(
    asked: str, trials: Sequence[Trial], lane: str | Callable[[Trial], str], unit: float = 1.0, why: str = ""
) -> Judge:
    """The lane's distance to FedSGD of the same seed, against what seeds and reordered batches do to FedSGD."""

    def judge(found: Found) -> Finding:
        off: list[str] = []
        worst, allowed_there, equal, compared = -1.0, 0.0, 0, 0
        for trial in trials:
            name = lane if isinstance(lane, str) else lane(trial)
            plain = found.each(trial.row, f"{trial.plain}/{trial.metric}")
            ours = found.each(trial.row, f"{name}/{trial.metric}")
            control = found.each(trial.row, f"{trial.control}/{trial.metric}")
            known = [value for value in (*plain, *control) if value is not None]
            if not ours or not known or None in plain:
                continue
            compared += 1
            noise = max(known) - min(known)
            far = max(_distance(a, b) for a, b in zip(ours, plain, strict=True))
            equal += far <= noise
            if far - noise > worst - allowed_there or worst < 0:
                worst, allowed_there = far, noise
            if far > noise:
                off.append(f"{trial.row} ({far * unit:.3g} against {noise * unit:.3g})")
        if not compared:
            return Finding(asked, None, "nothing to compare was run")
        said = (
            f"{equal} of {compared} rows; the row nearest to the limit differs by {worst * unit:.2g} where FedSGD's "
            f"own seeds and a reordered run spread over {allowed_there * unit:.2g}"
        )
        return Finding(asked, not off, said + (f". Beyond: {', '.join(off)}" if off else ""), why if off else "")

    return judge


def below(
    asked: str,
    rows: Sequence[str],
    metric: str,
    lower: str,
    upper: str,
    *,
    higher_is_better: bool = True,
    unit: float = 1.0,
    why: str = "",
) -> Judge:
    """Whether `lower` is worse than `upper` on the mean of every row."""

    def judge(found: Found) -> Finding:
        gaps: dict[str, float] = {}
        diverged = 0
        for row in rows:
            plain, ours = found.mean(row, f"{upper}/{metric}"), found.mean(row, f"{lower}/{metric}")
            if plain is not None and ours is not None:
                gaps[row] = (plain - ours) * (1 if higher_is_better else -1)
            elif plain is not None and found.each(row, f"{lower}/{metric}"):
                diverged += 1
        if not gaps and not diverged:
            return Finding(asked, None, "nothing to compare was run")
        worse = sum(gap > 0 for gap in gaps.values()) + diverged
        said = f"worse on {worse} of {len(gaps) + diverged} rows"
        if gaps:
            said += f", by {min(gaps.values()) * unit:.3g} to {max(gaps.values()) * unit:.3g}"
        if diverged:
            said += f"; diverged on {diverged}"
        agrees = worse == len(gaps) + diverged
        return Finding(asked, agrees, said, "" if agrees else why)

    return judge


def ordered(
    asked: str, row: str, keys: Sequence[str], names: Sequence[str], *, unit: float = 100.0, why: str = ""
) -> Judge:
    """Whether values rise in this order, on every seed."""

    def judge(found: Found) -> Finding:
        columns = [found.each(row, key) for key in keys]
        if not all(columns) or any(value is None for column in columns for value in column):
            return Finding(asked, None, "nothing to compare was run")
        seeds = list(zip(*columns, strict=True))
        in_order = [all(a < b for a, b in pairwise(seed) if a is not None and b is not None) for seed in seeds]
        said = "; ".join(
            ", ".join(
                f"{name} {value * unit:.1f}" for name, value in zip(names, seed, strict=True) if value is not None
            )
            for seed in seeds
        )
        agrees = all(in_order)
        return Finding(asked, agrees, f"on {sum(in_order)} of {len(seeds)} seeds: {said}", "" if agrees else why)

    return judge


def compared(
    asked: str,
    ours: Mapping[str, tuple[str, str]],
    paper: Mapping[str, float],
    agree: Callable[[Mapping[str, float]], bool],
    *,
    show: str = "{:.3g}",
    why: str = "",
) -> Judge:
    """Named values beside the paper's; `agree` says whether they tell the same. `ours`: name to (row, key)."""

    def judge(found: Found) -> Finding:
        known = {name: found.mean(*where) for name, where in ours.items()}
        values = {name: value for name, value in known.items() if value is not None and math.isfinite(value)}
        if len(values) < len(ours):
            return Finding(asked, None, "not all of it was run")
        said = ", ".join(
            f"{name} {show.format(value)}" + (f" (paper {show.format(paper[name])})" if name in paper else "")
            for name, value in values.items()
        )
        agrees = agree(values)
        return Finding(asked, agrees, said, "" if agrees else why)

    return judge


def verdicts(asked: str, attacks: Sequence[tuple[str, str, str, str]]) -> Judge:
    """What attackers got, of (who is attacked, row, experiment and way, metric), with the audit's word. No claim."""

    def judge(found: Found) -> Finding:
        parts = []
        for who, row, attack, metric in attacks:
            key = f"{attack}/{metric}"
            value = found.mean(row, key)
            if value is not None:
                positive = found.mean(row, f"{key}/positive")
                beside = "" if positive is None else f", nothing defending {positive:.3g}"
                parts.append(f"{who} {value:.3g}{beside} ({found.rows[row].words.get(key, '')})")
        return Finding(asked, None, "; ".join(parts) or "not run")

    return judge


def _distance(one: float | None, other: float | None) -> float:
    """Of a diverged run to any other: infinite."""
    return math.inf if one is None or other is None else abs(one - other)
