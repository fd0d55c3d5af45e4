"""The transitional layer and its rule: a diagonal weight that ends one scale and begins another.

weight * s_out / s_in,  s_out fresh; channels keep their neurons, so the weight moves with them
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, fx, nn

from bilateral.models.builder import Axis, Binding, GraphBuilder, Parameter, Site, Value
from bilateral.models.identities import Identities, mix
from bilateral.models.rules import rule, takes_parameters

TRANSITIONAL: Final = "transitional weight"


def scale_channels(x: Tensor, weight: Tensor, channel_dim: int) -> Tensor:
    """`x` with every channel multiplied by its number; `weight` has one row a channel."""
    shape = [1] * x.dim()
    shape[channel_dim] = -1
    return x * weight.view(shape)


fx.wrap("scale_channels")  # a single call to the tracer, in calls from this file: so its rule applies


class Transitional(nn.Module):
    """Multiplies every channel by a number of its own: 1 in the true model, frozen, without a bias."""

    weight: nn.Parameter

    def __init__(self, num_channels: int, channel_dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.channel_dim = channel_dim
        # One row a channel: to the scale graph it is a convolution with as many groups as channels.
        self.weight = nn.Parameter(torch.ones(num_channels, 1, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return scale_channels(x, self.weight, self.channel_dim)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, channel_dim={self.channel_dim}"


@takes_parameters
@rule(scale_channels)
def _scale_channels(builder: GraphBuilder, site: Site, x: Value, weight: Parameter, channel_dim: int) -> Identities:
    dim = channel_dim % x.meta.dim()
    channels = builder.uniform(site, x, [d for d in range(x.meta.dim()) if d != dim])
    axis = Axis.of(channels)
    count = len(axis.neuron)
    fresh = builder.scales.fresh(count)
    builder.bind(site, weight, Binding(TRANSITIONAL, fresh[:, None], channels.scale[:, None], axis, axis, groups=count))
    view = [1] * x.meta.dim()
    view[dim] = -1
    shape = x.meta.shape
    return Identities(
        fresh.view(view).expand(shape),
        x.ids.neuron,
        mix(x.ids.role, axis.copies().view(view), builder.token()).expand(shape),
    )
