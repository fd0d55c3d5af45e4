"""Checkpoints: everything a run needs to go on, in one safetensors file (no pickle), written atomically.

All randomness of a run is derived from its seed and the round, so tensors and the round are enough: a resumed run
ends with the same model, bit for bit, as one that was never interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bilateral.documents import parse_json
from bilateral.engine.tensor_file import read_tensor_file
from bilateral.errors import CheckpointError
from bilateral.learning.training import Training

_TOTALS = "classes/totals"


@dataclass(frozen=True)
class Checkpoint:
    """State after `next_round` rounds: tensors of all trainings, the metric rows and the counters so far."""

    plan_digest: str
    next_round: int
    tensors: Mapping[str, Tensor]
    rows: Sequence[dict[str, Any]] = field(default_factory=list)
    counters: Mapping[str, float] = field(default_factory=dict)
    failed: Sequence[dict[str, Any]] = field(default_factory=list)
    incidents: Sequence[dict[str, Any]] = field(default_factory=list)


def training_tensors(trainings: Sequence[Training]) -> dict[str, Tensor]:
    """Model, optimiser and server half of every training, named by protection."""
    tensors: dict[str, Tensor] = {}
    for training in trainings:
        for name, tensor in training.model.state_dict().items():
            tensors[f"{training.protection}/model/{name}"] = tensor.detach().clone()
        for name, tensor in training.server.state_tensors().items():
            tensors[f"{training.protection}/server/{name}"] = tensor
        for name, tensor in training.aggregation.state_tensors().items():
            tensors[f"{training.protection}/aggregation/{name}"] = tensor
        if training.class_totals is not None:
            tensors[f"{training.protection}/{_TOTALS}"] = training.class_totals
        for name, tensor in training.optimiser.state_tensors().items():
            tensors[f"{training.protection}/optimiser/{name}"] = tensor
    return tensors


def restore(trainings: Sequence[Training], checkpoint: Checkpoint, path: Path) -> None:
    """Put a checkpoint's tensors back."""
    for training in trainings:
        model = _under(checkpoint.tensors, f"{training.protection}/model/")
        try:
            training.model.load_state_dict(model)
        except RuntimeError as error:
            raise CheckpointError(
                f"{path} holds another model than the plan: {error}.", remedy="Resume with the plan it was made with."
            ) from error
        totals = checkpoint.tensors.get(f"{training.protection}/{_TOTALS}")
        if totals is not None and (totals.dtype != torch.int64 or totals.dim() != 1):
            raise CheckpointError(
                f"{path} holds no counts of classes.", remedy="Resume with the plan it was made with."
            )
        training.class_totals = totals
        optimiser = _under(checkpoint.tensors, f"{training.protection}/optimiser/")
        training.optimiser.load_state_tensors(optimiser)
        training.server.load_state_tensors(_under(checkpoint.tensors, f"{training.protection}/server/"))
        training.aggregation.load_state_tensors(_under(checkpoint.tensors, f"{training.protection}/aggregation/"))


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write next to the target and rename: an interruption leaves the old checkpoint or the new one, whole."""
    # Tied weights share memory, which safetensors refuses: store copies.
    tensors = {name: t.detach().clone().contiguous() for name, t in checkpoint.tensors.items()}
    state = {
        "plan_digest": checkpoint.plan_digest,
        "next_round": checkpoint.next_round,
        "rows": list(checkpoint.rows),
        "counters": dict(checkpoint.counters),
        "failed": list(checkpoint.failed),
        "incidents": list(checkpoint.incidents),
        "content": _digest(tensors),
    }
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"state": json.dumps(state)})
    os.replace(partial, path)  # noqa: PTH105 (the atomic one)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint."""
    if not path.exists():
        raise CheckpointError(f"There is no checkpoint at {path}.", remedy="Start the run anew, without --resume.")
    try:
        file = read_tensor_file(path)
        state = parse_json(file.text("state"))
        checkpoint = _checkpoint(state, file.tensors)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not a readable checkpoint: {error}.",
            remedy="It is left as it is; start the run anew elsewhere.",
        ) from error
    if state.get("content") != _digest(checkpoint.tensors):
        raise CheckpointError(
            f"{path} is corrupt: its contents do not match their checksum.",
            remedy="It is left as it is; start the run anew elsewhere.",
        )
    return checkpoint


def _checkpoint(state: Any, tensors: Mapping[str, Tensor]) -> Checkpoint:
    """The parts of a checkpoint, each of the kind that it should be; `ValueError` if one is not."""
    if not isinstance(state, dict):
        raise ValueError("its state is no object")
    plan_digest, next_round, counters = (state.get(name) for name in ("plan_digest", "next_round", "counters"))
    if not isinstance(plan_digest, str) or type(next_round) is not int or not 0 <= next_round < 1 << 63:
        raise ValueError("expected the digest of a plan and a number of rounds")
    if not isinstance(counters, dict) or not all(_is_number(value) for value in counters.values()):
        raise ValueError("expected numbers for its counters")
    lists: dict[str, Any] = {name: state.get(name) for name in ("rows", "failed", "incidents")}
    for name, rows in lists.items():
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"expected a list of objects for its {name}")
        if any(isinstance(value, dict | list) for row in rows for value in row.values()):
            raise ValueError(f"expected plain values in its {name}")
    return Checkpoint(plan_digest, next_round, tensors, lists["rows"], counters, lists["failed"], lists["incidents"])


def _is_number(value: object) -> bool:
    """Of a size that counters have; a difference may be NaN or infinite."""
    return type(value) is float or (type(value) is int and abs(value) < 1 << 63)


@contextmanager
def putting_back(path: Path) -> Iterator[None]:
    """Whatever does not fit where it should go, while a checkpoint's state is put back, is a `CheckpointError`.

    A checkpoint is whole by its checksum, which says nothing about who made it, and for what.
    """
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} does not hold the state of such a run: {type(error).__name__}: {str(error)[:500]}.",
            remedy="Resume with the plan and the version it was made with; it is left as it is.",
        ) from error


def matching_checkpoint(plan_digest: str, path: Path) -> Checkpoint:
    """The checkpoint at `path`, which must be of this plan."""
    checkpoint = load_checkpoint(path)
    if checkpoint.plan_digest != plan_digest:
        raise CheckpointError(f"{path} was made with another plan.", remedy="Resume with the plan of that run.")
    return checkpoint


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
