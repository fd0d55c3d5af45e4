"""The systems of the training step: how each is started, and how its answer is read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from systems import OURS, PEERS, System

_OUR_PARTIES: Final = 3


@dataclass(frozen=True)
class StepCase:
    """A network of `step_networks`, a loss, and how many samples are one batch."""

    model: str
    loss: str
    batch_size: int

    def __str__(self) -> str:
        return f"{self.model}, {self.loss}, batch {self.batch_size}"

    @property
    def words(self) -> tuple[str, ...]:
        """As `--case` and `--skip` name it."""
        return self.model, self.loss, str(self.batch_size)


@dataclass(frozen=True)
class StepMeasurement:
    """One run of one system. `relative_error_summed`: with the loss summed over the batch, where that was tried."""

    seconds: float
    megabytes: float
    rounds: int | None
    relative_error: float
    relative_error_summed: float | None
    parties: int
    peak_memory_gigabytes: float | None = None

    def __str__(self) -> str:
        return f"{self.seconds:.3g} s, {self.megabytes:.3g} MB a step, error {self.relative_error:.1e}"


StepSystem = System[StepCase, StepMeasurement]


def our_step(steps: int) -> StepSystem:
    """`bilateral bench sealed-step` of the interpreter that runs the driver; it builds network and batch itself."""

    def command(case: StepCase, _: Path) -> list[str]:
        options = ["--model", case.model, "--loss", case.loss, "--batch-size", str(case.batch_size)]
        settings = ["--repeats", str(steps), "--quiet", "--json"]
        return [sys.executable, "-m", "bilateral", "bench", "sealed-step", *options, *settings]

    return System(OURS, command, read_our_step)


def crypten_steps(python: Path, steps: int) -> list[StepSystem]:
    return [
        _peer("crypten", python, "crypten_step.py", ("--provider", "first-party"), steps),
        _peer("crypten-dealer", python, "crypten_step.py", ("--provider", "dealer"), steps),
    ]


def spu_steps(python: Path, steps: int) -> list[StepSystem]:
    return [
        _peer("spu-semi2k", python, "spu_step.py", ("--protocol", "semi2k"), steps),
        _peer("spu-aby3", python, "spu_step.py", ("--protocol", "aby3"), steps),
    ]


def _peer(name: str, python: Path, script: str, variant: tuple[str, str], steps: int) -> StepSystem:
    def command(case: StepCase, task: Path) -> list[str]:
        options = ["--model", case.model, "--task", str(task), "--steps", str(steps)]
        return [str(python), str(PEERS / script), *options, *variant, "--json"]

    return System(name, command, read_step)


def read_our_step(answer: Mapping[str, Any], case: StepCase) -> StepMeasurement:
    """The row of all parties together with all phases together: correlations are counted, as for the peers."""
    wanted = {"model": case.model, "loss": case.loss, "batch_size": case.batch_size, "party": "all", "phase": "total"}
    rows = [row for row in answer["rows"] if all(row.get(key) == value for key, value in wanted.items())]
    if len(rows) != 1:
        raise ValueError(f"expected one row with {wanted}, got {len(rows)}")
    row = rows[0]
    memory = row.get("peak_memory_megabytes")
    return StepMeasurement(
        float(row["seconds"]),
        float(row["megabytes"]),
        row["rounds"],
        float(row["relative_error"]),
        _optional(row.get("relative_error_summed")),
        _OUR_PARTIES,
        None if memory is None else memory / 1e3,
    )


def read_step(answer: Mapping[str, Any], case: StepCase) -> StepMeasurement:
    answered = StepCase(answer["model"], answer["loss"], answer["batch_size"])
    if answered != case:
        raise ValueError(f"asked for {case}, got {answered}")
    return StepMeasurement(
        float(answer["seconds_per_step"]),
        float(answer["megabytes_per_step"]),
        answer["rounds"],
        float(answer["relative_error"]),
        _optional(answer["relative_error_summed"]),
        int(answer["parties"]),
        answer.get("peak_memory_gigabytes"),
    )


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
