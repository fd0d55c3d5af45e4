"""Telling two worlds apart by a party's view: does it say anything about others' secrets?

An attacker that knows the protocol plays all parties by itself in both worlds (queries t or -t, say), describes the
views that its role has there by figures, and learns a classifier. Then it is shown views of real runs.

The naive attacker looks at the mean of each kind of number that it receives. The adaptive one first undoes all
blinding that it can undo with its own seeds, and looks at every bit, at neighbours, and at sizes. If masks are uniform
and used once, all of these are coin flips in both worlds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bilateral.audit.shared_views import Session, SharedView, blinded_numbers, comparison_bits
from bilateral.protocols.messages import Message
from bilateral.protocols.share.comparison import Blinding, odd_inverse
from bilateral.protocols.share.messages import BlindedValues, MaskedValue, SummedLogits

_REGULARISATION = 0.1
_NUM_KEPT = 20
"""There are more figures than examples: those that differ most between the worlds are kept."""
_CLIP = 4.0
"""In standard deviations: the attacker's networks are not the real ones, and figures of real runs may be far out."""
_CONSTANT = 1e-12


def describe(view: SharedView, *, adaptive: bool) -> np.ndarray:
    """A view in figures: the same ones, in the same order, for all views of one circuit and batch size."""
    kinds: dict[str, list[Tensor]] = {}
    for name, part in _parts(view, adaptive=adaptive):
        kinds.setdefault(name, []).append(part)
    figures = _bit_figures if adaptive else _mean_figure
    return np.concatenate([figures(kinds[name]) for name in sorted(kinds)])


def guess_worlds(examples: np.ndarray, worlds: Sequence[int], shown: np.ndarray) -> list[int]:
    """Learn from `examples` (a row a run) of known worlds 0 and 1; guess those of `shown`."""
    middle, spread = examples.mean(0), examples.std(0)
    spread = np.where(spread > _CONSTANT * np.abs(middle), spread, np.inf)  # a figure that never changes says nothing
    scaled, met = (np.clip((rows - middle) / spread, -_CLIP, _CLIP) for rows in (examples, shown))
    known = np.asarray(worlds)
    kept = np.argsort(-np.abs(scaled[known == 1].mean(0) - scaled[known == 0].mean(0)), kind="stable")[:_NUM_KEPT]
    classifier = LogisticRegression(C=_REGULARISATION, max_iter=500).fit(scaled[:, kept], known)
    return [int(guess) for guess in classifier.predict(met[:, kept])]


def _parts(view: SharedView, *, adaptive: bool) -> Iterator[tuple[str, Tensor]]:
    for message in view.received():
        yield from _payload(message)
    if view.answers is not None:
        yield "answers", view.answers
    if not adaptive:
        return
    for session in view.sessions:
        if view.adversary == "curious server":
            yield from _unblinded_by_server(view, session)
        elif view.adversary == "answering party":
            yield from _unblinded_by_answerer(view, session)
        elif view.adversary == "querying party":
            for place, numbers in enumerate(blinded_numbers(view, session)):
                yield f"u {session.answerer} {place}", numbers
    if view.adversary == "querying party":
        yield "sum", _summed(view)


def _payload(message: Message) -> Iterator[tuple[str, Tensor]]:
    """The numbers and packed bits of a message; names, indices and circuits are public."""
    for item in fields(message):
        value = getattr(message, item.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Tensor) and part.numel():
                yield f"{type(message).__name__}.{item.name}", part
            elif isinstance(part, bytes) and item.name == "bits":
                yield f"{type(message).__name__}.{item.name}", torch.frombuffer(bytearray(part), dtype=torch.uint8)


def _unblinded_by_server(view: SharedView, session: Session) -> Iterator[tuple[str, Tensor]]:
    """What it passes on to the judge, with order, sign and factor taken off: t plus a mask, if the masks are right."""
    for index, size in view.batches(session):
        stream = view.stream(session, session.answerer, "comparison", index, size)
        messages = view.messages(BlindedValues, session, batch_index=index)
        for message, fraction_bits in zip(messages, comparison_bits(session.circuit), strict=True):
            values = message.values
            blinding = Blinding.draw(stream, (values.shape[0], values.shape[1]), fraction_bits, view.style)
            if blinding.orders is not None:
                values = torch.empty_like(values).scatter_(1, blinding.orders, values)
            yield "unblinded", blinding.signs * values * odd_inverse(blinding.factors)
        for place, masked in enumerate(view.messages(MaskedValue, session, batch_index=index)):
            yield f"layer input {place}", masked.value


def _unblinded_by_answerer(view: SharedView, session: Session) -> Iterator[tuple[str, Tensor]]:
    """The query plus the server's mask: its own share of the query, and what the server sends for the first layer."""
    for index, size in view.batches(session):
        share = view.stream(session, session.querier, "input", index, size).words(size, *session.circuit.input_shape)
        first, *_ = view.messages(MaskedValue, session, batch_index=index)
        if first.value.shape == share.shape:
            yield "query", share + first.value


def _summed(view: SharedView) -> Tensor:
    """The sum of the logits in the ring, unmasked: its last bits too."""
    by_id = {session.session_id: session for session in view.sessions}
    totals = []
    for message in view.messages(SummedLogits):
        total, size = message.logits, len(message.logits)
        for session_id, index in zip(message.session_ids, message.batch_indices, strict=True):
            session = by_id[session_id]
            mask = view.stream(session, session.answerer, "output", index, size).words(*total.shape)
            total = total - (mask << (message.fraction_bits - session.circuit.output.fraction_bits))
        totals.append(total)
    return torch.cat(totals)


def _mean_figure(parts: Sequence[Tensor]) -> np.ndarray:
    numbers = np.concatenate([part.double().reshape(-1).numpy() for part in parts])
    return np.array([numbers.mean()])


def _bit_figures(parts: Sequence[Tensor]) -> np.ndarray:
    """Per bit: how often it is set, and how often it differs from the next number's; the mean; the mean log size."""
    by_type: dict[torch.dtype, list[Tensor]] = {}
    for part in parts:
        by_type.setdefault(part.dtype, []).append(part.reshape(-1))
    figures = []
    for found in by_type.values():
        numbers = torch.cat(found).contiguous()
        if numbers.is_floating_point():
            figures.append(np.array([float(numbers.mean()), float(numbers.std())]))
            continue
        width = 8 * numbers.element_size()
        bits = np.unpackbits(numbers.view(torch.uint8).numpy(), bitorder="little").reshape(-1, width)
        differs = bits[1:] ^ bits[:-1] if len(bits) > 1 else np.zeros((1, width), dtype=np.uint8)
        floats = numbers.double()
        sizes = [float(floats.mean()), float(floats.abs().clamp_min(1).log2().mean())]
        figures += [bits.mean(0), differs.mean(0), np.array(sizes)]
    return np.concatenate(figures)
