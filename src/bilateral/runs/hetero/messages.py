"""What a heterogeneous run's server and sites say to each other, besides the messages of secret-shared prediction.

| when | server -> site | site -> server |
|---|---|---|
| term begins | `Introduce` | `HeteroCard`: what the site runs, and how far it was |
| | `HeteroBriefing`: the facts of the term | `KeyAnnouncement` |
| | `Roster`: everybody's keys, the server's too | `Done` |
| stage 1 | `TrainAlone` | `Measured` |
| an iteration | `GetReady`: offer the network, make the queries | `QueriesReady`: how many |
| | messages of `protocols/share` | |
| | `KeepAnswers`: all are answered | `Done` |
| | `Retrain` | `Measured` |

The server learns accuracies and numbers of queries from these, and nothing else. Every message has one kind of reply
(`REPLY_OF`), and a site reads nothing that is not a key of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from torch import Tensor

from bilateral.protocols.mask.messages import KeyAnnouncement, Roster
from bilateral.protocols.messages import Message
from bilateral.protocols.share.prediction.messages import (
    Acknowledged,
    AnswererTurn,
    BatchRequest,
    BlindedValues,
    Carries,
    Correlations,
    MaskedModel,
    QueryRequest,
    QueryShare,
    SelectedValues,
    ServerTurn,
    SessionEnd,
    SessionNotice,
    SessionRequest,
    SummedLogits,
    Tables,
    TablesRequest,
)


@dataclass(frozen=True)
class Introduce(Message):
    """Who are you, and how far were you?"""


@dataclass(frozen=True)
class HeteroCard(Message):
    """A site introduces itself. `stage`: how many of its own stages it has done, by what it kept.

    `accuracies` (float64) and `num_queries` are of those stages: trained alone, then after every iteration.
    """

    plan_digest: str
    version: str
    stage: int
    accuracies: Tensor
    num_queries: tuple[int, ...]


@dataclass(frozen=True)
class HeteroBriefing(Message):
    """The facts of a term, the same for all sites. `run_id` is what keys are bound to."""

    plan_digest: str
    term: int
    run_id: bytes


@dataclass(frozen=True)
class TrainAlone(Message):
    """Stage 1."""


@dataclass(frozen=True)
class GetReady(Message):
    """Before anybody asks in an iteration: answer with the network as it is now, and make the queries."""

    iteration: int


@dataclass(frozen=True)
class QueriesReady(Message):
    """How many the site will ask; 0 if it has asked in this iteration already."""

    num_queries: int


@dataclass(frozen=True)
class KeepAnswers(Message):
    """All queries of the iteration are answered: keep the sums."""

    iteration: int


@dataclass(frozen=True)
class Retrain(Message):
    """Learn from the sums of the iteration."""

    iteration: int


@dataclass(frozen=True)
class Measured(Message):
    """How good the site's network is now (float64, one number), and how many queries it learned from."""

    accuracy: Tensor
    num_queries: int


@dataclass(frozen=True)
class Done(Message):
    """The answer to what needs no other answer."""


REPLY_OF: Final[Mapping[type[Message], type[Message]]] = MappingProxyType(
    {
        Introduce: HeteroCard,
        HeteroBriefing: KeyAnnouncement,
        Roster: Done,
        TrainAlone: Measured,
        GetReady: QueriesReady,
        KeepAnswers: Done,
        Retrain: Measured,
        SessionRequest: MaskedModel,
        SessionNotice: Acknowledged,
        BatchRequest: Correlations,
        TablesRequest: Tables,
        Carries: AnswererTurn,
        QueryRequest: QueryShare,
        ServerTurn: AnswererTurn,
        BlindedValues: SelectedValues,
        SummedLogits: Acknowledged,
        SessionEnd: Acknowledged,
    }
)
"""What a site reads, and what it answers."""
