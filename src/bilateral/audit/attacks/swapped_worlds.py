"""Which of two clients holds which of two batches? A test of single uploads that no sum can answer.

In world 0 the first client trains on batch x and the second on y; in world 1 it is the other way round. Both have the
same weight, so that the sum, and the model that follows from it, are the same in both worlds. The attacker knows x and
y; it plays the run by itself, in both worlds, with keys of its own, before it is shown a real one.

Reading: the difference of the two clients' uploads should point along the difference of the gradients of x and y.
- naive: the numbers as they came, masked or not, at the model that was sent.
- adaptive: masks are taken off as far as they are known (`stripped_masks`), and the server undoes its perturbation.

Learning (`tell_worlds`): figures of every number and every string of bytes in all messages of a round, and the readings
beside them. What belongs to the first client is compared with what belongs to the second. The naive attacker has the
means alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilateral.audit.attacks.stripped_masks import stripped_upload
from bilateral.audit.attacks.uploads import as_rows, client_model, rows_of, sum_gradient, true_model, upload_of
from bilateral.audit.threat import View
from bilateral.data import Split
from bilateral.engine.transcript import Entry
from bilateral.learning.exchange import SERVER, SETUP
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.messages import Message, RoundModel, Upload

FloatArray = NDArray[np.float64]
Figures = dict[str, FloatArray]
"""What is known of a round, by name; the same names and sizes in all rounds of a run."""
_MAX_VALUES = 4096
"""Numbers of a tensor that are looked at bit by bit, evenly spaced."""
_NUM_KEPT = 8
_SURENESS = 20.0
"""The most that one figure may say (log likelihood): the attacker's run is not the real one."""
_SMALLEST = 1e-300
_FIRST, _SECOND, _OTHER = "first", "second", "other"


@dataclass(frozen=True, eq=False)
class Suspicion:
    """What the attacker knows: the two clients, the two batches (of equal size), and its own clients' keys."""

    first: str
    second: str
    x: Split = field(repr=False)
    y: Split = field(repr=False)
    rings: Mapping[str, KeyRing] = field(default_factory=dict, repr=False)
    left_out: tuple[type[Message], ...] = ()
    """Messages that it does not look at."""

    def role(self, name: str) -> str:
        return {self.first: _FIRST, self.second: _SECOND}.get(name, _OTHER)


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
    parameters = _sent(view, round_index)
    first, second = (rows_of(one, len(parameters))[0] for one in uploads if one is not None)
    return _cosine(first - second, _expected(view, parameters, known, sent=True))


def adaptive_reading(view: View, round_index: int, known: Suspicion) -> float:
    """The same, with all masks taken off that it knows; the server compares true gradients."""
    uploads = [_unmasked(view, round_index, name, known) for name in (known.first, known.second)]
    if uploads[0] is None or uploads[1] is None:
        return 0.0
    if not view.server_rounds:
        first, second = (one.terms[0].double() for one in uploads if one is not None)
        return _cosine(first - second, _expected(view, _sent(view, round_index), known, sent=True))
    held = view.server_round(round_index)
    first, second = (held.gradient_of(one) for one in uploads if one is not None)
    return _cosine(first - second, _expected(view, held.parameters, known, sent=False))


@dataclass
class Describer:
    """Rounds in figures. It remembers what it found in a message: several views share it."""

    known: Suspicion
    _seen: dict[int, tuple[Message, Figures]] = field(default_factory=dict, repr=False)

    def describe(self, view: View, round_index: int, *, adaptive: bool) -> Figures:
        """Figures of a round (one of `rounds_of`); what the two clients have both is compared."""
        kinds: dict[str, list[FloatArray]] = {}
        for entry in view.entries:
            if entry.round_index == round_index and not isinstance(entry.message, Roster):
                end = self.known.role(entry.receiver if entry.sender == SERVER else entry.sender)
                for name, figures in self._of_message(entry.message).items():
                    kinds.setdefault(f"{end} {name}", []).append(figures if adaptive else figures[:1])
        found = compared({name: np.mean(parts, axis=0) for name, parts in kinds.items()})
        if adaptive:
            found.update(self._readings(view, round_index))
        return found

    def _of_message(self, message: Message) -> Figures:
        if id(message) not in self._seen:
            found = {name: _figures(values) for name, values in _contents(message, self.known)}
            self._seen[id(message)] = (message, found)
        return self._seen[id(message)][1]

    def _readings(self, view: View, round_index: int) -> Figures:
        known = self.known
        readings = [naive_reading(view, round_index, known), adaptive_reading(view, round_index, known)]
        before = _sent(view, round_index)
        after = view.message(RoundModel, round_index=round_index + 1)
        if after is not None:  # where the model is sent as it is, this is the sum
            readings.append(_cosine((after.parameters - before).double(), _expected(view, before, known, sent=True)))
        if view.server_rounds:
            held, (rest, _) = view.server_round(round_index), sum_gradient(view, round_index)
            readings.append(_cosine(rest, _expected(view, held.parameters, known, sent=False)))
        return {"readings": np.array(readings)}


