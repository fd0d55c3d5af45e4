"""Which of two clients holds which of two batches? A test of single uploads that no sum can answer.

In world 0 the first client trains on batch x and the second on y; in world 1 it is the other way round. Both have the
same weight, so that the sum, and the model that follows from it, are the same in both worlds but for the last bits that
clients draw with keys of their own, in either world alike. The attacker knows x and y; it plays the run by itself, in
both worlds, with keys of its own, before it is shown a real one.

Reading: the difference of the two clients' uploads should point along the difference of the gradients of x and y.
- naive: the numbers as they came, masked or not, at the model that was sent.
- adaptive: masks are taken off as far as they are known (`stripped_masks`), and the server undoes its perturbation.

Learning (`tell_worlds`): figures of every number and every string of bytes in all messages of a round, and the readings
beside them. What belongs to the first client is compared with what belongs to the second. The naive attacker has the
means and the naive reading alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilateral.audit.topics.inversion.attacks.gradient_matching import GradientModel
from bilateral.audit.topics.inversion.attacks.stripped_masks import stripped_upload
from bilateral.audit.topics.inversion.attacks.uploads import (
    as_rows,
    client_model,
    rows_of,
    sent_parameters,
    sum_gradient,
    true_model,
    upload_of,
)
from bilateral.audit.topics.swapped.attacks.recomputed_uploads import Rehearsal
from bilateral.audit.views import View
from bilateral.data import Split
from bilateral.engine.transcript import Entry
from bilateral.learning.exchange import SETUP
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.messages import Message, RoundModel, Upload
from bilateral.protocols.transport import SERVER

FloatArray = NDArray[np.float64]
Figures = dict[str, FloatArray]
"""What is known of a round, by name; the same names and sizes in all rounds of a run."""
DIFFERENCE = "difference: "
"""How the names of figures begin that change their sign with the world."""
NAIVE_READING, ADAPTIVE_READING = f"{DIFFERENCE}naive reading", f"{DIFFERENCE}adaptive reading"
_MAX_VALUES = 4096
"""Numbers of a tensor that are looked at bit by bit, evenly spaced."""
_NUM_KEPT = 8
_LEAST_SPREAD = 1e-3
"""Of a figure inside a world, as a part of the gap between the worlds."""
_SMALLEST = 1e-300
_FIRST, _SECOND, _OTHER = "first", "second", "other"


@dataclass(frozen=True, eq=False)
class Notes:
    """What was found about a run's models and messages, so that several views of one run need not find it again."""

    models: dict[bool, GradientModel] = field(default_factory=dict, repr=False)
    directions: dict[tuple[int, bool], Tensor] = field(default_factory=dict, repr=False)
    """By round, and whether of the model that was sent or of the true one."""
    uploads: dict[tuple[int, str, int], Upload] = field(default_factory=dict, repr=False)
    """What a client would upload in a round if it had x (0) or y (1)."""
    rehearsal: Rehearsal = field(default_factory=Rehearsal, repr=False)
    figures: dict[int, tuple[Message, Figures]] = field(default_factory=dict, repr=False)
    """By identity; what it is the identity of is kept beside, so that nothing else can have it."""


@dataclass(frozen=True, eq=False)
class Suspicion:
    """What the attacker knows: the two clients, the two batches (of equal size), and its own clients' keys."""

    first: str
    second: str
    x: Split = field(repr=False)
    y: Split = field(repr=False)
    weight: int = 1
    """Of both in the average."""
    rings: Mapping[str, KeyRing] = field(default_factory=dict, repr=False)
    left_out: tuple[type[Message], ...] = ()
    """Messages that it does not look at."""
    notes: Notes = field(default_factory=Notes, repr=False)

    def role(self, name: str) -> str:
        return {self.first: _FIRST, self.second: _SECOND}.get(name, _OTHER)

    def batch(self, name: str, world: int) -> Split:
        """What this suspect trains on in that world."""
        return self.y if (name == self.second) ^ bool(world) else self.x


def rounds_of(view: View, left_out: tuple[type[Message], ...] = ()) -> dict[int, View]:
    """The view, round by round: the last attempt of each, with the run's keys and the next round's model."""
    by_round: dict[int, list[Entry]] = {}
    always: list[Entry] = []
    for entry in view.entries:
        if entry.round_index == SETUP or isinstance(entry.message, Roster):
            always.append(entry)
        elif not isinstance(entry.message, left_out):
            by_round.setdefault(entry.round_index, []).append(entry)
    found = {}
    for number, entries in by_round.items():
        last = max(getattr(entry.message, "attempt", 0) for entry in entries)
        kept = [entry for entry in entries if getattr(entry.message, "attempt", last) == last]
        following = [e for e in by_round.get(number + 1, ()) if isinstance(e.message, RoundModel)]
        found[number] = replace(view, entries=(*always, *kept, *following))
    return found


