"""Exact products modulo 2^64 by float64 products of limbs, on any device that has a float64 matrix product.

A number is the sum of its limbs, `x = sum_i x_i 2^(22 i)` modulo 2^64, with signed limbs of 22 bits (three are enough).
The product of limbs `i` and `j` counts `2^(22 (i + j))`, so pairs with `i + j > 2` vanish: six products are left, fewer
if the weights are small. Sums of up to `max_depth` such products are integers within 2^53 and exact in float64, in any
order of summation; deeper sums are cut into chunks. Convolutions avoid cuDNN, whose fast algorithms may not be exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.protocols.share.ring.window import Window

WORD_BITS = 64
EXACT_BITS = 53  # integers up to 2^53 are exact in float64


@dataclass(frozen=True)
class Split:
    """How a product is split: limbs of x, and limbs of the weight (`weight_limbs` of `weight_bits` each)."""

    x_bits: int
    weight_bits: int
    weight_limbs: int

    @property
    def x_limbs(self) -> int:
        return -(-WORD_BITS // self.x_bits)

    @property
    def max_depth(self) -> int:
        """So many products of limbs add up to at most 2^53."""
        return int(2 ** (EXACT_BITS - (self.x_bits - 1) - (self.weight_bits - 1)))

    @classmethod
    def for_weights(cls, weight_bits: int) -> Split:
        """The fewest products that leave room for sums of at least 128 terms: three, four, five or six."""
        if weight_bits <= 22:
            return cls(22, weight_bits, 1)
        if weight_bits <= 32:
            return cls(16, weight_bits, 1)
        return cls(22, 22, 2 if weight_bits <= 44 else 3)

    def weight_limbs_that_count(self, x_limb: int) -> int:
        """Limbs of the weight whose product with limb `x_limb` of x is not a multiple of 2^64."""
        return min(self.weight_limbs, self.x_limbs - x_limb)


def signed_limbs(values: Tensor, bits: int, count: int) -> list[Tensor]:
    """Limbs in [-2^(bits-1), 2^(bits-1)) as float64, lowest first; `sum_i limb_i 2^(bits i)` is `values` modulo 2^64.

    The last limb holds what is left. It is within the same bounds if `bits * count` bits hold the values.
    """
    limbs = []
    for _ in range(count - 1):
        limb = ((values + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1))
        limbs.append(limb.double())
        values = (values - limb) >> bits
    return [*limbs, values.double()]


class LimbProduct:
    """A prepared product: `apply(x_limb, weights)` multiplies one limb of x with several stacked limbs of the weight.

    Chunks run over dimension 1 of x and of the weight, `terms` products each.
    """

    def __init__(self, weight: Tensor, weight_bits: int, terms: int, groups: int) -> None:
        self._split = Split.for_weights(weight_bits)
        self._groups = groups
        self._chunk = max(1, self._split.max_depth // terms)
        limbs = signed_limbs(weight, self._split.weight_bits, self._split.weight_limbs)
        self._weights = torch.stack([limb.reshape(groups, -1, *limb.shape[1:]) for limb in limbs], dim=1)

    def __call__(self, x: Tensor, apply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The sum over limbs and chunks, modulo 2^64. `apply` gives (batch, groups * limbs * rows, ...)."""
        total: Tensor | None = None
        split, depth = self._split, self._weights.shape[3]
        for first in range(0, depth, self._chunk):
            some = self._channels(x, first, min(first + self._chunk, depth))
            for i, limb in enumerate(signed_limbs(some, split.x_bits, split.x_limbs)):
                weights = self._weights[:, : split.weight_limbs_that_count(i), :, first : first + self._chunk]
                products = apply(limb, weights.flatten(0, 2))
                products = products.reshape(x.shape[0], *weights.shape[:3], *products.shape[2:])
                for j in range(weights.shape[1]):
                    term = products[:, :, j].flatten(1, 2).long() << (split.x_bits * i + split.weight_bits * j)
                    total = term if total is None else total.add_(term)
        assert total is not None  # the caller has no sums of nothing
        return total

    def _channels(self, x: Tensor, first: int, last: int) -> Tensor:
        """Channels `first` to `last` of each group."""
        return x.reshape(x.shape[0], self._groups, -1, *x.shape[2:])[:, :, first:last].flatten(1, 2)


class LimbLinear:
    """x (batch, in) -> x @ weight.T, modulo 2^64."""

    def __init__(self, weight: Tensor, weight_bits: int) -> None:
        self._product = LimbProduct(weight, weight_bits, terms=1, groups=1)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, F.linear)


class LimbConv2d:
    """x (batch, in, height, width) -> the convolution with weight, modulo 2^64."""

    def __init__(self, weight: Tensor, window: Window, weight_bits: int) -> None:
        self._window = window
        terms = window.kernel[0] * window.kernel[1]
        self._product = LimbProduct(weight, weight_bits, terms, window.groups)

    def __call__(self, x: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return self._product(x, self._convolve)

    def _convolve(self, x: Tensor, weights: Tensor) -> Tensor:
        window = self._window
        return F.conv2d(x, weights, None, window.stride, window.padding, window.dilation, window.groups)
