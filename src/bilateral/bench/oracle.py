"""The float64 oracle of recovery: plain autograd on the plain network. It knows no secret."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.settings import Loss


def oracle_gradient(model: nn.Module, graph: ScaleGraph, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """The gradient in float64, as a flat vector."""
    return plain_gradient(copy.deepcopy(model).double().train(), graph, inputs.double(), targets, loss)


def plain_gradient(model: nn.Module, graph: ScaleGraph, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """One ordinary backward pass, as a flat float64 vector."""
    outputs = model(inputs)
    lost = F.cross_entropy(outputs, targets) if loss == "ce" else F.mse_loss(outputs, targets.to(outputs.dtype))
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad(lost, list(named.values()))
    return graph.flatten(dict(zip(named, gradients, strict=True)), torch.float64)
