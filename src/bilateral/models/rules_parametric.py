"""Rules for layers with parameters: how a layer's weights follow the scale factors around it.

With `s_in`, `s_out` the factors of a layer's input and output channels:

    linear, convolution   weight * s_out / s_in,  bias * s_out,  s_out fresh
    batch normalisation   weight * s_out, bias * s_out, s_out fresh; statistics: mean * s_in, variance * s_in^2
      in evaluation mode  the same with s_in = 1, channels in place: the statistics are constants
    group / layer norm    the same, with s_in tied inside a group
                          (s_in is 1 before all three unless the graph is made with `norm_inputs = "scaled"`)
    PReLU                 weight unchanged (a positive factor passes through), permuted with its channels
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from bilateral.models.builder import (
    Axis,
    Binding,
    GraphBuilder,
    Grouping,
    Parameter,
    Site,
    Statistics,
    Value,
    refuse_activations,
)
from bilateral.models.identities import Identities, mix
from bilateral.models.rules import module_rule, rule, takes_parameters


@takes_parameters
@rule(F.linear)
def linear(builder: GraphBuilder, site: Site, x: Any, weight: Parameter, bias: Parameter | None = None) -> Identities:
    _expect_parameters(site, weight, bias)
    (x,) = builder.as_values(site, x)
    features = builder.uniform(site, x, range(x.meta.dim() - 1))
    fresh = builder.fresh_channels(weight.meta.shape[0])
    outputs, inputs = Axis.of(fresh), Axis.of(features)
    builder.bind(site, weight, Binding("linear weight", fresh.scale[:, None], features.scale[None, :], outputs, inputs))
    builder.bind(site, bias, Binding("bias", fresh.scale, outputs=outputs))
    return rows_of(fresh, site.output.shape, builder.token())


def rows_of(channels: Identities, shape: torch.Size, token: torch.Tensor) -> Identities:
    """Channels in the last dimension, computed anew at every place."""
    places = torch.arange(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
    role = channels.role if channels.role.stride(0) != 0 else channels.role[:1]
    return Identities(
        channels.scale.expand(shape), channels.neuron.expand(shape), mix(role, places, token).expand(shape)
    )


def linear_by_columns(builder: GraphBuilder, site: Site, x: Value, weight: Parameter) -> Identities:
    """`x @ weight`: a linear layer whose weight lies the other way round."""
    features = builder.uniform(site, x, range(x.meta.dim() - 1))
    fresh = builder.fresh_channels(weight.meta.shape[1])
    binding = Binding(
        "linear weight, by columns",
        fresh.scale[None, :],
        features.scale[:, None],
        Axis.of(fresh),
        Axis.of(features),
        transposed=True,
    )
    builder.bind(site, weight, binding)
    return rows_of(fresh, site.output.shape, builder.token())


def _convolution(
    builder: GraphBuilder,
    site: Site,
    x: Value,
    weight: Parameter,
    bias: Parameter | None,
    groups: int,
    transposed: bool,
) -> Identities:
    _expect_parameters(site, weight, bias)
    channels = builder.channels(site, x, weight.meta.dim() - 2)
    fresh = builder.fresh_channels(site.output.shape[1])
    s_in, s_out = channels.scale, fresh.scale
    in_table, out_table = s_in.reshape(groups, -1), s_out.reshape(groups, -1)
    if transposed:  # weight: (in, out / groups, *kernel)
        numerator = out_table.repeat_interleave(in_table.shape[1], 0)
        denominator = s_in[:, None]
    else:  # weight: (out, in / groups, *kernel)
        numerator = s_out[:, None]
        denominator = in_table.repeat_interleave(out_table.shape[1], 0)
    kernel_dims = (1,) * (weight.meta.dim() - 2)
    outputs, inputs = Axis.of(fresh), Axis.of(channels)
    builder.bind(
        site,
        weight,
        Binding(
            f"{'transposed ' if transposed else ''}convolution weight",
            numerator.reshape(*numerator.shape, *kernel_dims),
            denominator.reshape(*denominator.shape, *kernel_dims),
            outputs,
            inputs,
            groups,
            transposed,
        ),
    )
    builder.bind(site, bias, Binding("bias", s_out, outputs=outputs))
    if groups > 1:
        builder.groupings.append(Grouping(groups, (inputs, outputs)))
    return Identities.by_channel(fresh, site.output.shape, builder.token())


@takes_parameters
@rule(F.conv1d, F.conv2d, F.conv3d)
def convolution(
    builder: GraphBuilder,
    site: Site,
    input: Value,
    weight: Parameter,
    bias: Parameter | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Identities:
    return _convolution(builder, site, input, weight, bias, groups, transposed=False)


@takes_parameters
@rule(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
def transposed_convolution(
    builder: GraphBuilder,
    site: Site,
    input: Value,
    weight: Parameter,
    bias: Parameter | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Identities:
    return _convolution(builder, site, input, weight, bias, groups, transposed=True)


@takes_parameters
@rule(F.prelu)
def prelu(builder: GraphBuilder, site: Site, x: Value, weight: Parameter) -> Identities:
    _expect_parameters(site, weight)
    if weight.meta.numel() == 1:
        builder.bind(site, weight, Binding("PReLU weight"))
        return x.ids.changed(builder.token())
    channels = builder.channels(site, x)
    axis = Axis.of(channels)
    builder.bind(site, weight, Binding("PReLU weight", outputs=axis))
    told_apart = Identities(channels.scale, channels.neuron, mix(channels.role, axis.copies()))
    return Identities.by_channel(told_apart, site.output.shape, builder.token())


@takes_parameters
@rule(F.group_norm)
def group_norm(
    builder: GraphBuilder,
    site: Site,
    x: Value,
    num_groups: int,
    weight: Parameter | None = None,
    bias: Parameter | None = None,
    eps: float = 1e-5,
) -> Identities:
    _expect_parameters(site, weight, bias)
    channels = builder.channels(site, x)
    table = channels.scale.reshape(num_groups, -1)
    builder.scales.merge_over(table, [1], f"in one group of {site.label} with a pinned channel")
    axis = Axis.of(channels)
    if num_groups > 1:
        builder.groupings.append(Grouping(num_groups, (axis,)))
    builder.per_sample_norm_scales.append(channels.scale)
    return Identities.by_channel(
        _normalised(builder, site, weight, bias, channels, axis), site.output.shape, builder.token()
    )


@takes_parameters
@rule(F.layer_norm)
def layer_norm(
    builder: GraphBuilder,
    site: Site,
    x: Value,
    normalized_shape: list[int],
    weight: Parameter | None = None,
    bias: Parameter | None = None,
    eps: float = 1e-5,
) -> Identities:
    _expect_parameters(site, weight, bias)
    num_dims, first = x.meta.dim(), x.meta.dim() - len(normalized_shape)
    if first < 1:
        raise site.refuse("it normalises over the batch dimension", "Leave the batch out of `normalized_shape`.")
    builder.scales.merge_over(x.ids.scale, range(first, num_dims), f"normalised by {site.label} with a pinned value")
    line = builder.uniform(site, x, range(first)).map(lambda t: t.reshape(-1))
    builder.per_sample_norm_scales.append(line.scale)
    result = _normalised(builder, site, weight, bias, line, Axis.of(line))
    size = x.meta.shape[first:]
    return Identities(
        result.scale.reshape(size).expand(x.meta.shape),
        x.ids.neuron,
        mix(x.ids.role, result.role.reshape(size), builder.token()),
    )


def _normalised(
    builder: GraphBuilder,
    site: Site,
    weight: Parameter | None,
    bias: Parameter | None,
    channels: Identities,
    axis: Axis,
) -> Identities:
    """A normalisation forgets the scale of its input; its own weight and bias give the output a fresh one."""
    builder.axes.append(axis)  # with or without weights, its statistics need the same channels
    if builder.norm_inputs == "exact":  # with a factor eps would act as eps / s_in^2
        builder.scales.pin(channels.scale, f"normalised by {site.label}, whose eps must act as in the plain model")
    builder.normalised_scales.append(channels.scale)
    role = mix(channels.role, axis.copies())
    if weight is None:  # the output's scale is 1, and so must be that of a bias
        builder.bind(site, bias, Binding("normalisation bias", torch.zeros_like(axis.neuron), outputs=axis))
        return Identities(torch.zeros_like(axis.neuron), channels.neuron, role)
    s_out = builder.scales.fresh(axis.neuron.numel())
    shaped = s_out.reshape(weight.meta.shape)
    builder.bind(site, weight, Binding("normalisation weight", shaped, outputs=axis))
    builder.bind(site, bias, Binding("normalisation bias", shaped, outputs=axis))
    return Identities(s_out, channels.neuron, role)


def _expect_parameters(site: Site, *parameters: object) -> None:
    for parameter in parameters:
        if parameter is not None and not isinstance(parameter, Parameter):
            raise site.refuse(
                "its weights are computed inside the network, not parameters of their own",
                "Use a plain nn.Parameter or the module form of the layer.",
            )


@module_rule(nn.Linear, NonDynamicallyQuantizableLinear)
def _linear_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value
) -> Identities:
    return linear(builder, site, x, own["weight"], own.get("bias"))


@module_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value
) -> Identities:
    groups = int(module.groups)  # type: ignore[arg-type]
    return _convolution(builder, site, x, own["weight"], own.get("bias"), groups, transposed=False)


@module_rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _conv_transpose_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value
) -> Identities:
    groups = int(module.groups)  # type: ignore[arg-type]
    return _convolution(builder, site, x, own["weight"], own.get("bias"), groups, transposed=True)


@module_rule(nn.PReLU)
def _prelu_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value
) -> Identities:
    return prelu(builder, site, x, own["weight"])


@module_rule(nn.GroupNorm)
def _group_norm_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value
) -> Identities:
    assert isinstance(module, nn.GroupNorm)
    return group_norm(builder, site, x, module.num_groups, own.get("weight"), own.get("bias"))


@module_rule(nn.LayerNorm)
def _layer_norm_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value
) -> Identities:
    assert isinstance(module, nn.LayerNorm)
    shape = list(module.normalized_shape)
    if math.prod(shape) == 1:
        raise site.refuse("it normalises a single value, which is then always 0", "Remove the layer.")
    return layer_norm(builder, site, x, shape, own.get("weight"), own.get("bias"))


@module_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm_module(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value
) -> Identities:
    assert isinstance(module, nn.modules.batchnorm._BatchNorm)
    if any(s.module == site.path for s in builder.statistics):
        raise site.refuse(
            "it is called more than once, so its batch statistics cannot be told apart",
            "Give each place a BatchNorm of its own.",
        )
    channels = builder.channels(site, x)
    if not module.training and module.running_mean is not None:
        return _frozen_batch_norm(builder, site, own, channels)
    axis = Axis.of(channels)
    builder.statistics.append(Statistics(site.path, channels.scale, axis, tracked=module.running_mean is not None))
    result = _normalised(builder, site, own.get("weight"), own.get("bias"), channels, axis)
    return Identities.by_channel(result, site.output.shape, builder.token())


@takes_parameters
@rule(F.batch_norm)
def batch_norm(
    builder: GraphBuilder,
    site: Site,
    x: Value,
    running_mean: Any,
    running_var: Any,
    weight: Parameter | None = None,
    bias: Parameter | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Identities:
    _expect_parameters(site, weight, bias)
    refuse_activations(site, (running_mean, running_var, training, momentum, eps))
    channels = builder.channels(site, x)
    if not training:
        return _frozen_batch_norm(builder, site, {"weight": weight, "bias": bias}, channels)
    if running_mean is not None or running_var is not None:
        raise site.refuse(
            "it keeps running statistics outside of a BatchNorm layer, where nobody collects them",
            "Use nn.BatchNorm1d/2d/3d, or call it without running statistics.",
        )
    builder.per_sample_norm_scales.append(channels.scale)  # it keeps no variance that could take up its eps
    result = _normalised(builder, site, weight, bias, channels, Axis.of(channels))
    return Identities.by_channel(result, site.output.shape, builder.token())


def _frozen_batch_norm(
    builder: GraphBuilder, site: Site, own: Mapping[str, Parameter | None], channels: Identities
) -> Identities:
    """In evaluation mode it subtracts and divides by constants, channel by channel: what enters it stays as it is."""
    reason = f"meets the fixed statistics of {site.label}, which is in evaluation mode"
    builder.scales.pin(channels.scale, reason)
    builder.neurons.pin(channels.neuron, reason)
    result = _normalised(builder, site, own.get("weight"), own.get("bias"), channels, Axis.of(channels))
    return Identities.by_channel(result, site.output.shape, builder.token())
