"""What a party of a secret-shared prediction has, and how it reads its own messages. Attacks get nothing else.

`shared_recording` records predictions, and cuts these views out of them.

A turn of a computing party is a list of words. What each is follows from the circuit and the style (`names_of_parts`),
which all parties know. Both computing parties have both parties' turns, so both know all that is *opened*: the sum of
the two masked numbers, the exclusive or of masked bits (`opened`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from bilateral.audit.views import AdversaryName
from bilateral.engine.transcript import Entry
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import Circuit, Conv, Dense, MaxPool, Relu
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.computing.dealer import widths
from bilateral.protocols.share.gates import planes, sealed
from bilateral.protocols.share.gates.styles import ComparisonStyle
from bilateral.protocols.share.prediction.messages import (
    AnswererTurn,
    BatchRequest,
    BlindedValues,
    Carries,
    ServerTurn,
    SessionNotice,
    SummedLogits,
    Tables,
)
from bilateral.protocols.share.ring.streams import Purpose, Stream
from bilateral.protocols.transport import SERVER

M = TypeVar("M", bound=Message)
Turn = type[ServerTurn] | type[AnswererTurn]
What = Literal[
    "layer input",
    "bits of a truncation",
    "masked numbers",
    "masked digits",
    "masked signs",
    "blinded numbers",
    "output",
]


class Told(NamedTuple):
    """What a part of a turn is. `place`: of the layer or comparison, in the circuit's order; `level`: of the digits."""

    what: What
    place: int = 0
    level: int = 0


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
        return Stream.of(self.seeds[session.session_id, other], purpose, batch_index, batch_size)


def names_of_parts(circuit: Circuit, style: ComparisonStyle, turn: Turn) -> list[Told]:
    """What one computing party tells the other in all its turns of a batch, in order.

    What the server says of truncations is not here: it is in `Carries`, a part a layer.
    """
    names: list[Told] = []
    told_of: set[int] = set()
    layer = comparison = 0
    for step in circuit.steps:
        if isinstance(step, Dense | Conv):
            if turn is AnswererTurn:
                names.append(Told("bits of a truncation", layer))
            elif step.sources[0] not in told_of:  # a value that feeds two layers is sent once
                names.append(Told("layer input", layer))
            told_of.add(step.sources[0])
            layer += 1
        elif isinstance(step, Relu | MaxPool):
            candidates = 2 if isinstance(step, Relu) else math.prod(step.kernel)
            for _ in range((candidates - 1).bit_length()):  # half of the candidates drop out in a round
                names += _comparison_names(circuit, style, turn, comparison)
                comparison += 1
    return [*names, Told("output")] if turn is AnswererTurn else names


def _comparison_names(circuit: Circuit, style: ComparisonStyle, turn: Turn, place: int) -> Iterator[Told]:
    if style.is_judged:
        if turn is AnswererTurn:
            yield Told("blinded numbers", place)
        return
    yield Told("masked numbers", place)
    digits = widths(circuit, style, 1)[place].digits
    for level in range(len(planes.levels(digits))):
        yield Told("masked digits", place, level)
    yield Told("masked signs", place)


def told(view: SharedView, session: Session, batch_index: int, turn: Turn) -> dict[Told, Tensor]:
    """All that one computing party told the other in a batch, by name. For a party that has these messages."""
    parts = [part for message in view.messages(turn, session, batch_index=batch_index) for part in message.parts]
    return dict(zip(names_of_parts(session.circuit, view.style, turn), parts, strict=True))


class Opened(NamedTuple):
    """What both computing parties see of one sealed comparison, (queries, numbers) or (planes, bits)."""

    numbers: Tensor
    """y."""
    digits: tuple[Tensor, ...]
    """By level, a row a plane, zeros and ones."""
    signs: Tensor
    """m, zeros and ones."""


def opened(view: SharedView, session: Session, batch_index: int, batch_size: int) -> list[Opened]:
    """Of every sealed comparison of a batch. For a computing party."""
    answerers, servers = (told(view, session, batch_index, turn) for turn in (AnswererTurn, ServerTurn))
    found = []
    for place, width in enumerate(widths(session.circuit, view.style, batch_size)):
        numbers, signs = Told("masked numbers", place), Told("masked signs", place)
        digits = [Told("masked digits", place, level) for level in range(len(planes.levels(width.digits)))]
        found.append(
            Opened(
                (answerers[numbers] + servers[numbers]).reshape(batch_size, -1),
                tuple(bits_of(answerers[one] ^ servers[one], width.count) for one in digits),
                bits_of(answerers[signs] ^ servers[signs], width.count).reshape(batch_size, -1),
            )
        )
    return found


def bits_of(words: Tensor, count: int) -> Tensor:
    """The first bits of one plane (words,) or of several (planes, words), as zeros and ones (uint8)."""
    packed = words.contiguous().numpy().view(np.uint8)
    return torch.from_numpy(np.unpackbits(packed, axis=-1, count=count, bitorder="little"))


