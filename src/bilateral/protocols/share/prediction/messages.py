"""What the three parties of a secret-shared prediction say to each other. The two clients talk to the server only.

| phase | from | to | message |
|---|---|---|---|
| session | server | answering party | `SessionRequest` |
| session | answering party | server | `MaskedModel`: the circuit, and masked weights |
| session | server | querying party | `SessionNotice`: the circuit |
| offline | server | querying party | `BatchRequest` |
| offline | querying party | server | `Correlations`: the server's shares of products of masks |
| offline | server | answering party | `Carries`: the server's bits of all truncations |
| online | server | querying party | `QueryRequest` |
| online | querying party | server | `QueryShare` |
| online | server | answering party | `MaskedValue`: the input of a linear layer, under a mask |
| online | answering party | server | `AnswererTurn`: bits of truncations, blinded numbers, at last the output |
| online | server | querying party | `BlindedValues` |
| online | querying party | server | `SelectedValues` |
| online | server | querying party | `SummedLogits`: of all answering parties |
| session | server | both clients | `SessionEnd` |

`Acknowledged` answers what needs no other answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from bilateral.errors import MalformedMessageError
from bilateral.protocols.messages import Message


@dataclass(frozen=True)
class SessionMessage(Message):
    """`session_id` names a querying party, an answering party and a model of it."""

    session_id: bytes


@dataclass(frozen=True)
class BatchMessage(SessionMessage):
    batch_index: int


@dataclass(frozen=True)
class SessionRequest(SessionMessage):
    querier: str


@dataclass(frozen=True)
class MaskedModel(SessionMessage):
    circuit: str
    weights: tuple[Tensor, ...]


@dataclass(frozen=True)
class SessionNotice(SessionMessage):
    answerer: str
    circuit: str


@dataclass(frozen=True)
class BatchRequest(BatchMessage):
    batch_size: int


@dataclass(frozen=True)
class Correlations(BatchMessage):
    """`products`: a tensor a linear layer (int64). `carries`: shares of products of bits, a tensor a layer (int32)."""

    products: tuple[Tensor, ...]
    carries: tuple[Tensor, ...]


@dataclass(frozen=True)
class Carries(BatchMessage):
    """`bits`: epsilon of every linear layer's truncation, packed."""

    batch_size: int
    bits: tuple[bytes, ...]


@dataclass(frozen=True)
class QueryRequest(BatchMessage):
    pass


@dataclass(frozen=True)
class QueryShare(BatchMessage):
    share: Tensor


@dataclass(frozen=True)
class MaskedValue(BatchMessage):
    value: Tensor


@dataclass(frozen=True)
class AnswererTurn(BatchMessage):
    """`bits`: delta of every truncation since the last turn, packed. `output`: empty until the last turn."""

    bits: tuple[bytes, ...]
    blinded: tuple[Tensor, ...]
    output: Tensor


@dataclass(frozen=True)
class BlindedValues(BatchMessage):
    values: Tensor


@dataclass(frozen=True)
class SelectedValues(BatchMessage):
    products: Tensor
    bits: Tensor


@dataclass(frozen=True)
class SummedLogits(Message):
    """Over the sessions `session_ids`, each with its batch of index `batch_indices`."""

    session_ids: tuple[bytes, ...]
    batch_indices: tuple[int, ...]
    fraction_bits: int
    logits: Tensor


@dataclass(frozen=True)
class SessionEnd(SessionMessage):
    """To both clients: nothing more will be asked in this session."""


@dataclass(frozen=True)
class Acknowledged(SessionMessage):
    pass


TO_ANSWERER: Final = (SessionRequest, Carries, MaskedValue, SessionEnd)
TO_QUERIER: Final = (SessionNotice, BatchRequest, QueryRequest, BlindedValues, SummedLogits, SessionEnd)
FROM_ANSWERER: Final = (MaskedModel, AnswererTurn, Acknowledged)
FROM_QUERIER: Final = (Acknowledged, Correlations, QueryShare, SelectedValues)

Phase = Literal["session", "offline", "online"]
PHASES: Final[tuple[Phase, ...]] = ("session", "offline", "online")
_PHASE_OF: Final[dict[type[Message], Phase]] = {
    SessionRequest: "session",
    SessionNotice: "session",
    SessionEnd: "session",
    BatchRequest: "offline",
    Carries: "offline",
}


def phase_of(request: Message) -> Phase:
    """Of a request, and of its reply: what does not depend on the queries is offline."""
    return _PHASE_OF.get(type(request), "online")


def expect_tensor(sender: str, name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse a tensor of another shape or type, naming the sender."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise MalformedMessageError(
            f"Malformed message from {sender}: expected `{name}` of shape {shape} and {dtype}, got "
            f"{tuple(tensor.shape)} and {tensor.dtype}.",
            remedy="Both sides must run the same plan and version.",
        )


def expect_count(sender: str, name: str, got: int, expected: int) -> None:
    """Refuse a list or a string of bytes of another length, naming the sender."""
    if got != expected:
        raise MalformedMessageError(
            f"Malformed message from {sender}: expected {expected} in `{name}`, got {got}.",
            remedy="Both sides must run the same plan and version.",
        )
