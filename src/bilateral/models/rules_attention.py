"""Rules for products of activations: matmul, bmm, einsum, scaled dot product attention, softmax along one index.

matmul, bmm, einsum     factors multiply, and must be equal under a sum; what is summed moves together (contraction.py)
softmax                 pins factors; rows of one neuron (attention weights of a head) move as wholes
attention               the two of them: queries and keys have inverse factors, those of the values pass through
masks                   -inf and 0 have every factor; a mask must not tell apart what changes places
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.builder import GraphBuilder, Parameter, Site, Value, refuse_activations
from bilateral.models.contraction import contract, refuse_mixed_samples
from bilateral.models.identities import Identities, digest_over, mix
from bilateral.models.rules import handles_constants, module_rule, rule, takes_parameters
from bilateral.models.rules_parametric import linear_by_columns


@takes_parameters
@handles_constants
@rule(torch.matmul, torch.bmm, operator.matmul, methods=("matmul", "bmm"))
def matrix_product(builder: GraphBuilder, site: Site, left: Any, right: Any) -> Identities:
    if isinstance(right, Parameter) and right.meta.dim() == 2 and isinstance(left, Value):
        return linear_by_columns(builder, site, left, right)
    a, b = (as_operand(site, operand) for operand in builder.as_values(site, left, right))
    if min(a.meta.dim(), b.meta.dim()) < 2:
        raise site.refuse("it multiplies a matrix with a vector", "Give the vector a second dimension (unsqueeze).")
    refuse_mixed_samples(site, a, b)
    return contract(builder, site, a.ids, b.ids)


def as_operand(site: Site, operand: Any) -> Value:
    """A value; a constant is one that has no factor and stays in place."""
    if isinstance(operand, Value):
        return operand
    if isinstance(operand, Tensor):
        return Value.of(operand, Identities.pinned(operand.shape))
    raise site.refuse("one of its operands is no tensor", "Give it tensors.")


@handles_constants
@rule(torch.einsum)
def einsum(builder: GraphBuilder, site: Site, equation: str, *operands: Any) -> Identities:
    """Two operands: indices in both and in the result are leading ones, those in both and not in it are summed."""
    values = [as_operand(site, operand) for operand in operands]
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    names = inputs.split(",")
    plain = arrow and "." not in equation and len(values) == 2 and all(len(set(n)) == len(n) for n in (*names, result))
    if not plain:
        raise site.refuse("there is no rule for this form of einsum", "Write it as 'ab,bc->ac', or with matmul.")
    left, right = names
    both = [n for n in left if n in right]
    lead, summed = [n for n in both if n in result], [n for n in both if n not in result]
    rows, columns = [n for n in left if n not in right], [n for n in right if n not in left]
    if any(n not in result for n in (*rows, *columns)):
        raise site.refuse("it sums an operand over an index of its own", "Sum it by itself before.")
    a, b = values
    if any(left.index(n) in a.batch_dims or right.index(n) in b.batch_dims for n in summed) or (
        any(left.index(n) in a.batch_dims for n in rows) and b.batch_dims
    ):
        raise site.refuse("it mixes the samples of a batch", "Keep the samples apart.")
    sizes = {**dict(zip(left, a.meta.shape, strict=True)), **dict(zip(right, b.meta.shape, strict=True))}
    ids = contract(
        builder, site, _arranged(a.ids, left, lead, rows, summed), _arranged(b.ids, right, lead, summed, columns)
    )
    order = [*lead, *rows, *columns]
    return ids.map(lambda t: t.reshape([sizes[n] for n in order]).permute([order.index(n) for n in result]))


def _arranged(
    ids: Identities, names: str, lead: Sequence[str], first: Sequence[str], second: Sequence[str]
) -> Identities:
    """Identities as (lead, first, second), each of the latter two one dimension."""
    order = [names.index(n) for n in (*lead, *first, *second)]
    shape = [ids.scale.shape[d] for d in order]
    cut = len(lead)
    middle = torch.Size(shape[cut : cut + len(first)]).numel()
    target = (*shape[:cut], middle, torch.Size(shape[cut + len(first) :]).numel())
    return ids.map(lambda t: t.permute(order).reshape(target))


# --- softmax ---


@rule(F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, methods=("softmax", "log_softmax"))
def softmax(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
    """Where its sum runs over several neurons they stay in place: the sum of others would be another one."""
    refuse_activations(site, (args, kwargs))
    dim = kwargs.get("dim", args[0] if args else None)
    builder.scales.pin(x.ids.scale, f"input of {site.label}, which is not positively homogeneous")
    if dim is None or builder.neurons.narrowed(x.ids.neuron).shape[dim] > 1:
        builder.neurons.pin(x.ids.neuron, f"input of {site.label}")
        return x.ids.changed(builder.token())
    return _along(builder, x.ids, int(dim))


def _along(builder: GraphBuilder, ids: Identities, dim: int) -> Identities:
    """Every element depends on its whole row: rows change places if all their elements agree."""
    row = digest_over(ids.role, [dim]).unsqueeze(dim % ids.role.dim())
    return Identities(ids.scale, ids.neuron, mix(ids.role, row, builder.token()))


@module_rule(nn.Softmax, nn.LogSoftmax)
def _softmax_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value
) -> Identities:
    return softmax(builder, site, x, module.dim)


# --- attention ---


@handles_constants
@rule(F.scaled_dot_product_attention)
def attention(
    builder: GraphBuilder,
    site: Site,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Identities:
    refuse_activations(site, (dropout_p, is_causal, scale, enable_gqa))
    if enable_gqa:
        raise site.refuse("there is no rule for grouped queries", "Repeat keys and values (repeat_interleave).")
    for operand in (query, key, value):
        if not isinstance(operand, Value):
            raise site.refuse("one of its operands is no activation", "Give it activations.")
        if operand.batch_dims & {operand.meta.dim() - 1, operand.meta.dim() - 2}:
            raise site.refuse(
                "it mixes the samples of a batch", "Give it values of shape (batch, heads, tokens, channels)."
            )
    weights = attention_weights(builder, site, query.ids, key.ids, attn_mask)
    return contract(builder, site, weights, value.ids)


def attention_weights(builder: GraphBuilder, site: Site, query: Identities, key: Identities, mask: Any) -> Identities:
    scores = contract(builder, site, query, key.map(lambda t: t.transpose(-1, -2)))
    builder.scales.pin(scores.scale, f"input of the softmax in {site.label}")
    return _along(builder, masked_scores(builder, site, scores, mask), -1)


def masked_scores(builder: GraphBuilder, site: Site, scores: Identities, mask: Any) -> Identities:
    """Scores of factor 1 that meet a mask: of booleans, or of numbers that are added."""
    if mask is None:
        return scores
    ids = mask.ids if isinstance(mask, Value) else Identities.pinned(mask.shape)
    builder.scales.pin(ids.scale, f"a mask of {site.label}")
    return builder.met_by_clear(site, scores, ids, mask.shape if isinstance(mask, Tensor) else mask.meta.shape)


@handles_constants
@rule(methods=("masked_fill", "masked_fill_"))
def filled(builder: GraphBuilder, site: Site, x: Value, mask: Any, value: Any) -> Identities:
    """0 and infinities have every factor; other fillings pin them."""
    refuse_activations(site, value)
    if not isinstance(x, Value):
        raise site.refuse("it fills a constant by a mask from an activation", "Multiply the activation with the mask.")
    if not isinstance(mask, Value | Tensor):
        raise site.refuse("its mask is no tensor of booleans", "Compare with a number to get a mask.")
    number = float(value)
    if number not in (0.0, float("inf"), float("-inf")):
        builder.scales.pin(x.ids.scale, f"filled with a number by {site.label}")
    ids = mask.ids if isinstance(mask, Value) else Identities.pinned(mask.shape)
    shape = mask.meta.shape if isinstance(mask, Value) else mask.shape
    return builder.met_by_clear(site, x.ids, ids, shape)
