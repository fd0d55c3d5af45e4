"""Rules for tables: nn.Embedding and F.embedding, of integers that come from the inputs.

embedding    weight * s_out on every row, s_out fresh; rows stay in place, columns are channels that move

Positions that `forward` looks up by numbers of its own are a bare parameter (builder.BareParameters). What changes a
table or its gradient on the way (max_norm, sparse) is refused; a padding row has gradient 0 in both networks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.builder import Axis, Binding, GraphBuilder, Parameter, Site, Stored, Value, refuse_activations
from bilateral.models.identities import Identities
from bilateral.models.rules import module_rule, rule, takes_parameters
from bilateral.models.rules_parametric import rows_of


@takes_parameters
@rule(F.embedding)
def embedding(
    builder: GraphBuilder,
    site: Site,
    indices: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Identities | Stored:
    refuse_activations(site, (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse))
    if max_norm is not None:
        raise site.refuse("max_norm changes its weights in `forward`", "Leave max_norm out.")
    if sparse:
        raise site.refuse("its gradients are sparse", "Leave sparse=True out.")
    if isinstance(indices, Tensor) and isinstance(weight, Parameter | Stored):
        if padding_idx is not None or scale_grad_by_freq:
            raise site.refuse(
                "it looks up numbers of its own with padding_idx or scale_grad_by_freq", "Leave both out."
            )
        if indices.is_meta:
            raise site.refuse("the numbers that it looks up are not known in advance", "Keep them in a buffer.")
        held = builder.bare.stored(weight, site) if isinstance(weight, Parameter) else weight
        return Stored(site.output, held.elements[indices])
    if not isinstance(indices, Value) or not isinstance(weight, Parameter):
        raise site.refuse("its weights are computed inside the network", "Use a plain nn.Embedding.")
    if not indices.is_clear:
        raise site.refuse("its indices are computed with parameters", "Look up what comes from the inputs alone.")
    num_rows, num_columns = weight.meta.shape
    builder.limit_inputs(indices, int(num_rows))
    fresh = builder.fresh_channels(num_columns)
    rows = Axis(torch.zeros(num_rows, dtype=torch.int64), torch.arange(num_rows))
    none = torch.zeros(1, 1, dtype=torch.int64)
    builder.bind(site, weight, Binding("embedding weight", fresh.scale[None, :], none, rows, Axis.of(fresh)))
    return rows_of(fresh, site.output.shape, builder.token())


@module_rule(nn.Embedding)
def _embedding_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], indices: Any
) -> Identities | Stored:
    assert isinstance(module, nn.Embedding)
    return embedding(
        builder,
        site,
        indices,
        own["weight"],
        module.padding_idx,
        module.max_norm,
        module.norm_type,
        module.scale_grad_by_freq,
        module.sparse,
    )