def naive_reading(view: View, round_index: int, known: Suspicion) -> float:
    """Above 0 speaks for world 0: the uploads' first terms as numbers, against the gradients at the model sent."""
    uploads = [upload_of(view, round_index, name) for name in (known.first, known.second)]
    if uploads[0] is None or uploads[1] is None:
        return 0.0
    parameters = sent_parameters(view, round_index)
    first, second = (rows_of(one, len(parameters))[0] for one in uploads if one is not None)
    return _cosine(first - second, _expected(view, round_index, parameters, known, sent=True))


def adaptive_reading(view: View, round_index: int, known: Suspicion) -> float:
    """The same, with all masks taken off that it knows; the server compares true gradients."""
    uploads = [_unmasked(view, round_index, name, known) for name in (known.first, known.second)]
    if uploads[0] is None or uploads[1] is None:
        return 0.0
    if not view.server_rounds:
        first, second = (one.terms[0].double() for one in uploads if one is not None)
        return _cosine(
            first - second, _expected(view, round_index, sent_parameters(view, round_index), known, sent=True)
        )
    held = view.server_round(round_index)
    named = zip(uploads, (known.first, known.second), strict=True)
    first, second = (held.gradient_of(one, name) for one, name in named if one is not None)
    return _cosine(first - second, _expected(view, round_index, held.parameters, known, sent=False))


def describe(view: View, round_index: int, known: Suspicion, *, adaptive: bool) -> Figures:
    """Figures of a round (one of `rounds_of`); what both clients have is compared."""
    kinds: dict[str, list[FloatArray]] = {}
    for entry in view.entries:
        if entry.round_index == round_index and not isinstance(entry.message, Roster):
            end = known.role(entry.receiver if entry.sender == SERVER else entry.sender)
            for name, figures in _of_message(entry.message, known).items():
                kinds.setdefault(f"{end} {name}", []).append(figures if adaptive else figures[:1])
    found = compared({name: np.mean(parts, axis=0) for name, parts in kinds.items()})
    for name, reading in _readings(view, round_index, known, adaptive=adaptive):
        found[name] = np.array([reading])
    return found


def _readings(view: View, round_index: int, known: Suspicion, *, adaptive: bool) -> Iterator[tuple[str, float]]:
    """Both readings; and, which must say nothing, where the sum and the next model point."""
    yield NAIVE_READING, naive_reading(view, round_index, known)
    if not adaptive:
        return
    yield ADAPTIVE_READING, adaptive_reading(view, round_index, known)
    before = sent_parameters(view, round_index)
    after = view.message(RoundModel, round_index=round_index + 1)
    if (
        after is not None and after.parameters.shape == before.shape
    ):  # where the model is sent as it is, this is the sum
        change = (after.parameters - before).double()
        yield "change of the model", _cosine(change, _expected(view, round_index, before, known, sent=True))
    if view.server_rounds:
        held, (rest, _) = view.server_round(round_index), sum_gradient(view, round_index)
        yield "sum", _cosine(rest, _expected(view, round_index, held.parameters, known, sent=False))


def _of_message(message: Message, known: Suspicion) -> Figures:
    if id(message) not in known.notes.figures:
        found = {name: _figures(values) for name, values in _contents(message, known)}
        known.notes.figures[id(message)] = (message, found)
    return known.notes.figures[id(message)][1]


def compared(figures: Figures) -> Figures:
    """What the first client has minus what the second has, wherever both have it; the rest as it is."""
    found = {}
    for name, values in figures.items():
        words = name.split(" ")
        other = " ".join({_FIRST: _SECOND, _SECOND: _FIRST}.get(word, word) for word in words)
        if other == name or other not in figures:
            found[name] = values
        elif name < other:
            found[DIFFERENCE + name] = values - figures[other]
    return found


def tell_worlds(
    examples: Sequence[Sequence[Figures]], worlds: Sequence[Sequence[int]], shown: Sequence[Figures]
) -> list[int]:
    """Learn from runs whose rounds are of known worlds, 0 and 1; guess those of the rounds of the run that is shown.

    Normal likelihoods of the few figures that differ most between the worlds, beside their spread inside a world. Each
    run has another model: figures other than differences are taken from their mean in a run, and what differs from run
    to run is a spread too. No figure may say more than it did in the examples. With one world alone to learn from, the
    guess is that world.
    """
    known = np.asarray([world for run in worlds for world in run])
    if len(set(known.tolist())) < 2:
        return [int(known[0])] * len(shown)
    every = [figures for run in (*examples, shown) for figures in run]
    names = sorted(set(every[0]).intersection(*every[1:]))
    rows, met = np.concatenate([_centred(run, names) for run in examples]), _centred(shown, names)
    ones, zeros = rows[known == 1], rows[known == 0]
    gap, middle = ones.mean(0) - zeros.mean(0), (ones.mean(0) + zeros.mean(0)) / 2
    spread = np.sqrt((ones.var(0) * len(ones) + zeros.var(0) * len(zeros)) / len(rows))
    clear = np.divide(gap, np.maximum(spread, _LEAST_SPREAD * np.abs(gap)), out=np.zeros_like(gap), where=gap != 0)
    kept = np.argsort(-np.abs(clear), kind="stable")[:_NUM_KEPT]
    kept = kept[gap[kept] != 0]
    said = np.clip((met - middle)[:, kept] / gap[kept], -1.0, 1.0) * clear[kept] ** 2
    return [int(value > 0) for value in said.sum(1)]


