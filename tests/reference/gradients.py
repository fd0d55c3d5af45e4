"""Slow, obvious oracles for gradients: plain autograd, with the `eps` that acts where inputs of norms are scaled."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from tests.reference.harness import NORMS
from torch import Tensor, nn

from bilateral.models.scale_graph import ScaleGraph, _consecutive
from bilateral.models.tracing import walk


def normalised_scales(model: nn.Module, example: Tensor, factors: Tensor) -> list[Tensor]:
    """The scale factors at the input of each call of a normalisation layer, in the order of the calls.

    For factors of a scale graph with `norm_inputs = "scaled"`: by default there are none there.
    """
    builder = walk(model, example, "scaled").builder
    scale_of, _ = _consecutive(builder.scales)
    return [factors[scale_of[classes.reshape(-1)]] for classes in builder.normalised_scales]


def with_effective_epsilon(model: nn.Module, scales: list[Tensor]) -> nn.Module:
    """A copy whose normalisation layers are written out by their definition, with `eps / scale^2`."""
    copied = copy.deepcopy(model)
    calls: list[Iterator[Tensor]] = [iter(())]
    copied.register_forward_pre_hook(lambda *_: calls.__setitem__(0, iter(scales)))
    for module in copied.modules():
        if isinstance(module, NORMS):
            module.forward = lambda x, m=module: _normalise(m, x, m.eps / next(calls[0]) ** 2)
    return copied


def _normalise(module: nn.Module, x: Tensor, epsilon: Tensor) -> Tensor:
    if isinstance(module, nn.LayerNorm):
        dims = tuple(range(x.dim() - len(module.normalized_shape), x.dim()))
        mean, variance = x.mean(dims, keepdim=True), x.var(dims, unbiased=False, keepdim=True)
        result = (x - mean) / torch.sqrt(variance + epsilon[0])
        return result if module.weight is None else result * module.weight + module.bias
    shape = (1, -1, *[1] * (x.dim() - 2))
    if isinstance(module, nn.GroupNorm):
        grouped = x.reshape(x.shape[0], module.num_groups, -1)
        mean, variance = grouped.mean(2, keepdim=True), grouped.var(2, unbiased=False, keepdim=True)
        of_group = epsilon.reshape(module.num_groups, -1)[:, :1]
        result = ((grouped - mean) / torch.sqrt(variance + of_group)).reshape(x.shape)
    else:
        dims = tuple(d for d in range(x.dim()) if d != 1)
        mean, variance = x.mean(dims, keepdim=True), x.var(dims, unbiased=False, keepdim=True)
        result = (x - mean) / torch.sqrt(variance + epsilon.reshape(shape))
    return result if module.weight is None else result * module.weight.reshape(shape) + module.bias.reshape(shape)


def plain_gradient(model: nn.Module, graph: ScaleGraph, inputs: Tensor, targets: Tensor, loss: str) -> Tensor:
    """The gradient of torch's own loss by autograd, as one vector; zero for parameters that are not used."""
    outputs = model.train()(inputs)
    value = F.mse_loss(outputs, targets) if loss == "mse" else F.cross_entropy(outputs, targets)
    own = dict(model.named_parameters())
    names = [p.name for p in graph.parameters]
    found = torch.autograd.grad(value, [own[n] for n in names], allow_unused=True)
    filled = {n: torch.zeros_like(own[n]) if g is None else g for n, g in zip(names, found, strict=True)}
    return graph.flatten(filled, torch.float64)
