"""Each party's part of the squared norm of every channel of a value, for `Role.blind`.

A value is t + B: the first party has t, the second B, and hears t + P; the dealer knows B and P. Numbers are cut to
fewer fraction bits first (`cut`), each party its own words. What the first party takes for its t is the difference of
t + P and P, both cut, so that it fits what the second makes of what it hears.

    (t + B)^2  =  t^2  +  (2 (t + P) B + B^2)  -  2 P B
                  first   second                  dealt
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from bilateral.protocols.share.gates.arrays import rows
from bilateral.protocols.share.gates.truncation import logical_shift

# As tensor expressions: what the compiled loops are held to, and what runs on other devices.


def first_by_tensors(told: Tensor, mask: Tensor, shift: int) -> Tensor:
    """`first_part`."""
    part = logical_shift(told, shift) - logical_shift(mask, shift)
    return _by_channel(part * part)


def second_by_tensors(told: Tensor, mask: Tensor, shift: int) -> Tensor:
    """`second_part`."""
    part = logical_shift(mask, shift)
    return _by_channel((logical_shift(told, shift) << 1) * part + part * part)


def dealt_by_tensors(blind: Tensor, mask: Tensor, shift: int) -> Tensor:
    """`dealt_part`."""
    return _by_channel(logical_shift(blind, shift) * logical_shift(mask, shift))


def _by_channel(x: Tensor) -> Tensor:
    return x.sum(dim=[0, *range(2, x.dim())])


def first_part(told: Tensor, blind: Tensor, shift: int) -> Tensor:
    """Of t + P and P: a number a channel."""
    if not told.is_cpu:
        return first_by_tensors(told, blind, shift)
    out = _channels(told)
    _kernels().squares_of_difference(_flat(told), _flat(blind), shift, rows(out))
    return out


def second_part(told: Tensor, mask: Tensor, shift: int) -> Tensor:
    """Of t + P and B."""
    if not told.is_cpu:
        return second_by_tensors(told, mask, shift)
    out = _channels(told)
    _kernels().squares_and_products(_flat(told), _flat(mask), shift, rows(out))
    return out


def dealt_part(blind: Tensor, mask: Tensor, shift: int) -> Tensor:
    """Of P and B."""
    if not blind.is_cpu:
        return dealt_by_tensors(blind, mask, shift)
    out = _channels(blind)
    _kernels().products(_flat(blind), _flat(mask), shift, rows(out))
    return out


def _channels(x: Tensor) -> Tensor:
    return torch.empty(x.shape[1], dtype=torch.int64)


def _flat(x: Tensor) -> object:
    return rows(x.reshape(x.shape[0], x.shape[1], -1))


def _kernels() -> ModuleType:
    from bilateral.protocols.share.training import norm_kernels  # noqa: PLC0415 (imports numba)

    return norm_kernels