def compared(figures: Figures) -> Figures:
    """What the first client has minus what the second has, wherever both have it; the rest as it is."""
    found = {}
    for name, values in figures.items():
        words = name.split(" ")
        other = " ".join({_FIRST: _SECOND, _SECOND: _FIRST}.get(word, word) for word in words)
        if other == name or other not in figures:
            found[name] = values
        elif name < other:
            found[name] = values - figures[other]
    return found


def tell_worlds(examples: Sequence[Figures], worlds: Sequence[int], shown: Sequence[Figures]) -> list[int]:
    """Learn from rounds of known worlds 0 and 1; guess those of the rounds that are shown.

    Normal likelihoods of the few figures that differ most between the worlds, beside their spread inside a world. The
    figures of each run are taken from their mean: another run has another model. With one world alone to learn from
    there is nothing to learn, and the guess is that world.
    """
    if len(set(worlds)) < 2:
        return [worlds[0]] * len(shown)
    names = sorted(set.intersection(*(set(one) for one in (*examples, *shown))))
    rows, met = (_centred([np.concatenate([one[name] for name in names]) for one in part]) for part in (examples, shown))
    label = np.asarray(worlds)
    ones, zeros = rows[label == 1], rows[label == 0]
    gap = ones.mean(0) - zeros.mean(0)
    spread = np.sqrt((ones.var(0) * len(ones) + zeros.var(0) * len(zeros)) / len(rows))
    spread = np.maximum(spread, 1e-6 * np.abs(gap) + _SMALLEST)
    kept = np.argsort(-np.abs(gap) / spread, kind="stable")[:_NUM_KEPT]
    middle = (ones.mean(0) + zeros.mean(0)) / 2
    evidence = (met - middle)[:, kept] * (gap / spread)[kept] / spread[kept]
    return [int(value) for value in np.clip(evidence, -_SURENESS, _SURENESS).sum(1) > 0]


def _centred(rows: Sequence[FloatArray]) -> FloatArray:
    found = np.stack(rows)
    centred: FloatArray = found - found.mean(0)
    return centred


def _unmasked(view: View, round_index: int, client: str, known: Suspicion) -> Upload | None:
    plain = view.message(Upload, round_index=round_index, sender=client)
    return plain or stripped_upload(view, round_index, client, known.rings)


def _sent(view: View, round_index: int) -> Tensor:
    message = view.message(RoundModel, round_index=round_index)
    assert message is not None, f"no model of round {round_index} in this view"
    return message.parameters


def _expected(view: View, parameters: Tensor, known: Suspicion, *, sent: bool) -> Tensor:
    """gradient(x) - gradient(y) at these parameters, of the network that clients were sent or of the true one."""
    model = client_model(view.facts) if sent else true_model(view.facts)
    dtype = known.x.inputs.dtype
    model.network.to(dtype)
    places = parameters.to(dtype).expand(2, -1)
    inputs = torch.stack([known.x.inputs, known.y.inputs])
    targets = torch.stack([as_rows(part.targets, view.facts.num_outputs, dtype) for part in (known.x, known.y)])
    with torch.no_grad():
        of_x, of_y = model.gradients(places, inputs, targets).double()
    return of_x - of_y


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
    rows = values.reshape(len(values), -1)
    bits = np.unpackbits(rows, axis=1, bitorder="little")
    differs = bits[1:] ^ bits[:-1] if len(bits) > 1 else np.zeros((1, bits.shape[1]), dtype=np.uint8)
    return np.concatenate([[rows[:, -1].astype(np.int8).mean()], bits.mean(0), differs.mean(0)])
