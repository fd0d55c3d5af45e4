"""Memory that a client's steps use again, and that the clients of one process can share.

An upload is several times the model. Taken afresh from the system every round, its pages are mapped and zeroed before
anything is written to them: on large networks a third of a client's step. And a simulation with five clients needs not
five models but one, since every step begins by taking over the round's parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bilateral.errors import ProtocolError

REUSE_BYTES = 1 << 20
"""Smaller uploads are left to torch."""
_ALIGNMENT = 64
"""As torch does: where values lie must not depend on what was allocated before."""


class Workspace:
    """One client's, or that of all clients of a process, which then must take their steps one after the other."""

    def __init__(self) -> None:
        self._weights: list[Tensor] | None = None
        self._in_use_by: weakref.ref[object] | None = None
        self._spare: npt.NDArray[np.uint8] | None = None

    def place_weights(self, parameters: Sequence[nn.Parameter]) -> None:
        """Let parameters live in the common memory, if it is of their form; whoever comes first makes it theirs."""
        own = [p.data for p in parameters]
        if self._weights is None:
            self._weights = own
        elif [_form(t) for t in self._weights] == [_form(t) for t in own]:
            for p, shared in zip(parameters, self._weights, strict=True):
                p.data = shared

    def claim(self, user: object) -> None:
        """The weights are `user`'s from here on."""
        self._in_use_by = weakref.ref(user)

    def expect(self, user: object, name: str) -> None:
        """Refuse a step whose weights were overwritten in the middle by that of another client."""
        if self._in_use_by is None or self._in_use_by() is not user:
            raise ProtocolError(
                f"{name}: another client of this process has begun a step before this one had ended.",
                remedy="Clients that share a workspace take their steps one after the other; else give each its own.",
            )

    def rows(self, count: int, length: int, dtype: torch.dtype) -> Tensor:
        """An array for an upload, not initialised. Its memory is used again when nothing refers to it any more."""
        num_bytes = count * length * dtype.itemsize
        if num_bytes < REUSE_BYTES:
            return torch.empty(count, length, dtype=dtype)
        memory, self._spare = self._spare, None
        if memory is None or len(memory) != num_bytes + _ALIGNMENT:
            memory = np.empty(num_bytes + _ALIGNMENT, dtype=np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        lent = memory[start : start + num_bytes]
        # torch keeps `lent` for as long as any tensor or array shares its memory.
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return torch.from_numpy(lent).view(dtype).view(count, length)

    def _take_back(self, memory: npt.NDArray[np.uint8]) -> None:
        """One piece is kept: with many clients the uploads of all are alive at once, and then at rest."""
        self._spare = memory


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
