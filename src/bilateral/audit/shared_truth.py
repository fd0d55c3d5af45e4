"""What really happened in a secret-shared prediction: to score attacks against, and for controls.

Attacks get none of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from bilateral.audit.shared_recording import SharedRun
from bilateral.audit.shared_views import Session, Told, names_of_parts
from bilateral.engine.transcript import Entry
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import FRACTION_BITS, Linear
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, PlainArithmetic, predict
from bilateral.protocols.share.circuit.walk import Walk
from bilateral.protocols.share.prediction.messages import (
    AnswererTurn,
    BatchMessage,
    BatchRequest,
    BlindedValues,
    Carries,
    MaskedModel,
    QueryShare,
    ServerTurn,
)
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring.packing import from_words, pack_bits, to_words
from bilateral.randomness import Randomness


@dataclass(repr=False)
class _Noting(PlainArithmetic):
    """Arithmetic in the clear that keeps what the protocol would send under masks."""

    compared: list[Tensor] = field(default_factory=list)
    inputs: dict[int, Tensor] = field(default_factory=dict)
    """Of linear layers, by source: each is sent once."""

    def linear(self, index: int, step: Linear, source: int, x: Tensor) -> Walk:
        self.inputs.setdefault(source, x)
        return super().linear(index, step, source, x)

    def positive_part(self, x: Tensor, fraction_bits: int) -> Walk:
        self.compared.append(x.reshape(len(x), -1))
        return super().positive_part(x, fraction_bits)


def compared_numbers(model: FixedPointModel, queries: Tensor) -> list[Tensor]:
    """t of every comparison, (queries, numbers) each. The protocol's may be one unit off: it rounds at random."""
    noting = _Noting(model)
    predict(model, queries, noting)
    return noting.compared


def without_masks(run: SharedRun) -> SharedRun:
    """The positive control: the same messages with the bare values in them: queries, weights, activations, logits.

    Of what both computing parties open, the server tells the bare value and the answering party nothing.
    """
    bare, names = {session.session_id: _bare_values(run, session) for session in run.sessions}, _Names(run)
    return replace(run, entries=tuple(_stripped(entry, bare, names) for entry in run.entries))


def with_random_words(run: SharedRun, randomness: Randomness) -> SharedRun:
    """What masks promise: uniform words, and bits, in place of all that is in the messages."""
    names = _Names(run)
    return replace(
        run, entries=tuple(_randomised(entry, names, randomness.child(i)) for i, entry in enumerate(run.entries))
    )


class _Names:
    """Reads the entries of a run in order, and says of every part of a turn what it is."""

    def __init__(self, run: SharedRun) -> None:
        self._style = run.style
        self._circuits = {session.session_id: session.circuit for session in run.sessions}
        self._sizes: dict[tuple[bytes, int], int] = {}
        self._left: dict[tuple[bytes, int, type[Message]], Iterator[Told]] = {}

    def begin(self, message: Message) -> None:
        if isinstance(message, BatchRequest):
            self._sizes[message.session_id, message.batch_index] = message.batch_size

    def of(self, message: ServerTurn | AnswererTurn) -> list[Told]:
        key = (message.session_id, message.batch_index, type(message))
        if key not in self._left:
            circuit = self._circuits[message.session_id]
            self._left[key] = iter(names_of_parts(circuit, self._style, type(message)))
        return [next(self._left[key]) for _ in message.parts]

    def truncation_bits(self, message: BatchMessage, layer: int) -> int:
        """How many bits are in those words; zeros fill up the last one."""
        values = self._circuits[message.session_id].linear_values
        return self._sizes[message.session_id, message.batch_index] * values[layer].size


def _randomised(entry: Entry, names: _Names, randomness: Randomness) -> Entry:
    message = entry.message
    names.begin(message)
    changed: dict[str, Tensor | tuple[Tensor, ...]] = {}
    for item in fields(message):
        value, drawn = getattr(message, item.name), randomness.child(item.name)
        if isinstance(value, Tensor):
            changed[item.name] = _random_words(value, drawn)
        elif isinstance(value, tuple) and value and all(isinstance(part, Tensor) for part in value):
            changed[item.name] = tuple(_random_words(part, drawn.child(i)) for i, part in enumerate(value))
    for name, counts in _bit_counts(message, names).items():
        parts = changed.get(name, ())
        changed[name] = tuple(
            part if count is None else to_words(from_words(part, count))
            for part, count in zip(parts, counts, strict=True)
        )
    return replace(entry, message=replace(message, **changed))


