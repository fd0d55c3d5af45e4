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

from bilateral.audit.shared_views import (
    Session,
    SharedView,
    Turn,
    bits_of,
    blinded_numbers,
    numbers_in_place,
    opened,
    own_correlations,
    told,
)
from bilateral.audit.topics.shared.attacks.view_figures import Part, mean_figures, weakness_figures
from bilateral.protocols.messages import Message
from bilateral.protocols.share.gates.judged import Blinding, odd_inverse
from bilateral.protocols.share.prediction.messages import AnswererTurn, BlindedValues, ServerTurn, SummedLogits

_REGULARISATION = 0.1
_NUM_KEPT = 20
"""There are more figures than examples: those that differ most between the worlds are kept."""
_CLIP = 4.0
"""In standard deviations beyond both worlds: the attacker's networks are not the real ones."""
_SHARPEST = 100.0
"""A figure that is constant in each world and differs between them counts as so many standard deviations apart."""
_CONSTANT = 1e-12
_COMPUTING = ("curious server", "answering party")


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
        if not isinstance(message, ServerTurn | AnswererTurn):
            yield from _payload(message)
    for session in view.sessions:
        yield from _turns(view, session)
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
            yield from _unblinded_by_querier(view, session)
        if view.adversary in _COMPUTING and not view.style.is_judged:
            yield from _opened(view, session)
    if view.adversary == "querying party":
        for place, total in enumerate(_sums(view)):
            yield Part(f"sum {place}", 0, total)


def _payload(message: Message) -> Iterator[Part]:
    """The numbers of a message; names, indices and circuits are public."""
    for item in fields(message):
        value, name = getattr(message, item.name), f"{type(message).__name__}.{item.name}"
        for place, part in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(part, Tensor) and part.numel():
                yield Part(name, place, part)


def _turns(view: SharedView, session: Session) -> Iterator[Part]:
    """What the other computing party told, each kind by itself."""
    if view.adversary not in _COMPUTING:
        return
    other: Turn = AnswererTurn if view.adversary == "curious server" else ServerTurn
    for index, _ in view.batches(session):
        for name, part in told(view, session, index, other).items():
            yield Part(f"{name.what} {name.level}", name.place, part)


def _unblinded_by_server(view: SharedView, session: Session) -> Iterator[Part]:
    """What it passes on to the judge, with order, sign and factor taken off: t plus a mask, if the masks are right."""
    for index, size in view.batches(session):
        stream = view.stream(session, session.answerer, "comparison", index, size)
        messages = view.messages(BlindedValues, session, batch_index=index)
        for place, (message, compared) in enumerate(zip(messages, session.circuit.comparisons, strict=False)):
            values = message.values
            shape = values.shape[0], values.shape[1]
            blinding = Blinding.draw(stream, shape, compared.fraction_bits, view.style)
            if blinding.orders is not None:
                values = torch.empty_like(values).scatter_(1, blinding.orders, values)
            yield Part("unblinded", place, blinding.signs * values * odd_inverse(blinding.factors))
        for name, masked in told(view, session, index, ServerTurn).items():
            if name.what == "layer input":
                yield Part(f"layer input {name.place}", 0, masked)


def _unblinded_by_answerer(view: SharedView, session: Session) -> Iterator[Part]:
    """The query plus the server's mask: its own share of the query, and what the server sends for the first layer."""
    for index, size in view.batches(session):
        share = view.stream(session, session.querier, "input", index, size).words(size, *session.circuit.input_shape)
        first = next(iter(told(view, session, index, ServerTurn).values()))
        if first.shape == share.shape:
            yield Part("query", 0, share + first)


def _unblinded_by_querier(view: SharedView, session: Session) -> Iterator[Part]:
    """Blinded numbers without their masks, where it judges; otherwise what it received less the masks it dealt."""
    if view.style.is_judged:
        for place, numbers in enumerate(blinded_numbers(view, session)):
            yield Part(f"u {session.answerer} {place}", 0, numbers, has_order=True)
        return
    for place, numbers in enumerate(numbers_in_place(view, session)):
        yield Part(f"in place {session.answerer} {place}", 0, numbers, has_order=True)


def _opened(view: SharedView, session: Session) -> Iterator[Part]:
    """What both computing parties see, as it is and less the party's own masks.

    y of all comparisons also side by side: masks that come again in another comparison show. And every bit of y and of
    the digits against m: a beta that has to do with r shows.
    """
    for index, size in view.batches(session):
        found = opened(view, session, index, size)
        fewest = min((one.numbers.numel() for one in found), default=0)
        for place, (one, own) in enumerate(zip(found, own_correlations(view, session, index, size), strict=True)):
            yield Part("opened numbers", place, one.numbers, has_order=True)
            yield Part("opened numbers, side by side", 0, one.numbers.reshape(-1)[:fewest])
            yield Part("less own mask", place, one.numbers - own.r.reshape(one.numbers.shape), has_order=True)
            signs = one.signs.reshape(1, -1)
            yield Part("opened signs", place, signs)
            yield Part("signs less own masks", place, signs ^ bits_of(own.blind, signs.shape[1]))
            digits = torch.cat(one.digits)
            yield Part("opened digits", place, digits)
            yield Part("digits less own masks", place, digits ^ bits_of(own.masks, digits.shape[1]))
            bits = np.unpackbits(one.numbers.reshape(-1, 1).numpy().view(np.uint8), axis=1, bitorder="little")
            yield Part("numbers against signs", place, torch.from_numpy(np.ascontiguousarray(bits.T)) ^ signs)
            yield Part("digits against signs", place, digits ^ signs)


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
