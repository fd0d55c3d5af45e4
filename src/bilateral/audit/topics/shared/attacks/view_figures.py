"""A view in figures: what weak masks show.

| weakness                            | figure                                                       |
|-------------------------------------|--------------------------------------------------------------|
| bits that are not masked            | how often each bit is set; mean, mean log size               |
| neighbours with related masks       | how often each bit differs from the next number's            |
| one mask for a whole tensor         | sizes of differences at several distances, equal words       |
| a mask that comes again             | equal words anywhere, whatever the distance                  |
| a batch or session with old masks   | differences between the same numbers of two batches          |
| bits that are not masked, anywhere  | which bits of the same numbers of two batches differ         |
| numbers that are not reordered      | how much larger the first half of a sample is than the last  |
| planes of bits, any of these        | of every plane: ones, and what differs from neighbours       |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

_LAGS: Final = (1, 2, 4, 8)


class Part(NamedTuple):
    """Numbers of one kind. Those of the same kind, place and shape are the same numbers of another batch."""

    kind: str
    place: int
    numbers: Tensor
    """Integers, floats, or planes of bits: (planes, bits) of zeros and ones, as uint8."""
    has_order: bool = False
    """Whether the order of a sample's numbers is a secret."""


def mean_figures(parts: Sequence[Part]) -> np.ndarray:
    """Naive: the mean of every kind."""
    return np.array([_flat(found).double().mean() for _, found in _by_kind(parts)])


def weakness_figures(parts: Sequence[Part]) -> np.ndarray:
    """Adaptive: of every kind what the table above has. Floating-point numbers (answers): mean and spread."""
    figures = []
    for _, found in _by_kind(parts):
        if found[0].numbers.dtype == torch.uint8:
            figures += _plane_figures(found)
            continue
        numbers = _flat(found)
        if numbers.is_floating_point():
            figures.append([float(numbers.mean()), float(numbers.std())])
            continue
        figures += [_bit_figures(numbers), _difference_figures(numbers), _repeat_figures(found)]
        if found[0].has_order:
            figures.append(_half_figures(found))
    return np.concatenate(figures)


def _by_kind(parts: Sequence[Part]) -> list[tuple[tuple[str, str], list[Part]]]:
    kinds: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for part in parts:
        kinds[part.kind, str(part.numbers.dtype)].append(part)
    return sorted(kinds.items(), key=lambda item: item[0])


def _flat(parts: Sequence[Part]) -> Tensor:
    return torch.cat([part.numbers.reshape(-1) for part in parts]).contiguous()


def _bit_figures(numbers: Tensor) -> list[float]:
    """Per bit: how often it is set, and how often it differs from the next number's; the mean; the mean log size."""
    bits = _bits(numbers)
    differs = bits[1:] ^ bits[:-1] if len(bits) > 1 else np.zeros_like(bits)
    return [*bits.mean(0), *differs.mean(0), float(numbers.double().mean()), _log_size(numbers)]


def _bits(numbers: Tensor) -> np.ndarray:
    """A row a number, lowest bits first."""
    width = 8 * numbers.element_size()
    return np.unpackbits(numbers.view(torch.uint8).numpy(), bitorder="little").reshape(-1, width)


def _plane_figures(parts: Sequence[Part]) -> list[list[float]]:
    """By plane: the share of ones, and of bits that differ from one further on. Of any two batches: what differs."""
    planes = torch.cat([part.numbers for part in parts], dim=1).numpy()
    nothing = np.zeros(len(planes))
    differs = [(planes[:, lag:] ^ planes[:, :-lag]).mean(1) if planes.shape[1] > lag else nothing for lag in _LAGS]
    by_pair: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
    for same in _same_places(parts).values():
        for first, second in combinations(range(len(same)), 2):
            by_pair[first, second].append((same[first] ^ same[second]).numpy())
    apart = [np.concatenate([np.atleast_2d(one) for one in found], axis=1).mean(1) for found in by_pair.values()]
    least = np.min(apart, axis=0) if apart else nothing
    return [one.tolist() for one in (planes.mean(1), *differs, least)]


def _difference_figures(numbers: Tensor) -> list[float]:
    """How large differences are (in the ring) at some distances, and the share of words that were there before."""
    sizes = [_log_size(numbers[lag:] - numbers[:-lag]) if len(numbers) > lag else 0.0 for lag in _LAGS]
    return [*sizes, 1.0 - len(torch.unique(numbers)) / len(numbers)]


def _repeat_figures(parts: Sequence[Part]) -> list[float]:
    """Of the two batches that are most alike: the share of equal words, how large differences are, which bits differ.

    Single bits show masks that leave some of them bare, where numbers come again and look random.
    """
    places = {key: [one.reshape(-1) for one in same] for key, same in _same_places(parts).items()}
    width = 8 * parts[0].numbers.element_size()
    equal, sizes, bits = [0.0], [float(width)], [np.full(width, 0.5)]
    # Of every place the pairs come in the same order: those of one pair of batches are put together.
    by_pair: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for same in places.values():
        for first, second in combinations(range(len(same)), 2):
            by_pair[first, second].append((same[first], same[second]))
    for found in by_pair.values():
        one, other = (torch.cat(side) for side in zip(*found, strict=True))
        equal.append(float((one == other).double().mean()))
        sizes.append(_log_size(one - other))
        bits.append(_bits(one ^ other).mean(0))
    return [max(equal), min(sizes), *np.min(bits, axis=0)]


def _same_places(parts: Sequence[Part]) -> dict[tuple[int, torch.Size], list[Tensor]]:
    """The same numbers, or planes, of several batches."""
    places: dict[tuple[int, torch.Size], list[Tensor]] = defaultdict(list)
    for part in parts:
        places[part.place, part.numbers.shape].append(part.numbers)
    return places


def _half_figures(parts: Sequence[Part]) -> list[float]:
    """Of a sample's numbers: log size and sign of the first half, less those of the second half."""
    sizes, signs, count = 0.0, 0.0, 0
    for part in parts:
        rows = part.numbers.reshape(len(part.numbers), -1)
        half = rows.shape[1] // 2
        if half:
            sizes += _log_size(rows[:, :half]) - _log_size(rows[:, -half:])
            signs += float(rows[:, :half].sign().double().mean() - rows[:, -half:].sign().double().mean())
            count += 1
    return [sizes / max(count, 1), signs / max(count, 1)]


def _log_size(numbers: Tensor) -> float:
    return float(numbers.double().abs().clamp_min(1).log2().mean())
