"""Tensors as the flat arrays that compiled loops work on."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor


def fused() -> ModuleType:
    """The compiled loops. Imported late, because numba takes a while."""
    from bilateral.protocols.share.gates import fused_kernels  # noqa: PLC0415

    return fused_kernels


@cache  # an import statement takes a microsecond each time, as long as all else of a small layer's call
def planes_fused() -> ModuleType:
    """The compiled loops over planes of bits, as late."""
    from bilateral.protocols.share.gates import plane_kernels  # noqa: PLC0415

    return plane_kernels


def words(tensor: Tensor) -> Any:
    """Ring elements, flat; the same memory. What is written to must be contiguous."""
    return tensor.contiguous().reshape(-1).numpy().view(np.uint64)


def rows(tensor: Tensor) -> Any:
    """Ring elements, a row for each sample; the same memory."""
    return tensor.contiguous().numpy().view(np.uint64)


def halves(tensor: Tensor) -> Any:
    """32-bit elements, flat; the same memory."""
    return tensor.contiguous().reshape(-1).numpy().view(np.uint32)
