"""Timing two or more things alternately, so that a drifting clock or a busy neighbour hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def alternate(actions: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2) -> dict[str, list[float]]:
    """Seconds of every action in every repeat; one repeat runs each action once."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for repeat in range(warmup + repeats):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            elapsed = time.perf_counter() - started
            if repeat >= warmup:
                seconds[name].append(elapsed)
    return seconds


def ratio_row(mine: list[float], base: list[float]) -> dict[str, float]:
    """Median and spread of the ratios taken repeat by repeat."""
    ratios = sorted(m / b for m, b in zip(mine, base, strict=True))
    cuts = statistics.quantiles(ratios, n=10, method="inclusive") if len(ratios) > 1 else ratios * 9
    return {"ratio_median": statistics.median(ratios), "ratio_p10": cuts[0], "ratio_p90": cuts[-1]}
