"""What a party of a secret-shared prediction has, and how it reads its own messages. Attacks get nothing else.

`shared_recording` records predictions, and cuts these views out of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from bilateral.audit.views import AdversaryName
from bilateral.engine.transcript import Entry
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import Circuit, MaxPool, Relu
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.gates.styles import ComparisonStyle
from bilateral.protocols.share.prediction.messages import BatchRequest, BlindedValues, Carries, SessionNotice
from bilateral.protocols.share.ring.streams import Purpose, Stream

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Session:
    """One querying party, one answering party, one network. All three parties know this much."""

    session_id: bytes
    querier: str
    answerer: str
    circuit: Circuit


@dataclass(frozen=True, repr=False)
class SharedView:
    """All that one party of a prediction has."""

    adversary: AdversaryName
    party: str
    style: ComparisonStyle
    sessions: tuple[Session, ...]
    entries: tuple[Entry, ...]
    queries: Tensor | None = None
    answers: Tensor | None = None
    model: FixedPointModel | None = None
    seeds: Mapping[tuple[bytes, str], bytes] = field(default_factory=dict)
    """By session and by the other party of the pair."""

    def messages(self, kind: type[M], session: Session | None = None, *, batch_index: int | None = None) -> list[M]:
        """Of one kind, oldest first."""
        return [
            entry.message
            for entry in self.entries
            if isinstance(entry.message, kind)
            and (session is None or getattr(entry.message, "session_id", None) == session.session_id)
            and (batch_index is None or getattr(entry.message, "batch_index", None) == batch_index)
        ]

    def received(self) -> list[Message]:
        """What came from others; of an eavesdropper, everything."""
        return [entry.message for entry in self.entries if entry.sender != self.party]

    def batches(self, session: Session) -> list[tuple[int, int]]:
        """(index, number of queries) of every batch, in the order of the queries."""
        openings: list[BatchRequest] | list[Carries] = self.messages(BatchRequest, session)
        openings = openings or self.messages(Carries, session)
        return [(opening.batch_index, opening.batch_size) for opening in openings]

    def stream(self, session: Session, other: str, purpose: Purpose, batch_index: int, batch_size: int) -> Stream:
        """What it and `other` draw for a batch. KeyError if the party does not have that seed."""
        return Stream(self.seeds[session.session_id, other], purpose, batch_index, batch_size)


def blinded_numbers(view: SharedView, session: Session) -> list[Tensor]:
    """A querying party's reading of its `BlindedValues`: u of every comparison, (queries, numbers) each."""
    parts: list[list[Tensor]] = [[] for _ in session.circuit.comparison_sizes]
    for index, size in view.batches(session):
        stream = view.stream(session, session.answerer, "comparison", index, size)
        messages = view.messages(BlindedValues, session, batch_index=index)
        for part, message in zip(parts, messages, strict=True):
            part.append(message.values - stream.words(*message.values.shape))
            for _ in range(2):  # the stream goes on with the answering party's shares of the judgement
                stream.words(*message.values.shape)
    return [torch.cat(part) for part in parts]


def comparison_bits(circuit: Circuit) -> list[int]:
    """Fraction bits of the numbers of every comparison, in the order of a walk."""
    bits: list[int] = []
    for step in circuit.steps:
        candidates = 2 if isinstance(step, Relu) else math.prod(step.kernel) if isinstance(step, MaxPool) else 1
        rounds = (candidates - 1).bit_length()  # half of the candidates drop out in a round
        bits += [circuit.values[step.sources[0]].fraction_bits] * rounds
    return bits


def circuits_read(view: SharedView) -> dict[str, Circuit]:
    """By answering party: the networks' descriptions, as they are written in messages (ledger, line 13)."""
    return {
        notice.answerer: Circuit.from_json(notice.circuit, notice.answerer) for notice in view.messages(SessionNotice)
    }