def own_correlations(view: SharedView, session: Session, batch_index: int, batch_size: int) -> list[sealed.Correlation]:
    """What a computing party holds of every sealed comparison: from its seed with the dealer, and dealt to it."""
    stream = view.stream(session, session.querier, "comparison", batch_index, batch_size)
    sizes = widths(session.circuit, view.style, batch_size)
    if view.party != SERVER:
        return [sealed.drawn_part(stream, width) for width in sizes]
    (message,) = view.messages(Tables, session, batch_index=batch_index)
    pairs = zip(message.comparisons[::2], message.comparisons[1::2], strict=True)
    return [sealed.dealt_part(stream, pair, width) for pair, width in zip(pairs, sizes, strict=True)]


class DealtMasks(NamedTuple):
    """What the dealer knows of one sealed comparison, (queries, numbers) each: r, and beta as 0 or 1."""

    r: Tensor
    beta: Tensor


def dealt_masks(view: SharedView, session: Session, batch_index: int, batch_size: int) -> list[DealtMasks]:
    """Of every sealed comparison of a batch: for the querying party, who has seeds with both others."""
    firsts, seconds = (
        view.stream(session, other, "comparison", batch_index, batch_size) for other in (session.answerer, SERVER)
    )
    found = []
    for width in widths(session.circuit, view.style, batch_size):
        first = sealed.drawn_part(firsts, width)
        empty = tuple(torch.zeros(shape, dtype=torch.int64) for shape in width.dealt_shapes)
        second = sealed.dealt_part(seconds, (empty[0], empty[1]), width)
        beta = bits_of(first.blind ^ second.blind, width.count)
        found.append(
            DealtMasks((first.r + second.r).reshape(batch_size, -1), beta.to(torch.int64).reshape(batch_size, -1))
        )
    return found


def blinded_numbers(view: SharedView, session: Session) -> list[Tensor]:
    """A querying party's reading of its `BlindedValues`: u of every comparison, (queries, numbers) each."""
    parts: list[list[Tensor]] = [[] for _ in session.circuit.comparisons]
    for index, size in view.batches(session):
        stream = view.stream(session, session.answerer, "comparison", index, size)
        messages = view.messages(BlindedValues, session, batch_index=index)
        for part, message in zip(parts, messages, strict=True):
            part.append(message.values - stream.words(*message.values.shape))
            for _ in range(2):  # the stream goes on with the answering party's shares of the judgement
                stream.words(*message.values.shape)
    return [torch.cat(part) for part in parts]


def numbers_in_place(view: SharedView, session: Session) -> list[Tensor]:
    """What a querying party has in the place of every compared number, (queries, numbers) a comparison.

    Where it judges, the blinded numbers. Where it only deals: whatever it received, less its own mask r, and with the
    sign turned where its beta is. Words of one shape are taken for those of the comparison; if it received none (right
    is: it received nothing but the sum), those of the sum stand in every place, one after the other.
    """
    if view.style.is_judged:
        return blinded_numbers(view, session)
    parts: list[list[Tensor]] = [[] for _ in session.circuit.comparisons]
    for index, size in view.batches(session):
        for place, (part, masks) in enumerate(zip(parts, dealt_masks(view, session, index, size), strict=True)):
            received = received_in_place(view, session, index, place, masks.r)
            part.append((received - masks.r) * (1 - 2 * masks.beta))
    return [torch.cat(part) for part in parts]


def received_in_place(view: SharedView, session: Session, batch_index: int, place: int, like: Tensor) -> Tensor:
    """What a querying party received that could belong to the numbers of a comparison, of their shape: `like`.

    Words of this shape, one tensor after the other as comparisons of it come; otherwise those of the sum.
    """
    found: list[Tensor] = []
    sums = torch.zeros(len(like), 1, dtype=torch.int64)
    for message in view.received():
        ids = getattr(message, "session_ids", None) or (getattr(message, "session_id", b""),)
        indices = getattr(message, "batch_indices", None) or (getattr(message, "batch_index", -1),)
        if (session.session_id, batch_index) not in zip(ids, indices, strict=False):
            continue
        for words in (getattr(message, item.name) for item in fields(message)):
            if isinstance(words, Tensor) and words.dtype == torch.int64 and len(words) == len(like):
                rows = words.reshape(len(words), -1)
                if isinstance(message, SummedLogits):
                    sums = rows
                elif rows.shape == like.shape:
                    found.append(rows)
    earlier = [one.size for one in session.circuit.comparisons[:place]].count(like.shape[1])
    if earlier < len(found):
        return found[earlier]
    return sums[:, torch.arange(like.shape[1]) % sums.shape[1]]


def circuits_read(view: SharedView) -> dict[str, Circuit]:
    """By answering party: the networks' descriptions, as they are written in messages (ledger, line 13)."""
    return {
        notice.answerer: Circuit.from_json(notice.circuit, notice.answerer) for notice in view.messages(SessionNotice)
    }
