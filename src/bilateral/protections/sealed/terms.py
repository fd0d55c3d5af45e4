"""The public terms of a sealed run: every party computes them from the plan and the members, and so agrees on them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from bilateral.errors import DataError, ProtocolError
from bilateral.learning.client import batch_size_in, largest_batch_size
from bilateral.protocols.mask.injective import injective
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.training.terms import ONE, StepTerms


@dataclass(frozen=True, eq=False)
class SealedTerms:
    """`batch_size`: the plan's. `num_samples`: of every member, which tells the size of each of its batches.

    Clients count by their samples. Each gives a sum over its batch, so a sample of a client counts `num_samples /
    batch` there, and that over the largest such number is the `factor` of its step.
    """

    circuit: Circuit
    loss: Literal["mse", "ce"]
    trains: tuple[tuple[bool, bool], ...]
    batch_size: int
    num_samples: Mapping[str, int]

    def __post_init__(self) -> None:
        for name, count in self.num_samples.items():
            size = largest_batch_size(count, self.batch_size)
            if size > self.circuit.largest_batch:
                raise DataError(
                    f"{name}: a batch of {size} samples is too large for sealed training of this network, which takes "
                    f"up to {self.circuit.largest_batch}.",
                    remedy="Use a smaller training.batch_size.",
                )

    def size_of_batch(self, name: str, round_index: int) -> int:
        """How many samples a member trains on in a round."""
        if name not in self.num_samples:
            raise ProtocolError(f"{name!r} is no client of this run.", remedy="Both sides must run the same plan.")
        return batch_size_in(self.num_samples[name], self.batch_size, round_index)

    def weight_of_sample(self, name: str, round_index: int) -> float:
        """What a sample of this client stands for in this round."""
        return self.num_samples[name] / self.size_of_batch(name, round_index)

    def largest_weight(self, round_index: int) -> float:
        return max(self.weight_of_sample(name, round_index) for name in self.num_samples)

    def step(self, name: str, round_index: int) -> StepTerms:
        """The step of a client in a round."""
        share = self.weight_of_sample(name, round_index) / self.largest_weight(round_index)
        size = self.size_of_batch(name, round_index)
        return self._step(size, max(1, round(share * ONE)))

    def _step(self, size: int, factor: int) -> StepTerms:
        """The same object for the same step: what follows from it is found once."""
        known: dict[tuple[int, int], StepTerms] = self._steps
        if (size, factor) not in known:
            known[size, factor] = StepTerms(self.circuit, self.loss, size, self.trains, factor)
        return known[size, factor]

    @property
    def whole(self) -> StepTerms:
        """A step of one sample that counts fully: to read gradients by, which have the same form in every step."""
        return self._step(1, ONE)

    @cached_property
    def _steps(self) -> dict[tuple[int, int], StepTerms]:
        return {}

    @property
    def gradient_words(self) -> int:
        """Of a client's upload; the same for all."""
        return self.whole.gradient_words

    @cached_property
    def digest(self) -> bytes:
        """Names these terms and no others."""
        trains = [[int(weight), int(bias)] for weight, bias in self.trains]
        names, counts = list(self.num_samples), list(self.num_samples.values())
        facts = injective(
            "bilateral sealed terms v1", self.circuit.to_json(), self.loss, trains, self.batch_size, names, counts
        )
        return hashlib.sha256(facts).digest()
