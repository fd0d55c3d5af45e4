"""The float64 oracle of recovery: plain autograd on the plain network.

BatchNorm in a perturbed network acts with `eps / scale^2`, so its oracle uses exactly that, channel by channel.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import Loss


class BatchNormWithEps(nn.Module):
    """Training-mode batch normalisation with an eps per channel."""

    def __init__(self, source: _BatchNorm, eps: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = source.weight, source.bias
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        others = [d for d in range(x.dim()) if d != 1]
        view = (1, -1, *[1] * (x.dim() - 2))
        centred = x - x.mean(others, keepdim=True)
        variance = centred.square().mean(others, keepdim=True)
        normal = centred / torch.sqrt(variance + self.eps.view(view))
        return normal * self.weight.view(view) + self.bias.view(view)


def effective_eps(server: PerturbServer, model: nn.Module, graph: ScaleGraph) -> dict[str, Tensor]:
    """The eps with which each BatchNorm acts on the true channels in this round: eps / scale^2.

    Looks into the server's secrets, as only an oracle may.
    """
    assert server._secrets is not None
    effective = {}
    for layout in graph.statistics:
        module = model.get_submodule(layout.module)
        assert isinstance(module, _BatchNorm)
        effective[layout.module] = module.eps / server._secrets.scale_factors[layout.scale_classes] ** 2
    return effective


def oracle_gradient(
    model: nn.Module, graph: ScaleGraph, inputs: Tensor, targets: Tensor, loss: Loss, eps: Mapping[str, Tensor]
) -> Tensor:
    """The gradient in float64, as a flat vector."""
    reference = copy.deepcopy(model).double().train()
    for path, values in eps.items():
        parent, _, name = path.rpartition(".")
        source = reference.get_submodule(path)
        assert isinstance(source, _BatchNorm)
        setattr(reference.get_submodule(parent), name, BatchNormWithEps(source, values))
    return plain_gradient(reference, graph, inputs.double(), targets, loss)


def plain_gradient(model: nn.Module, graph: ScaleGraph, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """One ordinary backward pass, as a flat float64 vector."""
    outputs = model(inputs)
    lost = F.cross_entropy(outputs, targets) if loss == "ce" else F.mse_loss(outputs, targets.to(outputs.dtype))
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad(lost, list(named.values()))
    return graph.flatten(dict(zip(named, gradients, strict=True)), torch.float64)
