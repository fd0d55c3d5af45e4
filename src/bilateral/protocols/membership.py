"""Messages about who takes part: what opens a run and a round for clients that agree on secrets with each other.

1. `KeyRequest`     server -> client   asks for the client's keys of this run (the answer is a `KeyAnnouncement`)
2. `RoundMembers`   server -> client   whose uploads the round will sum; only where no masking message says so already
3. `ClipNorm`       server -> client   adaptive clipping: the norm of the coming round
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilateral.protocols.messages import Message


@dataclass(frozen=True)
class KeyRequest(Message):
    """The run for which keys are wanted."""

    run_id: bytes


@dataclass(frozen=True)
class RoundMembers(Message):
    """The clients of a round, by name."""

    round_index: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class ClipNorm(Message):
    """The clipping norm of a round, one float64."""

    round_index: int
    norm: Tensor
