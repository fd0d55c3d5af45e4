"""Inputs that are integers: rows of tables (tokens, categories), each with a limit that the table sets."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from bilateral.errors import DataError

NO_LIMIT: Final = 1 << 31
"""Of integers that are looked up in no table."""
_SMALL: Final = 16
"""What integers without a limit stay below where we draw them ourselves."""


def integers_below(vocabulary: Tensor, uniform: Tensor) -> Tensor:
    """Integers for a network of integers, from numbers between 0 and 1 of shape (samples, *inputs)."""
    limits = torch.where(vocabulary == NO_LIMIT, torch.full_like(vocabulary, _SMALL), vocabulary)
    return torch.minimum((uniform.double() * limits).long(), limits - 1)


def check_integers(client: str, inputs: Tensor, vocabulary: Tensor) -> None:
    """Refuse inputs that a table of the network has no row for."""
    if inputs.is_floating_point() or inputs.is_complex() or inputs.dtype == torch.bool:
        raise DataError(
            f"{client}: expected integers for a model that looks them up in a table, got {inputs.dtype}.",
            remedy="Give it token or category numbers (torch.int64).",
        )
    too_large = (inputs < 0) | (inputs.long() >= vocabulary)
    too_large &= vocabulary != NO_LIMIT
    if bool(too_large.any()):
        place = torch.nonzero(too_large)[0]
        raise DataError(
            f"{client}: sample {int(place[0])} has the number {int(inputs[tuple(place)])}, where the model's table has "
            f"rows 0 to {int(vocabulary.expand(inputs.shape)[tuple(place)]) - 1}.",
            remedy="Prepare the data with the vocabulary that the model was made for.",
        )
