"""How networks compute while recovery is checked: without dropout, in one precision throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.models.no_dropout import NoDropout

_EPS_PLACE: Final[dict[Callable[..., Any], int]] = {F.batch_norm: 7, F.group_norm: 4, F.layer_norm: 4}
"""Which positional argument of a normalisation is its eps."""
_SHRUNK: Final = 1e-8


class CheckArithmetic(NoDropout):
    """While active: dropout lets everything through, and with `in_float64` casts to float32 go to float64.

    `tiny_eps` shrinks the eps of normalisation layers, for a network in which it is meant to act as another one.
    """

    def __init__(self, *, in_float64: bool = True, tiny_eps: bool = False) -> None:
        super().__init__()
        self._in_float64 = in_float64
        self._tiny_eps = tiny_eps

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._in_float64:
            func, args, kwargs = _widened(func, args, kwargs)
        if self._tiny_eps and func in _EPS_PLACE:
            args, kwargs = _with_tiny_eps(_EPS_PLACE[func], args, kwargs)
        return func(*args, **kwargs)


def _widened(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    if func is Tensor.float:
        return Tensor.double, args, kwargs
    if func in (Tensor.to, Tensor.type):
        wide = [torch.float64 if argument is torch.float32 else argument for argument in args]
        return func, tuple(wide), {k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()}
    return func, args, kwargs


def _with_tiny_eps(place: int, args: Any, kwargs: Any) -> tuple[Any, Any]:
    if len(args) > place:
        return (*args[:place], args[place] * _SHRUNK, *args[place + 1 :]), kwargs
    return args, {**kwargs, "eps": kwargs.get("eps", 1e-5) * _SHRUNK}
