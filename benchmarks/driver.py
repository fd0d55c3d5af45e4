"""What the drivers of the comparisons share: their options, which peers are there, and the order of the runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from bilateral.errors import BilateralError
from rich.console import Console

from systems import System, measure

INSTALL: Final = {
    "crypten": "pip install torch==2.13.0 numpy pyyaml omegaconf onnx && pip install --no-deps crypten==0.4.1",
    "spu": "pip install spu==0.9.5 jax==0.4.34 jaxlib==0.4.34 numpy==1.26.4",
}


class NamedCase(Protocol):
    """A case, and the words by which `--skip` names it, the coarsest first."""

    @property
    def words(self) -> tuple[str, ...]: ...


C = TypeVar("C", bound=NamedCase)
M = TypeVar("M")


def chosen_peers(
    options: argparse.Namespace, progress: Console, makers: Sequence[tuple[str, Callable[[Path], list[System[C, M]]]]]
) -> list[System[C, M]]:
    """Every peer whose interpreter was given; the others are named, with how to install them."""
    systems = []
    for name, make in makers:
        python = getattr(options, name)
        if python is None:
            progress.print(f"{name} is skipped. In an environment of its own: {INSTALL[name]}; then --{name} PYTHON.")
        else:
            systems += make(python)
    return systems


def is_skipped(system: str, case: NamedCase, skips: Sequence[str]) -> bool:
    """Whether the system was asked to be left out, always or in cases with the first words of this one."""
    words = (system, *case.words)
    return any(":".join(words[:count]) in skips for count in range(1, len(words) + 1))


def alternate(
    systems: Sequence[System[C, M]],
    case: C,
    weights: Path,
    options: argparse.Namespace,
    progress: Console,
    failures: list[str],
) -> dict[str, list[M | None]]:
    """Every system once a pass, so that a drifting clock or a busy neighbour hits all; one that fails is left out."""
    runs: dict[str, list[M | None]] = {system.name: [] for system in systems}
    failed: set[str] = set()
    for number in range(options.repeats):
        for system in systems:
            found = None
            if system.name not in failed:
                try:
                    found = measure(
                        system, case, weights, threads=options.threads, timeout_seconds=options.timeout_seconds
                    )
                    progress.print(f"{case}, pass {number + 1} of {options.repeats}, {system.name}: {found}")
                except BilateralError as error:
                    failed.add(system.name)
                    failures.append(str(error))
                    progress.print(str(error), markup=False)
            runs[system.name].append(found)
    return runs


def add_peers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--crypten", type=Path, metavar="PYTHON", help="interpreter of CrypTen's environment")
    parser.add_argument("--spu", type=Path, metavar="PYTHON", help="interpreter of SPU's environment")


def add_conduct(parser: argparse.ArgumentParser) -> None:
    """How the runs are made, whatever is run."""
    cores = max(1, (os.cpu_count() or 1) // 2)
    parser.add_argument("--threads", type=count, default=cores, help="OMP_NUM_THREADS of every process of every system")
    parser.add_argument("--timeout-seconds", type=float, default=1800.0, help="for one run of one system")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")


def count(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
