"""DDP_Client, the published noise of P2 (Algorithm 2): independent noise that stays, pairwise noise that cancels.

1. the client trains on the expanded, perturbed model as with perturbation alone: terms G, Psi, Phi of an `Upload`
2. to G it adds `eta ~ DN(sigma_eta, 1)` of its own (Eq. 16)
3. and for each neighbour v on the graph `Delta_kv = -Delta_vk ~ DN(sigma_delta, 1)` from the pair's secret (Eq. 19)
4. the server sums the uploads; the pairwise noise cancels, the independent noise stays (Eq. 20)

Faithful to the paper, with its flaws: the noise terms Psi and Phi (and batch statistics) carry no noise at all (ledger
line 3), and given the scale factors, which the server knows, the noise on G is bounded (line 4). For a guarantee that
holds against the server use the sound noise instead. Elements whose ratio is not a product of enough factors (biases,
which P2 does not have) get the missing ones from the client (`published_factors.py`).

Formal guarantees (tests/protocols/noise/test_published.py): pairwise noise cancels in the sum to rounding, so the
recovered mean carries noise of variance sigma_eta^2 / K on every trained element; and a client never uses the noise of
one round for two uploads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from bilateral.errors import PlanError, ProtocolError
from bilateral.protocols.mask.keys import NO_OPENING
from bilateral.protocols.messages import Upload
from bilateral.protocols.noise.distributions import scale_factors, uniform_noise
from bilateral.protocols.noise.published_accounting import NoiseLevels
from bilateral.protocols.noise.published_factors import WHOLE
from bilateral.protocols.noise.published_model import PublishedModel
from bilateral.protocols.noise.published_stream import PairStream
from bilateral.randomness import Randomness, SecureRandomness

PURPOSE = "published pairwise noise"


class PairSecrets(Protocol):
    """What this client shares with each other client, by key agreement."""

    def round_secret(
        self, other: str, purpose: str, round_index: int, attempt: int, opening_digest: bytes
    ) -> bytes: ...


class Neighbours(Protocol):
    """This client's neighbours on the round's graph; the graph is undirected."""

    def __call__(self, round_index: int, participants: Sequence[str]) -> Sequence[str]: ...


class PublishedNoiseClient:
    """Adds the noise of one client to its uploads."""

    def __init__(
        self,
        name: str,
        model: PublishedModel,
        levels: NoiseLevels,
        secrets: PairSecrets,
        neighbours: Neighbours,
        randomness: Randomness | None = None,
    ) -> None:
        if not all(0 <= level < math.inf for level in levels):
            raise PlanError(f"{name}: expected noise levels of 0 or more, got {levels}.", remedy="Use `solve_noise`.")
        self.name = name
        self._trained = model.trained
        self._num_parameters = model.graph.num_parameters
        missing = model.missing_halves[model.trained]
        self._incomplete = {halves: torch.nonzero(missing == halves)[:, 0] for halves in (1, WHOLE)}
        self._levels = levels
        self._secrets = secrets
        self._neighbours = neighbours
        self._randomness = randomness or SecureRandomness()
        self._last = (-1, 0)

    def add_noise(self, upload: Upload, round_index: int, participants: Sequence[str], *, attempt: int = 0) -> Upload:
        """The upload with noise on its first term, and weight 1: P2 averages clients equally (Eq. 20).

        `participants` are all clients whose uploads will be summed. If one of them drops out, its neighbours' noise
        does not cancel: P2 has no remedy, so the round must be repeated with a new `attempt`.
        """
        neighbours = self._checked_neighbours(upload, round_index, participants, attempt)
        noise = self._noise(self._levels.independent, self._randomness.child("independent", round_index, attempt))
        for other in neighbours:
            secret = self._secrets.round_secret(other, PURPOSE, round_index, attempt, NO_OPENING)
            shared = self._noise(self._levels.pairwise, PairStream(secret))
            noise = noise + shared if self.name < other else noise - shared
        terms = upload.terms.clone()
        # Added in float64 and rounded once, so that pairwise noise cancels as well as the upload's format allows.
        noisy = terms[0].double().index_add_(0, self._trained, noise)
        terms[0] = noisy.to(terms.dtype)
        self._last = (round_index, attempt)
        return replace(upload, weight=1, terms=terms)

    def _noise(self, sigma: float, randomness: Randomness) -> Tensor:
        """DN(sigma, 1) for every trained element, times the halves that its ratio lacks."""
        noise = uniform_noise(sigma, len(self._trained), randomness)
        for halves, places in self._incomplete.items():
            noise[places] *= scale_factors(WHOLE // halves, len(places), randomness)
        return noise

    def _checked_neighbours(
        self, upload: Upload, round_index: int, participants: Sequence[str], attempt: int
    ) -> Sequence[str]:
        if upload.round_index != round_index:
            raise ProtocolError(f"{self.name}: the upload is of round {upload.round_index}, expected {round_index}.")
        if (round_index, attempt) <= self._last:
            raise ProtocolError(
                f"{self.name}: round {round_index}, attempt {attempt} already has its noise.",
                remedy="The difference of two uploads with the same noise would have none; use a new attempt.",
            )
        if upload.terms.dim() != 2 or upload.terms.shape[1] != self._num_parameters:
            raise ProtocolError(
                f"{self.name}: expected terms of {self._num_parameters} parameters, got {tuple(upload.terms.shape)}.",
                remedy="Train on the expanded model.",
            )
        twice = [name for name, count in Counter(participants).items() if count > 1]
        if self.name not in participants or twice:
            raise ProtocolError(
                f"{self.name}: expected itself and no name twice among the participants of round {round_index}, "
                f"got {sorted(participants)}.",
                remedy="All clients must be told the same participants.",
            )
        neighbours = list(self._neighbours(round_index, participants))
        strangers = set(neighbours) - set(participants) | ({self.name} & set(neighbours))
        if strangers or len(set(neighbours)) < len(neighbours):
            raise ProtocolError(
                f"{self.name}: expected other participants as neighbours in round {round_index}, each once, "
                f"got {neighbours}.",
                remedy="Noise shared with anyone else would not cancel.",
            )
        return neighbours