def _centred(run: Sequence[Figures], names: Sequence[str]) -> FloatArray:
    columns = []
    for name in names:
        rows = np.stack([one[name] for one in run])
        columns.append(rows if name.startswith(DIFFERENCE) else rows - rows.mean(0))
    centred: FloatArray = np.concatenate(columns, axis=1)
    return centred


def _unmasked(view: View, round_index: int, client: str, known: Suspicion) -> Upload | None:
    plain = view.message(Upload, round_index=round_index, sender=client)
    return plain or stripped_upload(view, round_index, client, known.rings)


def _expected(view: View, round_index: int, parameters: Tensor, known: Suspicion, *, sent: bool) -> Tensor:
    """gradient(x) - gradient(y) at these parameters, of the network that clients were sent or of the true one."""
    notes, dtype = known.notes, known.x.inputs.dtype
    if (round_index, sent) in notes.directions:
        return notes.directions[round_index, sent]
    if sent not in notes.models:
        notes.models[sent] = client_model(view.facts) if sent else true_model(view.facts)
        notes.models[sent].network.to(dtype)
    places = parameters.to(dtype).expand(2, -1)
    inputs = torch.stack([known.x.inputs, known.y.inputs])
    targets = torch.stack([as_rows(part.targets, view.facts.num_outputs, dtype) for part in (known.x, known.y)])
    with torch.no_grad():
        of_x, of_y = notes.models[sent].gradients(places, inputs, targets).double()
    direction: Tensor = of_x - of_y
    notes.directions[round_index, sent] = direction
    return direction


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()).clamp_min(_SMALLEST))


def _contents(message: Message, known: Suspicion) -> Iterator[tuple[str, FloatArray | NDArray[np.uint8]]]:
    """Numbers and bytes of a message; of a list that goes with a list of names, by the role of the name."""
    values = {item.name: getattr(message, item.name) for item in fields(message)}
    lists = [value for value in values.values() if isinstance(value, tuple) and value and isinstance(value[0], str)]
    for item, value in values.items():
        name = f"{type(message).__name__}.{item}"
        if isinstance(value, Tensor) and value.numel():
            yield name, _spaced(value)
        elif isinstance(value, bytes) and value:
            yield name, np.frombuffer(value, dtype=np.uint8)
        elif isinstance(value, int) and item not in ("round_index", "attempt"):
            yield name, np.array([value], dtype=np.float64)
        elif isinstance(value, tuple) and value and isinstance(value[0], int):
            yield name, np.array(value, dtype=np.float64)
        elif isinstance(value, tuple) and value and isinstance(value[0], bytes):
            owners = next((names for names in lists if len(names) == len(value)), None)
            parts: dict[str, bytes] = {}
            for place, part in enumerate(value):
                role = "" if owners is None else " " + known.role(owners[place])
                parts[role] = parts.get(role, b"") + part
            for role, joined in parts.items():
                yield name + role, np.frombuffer(joined, dtype=np.uint8)


def _spaced(values: Tensor) -> FloatArray | NDArray[np.uint8]:
    """Some of the numbers: as they are, or as the bytes of integers (a row a number)."""
    flat = values.reshape(-1)
    flat = flat[:: max(1, len(flat) // _MAX_VALUES)]
    if flat.is_floating_point():
        found: FloatArray = flat.double().numpy()
        return found
    return np.ascontiguousarray(flat.numpy()).view(np.uint8).reshape(len(flat), -1)


def _figures(values: FloatArray | NDArray[np.uint8]) -> FloatArray:
    """Numbers: mean, spread, mean size. Bytes: the mean; per bit, how often it is set and differs from the next's."""
    if values.dtype == np.float64:
        return np.array([values.mean(), values.std(), np.abs(values).mean()])
    rows = values.astype(np.uint8, copy=False).reshape(len(values), -1)
    bits = np.unpackbits(rows, axis=1, bitorder="little")
    differs = bits[1:] ^ bits[:-1] if len(bits) > 1 else np.zeros((1, bits.shape[1]), dtype=np.uint8)
    return np.concatenate([[rows[:, -1].astype(np.int8).mean()], bits.mean(0), differs.mean(0)])
