"""Checkpoints: everything a run needs to go on, in one safetensors file (no pickle), written atomically.

All randomness of a run is derived from its seed and the round, so tensors and the round are enough: a resumed run
ends with the same model, bit for bit, as one that was never interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bilateral.errors import CheckpointError
from bilateral.learning.training import Training


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
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        state = json.loads(metadata["state"])
        checkpoint = Checkpoint(
            state["plan_digest"],
            int(state["next_round"]),
            tensors,
            list(state["rows"]),
            dict(state["counters"]),
            list(state["failed"]),
            list(state["incidents"]),
        )
        content = state["content"]
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is not a readable checkpoint: {error}.",
            remedy="It is left as it is; start the run anew elsewhere.",
        ) from error
    if content != _digest(tensors):
        raise CheckpointError(
            f"{path} is corrupt: its contents do not match their checksum.",
            remedy="It is left as it is; start the run anew elsewhere.",
        )
    return checkpoint


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
