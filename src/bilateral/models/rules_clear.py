"""Rules for what is computed from inputs and constants alone, such as the mask of padded places: no factor, no move.

Comparisons, logic and conversions to integers take clear values only. They may be applied to an activation of factor 1
that stays in place, too, but nothing of a network would be left to hide.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from bilateral.models.builder import GraphBuilder, Site, Value
from bilateral.models.identities import Identities
from bilateral.models.rules import handles_constants, rule

_FUNCTIONS = (
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge),
    *(operator.invert, operator.and_, operator.or_, torch.logical_not, torch.logical_and, torch.logical_or),
)
_METHODS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or"),
    *("bool", "long", "int", "cumsum"),
)

_SAME = ("`long`", "`int`")


@handles_constants
@rule(*_FUNCTIONS, torch.cumsum, methods=_METHODS)
def clear(builder: GraphBuilder, site: Site, *args: Any, **kwargs: Any) -> Identities:
    values = [a for a in (*args, *kwargs.values()) if isinstance(a, Value)]
    if not all(value.is_clear for value in values):
        raise site.refuse(
            "there is no rule for it on an activation",
            "Compute it from the inputs alone, or use ReLU, LeakyReLU, max pooling or a sigmoid.",
        )
    along = {args[1] if len(args) > 1 else kwargs.get("dim")} if "cumsum" in site.label else set()
    if any(isinstance(dim, int) and dim % v.meta.dim() in v.batch_dims for dim in along for v in values):
        raise site.refuse("it mixes the samples of a batch", "Sum along another dimension.")
    if site.label.startswith(_SAME) and site.output.dtype.is_floating_point == values[0].meta.dtype.is_floating_point:
        return values[0].ids
    return Identities.pinned(site.output.shape).changed(builder.token())
