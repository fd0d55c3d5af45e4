"""Two sources of randomness with one interface, and no global generator.

`SecureRandomness` asks the operating system for every byte and is what a deployment uses for secrets.
`SeededRandomness` is a counter-based generator keyed by a seed and a path of labels: it makes a simulation
repeatable, and since every stream is derived from its label (never from the position in another stream), a
resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from bilateral.errors import ArgumentError

_UNIFORM_BITS: Final = 53


class Randomness(ABC):
    """A stream of random bytes, and the distributions that the protocols draw from it (float64)."""

    @abstractmethod
    def random_bytes(self, num_bytes: int) -> bytes:
        """The next `num_bytes` of the stream."""

    @abstractmethod
    def child(self, *labels: str | int) -> Randomness:
        """An independent stream that belongs to `labels`."""

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform on [low, high) with 53 random bits an element."""
        count = int(np.prod(shape, dtype=np.int64))
        words = np.frombuffer(self.random_bytes(8 * count), dtype="<u8")
        unit = (words >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64) * 2.0**-_UNIFORM_BITS
        return torch.from_numpy(low + (high - low) * unit).reshape(shape)

    def log_uniform(self, *shape: int, low: float, high: float) -> Tensor:
        """exp of a uniform on [log low, log high): every octave equally likely."""
        return torch.exp(self.uniform(*shape, low=float(np.log(low)), high=float(np.log(high))))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, by the Box-Muller transform."""
        radius = torch.sqrt(-2.0 * torch.log1p(-self.uniform(*shape)))
        return radius * torch.cos(2.0 * torch.pi * self.uniform(*shape))

    def signs(self, *shape: int) -> Tensor:
        """Uniform on {-1, +1}."""
        return torch.where(self.uniform(*shape) < 0.5, -1.0, 1.0).double()

    def permutation(self, length: int) -> Tensor:
        """A uniformly random permutation of range(length): the order of `length` random 64-bit keys."""
        keys = np.frombuffer(self.random_bytes(8 * length), dtype="<u8")
        return torch.from_numpy(np.argsort(keys, kind="stable").astype(np.int64))

    def integer_below(self, bound: int) -> int:
        """Uniform on range(bound), by rejection."""
        num_bytes = (bound.bit_length() + 15) // 8
        limit = (1 << (8 * num_bytes)) // bound * bound
        while (draw := int.from_bytes(self.random_bytes(num_bytes), "little")) >= limit:
            pass
        return draw % bound

    def torch_generator(self) -> torch.Generator:
        """A torch generator for what is not secret (initial weights, dropout, augmentation)."""
        generator = torch.Generator()
        generator.manual_seed(int.from_bytes(self.random_bytes(7), "little"))
        return generator


@final
class SecureRandomness(Randomness):
    """The operating system's generator. Labels do not matter: every stream is fresh."""

    def random_bytes(self, num_bytes: int) -> bytes:
        return os.urandom(num_bytes)

    def child(self, *labels: str | int) -> SecureRandomness:  # noqa: ARG002
        return self


@final
class SeededRandomness(Randomness):
    """Repeatable randomness for simulation, derived from a seed and a path of labels.

    `seed` is a whole number, of any size and sign. Whoever knows it knows all that is drawn.
    """

    def __init__(self, seed: int, *labels: str | int) -> None:
        if type(seed) is not int:  # True would be another stream than 1, and so would a number of numpy's
            raise ArgumentError(
                f"SeededRandomness: expected `seed` to be a whole number, got {type(seed).__name__} ({seed!r:.40}).",
                remedy="Convert it: int(seed). For secrets take SecureRandomness(), which has no seed.",
            )
        self._path: tuple[str | int, ...] = (seed, *labels)
        digest = hashlib.sha256(repr(self._path).encode()).digest()
        self._bits = np.random.Philox(key=np.frombuffer(digest[:16], dtype=np.uint64))
        self._generator = np.random.Generator(self._bits)

    def random_bytes(self, num_bytes: int) -> bytes:
        return self._generator.bytes(num_bytes)

    def child(self, *labels: str | int) -> SeededRandomness:
        seed, *rest = self._path
        assert isinstance(seed, int)
        return SeededRandomness(seed, *rest, *labels)
