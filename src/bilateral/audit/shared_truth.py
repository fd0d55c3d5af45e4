"""What really happened in a secret-shared prediction: to score attacks against, and for controls.

Attacks get none of this.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from bilateral.audit.shared_recording import SharedRun
from bilateral.audit.shared_views import Session
from bilateral.engine.transcript import Entry
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import FRACTION_BITS, Linear
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, PlainArithmetic, predict
from bilateral.protocols.share.circuit.walk import Walk
from bilateral.protocols.share.prediction.messages import (
    AnswererTurn,
    BatchRequest,
    BlindedValues,
    MaskedModel,
    QueryShare,
    ServerTurn,
)
from bilateral.protocols.share.ring import arithmetic as ring
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
    """The positive control: the same messages with the bare values in them: queries, weights, activations, logits."""
    bare = {session.session_id: _bare_values(run, session) for session in run.sessions}
    return replace(run, entries=tuple(_stripped(entry, bare) for entry in run.entries))


def with_random_words(run: SharedRun, randomness: Randomness) -> SharedRun:
    """What masks promise: uniform words in place of all numbers of the messages. Packed bits stay."""
    return replace(run, entries=tuple(_randomised(entry, randomness.child(i)) for i, entry in enumerate(run.entries)))


def _randomised(entry: Entry, randomness: Randomness) -> Entry:
    changed: dict[str, Tensor | tuple[Tensor, ...]] = {}
    for item in fields(entry.message):
        value, drawn = getattr(entry.message, item.name), randomness.child(item.name)
        if isinstance(value, Tensor):
            changed[item.name] = _random_words(value, drawn)
        elif isinstance(value, tuple) and value and all(isinstance(part, Tensor) for part in value):
            changed[item.name] = tuple(_random_words(part, drawn.child(i)) for i, part in enumerate(value))
    return replace(entry, message=replace(entry.message, **changed))


def _random_words(like: Tensor, randomness: Randomness) -> Tensor:
    drawn = bytearray(randomness.random_bytes(like.numel() * like.element_size()))
    return torch.frombuffer(drawn, dtype=like.dtype).reshape(like.shape) if drawn else like


@dataclass(repr=False)
class _Bare:
    """Of one session: the weights, and by batch what is still to be put into messages."""

    weights: tuple[Tensor, ...]
    queries: dict[int, Tensor]
    inputs: dict[int, deque[Tensor]]
    compared: dict[int, deque[Tensor]]
    outputs: dict[int, Tensor]


def _bare_values(run: SharedRun, session: Session) -> _Bare:
    model, start = run.models[session.answerer], 0
    bare = _Bare(tuple(layer.weight for layer in model.layers), {}, {}, {}, {})
    openings = (e.message for e in run.entries if isinstance(e.message, BatchRequest))
    for opening in openings:
        if opening.session_id == session.session_id:
            part = run.queries[start : start + opening.batch_size]
            start += opening.batch_size
            noting = _Noting(model)
            logits, index = predict(model, part, noting), opening.batch_index
            bare.queries[index] = ring.encode(part, FRACTION_BITS)
            bare.inputs[index] = deque(noting.inputs.values())
            bare.compared[index] = deque(noting.compared)
            bare.outputs[index] = ring.encode(logits, FRACTION_BITS)
    return bare


def _stripped(entry: Entry, bare: dict[bytes, _Bare]) -> Entry:
    message: Message = entry.message
    match message:
        case MaskedModel():
            message = replace(message, weights=bare[message.session_id].weights)
        case QueryShare():
            message = replace(message, share=bare[message.session_id].queries[message.batch_index])
        case ServerTurn():
            message = replace(message, value=bare[message.session_id].inputs[message.batch_index].popleft())
        case BlindedValues():
            message = replace(message, values=bare[message.session_id].compared[message.batch_index].popleft())
        case AnswererTurn():
            output = bare[message.session_id].outputs[message.batch_index] if message.output.numel() else message.output
            blinded = tuple(torch.zeros_like(part) for part in message.blinded)
            message = replace(message, blinded=blinded, output=output)
        case _:
            return entry
    return replace(entry, message=message)
