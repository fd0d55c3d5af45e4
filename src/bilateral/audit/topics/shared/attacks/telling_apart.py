"""Telling two worlds apart by a party's view: does it say anything about others' secrets?

An attacker that knows the protocol plays all parties by itself in both worlds (queries t or -t, say), describes the
views that its role has there by figures (`view_figures`), and learns a classifier. Then it is shown views of real runs.

The naive attacker looks at the mean of each kind of number that it receives. The adaptive one first undoes all
blinding that it can undo with its own seeds, and looks for all that weak masks would show. If masks are uniform and
used once, it sees coin flips in both worlds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bilateral.audit.shared_views import Session, SharedView, blinded_numbers, comparison_bits
from bilateral.audit.topics.shared.attacks.view_figures import Part, mean_figures, weakness_figures
from bilateral.protocols.messages import Message
from bilateral.protocols.share.gates.judged import Blinding, odd_inverse
from bilateral.protocols.share.prediction.messages import BlindedValues, ServerTurn, SummedLogits

_REGULARISATION = 0.1
_NUM_KEPT = 20
"""There are more figures than examples: those that differ most between the worlds are kept."""
_CLIP = 4.0
"""In standard deviations beyond both worlds: the attacker's networks are not the real ones."""
_SHARPEST = 100.0
"""A figure that is constant in each world and differs between them counts as so many standard deviations apart."""
_CONSTANT = 1e-12


def describe(views: Sequence[SharedView], *, adaptive: bool) -> np.ndarray:
    """What one party saw, one prediction after the other, in figures: the same ones for all views of one circuit."""
    parts = [part for view in views for part in _parts(view, adaptive=adaptive)]
    return weakness_figures(parts) if adaptive else mean_figures(parts)


def guess_worlds(examples: np.ndarray, worlds: Sequence[int], shown: np.ndarray) -> list[int]:
    """Learn from `examples` (a row a run) of known worlds 0 and 1; guess those of `shown`."""
    known = np.asarray(worlds)
    zero, one = examples[known == 0], examples[known == 1]
    middle, apart = (zero.mean(0) + one.mean(0)) / 2, np.abs(one.mean(0) - zero.mean(0))
    # Within a world: what separates the worlds cleanly must outweigh the many figures that differ by accident.
    spread = np.maximum(np.sqrt((zero.var(0) + one.var(0)) / 2), apart / _SHARPEST)
    spread = np.where(spread > _CONSTANT * np.abs(middle), spread, np.inf)  # a figure that never changes says nothing
    reach = apart / spread / 2 + _CLIP
    scaled, met = (np.clip((rows - middle) / spread, -reach, reach) for rows in (examples, shown))
    kept = np.argsort(-apart / spread, kind="stable")[:_NUM_KEPT]
    classifier = LogisticRegression(C=_REGULARISATION, max_iter=500).fit(scaled[:, kept], known)
    return [int(guess) for guess in classifier.predict(met[:, kept])]


def _parts(view: SharedView, *, adaptive: bool) -> Iterator[Part]:
    for message in view.received():
        yield from _payload(message)
    if view.answers is not None:
        yield Part("answers", 0, view.answers)
    if not adaptive:
        return
    for session in view.sessions:
        if view.adversary == "curious server":
            yield from _unblinded_by_server(view, session)
        elif view.adversary == "answering party":
            yield from _unblinded_by_answerer(view, session)
        elif view.adversary == "querying party":
            for place, numbers in enumerate(blinded_numbers(view, session)):
                yield Part(f"u {session.answerer} {place}", 0, numbers, has_order=True)
    if view.adversary == "querying party":
        for place, total in enumerate(_sums(view)):
            yield Part(f"sum {place}", 0, total)


def _payload(message: Message) -> Iterator[Part]:
    """The numbers and packed bits of a message; names, indices and circuits are public."""
    for item in fields(message):
        value, name = getattr(message, item.name), f"{type(message).__name__}.{item.name}"
        for place, part in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(part, Tensor) and part.numel():
                yield Part(name, place, part)
            elif isinstance(part, bytes) and item.name == "bits":
                yield Part(name, place, torch.frombuffer(bytearray(part), dtype=torch.uint8))


def _unblinded_by_server(view: SharedView, session: Session) -> Iterator[Part]:
    """What it passes on to the judge, with order, sign and factor taken off: t plus a mask, if the masks are right."""
    for index, size in view.batches(session):
        stream = view.stream(session, session.answerer, "comparison", index, size)
        messages = view.messages(BlindedValues, session, batch_index=index)
        for place, (message, bits) in enumerate(zip(messages, comparison_bits(session.circuit), strict=True)):
            values = message.values
            blinding = Blinding.draw(stream, (values.shape[0], values.shape[1]), bits, view.style)
            if blinding.orders is not None:
                values = torch.empty_like(values).scatter_(1, blinding.orders, values)
            yield Part("unblinded", place, blinding.signs * values * odd_inverse(blinding.factors))
        for place, masked in enumerate(view.messages(ServerTurn, session, batch_index=index)):
            yield Part(f"layer input {place}", 0, masked.value)


def _unblinded_by_answerer(view: SharedView, session: Session) -> Iterator[Part]:
    """The query plus the server's mask: its own share of the query, and what the server sends for the first layer."""
    for index, size in view.batches(session):
        share = view.stream(session, session.querier, "input", index, size).words(size, *session.circuit.input_shape)
        first, *_ = view.messages(ServerTurn, session, batch_index=index)
        if first.value.shape == share.shape:
            yield Part("query", 0, share + first.value)


def _sums(view: SharedView) -> Iterator[Tensor]:
    """The sums of the logits in the ring, unmasked: their last bits too."""
    by_id = {session.session_id: session for session in view.sessions}
    for message in view.messages(SummedLogits):
        total, size = message.logits, len(message.logits)
        for session_id, index in zip(message.session_ids, message.batch_indices, strict=True):
            session = by_id[session_id]
            mask = view.stream(session, session.answerer, "output", index, size).words(*total.shape)
            total = total - (mask << (message.fraction_bits - session.circuit.output.fraction_bits))
        yield total
