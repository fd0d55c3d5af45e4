"""What the three parties of a secret-shared prediction say to each other. The two clients talk to the server only.

| phase | from | to | message |
|---|---|---|---|
| session | server | answering party | `SessionRequest` |
| session | answering party | server | `MaskedModel`: the circuit, and masked weights |
| session | server | querying party | `SessionNotice`: the circuit |
| offline | server | querying party | `BatchRequest` |
| offline | querying party | server | `Correlations`: what a dealer deals for linear layers (`computing/dealer`) |
| offline | server | querying party | `TablesRequest`, at once after the first: only where comparisons are sealed |
| offline | querying party | server | `Tables`: what it deals for comparisons |
| offline | server | answering party | `Carries`: the server's bits of all truncations |
| offline | answering party | server | `AnswererTurn`: what it can say before there is a query |
| online | server | querying party | `QueryRequest` |
| online | querying party | server | `QueryShare` |
| online | server | answering party | `ServerTurn`: inputs of layers under masks, the server's part of comparisons |
| online | answering party | server | `AnswererTurn`: bits of truncations, its part of comparisons, at last the output |
| online | server | querying party | `BlindedValues`: only where comparisons are judged |
| online | querying party | server | `SelectedValues`: the judgement |
| online | server | querying party | `SummedLogits`: of all answering parties |
| session | server | both clients | `SessionEnd` |

`Acknowledged` answers what needs no other answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from torch import Tensor

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
    """`computing.dealer.DealtLayers`: a tensor a linear layer (int64; int32)."""

    products: tuple[Tensor, ...]
    carries: tuple[Tensor, ...]


@dataclass(frozen=True)
class TablesRequest(BatchMessage):
    """For a batch whose `BatchRequest` came before. Apart from it, so that the server works on what came first."""


@dataclass(frozen=True)
class Tables(BatchMessage):
    """Two tensors a comparison (int64)."""

    comparisons: tuple[Tensor, ...]


@dataclass(frozen=True)
class Carries(BatchMessage):
    """`bits`: epsilon of every linear layer's truncation, 64 to a word."""

    batch_size: int
    bits: tuple[Tensor, ...]


@dataclass(frozen=True)
class QueryRequest(BatchMessage):
    pass


@dataclass(frozen=True)
class QueryShare(BatchMessage):
    share: Tensor


@dataclass(frozen=True)
class TurnMessage(BatchMessage):
    """What one computing party has to say until it must listen: int64 words, in the circuit's order (`gates/talk`).

    `number` counts the server's turns of a batch from 0; a reply has the number of the next one.
    """

    number: int
    parts: tuple[Tensor, ...]


@dataclass(frozen=True)
class ServerTurn(TurnMessage):
    pass


@dataclass(frozen=True)
class AnswererTurn(TurnMessage):
    pass


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


TO_ANSWERER: Final = (SessionRequest, Carries, ServerTurn, SessionEnd)
TO_QUERIER: Final = (SessionNotice, BatchRequest, TablesRequest, QueryRequest, BlindedValues, SummedLogits, SessionEnd)
FROM_ANSWERER: Final = (MaskedModel, AnswererTurn, Acknowledged)
FROM_QUERIER: Final = (Acknowledged, Correlations, Tables, QueryShare, SelectedValues)

Phase = Literal["session", "offline", "online"]
PHASES: Final[tuple[Phase, ...]] = ("session", "offline", "online")
_PHASE_OF: Final[dict[type[Message], Phase]] = {
    SessionRequest: "session",
    SessionNotice: "session",
    SessionEnd: "session",
    BatchRequest: "offline",
    TablesRequest: "offline",
    Carries: "offline",
}


def phase_of(request: Message) -> Phase:
    """Of a request, and of its reply: what does not depend on the queries is offline."""
    return _PHASE_OF.get(type(request), "online")
