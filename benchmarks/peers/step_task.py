"""One training step for the peers: a network with a batch, its targets and float64 gradients, and one JSON object.

The file is an npz made by `benchmarks/step_export.py`. It holds

    inputs             float32, (batch, features) or (batch, channels, height, width)
    targets            float32, (batch, outputs): one-hot where there are classes
    loss               "mse" or "ce"
    mean_over          by how many terms the mean loss divides: batch x outputs (mse), batch (ce), as torch does
    architecture       as in `prediction_task`
    gradient:NAME      float64, of the mean loss by every parameter: torch's autograd
    and every parameter of the network under its own name.

A step is computed twice by every peer: once with the loss *summed* over the batch, which warms up and counts bytes, and
then timed with its *mean*. Gradients of the mean are smaller by `mean_over`, and a fixed-point number loses what is
below its resolution: so there are two errors.

This module needs numpy only, so that it runs in the peers' environments.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from prediction_task import Floats, Layer, layers_in

Doubles = npt.NDArray[np.float64]

LOSSES: Final = ("mse", "ce")
GRADIENT: Final = "gradient:"
_OWN_NAMES: Final = ("architecture", "inputs", "targets", "loss", "mean_over")


@dataclass(frozen=True)
class StepTask:
    """One network, one batch with targets, and the gradients of the mean loss in float64."""

    layers: tuple[Layer, ...]
    parameters: Mapping[str, Floats]
    gradients: Mapping[str, Doubles]
    inputs: Floats
    targets: Floats
    loss: str
    mean_over: int


def load_step(path: Path) -> StepTask:
    """Read the file; ValueError names what is missing or unknown in it."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    missing = [name for name in _OWN_NAMES if name not in arrays]
    if missing:
        raise ValueError(f"Expected {', '.join(missing)} in {path.name}; write it with benchmarks/sealed_step.py.")
    own = {name: arrays.pop(name) for name in _OWN_NAMES}
    loss = str(own["loss"])
    if loss not in LOSSES:
        raise ValueError(f"Expected a loss among {', '.join(LOSSES)}; got {loss}.")
    gradients = {name[len(GRADIENT) :]: arrays.pop(name) for name in list(arrays) if name.startswith(GRADIENT)}
    if set(gradients) != set(arrays):
        raise ValueError(f"Expected a gradient of every parameter in {path.name}.")
    layers = layers_in(str(own["architecture"]))
    return StepTask(layers, arrays, gradients, own["inputs"], own["targets"], loss, int(own["mean_over"]))


@dataclass(frozen=True)
class StepObservation:
    """What one party saw: seconds of the timed steps, bytes received and rounds in one step, its peak memory."""

    seconds: tuple[float, ...]
    received_bytes: int
    peak_memory_bytes: int
    rounds: int | None = None


Gradients = Mapping[str, npt.NDArray[Any]]


def step_answer(
    system: str, model: str, task: StepTask, parties: Sequence[StepObservation], mean: Gradients, summed: Gradients
) -> dict[str, Any]:
    """The JSON object: a step takes as long as its slowest party, and the traffic is that of all parties.

    `mean` and `summed` are the gradients that came out, opened after the clock had stopped.
    """
    steps = [max(seconds) for seconds in zip(*(party.seconds for party in parties), strict=True)]
    expected_sum = {name: gradient * task.mean_over for name, gradient in task.gradients.items()}
    return {
        "system": system,
        "parties": len(parties),
        "model": model,
        "loss": task.loss,
        "batch_size": len(task.inputs),
        "seconds_per_step": statistics.median(steps),
        "seconds": steps,
        "megabytes_per_step": sum(party.received_bytes for party in parties) / 1e6,
        "rounds": parties[0].rounds,
        "relative_error": relative_error(mean, task.gradients),
        "relative_error_summed": relative_error(summed, expected_sum),
        "peak_memory_gigabytes": sum(party.peak_memory_bytes for party in parties) / 1e9,
    }


def relative_error(found: Gradients, expected: Gradients) -> float:
    """Of the worst tensor: the largest difference over the largest entry of the true gradient."""
    if set(found) != set(expected):
        raise ValueError(f"Expected gradients of {', '.join(sorted(expected))}; got {', '.join(sorted(found))}.")
    errors = []
    for name, gradient in expected.items():
        if np.shape(found[name]) != gradient.shape:
            raise ValueError(f"Expected a gradient of shape {gradient.shape} for {name}, got {np.shape(found[name])}.")
        errors.append(float(np.abs(found[name] - gradient).max()) / max(float(np.abs(gradient).max()), 1e-30))
    return float(np.max(errors))  # a NaN stays one, where the built-in max may drop it


def step_arguments(description: str) -> argparse.ArgumentParser:
    """The options that all peers have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="name for the answer; the network itself is in the task file")
    parser.add_argument("--task", type=Path, required=True, help="npz of benchmarks/step_export.py")
    parser.add_argument("--steps", type=int, default=1, help="timed steps, after one that is not timed")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    return parser


def chosen_step(options: argparse.Namespace) -> StepTask:
    if options.steps < 1:
        raise SystemExit(f"Expected at least one step, got {options.steps}.")
    return load_step(options.task)
