"""What every client checks about a batch before it trains on it."""

from __future__ import annotations

import torch
from torch import Tensor

from bilateral.errors import DataError
from bilateral.models.layout import ModelLayout


def check_batch(client: str, inputs: Tensor, targets: Tensor, layout: ModelLayout, loss: str) -> None:
    """Refuse a batch that would give a wrong gradient: empty, NaN, wrong type or shape, label out of range.

    Inputs may have any floating precision (`LocalModel.run` takes them in the model's). Labels must be int64: other
    integer types are more often a mask or a picture than class numbers.
    """
    num_outputs = layout.num_outputs
    if len(inputs) == 0:
        raise DataError(f"{client}: the batch is empty.", remedy="Give the client data or leave it out.")
    if len(inputs) != len(targets):
        raise DataError(f"{client}: {len(inputs)} inputs but {len(targets)} targets.")
    if not inputs.is_floating_point():
        raise DataError(
            f"{client}: expected inputs in floating point, got {inputs.dtype}.",
            remedy="Convert them, pixels for example with `inputs.float() / 255`.",
        )
    if tuple(inputs.shape[1:]) != layout.input_shape:
        raise DataError(
            f"{client}: expected inputs of shape {layout.input_shape} a sample, got {tuple(inputs.shape[1:])}.",
            remedy="Prepare them as the data that the model was made for, or make the model for these.",
        )
    if not bool(torch.isfinite(inputs).all()):
        raise DataError(f"{client}: the inputs hold NaN or infinite values.", remedy="Clean or impute them.")
    if layout.statistics and len(inputs) < 2:
        raise DataError(
            f"{client}: a batch of one sample cannot train a model with BatchNorm.",
            remedy="Use a batch size of 2 or more, give the client more data, or use GroupNorm.",
        )
    if loss == "mse":
        if targets.shape != (len(inputs), num_outputs):
            raise DataError(
                f"{client}: expected targets of shape ({len(inputs)}, {num_outputs}), got {tuple(targets.shape)}."
            )
        if not targets.is_floating_point():
            raise DataError(
                f"{client}: expected targets in floating point, got {targets.dtype}.", remedy="Use `targets.float()`."
            )
        if not bool(torch.isfinite(targets).all()):
            raise DataError(f"{client}: the targets hold NaN or infinite values.", remedy="Clean or impute them.")
        return
    if targets.dim() != 1 or targets.dtype != torch.int64:
        raise DataError(
            f"{client}: expected one class number (torch.int64) a sample, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}.",
            remedy="Use integer labels (`labels.long().flatten()`), or loss = 'mse'.",
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_outputs:
        raise DataError(
            f"{client}: expected labels between 0 and {num_outputs - 1}, got {low} to {high}.",
            remedy="Number the classes from 0, or give the model more outputs.",
        )
