"""What each party keeps of a session and of a batch that was dealt ahead (`store`). Nothing of this ever travels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilateral.protocols.messages import Message


@dataclass(frozen=True)
class StoredSession(Message):
    """In common: who, about which circuit, in which style, and the party's seeds with the two others."""

    querier: str
    answerer: str
    circuit: str
    style: str
    seeds: tuple[bytes, ...]


@dataclass(frozen=True)
class StoredHelping(StoredSession):
    """The server. `seeds`: with the querying, with the answering party."""

    weights: tuple[Tensor, ...]


@dataclass(frozen=True)
class StoredAnswering(StoredSession):
    """`seeds`: with the querying party, with the server. `model`: digest of the weights that the session masks."""

    model: bytes


@dataclass(frozen=True)
class StoredQuerying(StoredSession):
    """`seeds`: with the answering party, with the server."""


@dataclass(frozen=True)
class StoredPart(Message):
    """The server's part of a batch: `computing.second.Prepared`, and what the answering party said beforehand."""

    batch_size: int
    shares: tuple[Tensor, ...]
    betas: tuple[Tensor, ...]
    epsilons: tuple[Tensor, ...]
    carries: tuple[Tensor, ...]
    comparisons: tuple[Tensor, ...]
    first_turn: tuple[Tensor, ...]


@dataclass(frozen=True)
class StoredOpening(Message):
    """The answering party's: the server's bits."""

    batch_size: int
    bits: tuple[Tensor, ...]


@dataclass(frozen=True)
class StoredDealt(Message):
    """The querying party's: everything else comes from seeds."""

    batch_size: int
