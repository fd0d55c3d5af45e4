"""Runs cases in a process of its own: `python -m tests.fuzz.worker messages 2000 FOLDER`.

A case that kills the process leaves its name in FOLDER/case. One case alone: add `--only "TARGET" NUMBER`.
"""

from __future__ import annotations

import collections
import gc
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.fuzz.guard import Verdict, judge
from tests.fuzz.target import Target


def targets_of(kind: str, folder: Path) -> tuple[Target, ...]:
    if kind == "messages":
        from tests.fuzz.handler_targets import handler_targets
        from tests.fuzz.message_targets import message_targets

        return (*message_targets(), *handler_targets())
    from tests.fuzz.file_targets import file_targets

    return file_targets(folder)


class Tally:
    """What came of all cases."""

    def __init__(self) -> None:
        self.cases = 0
        self.tolerant: list[str] = []
        self.outcomes: dict[str, collections.Counter[str]] = {}
        self.offences: list[str] = []
        self.largest: tuple[int, str] = (0, "")
        self.slowest: tuple[float, str] = (0.0, "")

    def add(self, target: str, number: int, verdict: Verdict) -> None:
        name = f"{target} {number}"
        self.cases += 1
        self.outcomes.setdefault(target, collections.Counter())[verdict.outcome] += 1
        self.largest = max(self.largest, (verdict.num_bytes, name))
        self.slowest = max(self.slowest, (verdict.seconds, name))
        if verdict.offence:
            self.offences.append(f"{name}: {verdict.offence}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "cases": self.cases,
            "tolerant": self.tolerant,
            "outcomes": self.outcomes,
            "num_offences": len(self.offences),
            "offences": self.offences[:200],
            "largest_mb": [self.largest[0] / 2**20, self.largest[1]],
            "slowest_cpu_seconds": [self.slowest[0], self.slowest[1]],
        }


def warm_up(targets: tuple[Target, ...]) -> None:
    """Examples as they are must be accepted; and what is imported at first use is imported now."""
    for target in targets:
        for seed in target.seeds:
            target.read(seed)
        for number in range(-8, 0):
            judge(lambda target=target, number=number: target.read(target.case(number)))


def run(targets: tuple[Target, ...], count: int, folder: Path) -> Tally:
    tally = Tally()
    tally.tolerant = [target.name for target in targets if target.tolerant]
    note = os.open(folder / "case", os.O_WRONLY | os.O_CREAT)
    for index in range(count):
        target, number = targets[index % len(targets)], index // len(targets)
        os.pwrite(note, f"{target.name} {number}".ljust(100).encode(), 0)
        data = target.case(number)
        tally.add(target.name, number, judge(lambda: target.read(data)))  # noqa: B023 (called at once)
        if index % 500 == 0:
            gc.collect()
    os.close(note)
    return tally


def main(kind: str, count: str, folder: str, *only: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    targets = targets_of(kind, Path(folder))
    if only:
        _, name, number = only
        (target,) = (one for one in targets if one.name == name)
        target.read(target.case(int(number)))
        return
    warm_up(targets)
    text = json.dumps(run(targets, int(count), Path(folder)).as_dict(), indent=1)
    (Path(folder) / "tally.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
