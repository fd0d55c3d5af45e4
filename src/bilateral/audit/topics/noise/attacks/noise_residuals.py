"""What is wrong with noise that somebody sees: too little of it, used again, or of a shape that gives its unit away.

The attacker is the one that differential privacy is about: it knows all data but one unit's, so that it can subtract
them. `residuals` are what is left of uploads, or of sums of them, in standard deviations of the noise that was claimed:
uploads x terms x coordinates. As claimed they are independent standard normal numbers.

Every figure is a limit that noise as claimed keeps with probability 1 - `risk`, all looks at it together
(test_noise_residuals.py). More noise than was claimed, and a correlation by chance, show nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

MOST_COORDINATES = 2**17 - 1
"""That are compared with each other at all distances."""
MOST_ROWS = 16
"""Uploads that are compared with each other."""
_NUM_BLOCKS = 64
_NUM_BINS = 400
Span = tuple[int, int]


@dataclass(frozen=True)
class Least:
    """The part of the noise with the least deviation: `deviation` is at most that, as a share of what was claimed."""

    deviation: float
    where: str


@dataclass(frozen=True)
class Reuse:
    """The two stretches of noise that are most alike: their correlation is `correlation` at least; 0 if by chance."""

    correlation: float
    where: str

    @property
    def remaining(self) -> float:
        """The deviation that noise has left for who knows the stretch that is like it."""
        return math.sqrt(1 - self.correlation**2)


def deviation_limit(squares: Tensor, count: int, risk: float) -> Tensor:
    """The largest deviation that sums of `count` squares are likely to come from, by chi-square."""
    return (squares / float(stats.chi2.ppf(risk, count))).sqrt()


def least_deviation(residuals: Tensor, owners: Sequence[str], spans: Sequence[Span], risk: float) -> Least:
    """The least deviation of all residuals, and of parts of them, wherever noise may have been forgotten.

    Parts: uploads, their `owners` (a name an upload), terms, layers (`spans` of coordinates), stretches of coordinates,
    and single coordinates over all uploads.
    """
    squares = residuals.double().square()
    uploads, terms, coordinates = squares.shape
    per_place, per_upload = squares.sum(0), squares.sum((1, 2))
    size = -(-coordinates // _NUM_BLOCKS)
    blocks = [(start, min(start + size, coordinates)) for start in range(0, coordinates, size)]
    parts: list[tuple[str, Tensor, list[int]]] = [
        ("all", squares.sum()[None], [squares.numel()]),
        ("upload", per_upload, [terms * coordinates] * uploads),
        ("term", per_place.sum(1), [uploads * coordinates] * terms),
        ("coordinate", per_place.flatten(), [uploads] * per_place.numel()),
    ]
    names = list(dict.fromkeys(owners))
    of_owner = [torch.tensor([owner == name for owner in owners]) for name in names]
    sums = torch.stack([per_upload[mine].sum() for mine in of_owner])
    parts.append(("owner", sums, [int(mine.sum()) * terms * coordinates for mine in of_owner]))
    for kind, places in (("layer", list(spans)), ("stretch", blocks)):
        cut = torch.stack([per_place[:, start:end].sum(1) for start, end in places], 1).flatten()
        parts.append((kind, cut, [uploads * (end - start) for _ in range(terms) for start, end in places]))
    found = [_least_part(kind, sums, counts, risk / len(parts)) for kind, sums, counts in parts]
    return min(found, key=lambda one: one.deviation)


def _least_part(kind: str, sums: Tensor, counts: list[int], risk: float) -> Least:
    quantiles = {count: float(stats.chi2.ppf(risk / len(counts), count)) for count in set(counts)}
    ratios = (sums / torch.tensor([quantiles[count] for count in counts], dtype=torch.float64)).sqrt()
    at = int(ratios.argmin())
    return Least(float(ratios[at]), kind if len(counts) == 1 else f"{kind} {at}")


def most_alike(residuals: Tensor, risk: float) -> Reuse:
    """The largest correlation between any two uploads' noise, or within one, at every distance of coordinates.

    The terms of an upload lie one behind the other, so that noise of one term in another is found as well.
    """
    rows = residuals.double().flatten(1)[_spread(len(residuals)), :MOST_COORDINATES]
    length = rows.shape[1] - (rows.shape[1] + 1) % 2  # odd: no distance is its own opposite
    rows = rows[:, :length]
    norms = rows.norm(dim=1, keepdim=True)
    spectra = torch.fft.rfft(rows / norms.clamp_min(torch.finfo(torch.float64).tiny))
    best, where = 0.0, "nowhere"
    for number in range(len(rows)):
        found = torch.fft.irfft(spectra[number:].conj() * spectra[number], n=length).abs()
        found[0, 0] = 0.0  # itself
        at = int(found.argmax())
        if float(found.flatten()[at]) > best:
            other, distance = divmod(at, length)
            best, where = float(found.flatten()[at]), f"uploads {number} and {number + other}, distance {distance}"
    looks = len(rows) * (len(rows) + 1) // 2 * length
    return Reuse(_correlation_limit(best, length, risk / looks), where)


def _spread(count: int) -> list[int]:
    """Up to `MOST_ROWS` of so many uploads: the first half of them, and the last."""
    half = MOST_ROWS // 2
    return [*range(count)] if count <= MOST_ROWS else [*range(half), *range(count - half, count)]


def _correlation_limit(correlation: float, length: int, risk: float) -> float:
    """At least this, by Student's t for whether there is one at all, and Fisher's transform for how large it is."""
    clipped = min(correlation, 1 - 1e-9)
    if length < 8 or 2 * stats.t.sf(clipped * math.sqrt((length - 1) / (1 - clipped**2)), length - 1) > risk:
        return 0.0
    return max(0.0, math.tanh(math.atanh(clipped) - float(stats.norm.isf(risk)) / math.sqrt(length - 3)))


def shape_scores(residuals: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    """Scores of two worlds, with a unit that moves a coordinate by `shift` and without it, whatever the noise is like.

    Every residual is a trial. On the first half the attacker learns how dense the noise is, with the unit and without
    it, and scores the other half by the ratio: atoms, gaps and ends of the noise show, as well as too little of it.
    """
    values = residuals.double().flatten()
    learnt, played = values[: len(values) // 2].contiguous(), values[len(values) // 2 :].contiguous()
    quantiles = torch.linspace(0, len(learnt) - 1, _NUM_BINS, dtype=torch.float64).long()
    ordered = learnt.sort().values[quantiles]
    edges = torch.cat([ordered, ordered + shift]).sort().values

    def counts(found: Tensor) -> Tensor:
        return torch.bincount(torch.searchsorted(edges, found, right=True), minlength=len(edges) + 1).double()

    ratios = ((counts(learnt + shift) + 0.5) / (counts(learnt) + 0.5)).log()
    inside, outside = (ratios[torch.searchsorted(edges, found, right=True)] for found in (played + shift, played))
    return inside, outside
