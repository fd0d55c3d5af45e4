"""The systems that are compared: how each is started, and how its answer is read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from bilateral.errors import DeploymentError

OURS: Final = "bilateral"
PEERS: Final = Path(__file__).parent / "peers"
_SHOWN_ERROR_LINES: Final = 12

C = TypeVar("C")
M = TypeVar("M")


@dataclass(frozen=True)
class Case:
    """One network and how many images are predicted at once."""

    model: str
    batch_size: int

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch_size}"

    @property
    def words(self) -> tuple[str, ...]:
        """As `--skip` names it."""
        return self.model, str(self.batch_size)


@dataclass(frozen=True)
class Measurement:
    """One run of one system, in the words that all systems answer with."""

    seconds_per_prediction: float
    megabytes_per_prediction: float
    rounds: int | None
    max_logit_error: float
    parties: int
    peak_memory_gigabytes: float | None = None

    def __str__(self) -> str:
        return f"{self.seconds_per_prediction:.3g} s, {self.megabytes_per_prediction:.3g} MB a prediction"


@dataclass(frozen=True)
class System(Generic[C, M]):
    """A name for the table, the command for a case and a weights file, and the reader of its standard output."""

    name: str
    command: Callable[[C, Path], list[str]]
    read: Callable[[Mapping[str, Any], C], M]


def ours(batches: int, threads: int, style: str = "sealed") -> System[Case, Measurement]:
    """`bilateral bench secure-prediction` of the interpreter that runs the driver; it builds the network itself.

    `style`: of its comparisons; another than the default goes by a name of its own.
    """

    def command(case: Case, _: Path) -> list[str]:
        options = ["--model", case.model, "--batch-size", str(case.batch_size), "--repeats", str(batches)]
        settings = ["--style", style, "--threads", str(threads), "--quiet", "--json"]
        return [sys.executable, "-m", "bilateral", "bench", "secure-prediction", *options, *settings]

    return System(OURS if style == "sealed" else f"{OURS}-{style}", command, read_ours)


def peer(name: str, python: Path, script: str, variant: tuple[str, str], batches: int) -> System[Case, Measurement]:
    """A script of `benchmarks/peers`, run by the interpreter of the peer's own environment."""

    def command(case: Case, weights: Path) -> list[str]:
        options = ["--model", case.model, "--batch-size", str(case.batch_size), "--repeats", str(batches)]
        return [str(python), str(PEERS / script), *options, "--weights", str(weights), *variant, "--json"]

    return System(name, command, read_peer)


def crypten(python: Path, batches: int) -> list[System[Case, Measurement]]:
    return [
        peer("crypten", python, "crypten_prediction.py", ("--provider", "first-party"), batches),
        peer("crypten-dealer", python, "crypten_prediction.py", ("--provider", "dealer"), batches),
    ]


def spu(python: Path, batches: int) -> list[System[Case, Measurement]]:
    return [
        peer("spu-semi2k", python, "spu_prediction.py", ("--protocol", "semi2k"), batches),
        peer("spu-aby3", python, "spu_prediction.py", ("--protocol", "aby3"), batches),
    ]


def read_ours(answer: Mapping[str, Any], case: Case) -> Measurement:
    """The row of all parties together with all phases together: correlations are counted, as for the peers."""
    wanted = {"model": case.model, "batch_size": case.batch_size, "party": "all", "phase": "total"}
    rows = [row for row in answer["rows"] if all(row.get(key) == value for key, value in wanted.items())]
    if len(rows) != 1:
        raise ValueError(f"expected one row with {wanted}, got {len(rows)}")
    row = rows[0]
    memory = row.get("peak_memory_megabytes")
    return Measurement(
        float(row["seconds_per_prediction"]),
        float(row["megabytes_per_prediction"]),
        row["rounds"],
        float(row["max_logit_error"]),
        parties=3,
        peak_memory_gigabytes=None if memory is None else memory / 1e3,
    )


def read_peer(answer: Mapping[str, Any], case: Case) -> Measurement:
    if (answer["model"], answer["batch_size"]) != (case.model, case.batch_size):
        raise ValueError(f"asked for {case}, got {answer['model']}, batch {answer['batch_size']}")
    return Measurement(
        float(answer["seconds_per_prediction"]),
        float(answer["megabytes_per_prediction"]),
        answer["rounds"],
        float(answer["max_logit_error"]),
        int(answer["parties"]),
        answer.get("peak_memory_gigabytes"),
    )


def measure(system: System[C, M], case: C, weights: Path, *, threads: int, timeout_seconds: float) -> M:
    """Run the system once. DeploymentError carries its name and the end of what it wrote to standard error."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = system.command(case, weights)
    try:
        output = _run(command, environment, timeout_seconds)
    except FileNotFoundError:
        raise DeploymentError(
            f"{system.name}: there is no interpreter {command[0]}.", remedy="See benchmarks/README.md."
        ) from None
    except subprocess.TimeoutExpired:
        raise DeploymentError(
            f"{system.name} did not end within {timeout_seconds:g} seconds ({case}).",
            remedy=f"Give more with --timeout-seconds, or leave it out with --skip {system.name}.",
        ) from None
    except subprocess.CalledProcessError as error:
        written = "\n".join(error.stderr.splitlines()[-_SHOWN_ERROR_LINES:])
        raise DeploymentError(
            f"{system.name} failed with exit code {error.returncode} ({case}):\n{written}",
            remedy="\nSee benchmarks/README.md for its environment.",
        ) from None
    try:
        return system.read(_json_object(output), case)
    except (KeyError, TypeError, ValueError) as error:
        raise DeploymentError(
            f"{system.name} did not answer as expected ({case}): {error}.", remedy="Run its command by hand."
        ) from error


def _run(command: list[str], environment: Mapping[str, str], timeout_seconds: float) -> str:
    """Standard output of a command in a session of its own: what it started ends with it, whatever happens."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout_seconds)
        except BaseException:  # Ctrl-C too: parties must not live on
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output, errors)
    return output


def _json_object(output: str) -> Mapping[str, Any]:
    """The last JSON object of the output; a library may have greeted on standard output before it."""
    start = 0 if output.startswith("{") else output.rfind("\n{") + 1
    found = json.loads(output[start:])
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found
