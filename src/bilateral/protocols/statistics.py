"""Batch statistics of BatchNorm layers: collected by clients, unscaled and averaged by the server."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bilateral.errors import ModelError
from bilateral.models.layout import BatchNormLayer, ModelLayout
from bilateral.models.scale_graph import ScaleGraph, positions


def collect_batch_statistics(model: nn.Module) -> None:
    """Make every BatchNorm's running statistics those of the last batch (a client keeps no history)."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.momentum = 1.0


def batch_statistics(model: nn.Module, layout: ModelLayout) -> Tensor:
    """Means and unbiased variances of the last batch, layer after layer, as one vector."""
    parts: list[Tensor] = []
    for layer in layout.statistics:
        mean, variance = _buffers(model, layer)
        if mean is not None and variance is not None:
            parts += [mean.detach().clone(), variance.detach().clone()]
    return torch.cat(parts) if parts else torch.zeros(0)


def update_running_statistics(model: nn.Module, layout: ModelLayout, statistics: Tensor) -> None:
    """The server's own BatchNorm update with the clients' average, as torch does it after a batch."""
    offset = 0
    for layer in layout.statistics:
        module = model.get_submodule(layer.module)
        assert isinstance(module, _BatchNorm)
        mean, variance = _buffers(model, layer)
        if mean is None or variance is None:
            continue
        assert module.num_batches_tracked is not None
        module.num_batches_tracked.add_(1)
        rate = module.momentum if module.momentum is not None else 1.0 / float(module.num_batches_tracked)
        for buffer in (mean, variance):
            batch = statistics[offset : offset + buffer.numel()].to(buffer.dtype)
            if buffer is variance:
                batch.clamp_min_(0.0)  # below it a sum is somebody's lie, or rounding under float masks
            buffer.mul_(1.0 - rate).add_(batch, alpha=rate)
            offset += buffer.numel()


def replace_running_statistics(model: nn.Module, layout: ModelLayout, statistics: Tensor) -> None:
    """Running statistics as they come, layer after layer: with local steps clients keep the history."""
    offset = 0
    for layer in layout.statistics:
        module = model.get_submodule(layer.module)
        assert isinstance(module, _BatchNorm)
        mean, variance = _buffers(model, layer)
        if mean is None or variance is None:
            continue
        assert module.num_batches_tracked is not None
        module.num_batches_tracked.add_(1)
        for buffer in (mean, variance):
            found = statistics[offset : offset + buffer.numel()].to(buffer.device, buffer.dtype)
            buffer.copy_(found.clamp(min=0.0) if buffer is variance else found)  # as above
            offset += buffer.numel()


def scaled_buffers(
    model: nn.Module, graph: ScaleGraph, scale_factors: Tensor, exchange: Tensor
) -> Mapping[str, Tensor]:
    """Running statistics for a perturbed model in evaluation mode.

    The variance also takes up `eps`, so that evaluation is exact:  s^2 (var + eps) = var' + eps.
    """
    buffers: dict[str, Tensor] = {}
    for layout in graph.statistics:
        module = model.get_submodule(layout.module)
        assert isinstance(module, _BatchNorm)
        mean, variance = _buffers(model, layout)
        if mean is None or variance is None:
            raise ModelError(
                f"BatchNorm `{layout.module}` keeps no running statistics.",
                remedy="Set track_running_stats=True to export the model.",
            )
        scale, order = scale_factors[layout.scale_classes], positions(layout.axis, exchange)
        scaled_variance = scale**2 * (variance.double() + module.eps) - module.eps
        buffers[f"{layout.module}.running_mean"] = (scale * mean.double())[order].to(mean.dtype)
        buffers[f"{layout.module}.running_var"] = scaled_variance[order].to(variance.dtype)
    return buffers


def _buffers(model: nn.Module, layer: BatchNormLayer) -> tuple[Tensor | None, Tensor | None]:
    module = model.get_submodule(layer.module)
    assert isinstance(module, _BatchNorm)
    return module.running_mean, module.running_var
