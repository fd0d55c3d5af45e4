"""All terms of an upload from one forward pass.

Every term is a vector-Jacobian product of the head's outputs and of `alpha`, the sum of the head's inputs `h`. At the
head it has a closed form (`c^T h` for the weight, `sum c` for the bias), and below the head it is the product of the
network's Jacobian with `c W + c_alpha`: one backward pass a term through the body, none through the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.protocols.local_model import LocalModel
from bilateral.protocols.perturb.scheme import Cotangents


@dataclass(frozen=True)
class ForwardPass:
    """What one forward pass leaves: the head's inputs (with their graph) and the outputs."""

    head_inputs: Tensor
    outputs: Tensor


def forward(model: LocalModel, client: str, round_index: int, inputs: Tensor) -> ForwardPass:
    """Run the model, keeping the head's inputs."""
    captured: list[Tensor] = []
    handle = model.head.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
    try:
        outputs = model.run(client, round_index, inputs)
    finally:
        handle.remove()
    return ForwardPass(captured[0], outputs.detach())


def term_gradients(model: LocalModel, passed: ForwardPass, cotangents: Cotangents) -> Tensor:
    """Terms x parameters, in the flat order."""
    h, head = passed.head_inputs, model.head
    outputs = cotangents.outputs.to(h.dtype)
    below_head = outputs @ head.weight.detach()
    if cotangents.activation_sum is not None:
        below_head = below_head + cotangents.activation_sum.to(h.dtype)[:, :, None]
    body: list[Tensor] = [
        p for p in model.parameters if p is not head.weight and p is not head.bias and p.requires_grad
    ]
    head_weight = outputs.transpose(1, 2) @ h.detach()
    head_bias = outputs.sum(1)
    terms = torch.empty(len(below_head), sum(p.numel() for p in model.parameters), dtype=h.dtype)
    for k, row in enumerate(terms):
        found = _body_gradients(h, body, below_head[k], last=k == len(terms) - 1)
        found[head.weight] = head_weight[k]
        if head.bias is not None:
            found[head.bias] = head_bias[k]
        _write(row, model.parameters, found)
    return terms


def _write(row: Tensor, parameters: Sequence[nn.Parameter], gradients: Mapping[Tensor, Tensor]) -> None:
    """Lay gradients end to end; a parameter without one (frozen, or not used) has gradient 0."""
    offset = 0
    for p in parameters:
        target = row[offset : offset + p.numel()].view(p.shape)
        gradient = gradients.get(p) if p.requires_grad else None
        if gradient is None:
            target.zero_()
        else:
            target.copy_(gradient)
        offset += p.numel()


def _body_gradients(h: Tensor, body: list[Tensor], cotangent: Tensor, *, last: bool) -> dict[Tensor, Tensor]:
    if not body or not h.requires_grad:
        return {}
    gradients = torch.autograd.grad(h, body, cotangent, retain_graph=not last, allow_unused=True)
    return {p: g for p, g in zip(body, gradients, strict=True) if g is not None}
