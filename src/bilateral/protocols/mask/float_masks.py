"""The papers' masks (P0 section III-B.2, P1 appendix C): real numbers that cancel in the weighted sum, for comparison.

Every two clients draw Gaussian numbers from their common secret; one adds them, the other subtracts them, so that
`sum_k weight_k mask_k = 0` (P0 eq. 27 and before). What this does not give (leakage ledger, line 6):

- no distribution over the reals is uniform: a value that is large beside `scale` shows through its mask;
- floating point rounds a masked value to the mask's size, so the sum loses digits as `scale` grows: hiding more means
  losing more, where masks modulo 2^64 hide numbers of any size and cost a sum 2^-22 of a value a client;
- no client may drop: its partners' masks would stay in the sum;
- weights are in the clear;
- P0 prints the *same* mask for all terms of a client, so that differences of its terms carry no mask at all. That is
  `one_mask_for_all_terms`; by default every term has a mask of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bilateral.errors import PlanError, ProtocolError
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.keys import NO_OPENING, KeyRing
from bilateral.protocols.mask.prg import row_words
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.survivors import check_names, mask_sign
from bilateral.protocols.messages import Upload

_UNIFORM_BITS = 53


class FloatMaskClient:
    """Adds zero-sum Gaussian masks of standard deviation `scale` a pair to the weighted upload."""

    def __init__(
        self, key_ring: KeyRing, scale: float, settings: MaskSettings, *, one_mask_for_all_terms: bool = False
    ) -> None:
        if not 0 < scale < math.inf:
            raise PlanError(f"Expected a mask scale above 0, got {scale}.")
        key_ring.claim("float mask")
        self.name = key_ring.name
        self._ring = key_ring
        self._scale = scale
        self._settings = settings
        self._one_mask = one_mask_for_all_terms
        self._latest_round = -1

    def mask(self, upload: Upload, round_index: int, participants: Sequence[str]) -> Upload:
        """The upload in float64, masked. The weighted sum over *all* `participants` is that of the plain uploads."""
        ordered = tuple(sorted(participants))
        what = f"{self.name}: participants of round {round_index}"
        check_names(ordered, self._ring.clients, what)
        if self.name not in ordered or len(ordered) < 2:
            raise ProtocolError(f"{what}: expected {self.name} and at least one other.")
        if round_index <= self._latest_round or upload.round_index != round_index:
            raise ProtocolError(
                f"{self.name}: an upload of round {upload.round_index} cannot be masked in round {round_index} after "
                f"round {self._latest_round}.",
                remedy="A mask is used once.",
            )
        if upload.weight < 1:
            raise ProtocolError(f"Upload from {self.name}: expected a positive weight, got {upload.weight}.")
        upload.check_finite(self.name)
        seed = graph_seed(self._ring.roster_digest, round_index, 0, ordered)
        neighbours = PairGraph.of(ordered, self._settings, seed).neighbours(self.name)
        rows = [row.to(torch.float64, copy=True) for row in (*upload.terms, upload.statistics)]
        for other in neighbours:
            pair_seed = self._ring.round_secret(other, "float mask", round_index, 0, NO_OPENING)
            factor = mask_sign(self.name, other) * self._scale / upload.weight
            for number, row in enumerate(rows):
                stream = 0 if self._one_mask and number < len(upload.terms) else number
                row.add_(gaussian(pair_seed, stream, len(row)), alpha=factor)
        self._latest_round = round_index
        terms = torch.stack(rows[:-1]) if len(rows) > 1 else upload.terms.double()
        return Upload(round_index, upload.weight, terms, rows[-1])


def gaussian(seed: bytes, row: int, count: int) -> Tensor:
    """Standard normal numbers from a row's stream, by the Box-Muller transform: the same at both ends of a pair."""
    half = (count + 1) // 2
    words = row_words(seed, row, 2 * half)
    uniform = (words >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64) * 2.0**-_UNIFORM_BITS
    radius, angle = np.sqrt(-2.0 * np.log1p(-uniform[:half])), 2.0 * np.pi * uniform[half:]
    return torch.from_numpy(np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count])
