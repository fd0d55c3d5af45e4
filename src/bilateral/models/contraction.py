"""Products of two activations summed over an index: what `matmul`, `bmm`, `einsum` and attention are made of.

    out[..., i, j] = sum over d of left[..., i, d] * right[..., d, j]

*Factors.* Those of the two operands multiply, and the product must be the same for every `d`: a factor on a channel of
the queries and its inverse on the same channel of the keys.

*Neurons.* Either the channels are summed over (queries with keys): then channel d of the left and of the right is one
neuron, and the set of neurons under a sum must stay that set. Heads are different sets under different sums: they may
change places as wholes, so that each gets a neuron of its own, which the result carries. Or the summed index carries
no neurons (attention weights with values): then the result has those of the operand that has some; if both have
(heads, and the channels of the values in them), they move together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bilateral.models.builder import Axis, GraphBuilder, Grouping, Site, Value
from bilateral.models.identities import Identities, digest_over, mix, numbered

_LARGEST_TABLE = 4_000_000
"""Pairs of classes in one product; beyond, classes are merged along the outer indices first."""


def contract(builder: GraphBuilder, site: Site, left: Identities, right: Identities) -> Identities:
    """Identities of the result; see the module's docstring."""
    lead = np.broadcast_shapes(left.scale.shape[:-2], right.scale.shape[:-2])
    place_left, place_right = _places(left.scale.shape[:-1], 1), _places(_outer(right.scale.shape), 0)
    wide_left = left.map(lambda t: t.expand(*lead, *t.shape[-2:]))
    wide_right = right.map(lambda t: t.expand(*lead, *t.shape[-2:]))
    scale = _product_of_factors(builder, site, wide_left.scale, wide_right.scale)
    shape = (*lead, left.scale.shape[-2], right.scale.shape[-1])
    roles_left = digest_over(wide_left.role, [-1])[..., :, None]
    roles_right = digest_over(wide_right.role, [-2])[..., None, :]
    role = mix(roles_left, roles_right, builder.token())
    if _varies(builder, wide_left.neuron, -1) or _varies(builder, wide_right.neuron, -2):
        neuron = _sum_over_channels(builder, site, wide_left, wide_right)[..., None, None]
    else:
        a, b = wide_left.neuron[..., :, :1], wide_right.neuron[..., :1, :]
        neuron, clear = _pair(builder, site, a, b)
        # What has no neuron is the same for all that change places only if it is the very same element.
        role = mix(role, *(place for place, is_clear in zip((place_left, place_right), clear, strict=True) if is_clear))
    return Identities(scale.expand(shape), neuron.expand(shape), role.expand(shape))


def _outer(shape: torch.Size) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1])


def _places(shape: Sequence[int], side: int) -> Tensor:
    """A number for each place of an operand in the result, as (*lead, i, 1) for side 1 or (*lead, 1, j) for side 0."""
    places = torch.arange(torch.Size(shape).numel()).reshape(tuple(shape))
    return places[..., :, None] if side else places[..., None, :]


def _varies(builder: GraphBuilder, neurons: Tensor, dim: int) -> bool:
    return builder.neurons.narrowed(neurons).shape[dim] > 1


def _product_of_factors(builder: GraphBuilder, site: Site, left: Tensor, right: Tensor) -> Tensor:
    scales, reason = builder.scales, f"multiplied and summed with a pinned value by {site.label}"
    a, b = scales.narrowed(left), scales.narrowed(right)
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    summed = max(a.shape[-1], b.shape[-2])
    if torch.Size(lead).numel() * a.shape[-2] * summed * b.shape[-1] > _LARGEST_TABLE:
        scales.merge_over(left, [left.dim() - 2], reason)
        scales.merge_over(right, [right.dim() - 1], reason)
        a, b = scales.narrowed(left), scales.narrowed(right)
    products = scales.product(a[..., :, :, None], b[..., None, :, :], reason)
    scales.merge_over(products, [products.dim() - 2], reason)
    return products.select(-2, 0)


