"""All terms of an upload from one forward pass.

Every term is a vector-Jacobian product of the head's outputs and of `alpha`, the sum of the head's inputs `h`. At the
head it has a closed form (`c^T h` for the weight, `sum c` for the bias), and below the head it is the product of the
network's Jacobian with `c W + c_alpha`: one backward pass a term through the body, none through the head.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bilateral.protocols.flat_gradients import FlatGradients
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
    head_weight = outputs.transpose(1, 2) @ h.detach()
    head_bias = outputs.sum(1)
    own: list[Tensor] = [head.weight] if head.bias is None else [head.weight, head.bias]
    gradients = FlatGradients(h, model.parameters, own)
    terms = model.upload_rows(len(below_head), h.dtype)
    for k, row in enumerate(terms):
        given = dict(zip(own, (head_weight[k], head_bias[k]), strict=False))
        gradients.write(row, below_head[k], given, last=k == len(terms) - 1)
    return terms
