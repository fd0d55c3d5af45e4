"""All terms of an upload from one forward pass.

Every term is a vector-Jacobian product of the head's outputs and of `alpha`, the sum of the head's inputs `h`. At the
head it has a closed form (`c^T h` for the weight, `sum c` for the bias), and below the head it is the product of the
network's Jacobian with `c W + c_alpha`: one backward pass a term through the body, none through the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.protocols.perturb.scheme import Cotangents


@dataclass(frozen=True)
class ForwardPass:
    """What one forward pass leaves: the head's inputs (with their graph) and the outputs."""

    head_inputs: Tensor
    outputs: Tensor


def forward(model: nn.Module, head: nn.Linear, inputs: Tensor) -> ForwardPass:
    """Run the model, keeping the head's inputs."""
    captured: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
    try:
        outputs = model(inputs)
    finally:
        handle.remove()
    return ForwardPass(captured[0], outputs.detach())


def term_gradients(
    parameters: Sequence[nn.Parameter], head: nn.Linear, passed: ForwardPass, cotangents: Cotangents
) -> Tensor:
    """Terms x parameters, in the order of `parameters`."""
    h = passed.head_inputs
    outputs = cotangents.outputs.to(h.dtype)
    below_head = outputs @ head.weight.detach()
    if cotangents.activation_sum is not None:
        below_head = below_head + cotangents.activation_sum.to(h.dtype)[:, :, None]
    body = [p for p in parameters if p is not head.weight and p is not head.bias and p.requires_grad]
    rows = [
        _body_gradients(h, body, cotangent, last=k == len(below_head) - 1) for k, cotangent in enumerate(below_head)
    ]
    head_weight = outputs.transpose(1, 2) @ h.detach()
    head_bias = outputs.sum(1)
    terms = torch.empty(len(below_head), sum(p.numel() for p in parameters), dtype=h.dtype)
    for row, found, weight, bias in zip(terms, rows, head_weight, head_bias, strict=True):
        offset = 0
        for p in parameters:
            target = row[offset : offset + p.numel()]
            gradient = weight if p is head.weight else bias if p is head.bias else found.get(p)
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient.reshape(-1))
            offset += p.numel()
    return terms


def _body_gradients(
    h: Tensor, body: list[nn.Parameter], cotangent: Tensor, *, last: bool
) -> dict[nn.Parameter, Tensor]:
    if not body or not h.requires_grad:
        return {}
    gradients = torch.autograd.grad(h, body, cotangent, retain_graph=not last, allow_unused=True)
    return {p: g for p, g in zip(body, gradients, strict=True) if g is not None}