def _sum_over_channels(builder: GraphBuilder, site: Site, left: Identities, right: Identities) -> Tensor:
    """Tie the channels of both operands; the result's neurons, a number for each leading index."""
    builder.neurons.merge_over(left.neuron, [left.neuron.dim() - 2], site.label)
    builder.neurons.merge_over(right.neuron, [right.neuron.dim() - 1], site.label)
    lines, others = left.neuron.select(-2, 0), right.neuron.select(-1, 0)
    builder.neurons.union(lines, others, site.label)
    roles = mix(digest_over(left.role, [-2]), digest_over(right.role, [-1]))
    lead, size = lines.shape[:-1], lines.shape[-1]
    rows = builder.neurons.rooted(lines).reshape(-1, size)
    sets, which = torch.unique(rows.contiguous(), dim=0, return_inverse=True)
    roles = roles.expand(lines.shape).reshape(-1, size)
    role_of = torch.stack([digest_over(roles[which == number], [0]) for number in range(len(sets))])
    if len(sets) == 1:
        builder.axes.append(Axis(sets[0], numbered(role_of[0])))
        return torch.zeros(lead, dtype=torch.int64)
    if not _are_groups(sets):
        for members, role in zip(sets, role_of, strict=True):
            builder.axes.append(Axis(members, numbered(role)))
        return torch.zeros(lead, dtype=torch.int64)
    heads = builder.neurons.fresh(len(sets))
    sums = Axis(sets.reshape(-1), numbered(role_of.reshape(-1)))
    builder.axes.append(sums)
    builder.groupings.append(Grouping(len(sets), (sums, Axis(heads, torch.zeros_like(heads)))))
    return heads[which].reshape(lead)


def _are_groups(sets: Tensor) -> bool:
    """Whether the rows are sets of neurons that can move, without one in common."""
    return not bool((sets == 0).any()) and len(torch.unique(sets)) == sets.numel()


def _pair(builder: GraphBuilder, site: Site, left: Tensor, right: Tensor) -> tuple[Tensor, tuple[bool, bool]]:
    """The result's neurons where the summed index carries none; and which operand has none at all."""
    a, b = builder.neurons.rooted(left), builder.neurons.rooted(right)
    clear = (not bool(a.any()), not bool(b.any()))
    if clear[0] or clear[1]:
        return (b if clear[0] else a), clear
    if _move_together(builder, a.squeeze(-1), b.squeeze(-2)):
        return b, clear
    if _move_together(builder, b.squeeze(-2), a.squeeze(-1)):
        return a, clear
    reason = f"multiplied with channels that do not move with it by {site.label}"
    if builder.neurons.narrowed(a).shape[-2] == 1:  # one for all rows, as a head is: better it stays than all of them
        builder.neurons.pin(a, reason)
        return b, (True, False)
    if builder.neurons.narrowed(b).shape[-1] == 1:
        builder.neurons.pin(b, reason)
        return a, (False, True)
    builder.neurons.union(a, b, site.label)
    return a.expand(np.broadcast_shapes(a.shape, b.shape)), clear


def _move_together(builder: GraphBuilder, heads: Tensor, members: Tensor) -> bool:
    """Whether `heads` (*lead, rows) are one neuron a head, each with members (*lead, columns) of its own: then they are
    a grouping from now on."""
    if builder.neurons.narrowed(heads).shape[-1] > 1:
        return False
    line = heads[..., 0].reshape(-1)
    rows = members.expand(*heads.shape[:-1], members.shape[-1]).reshape(len(line), -1)
    distinct = torch.unique(torch.cat([line[:, None], rows], 1), dim=0)
    head_of, sets = distinct[:, 0], distinct[:, 1:]
    if len(head_of) < 2 or len(torch.unique(head_of)) < len(head_of) or not _are_groups(sets):
        return False
    if bool((head_of == 0).any()) or bool(torch.isin(head_of.contiguous(), sets.reshape(-1)).any()):
        return False
    none = torch.zeros_like(head_of)
    inside = Axis(sets.reshape(-1), torch.zeros(sets.numel(), dtype=torch.int64))
    builder.groupings.append(Grouping(len(head_of), (Axis(head_of, none), inside)))
    return True


def refuse_mixed_samples(site: Site, left: Value, right: Value) -> None:
    """Refuse a product in which a sample meets another one."""
    summed = left.meta.dim() - 1 in left.batch_dims or right.meta.dim() - 2 in right.batch_dims
    crossed = left.meta.dim() - 2 in left.batch_dims and right.batch_dims
    crossed = crossed or (right.meta.dim() - 1 in right.batch_dims and left.batch_dims)
    if summed or crossed:
        raise site.refuse(
            "it mixes the samples of a batch",
            "Keep the samples apart (attention: batch_first=True, or the batch as the second dimension).",
        )
