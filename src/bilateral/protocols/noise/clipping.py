"""Clipping: a bound on what one sample, or one client, can change in an upload.

Clipping acts on exactly what is sent, all terms together and in the perturbed domain. The bound therefore holds
whatever the scale factors and the group secrets are, also against a server that knows them.

Formal guarantees (tests/protocols/noise/test_clipping.py):
- unit "sample": the upload is `sum_i clip(z_i) / expected_batch_size`, z_i the terms of sample i. Adding or removing a
  sample changes it by at most `sensitivity = norm / expected_batch_size`; the number of samples is not uploaded.
- unit "client": the upload is `clip(z)`. Adding or removing a client changes the sum by at most `sensitivity = norm`.

Distances are Euclidean after each term is multiplied by its public scale (`term_scales`). Noise that has the same size
for all scaled terms is smaller on an uploaded term with a larger scale: scales divide the noise between the terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor

from bilateral.errors import PlanError
from bilateral.protocols.noise.one_thread import one_thread

Unit = Literal["sample", "client"]

_ROUNDING_MARGIN: Final = 1.0 - 1e-6
"""Norms and sums are taken in float64; this keeps their rounding on the safe side of the bound.

Adding n samples of norm C in groups of g errs by at most n (g + n / g) C 2^-54 (each addition by 2^-53 of a partial
sum), so two neighbouring sums of `MAX_SAMPLES` differ by less than 6e-7 of C more than they should.
"""
_GROUP: Final = 256
MAX_SAMPLES: Final = 1 << 20
"""Of one client, so that rounding stays within the margin whatever the batch."""


@dataclass(frozen=True)
class ClipSettings:
    """How uploads are clipped. All of it is public and the same for all clients.

    `norm`                 largest Euclidean norm of one sample's (one client's) scaled terms
    `unit`                 whose influence is bounded: sample or client
    `expected_batch_size`  sample only: what sums are divided by, one number for all clients (Poisson rate times the
                           clients' mean number of samples makes the server's average the mean over all samples)
    `term_scales`          a positive factor for each uploaded term; empty means 1 for all
    """

    norm: float
    unit: Unit = "sample"
    expected_batch_size: float = 1.0
    term_scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.unit not in ("sample", "client"):
            raise PlanError(f"Expected the clipping unit to be 'sample' or 'client', got {self.unit!r}.")
        for name, value in (("norm", self.norm), ("expected batch size", self.expected_batch_size)):
            if not 0 < value < math.inf:
                raise PlanError(f"Expected a clipping {name} above 0, got {value}.", remedy="Try 1.")
        if not all(0 < scale < math.inf for scale in self.term_scales):
            raise PlanError(f"Expected positive term scales, got {self.term_scales}.", remedy="Use 1 for each term.")
        if self.unit == "client" and self.expected_batch_size != 1.0:
            raise PlanError(
                f"Clipping whole clients has no expected batch size, got {self.expected_batch_size}.",
                remedy="Leave it out, or use unit = 'sample'.",
            )

    @property
    def sensitivity(self) -> float:
        """The most that one unit changes the sum of all uploads, in the norm of the scaled terms."""
        return self.norm / self.expected_batch_size

    def scales(self, num_terms: int) -> Tensor:
        """The factor of each term."""
        if not self.term_scales:
            return torch.ones(num_terms, dtype=torch.float64)
        if len(self.term_scales) != num_terms:
            raise PlanError(
                f"Expected {num_terms} term scales (one for each uploaded term), got {len(self.term_scales)}.",
                remedy="List them in the order of the terms, or leave them out.",
            )
        return torch.tensor(self.term_scales, dtype=torch.float64)

    def with_norm(self, norm: float) -> ClipSettings:
        return replace(self, norm=norm)


@dataclass(frozen=True, repr=False)
class Clipped:
    """Clipped terms (terms x parameters, float64) and their bound.

    `below_minus_half`: units at or below the norm count +1/2, those above it -1/2, divided as the terms are. Adaptive
    clipping needs it (`adaptive.py`); it is as private as the terms, and must be noised before it is sent.
    """

    terms: Tensor
    sensitivity: float
    below_minus_half: float


def clip_samples(chunks: Iterable[Tensor], shape: tuple[int, int], settings: ClipSettings) -> Clipped:
    """The clipped sum over samples (chunks of samples x terms x parameters) over the expected batch size.

    Each sample is clipped by itself, and nothing that is decided here depends on more than one of them. Nothing but
    zeros for an empty batch. A sample whose terms are NaN or infinite counts as zero: an error would tell the others
    that such a sample exists.
    """
    scales = settings.scales(shape[0])
    total, group = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    below_minus_half = 0.0
    for number, terms in enumerate((sample for chunk in chunks for sample in chunk), start=1):
        norm = _norm(terms, scales)
        if math.isfinite(norm):  # 0 * infinity would be NaN
            group += terms.double() * _clip_factor(norm, settings.norm)
        below_minus_half += 0.5 if norm <= settings.norm else -0.5
        if number % _GROUP == 0:
            total += group
            group.zero_()
    total += group
    size = settings.expected_batch_size
    return Clipped(total.div_(size), settings.sensitivity, below_minus_half / size)


def clip_client(terms: Tensor, settings: ClipSettings) -> Clipped:
    """A client's terms as they are, or scaled down to the norm; zeros if they are NaN or infinite."""
    norm = _norm(terms, settings.scales(len(terms)))
    usable = math.isfinite(norm)
    clipped = terms.double() * _clip_factor(norm, settings.norm) if usable else torch.zeros_like(terms).double()
    return Clipped(clipped, settings.sensitivity, 0.5 if norm <= settings.norm else -0.5)


def _norm(terms: Tensor, scales: Tensor) -> float:
    """Norm of one unit's scaled terms (terms x parameters). Largest first: squares neither overflow nor vanish."""
    with one_thread():
        of_terms = torch.linalg.vector_norm(terms, dim=1, dtype=torch.float64)
        if not bool((of_terms < 1e150).all()) or bool((of_terms < 1e-150).any()):
            largest = terms.double().abs().amax(1, keepdim=True)
            safe = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
            of_terms = torch.linalg.vector_norm(terms.double() / safe, dim=1) * safe[:, 0]
        scaled = of_terms * scales
        highest = scaled.amax()
        shrunk = torch.where((highest > 0) & torch.isfinite(highest), highest, 1.0)
        return float(torch.linalg.vector_norm(scaled / shrunk) * shrunk)


def _clip_factor(found: float, norm: float) -> float:
    """min(1, norm / found), a little less."""
    return 1.0 if found <= norm * _ROUNDING_MARGIN else norm / found * _ROUNDING_MARGIN
