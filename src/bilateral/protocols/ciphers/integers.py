"""Uploads as integers: what every cryptosystem here adds up exactly, so that sums are the same bits under any key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bilateral.errors import NumericalRangeError, PlanError

Integers = npt.NDArray[np.int64]
MOST_BITS = 62


@dataclass(frozen=True)
class IntegerFormat:
    """Fixed point, times the weight. `total_weight`: of all clients together, which bounds a sum."""

    fraction_bits: int
    bound_bits: int
    total_weight: int

    def __post_init__(self) -> None:
        if self.bits > MOST_BITS:
            raise PlanError(
                f"Sums of {self.total_weight} weights with {self.fraction_bits} bits after the point need {self.bits} "
                f"bits, and {MOST_BITS} are there.",
                remedy="Use fewer bits after the point, or a smaller bound.",
            )

    @classmethod
    def as_fine_as(cls, bits: int, bound_bits: int, total_weight: int) -> IntegerFormat:
        """As many bits after the point as fit into sums of so many."""
        return cls(bits - 1 - bound_bits - total_weight.bit_length(), bound_bits, total_weight)

    @property
    def bits(self) -> int:
        """Of the largest sum, with its sign."""
        return self.fraction_bits + self.bound_bits + self.total_weight.bit_length() + 1

    def encode(self, values: Tensor, weight: int, sender: str) -> Integers:
        """The nearest integers of a vector, times its weight."""
        wide = values.double()
        if not bool((wide.abs() <= 2.0**self.bound_bits).all()):  # NaN is not either
            raise NumericalRangeError(
                f"{sender}: a value of the upload is beyond {2**self.bound_bits}, which an encrypted sum cannot hold.",
                remedy="Lower the learning rate, or allow larger values (`bound_bits`).",
            )
        whole: Integers = (wide * 2.0**self.fraction_bits).round().to(torch.int64).numpy()
        return whole * np.int64(weight)

    def decode(self, integers: Integers) -> Tensor:
        """What a sum of such stands for."""
        return torch.from_numpy(integers.astype(np.float64)) * 2.0**-self.fraction_bits
