"""What every peer is given and what it answers: a network with its input and float logits, and one JSON object.

The file is an npz made by `benchmarks/network_export.py`. It holds

    inputs         float32, (batch, channels, height, width)
    logits         float32, (batch, outputs): the plaintext answer of torch
    architecture   a JSON list of layers in the order of computation, see `Layer`
    and every parameter of the network under its own name, such as `stem.conv.weight`.

This module needs numpy only, so that it runs in the peers' environments.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
V = TypeVar("V")

INPUT: Final = "input"
KINDS: Final = ("conv", "linear", "relu", "max_pool", "average_pool", "flatten", "add")
_TCP_INFO_BYTES_RECEIVED: Final = slice(128, 136)  # tcpi_bytes_received of Linux's struct tcp_info


@dataclass(frozen=True)
class Layer:
    """One call: `name` is its output, `inputs` are names of earlier outputs (or `input`).

    `max_pool` has `size` (and the same stride), `average_pool` is over the whole image, `flatten` is over
    (channels, height, width) in this order.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    weight: str = ""
    bias: str = ""
    stride: int = 1
    padding: int = 0
    size: int = 0


@dataclass(frozen=True)
class Task:
    """One network, one batch, and what torch answers to it in float32."""

    layers: tuple[Layer, ...]
    parameters: Mapping[str, Floats]
    inputs: Floats
    logits: Floats


def load_task(path: Path) -> Task:
    """Read the file; ValueError names what is missing or unknown in it."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    missing = [name for name in ("architecture", "inputs", "logits") if name not in arrays]
    if missing:
        raise ValueError(
            f"Expected {', '.join(missing)} in {path.name}; write it with benchmarks/secure_prediction.py."
        )
    layers = layers_in(str(arrays.pop("architecture")))
    inputs, logits = arrays.pop("inputs"), arrays.pop("logits")
    return Task(layers, arrays, inputs, logits)


def layers_in(architecture: str) -> tuple[Layer, ...]:
    """The layers of a file; ValueError names those that are unknown."""
    layers = tuple(Layer(**{**layer, "inputs": tuple(layer["inputs"])}) for layer in json.loads(architecture))
    unknown = sorted({layer.kind for layer in layers} - set(KINDS))
    if unknown:
        raise ValueError(f"Expected layers among {', '.join(KINDS)}; got {', '.join(unknown)}.")
    return layers


def evaluate(layers: Sequence[Layer], first: V, rules: Mapping[str, Callable[..., V]]) -> V:
    """The output of the last layer. A rule takes the layer and its inputs; values are dropped after their last use."""
    last_use = {name: index for index, layer in enumerate(layers) for name in layer.inputs}
    values: dict[str, V] = {INPUT: first}
    for index, layer in enumerate(layers):
        values[layer.name] = rules[layer.kind](layer, *(values[name] for name in layer.inputs))
        for name in set(layer.inputs):
            if last_use[name] == index:
                del values[name]
    return values[layers[-1].name]


def received_bytes() -> int:
    """Bytes that this process has received by all TCP connections that are open now.

    Summed over all parties this is what went over the loopback, framing of the peer's transport included and
    TCP/IP headers not. Take it before and after: connections must stay open in between.
    """
    total = 0
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 (a directory handle of its own is closed by now)
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):  # noqa: PTH115
                continue
            duplicate = socket.socket(fileno=os.dup(int(entry)))
        except OSError:  # closed since it was listed
            continue
        with duplicate:
            if duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM:
                info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += int.from_bytes(info[_TCP_INFO_BYTES_RECEIVED], sys.byteorder)
    return total


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on now."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def collect(pipes: Sequence[Connection], system: str) -> list[Any]:
    """What every party sends, in their order. One that ends without an answer ends the wait for all."""
    answers: dict[int, Any] = {}
    while len(answers) < len(pipes):
        for pipe in wait([pipe for rank, pipe in enumerate(pipes) if rank not in answers]):
            rank = next(rank for rank, known in enumerate(pipes) if known is pipe)
            try:
                answers[rank] = pipes[rank].recv()
            except EOFError:
                raise SystemExit(f"Party {rank} of {system} ended without an answer; its error is above.") from None
    return [answers[rank] for rank in range(len(pipes))]


@dataclass(frozen=True)
class Observation:
    """What one party saw: seconds of every timed batch, bytes received and rounds in one batch, its peak memory."""

    seconds: tuple[float, ...]
    received_bytes: int
    peak_memory_bytes: int
    logits: Floats
    rounds: int | None = None


def answer(system: str, model: str, task: Task, parties: Sequence[Observation]) -> dict[str, Any]:
    """The JSON object: a batch takes as long as its slowest party, and the traffic is that of all parties.

    `seconds` are those of whole batches; figures `per_prediction` are divided by the batch size.
    """
    batch_size = len(task.inputs)
    batches = [max(seconds) for seconds in zip(*(party.seconds for party in parties), strict=True)]
    return {
        "system": system,
        "parties": len(parties),
        "model": model,
        "batch_size": batch_size,
        "seconds_per_prediction": statistics.median(batches) / batch_size,
        "seconds": batches,
        "megabytes_per_prediction": sum(party.received_bytes for party in parties) / 1e6 / batch_size,
        "rounds": parties[0].rounds,
        "max_logit_error": float(np.abs(parties[0].logits - task.logits).max()),
        "peak_memory_gigabytes": sum(party.peak_memory_bytes for party in parties) / 1e9,
    }


def peak_memory_bytes() -> int:
    """The most memory that this process has held so far; Linux counts it in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that all peers have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="name for the answer; the network itself is in the weights file")
    parser.add_argument("--batch-size", type=int, required=True, help="how many of the file's images are one batch")
    parser.add_argument("--repeats", type=int, default=3, help="timed batches, after one that is not timed")
    parser.add_argument("--weights", type=Path, required=True, help="npz of benchmarks/network_export.py")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    return parser


def chosen_task(options: argparse.Namespace) -> Task:
    """The task of the file, cut to the batch size that was asked for."""
    task = load_task(options.weights)
    if not 1 <= options.batch_size <= len(task.inputs):
        raise SystemExit(
            f"Expected a batch size from 1 to {len(task.inputs)} (the images in the file), got {options.batch_size}."
        )
    if options.repeats < 1:
        raise SystemExit(f"Expected at least one repeat, got {options.repeats}.")
    return Task(task.layers, task.parameters, task.inputs[: options.batch_size], task.logits[: options.batch_size])


def print_answer(found: Mapping[str, Any], as_json: bool) -> None:
    """One JSON object, or a line a field for a reader."""
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        sys.stdout.writelines(f"{name}: {value}\n" for name, value in found.items())