def _bit_counts(message: Message, names: _Names) -> dict[str, list[int | None]]:
    """Of those parts that are bits of truncations, how many: what fills up their last word stays zero."""
    if isinstance(message, Carries):
        return {"bits": [names.truncation_bits(message, layer) for layer in range(len(message.bits))]}
    if isinstance(message, ServerTurn | AnswererTurn):
        counts: list[int | None] = [
            names.truncation_bits(message, one.place) if one.what == "bits of a truncation" else None
            for one in names.of(message)
        ]
        return {"parts": counts} if counts else {}
    return {}


def _random_words(like: Tensor, randomness: Randomness) -> Tensor:
    drawn = bytearray(randomness.random_bytes(like.numel() * like.element_size()))
    return torch.frombuffer(drawn, dtype=like.dtype).reshape(like.shape) if drawn else like


@dataclass(repr=False)
class _Bare:
    """Of one session: the weights, and by batch what is to be put into messages."""

    weights: tuple[Tensor, ...]
    queries: dict[int, Tensor]
    inputs: dict[int, deque[Tensor]]
    """Of layers, in the order in which they are sent."""
    compared: dict[int, list[Tensor]]
    judged: dict[int, deque[Tensor]]
    """The same, as they are still to be judged."""
    outputs: dict[int, Tensor]

    def told_by_server(self, name: Told, index: int, part: Tensor) -> Tensor:
        """The bare value in place of this part."""
        match name.what:
            case "layer input":
                return self.inputs[index].popleft()
            case "masked numbers":
                return self.compared[index][name.place].reshape(part.shape)
            case "masked signs":
                is_positive = (self.compared[index][name.place] >= 0).reshape(-1)
                return to_words(pack_bits(is_positive))
            case _:
                return torch.zeros_like(part)

    def told_by_answerer(self, name: Told, index: int, part: Tensor) -> Tensor:
        match name.what:
            case "output":
                return self.outputs[index]
            case "bits of a truncation":
                return part
            case _:
                return torch.zeros_like(part)


def _bare_values(run: SharedRun, session: Session) -> _Bare:
    model, start = run.models[session.answerer], 0
    bare = _Bare(tuple(layer.weight for layer in model.layers), {}, {}, {}, {}, {})
    openings = (e.message for e in run.entries if isinstance(e.message, BatchRequest))
    for opening in openings:
        if opening.session_id == session.session_id:
            part = run.queries[start : start + opening.batch_size]
            start += opening.batch_size
            noting = _Noting(model)
            logits, index = predict(model, part, noting), opening.batch_index
            bare.queries[index] = ring.encode(part, FRACTION_BITS)
            bare.inputs[index] = deque(noting.inputs.values())
            bare.compared[index], bare.judged[index] = noting.compared, deque(noting.compared)
            bare.outputs[index] = ring.encode(logits, FRACTION_BITS)
    return bare


def _stripped(entry: Entry, bare: dict[bytes, _Bare], names: _Names) -> Entry:
    message: Message = entry.message
    match message:
        case MaskedModel():
            message = replace(message, weights=bare[message.session_id].weights)
        case QueryShare():
            message = replace(message, share=bare[message.session_id].queries[message.batch_index])
        case BlindedValues():
            message = replace(message, values=bare[message.session_id].judged[message.batch_index].popleft())
        case ServerTurn() | AnswererTurn():
            own, index = bare[message.session_id], message.batch_index
            put = own.told_by_server if isinstance(message, ServerTurn) else own.told_by_answerer
            told = zip(names.of(message), message.parts, strict=True)
            message = replace(message, parts=tuple(put(name, index, part) for name, part in told))
        case _:
            return entry
    return replace(entry, message=message)
