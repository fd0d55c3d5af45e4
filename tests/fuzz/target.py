"""A reader under test: examples that it accepts, how they are damaged, and what is done with the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.fuzz.mutations import Mutation

MAX_BYTES = 1 << 20
"""Of a case: a small input that asks for much is what is looked for. (Some mutations multiply.)"""


@dataclass(frozen=True)
class Target:
    """`read` takes the bytes, and may raise typed errors only. `mutations`: one is drawn for every case."""

    name: str
    seeds: tuple[bytes, ...]
    mutations: tuple[Mutation, ...]
    read: Callable[[bytes], object]
    tolerant: bool = False
    """A reader that passes over what it does not understand, and refuses nothing."""

    def case(self, number: int) -> bytes:
        """The input of a case: an example, damaged as the target's name and the number say."""
        rng = Random(f"{self.name} {number}")
        return rng.choice(self.mutations)(rng.choice(self.seeds), rng)[:MAX_BYTES]
