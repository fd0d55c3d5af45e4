"""The last bits of what is summed: random, so that they do not tell by which weight a value was multiplied.

A float32 is a whole number of steps (units in its last place), and `weight * value` a whole number of weight times as
large steps. In the ring both are exact. So where one client alone contributes to a coordinate, the sum is a multiple of
its weight, and a sum whose steps are fine is nobody's alone. Rounding the product does not mend it: `weight * m` for
whole m, rounded to any grid, leaves out some points of the grid or hits some more often, in a pattern that is the
weight's own (tests/protocols/mask/test_last_bits.py finds the weight from each of these).

Here a value moves by a random part of `STEPS` of its own steps before it is multiplied:

    weight * (value + STEPS * step(value) * u),   u uniform on [-1/2, 1/2)

Formal guarantee: the intervals of neighbouring values that this draws from cover the line exactly `STEPS` times, for
every weight. So for values whose last bits say nothing, neither do those of the product; what is left of the weight is
in the sizes of real numbers, as in any sum. (Next to powers of two, where the steps change, it is off: for one value in
2^20.) That holds of the exact products: one that is rounded to the 53 bits of a float64 first is off by its own error,
and neighbours lie unevenly, in a pattern that is again the weight's own. So what a product loses is added to the part
that is rounded (`_lost`). A sum moves by at most `STEPS / 2` steps a client, 2^-22 of a value in float32 and 2^-51 in
float64.

`u` is a secret function of the value's size alone, for an upload: equal values (two parallel layers, two classes whose
gradients are opposite, a column that comes twice) get the same, and the same upload in another round too, since the
mean of several u would show the value: that of 32 rounds finds a weight among 200. An upload that differs anywhere has
other u everywhere; one key for a run would let equal sums of different rounds tell where a client is alone.
Different values within a few steps, of which two coordinates of one client alone are a pair with a chance of about
2^-21, are why `STEPS` is more than 1: with one step no two of them could come closer than their values say.

What this does not do: values that say something by themselves still do. Where one client is alone and its values have
few bits (whole numbers, bfloat16 in a float32) or are products of few numbers (the gradient of a first layer that one
single sample reaches is a residual a row times a pixel a column), their sizes tell the weight; so do values that stay
the same in some tens of rounds while others of the same uploads change (leakage ledger, line 12). Nor is the total of
the weights hidden, which every sum comes with.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from bilateral.protocols.messages import Upload

STEPS: Final = 4
KEY_BYTES: Final = 32
_SIGN = np.uint64(1 << 63)
_EXPONENT = np.uint64(0x7FF << 52)
_UNIFORM_BITS = 53
_SIGNIFICANT_BITS = 53
_UPPER_BITS = np.uint64((1 << 64) - (1 << 26))
_SCALE_BITS = 26
FloatArray = NDArray[np.float64]


class LastBits:
    """Draws the last bits of one client's products in one upload. `key` is that client's secret."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"expected a key of {KEY_BYTES} bytes, got {len(key)}")
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())

    @classmethod
    def of(cls, upload: Upload, secret: bytes) -> LastBits:
        """Those of an upload, whatever the round: the same for the same weight and values, and none other."""
        found = hashlib.blake2b(str((upload.weight, *upload.terms.shape)).encode(), key=secret, digest_size=KEY_BYTES)
        for _, values in upload.tensors():
            found.update(str(values.dtype).encode())
            found.update(values.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return cls(found.digest())

    def integers(self, values: FloatArray, scale: float, dtype: torch.dtype) -> NDArray[np.int64]:
        """values * scale with their last bits drawn, rounded to whole numbers. `dtype` has the values' steps.

        `scale` is a whole number up to 2^40 times a power of two. Whole and broken parts go separate ways: their sum
        has more bits than a float64.
        """
        bits = values.view(np.uint64)
        moved = self._uniform(bits & ~_SIGN)
        with np.errstate(invalid="ignore", over="ignore"):  # a row that is out of range is not sent
            reach = (bits & _EXPONENT).view(np.float64)  # the power of two at or below the size
            reach *= STEPS * torch.finfo(dtype).eps * scale
            moved *= np.copysign(reach, values, out=reach)
            products = values * scale
            whole = np.floor(products)
            if not _is_exact(scale, dtype):
                moved += _lost(values, scale, products)
            moved += products - whole
            found: NDArray[np.int64] = whole.astype(np.int64)
            found += np.rint(moved).astype(np.int64)
        return found

    def _uniform(self, sizes: NDArray[np.uint64]) -> FloatArray:
        """On [-1/2, 1/2), 53 bits, the same for the same size."""
        blocks = np.zeros(2 * len(sizes), dtype="<u8")
        blocks[::2] = sizes
        words = np.frombuffer(self._cipher.encryptor().update(blocks.tobytes()), dtype="<u8")[::2]
        uniform: FloatArray = (words >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64)
        uniform *= 2.0**-_UNIFORM_BITS
        uniform -= 0.5
        return uniform


def _is_exact(scale: float, dtype: torch.dtype) -> bool:
    """Whether a float64 holds every product: float32 times a weight up to 2^29, anything times a power of two."""
    odd_bits = float(scale).as_integer_ratio()[0]
    odd_bits = (odd_bits // (odd_bits & -odd_bits)).bit_length()
    return odd_bits == 1 or odd_bits + 1 - round(math.log2(torch.finfo(dtype).eps)) <= _SIGNIFICANT_BITS


def _lost(values: FloatArray, scale: float, products: FloatArray) -> FloatArray:
    """values * scale - products, exactly: what was lost when the products were rounded (Dekker's product).

    Values have 27 upper and 26 lower bits, the scale 26 and 15: no product of two parts, and no sum on the way, has
    more than 53. Parts are cut from the bits, which cannot overflow as a multiplication would.
    """
    upper = (values.view(np.uint64) & _UPPER_BITS).view(np.float64)
    lower = values - upper
    mantissa, exponent = math.frexp(scale)
    main = math.ldexp(math.floor(math.ldexp(mantissa, _SCALE_BITS)), exponent - _SCALE_BITS)
    rest = scale - main
    found: FloatArray = upper * main
    found -= products
    found += lower * main
    if rest:
        found += np.multiply(upper, rest, out=upper)
        found += np.multiply(lower, rest, out=lower)
    return found
