"""Python functions as machine code. Importing this module imports numba, so whoever does it does it late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`function` as machine code, made at its first call; made again in each process if no place can hold the cache."""
    settings: Any = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
    try:
        found: Any = numba.njit(**settings, cache=True)(function)
    except RuntimeError:  # numba found no directory that it may write to
        found = numba.njit(**settings)(function)
    return cast(Function, found)


def inlined(function: Function) -> Function:
    """For the insides of compiled functions of the same file."""
    return cast(Function, numba.njit(nogil=True, inline="always")(function))
