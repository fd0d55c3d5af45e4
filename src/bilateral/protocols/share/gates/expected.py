"""Checks of what another party sent: every refusal names the sender."""

from __future__ import annotations

import torch
from torch import Tensor

from bilateral.errors import MalformedMessageError


def expect_tensor(sender: str, name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse a tensor of another shape or type."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise MalformedMessageError(
            f"Malformed message from {sender}: expected `{name}` of shape {shape} and {dtype}, got "
            f"{tuple(tensor.shape)} and {tensor.dtype}.",
            remedy="Both sides must run the same plan and version.",
        )


def expect_count(sender: str, name: str, got: int, expected: int) -> None:
    """Refuse a list of another length."""
    if got != expected:
        raise MalformedMessageError(
            f"Malformed message from {sender}: expected {expected} in `{name}`, got {got}.",
            remedy="Both sides must run the same plan and version.",
        )
