"""Rules for what works on the space of each channel by itself: pooling, upsampling, padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.builder import GraphBuilder, Parameter, Site, Value, refuse_activations
from bilateral.models.identities import Identities, combine
from bilateral.models.rules import module_rule, rule

_SPACE_OF_FUNCTIONS: dict[Callable[..., Any], int] = {
    F.max_pool1d: 1,
    F.max_pool2d: 2,
    F.max_pool3d: 3,
    F.avg_pool1d: 1,
    F.avg_pool2d: 2,
    F.avg_pool3d: 3,
    F.adaptive_avg_pool1d: 1,
    F.adaptive_avg_pool2d: 2,
    F.adaptive_avg_pool3d: 3,
    F.adaptive_max_pool1d: 1,
    F.adaptive_max_pool2d: 2,
    F.adaptive_max_pool3d: 3,
    torch.max_pool1d: 1,
    torch.max_pool2d: 2,
}
_SPACE_OF_MODULES: dict[type[nn.Module], int] = {
    nn.MaxPool1d: 1,
    nn.MaxPool2d: 2,
    nn.MaxPool3d: 3,
    nn.AvgPool1d: 1,
    nn.AvgPool2d: 2,
    nn.AvgPool3d: 3,
    nn.AdaptiveAvgPool1d: 1,
    nn.AdaptiveAvgPool2d: 2,
    nn.AdaptiveAvgPool3d: 3,
    nn.AdaptiveMaxPool1d: 1,
    nn.AdaptiveMaxPool2d: 2,
    nn.AdaptiveMaxPool3d: 3,
    nn.UpsamplingNearest2d: 2,
    nn.UpsamplingBilinear2d: 2,
    nn.ReflectionPad1d: 1,
    nn.ReflectionPad2d: 2,
    nn.ReplicationPad1d: 1,
    nn.ReplicationPad2d: 2,
    nn.CircularPad1d: 1,
    nn.CircularPad2d: 2,
}


def _spatial(builder: GraphBuilder, site: Site, x: Value, space_dims: int | None) -> Identities:
    """What works on the space of each channel by itself, the same way in every channel."""
    if not isinstance(site.output, Tensor):
        raise site.refuse("it also returns the positions of the maxima", "Set return_indices=False.")
    return Identities.by_channel(builder.channels(site, x, space_dims), site.output.shape, builder.token())


def _spatial_function(space_dims: int | None) -> Any:
    def applied(builder: GraphBuilder, site: Site, x: Value, *args: Any, **kwargs: Any) -> Identities:
        refuse_activations(site, (args, kwargs))
        return _spatial(builder, site, x, space_dims)

    return applied


for _function, _dims in _SPACE_OF_FUNCTIONS.items():
    rule(_function)(_spatial_function(_dims))
rule(F.interpolate)(_spatial_function(None))  # torch itself insists on a batch and a channel dimension


@module_rule(*_SPACE_OF_MODULES, nn.Upsample)
def _spatial_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return _spatial(builder, site, x, _SPACE_OF_MODULES.get(type(module)))


@rule(F.pad)
def padded(
    builder: GraphBuilder,
    site: Site,
    x: Value,
    pad: Sequence[int],
    mode: str = "constant",
    value: float | None = None,
) -> Identities:
    """Zeros have every scale. New channels of zeros are new neurons, which later layers may tie to others."""
    if value not in (None, 0, 0.0):
        raise site.refuse(f"it pads with {value}, which does not scale with its channel", "Pad with zeros.")
    widths = {x.meta.dim() - 1 - i // 2: (pad[i], pad[i + 1]) for i in range(0, len(pad), 2)}
    if any(widths.get(0, (0, 0))):
        raise site.refuse("it pads the batch dimension", "Pad channels or space only.")
    before, after = widths.get(1, (0, 0))
    if not before and not after:
        return _spatial(builder, site, x, None)
    if mode != "constant":
        raise site.refuse(f"it pads channels by {mode}", "Pad channels with zeros, or space only.")
    if before < 0 or after < 0:
        raise site.refuse("it crops channels by negative padding", "Slice the channels instead.")
    silent = builder.fresh_channels(before + after)
    parts = [silent.map(lambda t: t[:before]), builder.channels(site, x), silent.map(lambda t: t[before:])]
    return Identities.by_channel(combine(torch.cat, parts), site.output.shape, builder.token())


@module_rule(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)
def _pad_module(
    builder: GraphBuilder,
    site: Site,
    module: nn.Module,
    own: dict[str, Parameter],
    x: Value,
) -> Identities:
    return padded(builder, site, x, list(module.padding), value=module.value)  # type: ignore[arg-type]
