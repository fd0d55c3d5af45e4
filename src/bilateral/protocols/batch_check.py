"""What every client checks about a batch before it trains on it."""

from __future__ import annotations

import torch
from torch import Tensor

from bilateral.errors import DataError
from bilateral.models.integer_inputs import check_integers
from bilateral.models.layout import ModelLayout
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.objective import Objective


def check_batch(client: str, inputs: Tensor, targets: Tensor, layout: ModelLayout, objective: Objective) -> None:
    """Refuse a batch that would give a wrong gradient: empty, NaN, wrong type or shape, label out of range.

    Inputs may have any floating precision (`LocalModel.run` takes them in the model's), or be integers for a model that
    looks them up. Labels must be int64: other
    integer types are more often a mask or a picture than class numbers.
    """
    if len(inputs) == 0:
        raise DataError(f"{client}: the batch is empty.", remedy="Give the client data or leave it out.")
    if len(inputs) != len(targets):
        raise DataError(f"{client}: {len(inputs)} inputs but {len(targets)} targets.")
    vocabulary = layout.vocabulary if isinstance(layout, ScaleGraph) else None
    takes_tokens = vocabulary is not None or not isinstance(layout, ScaleGraph)
    is_token = not inputs.is_floating_point() and (inputs.dtype == torch.int64 or vocabulary is not None)
    if not inputs.is_floating_point() and not (is_token and takes_tokens):
        more = ", or int64 for numbers of tokens" if takes_tokens else ""
        raise DataError(
            f"{client}: expected inputs in floating point{more}, got {inputs.dtype}.",
            remedy="Convert them, pixels for example with `inputs.float() / 255`.",
        )
    if tuple(inputs.shape[1:]) != layout.input_shape:
        raise DataError(
            f"{client}: expected inputs of shape {layout.input_shape} a sample, got {tuple(inputs.shape[1:])}.",
            remedy="Prepare them as the data that the model was made for, or make the model for these.",
        )
    if vocabulary is not None:
        check_integers(client, inputs, vocabulary)
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs).all()):
        raise DataError(f"{client}: the inputs hold NaN or infinite values.", remedy="Clean or impute them.")
    if layout.statistics and len(inputs) < 2:
        raise DataError(
            f"{client}: a batch of one sample cannot train a model with BatchNorm.",
            remedy="Use a batch size of 2 or more, give the client more data, or use GroupNorm.",
        )
    objective.check_targets(client, targets, len(inputs), layout.num_outputs)
