"""Rules for layers with parameters: how a layer's weights follow the scale factors around it.

With `s_in`, `s_out` the factors of a layer's input and output channels:

    linear, convolution   weight * s_out / s_in,  bias * s_out,  s_out fresh
    batch normalisation   weight * s_out, bias * s_out, s_out fresh; statistics: mean * s_in, variance * s_in^2
    group / layer norm    the same, with s_in tied inside a group
    PReLU                 weight unchanged (a positive factor passes through), permuted with its channels
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.builder import Axis, Binding, GraphBuilder, Grouping, Parameter, Site, Statistics, Value
from bilateral.models.identities import Identities
from bilateral.models.rules import module_rule, rule


def _last_axis(builder: GraphBuilder, site: Site, x: Value) -> tuple[Tensor, Axis]:
    """Scale classes and axis of the features of a (..., features) value."""
    others = range(x.meta.dim() - 1)
    scale, neuron = builder.uniform(site, x, others)
    return scale, Axis(neuron, x.ids.location[(0,) * (x.meta.dim() - 1)])


@rule(F.linear)
def linear(builder: GraphBuilder, site: Site, x: Value, weight: Parameter, bias: Parameter | None = None) -> Identities:
    _expect_parameters(site, weight, bias)
    s_in, inputs = _last_axis(builder, site, x)
    s_out, neuron = builder.fresh_channels(weight.meta.shape[0])
    outputs = Axis.of(neuron)
    builder.bind(site, weight, Binding("linear weight", s_out[:, None], s_in[None, :], outputs, inputs))
    builder.bind(site, bias, Binding("bias", s_out, outputs=outputs))
    zero = torch.zeros((), dtype=torch.int64)
    return Identities(*(t.expand(site.output.shape) for t in (s_out, neuron, zero)))


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
    s_in, neuron_in = builder.channels(site, x)
    num_out = site.output.shape[1]
    s_out, neuron_out = builder.fresh_channels(num_out)
    in_table, out_table = s_in.reshape(groups, -1), s_out.reshape(groups, -1)
    if transposed:  # weight: (in, out / groups, *kernel)
        numerator = out_table.repeat_interleave(in_table.shape[1], 0)
        denominator = s_in[:, None]
    else:  # weight: (out, in / groups, *kernel)
        numerator = s_out[:, None]
        denominator = in_table.repeat_interleave(out_table.shape[1], 0)
    kernel_dims = (1,) * (weight.meta.dim() - 2)
    outputs, inputs = Axis.of(neuron_out), Axis.of(neuron_in)
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
        builder.groupings.append(Grouping((neuron_in.reshape(groups, -1), neuron_out.reshape(groups, -1))))
    return Identities.by_channel(s_out, neuron_out, site.output.shape)


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


@rule(F.prelu)
def prelu(builder: GraphBuilder, site: Site, x: Value, weight: Parameter) -> Identities:
    _expect_parameters(site, weight)
    axis = None
    if weight.meta.numel() > 1:
        axis = Axis.of(builder.channels(site, x)[1])
    builder.bind(site, weight, Binding("PReLU weight", outputs=axis))
    return x.ids


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
    s_in, neuron = builder.channels(site, x)
    table = s_in.reshape(num_groups, -1)
    builder.scales.merge_over(table, [1], f"in one group of {site.label} with a pinned channel")
    if num_groups > 1:
        builder.groupings.append(Grouping((neuron.reshape(num_groups, -1),)))
    builder.normalised_scales.append(s_in)
    s_out = _affine_output(builder, site, weight, bias, Axis.of(neuron))
    return Identities.by_channel(s_out, neuron, site.output.shape)


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
    s_in, neuron = builder.uniform(site, x, range(first))
    location = x.ids.location[(0,) * first]
    builder.normalised_scales.append(s_in)
    axis = Axis(neuron.reshape(-1), location.reshape(-1))
    s_out = _affine_output(builder, site, weight, bias, axis).reshape(s_in.shape)
    return Identities(s_out.expand(x.meta.shape), x.ids.neuron, x.ids.location)


def _affine_output(
    builder: GraphBuilder, site: Site, weight: Parameter | None, bias: Parameter | None, axis: Axis
) -> Tensor:
    """A normalisation forgets the scale of its input; its own weight and bias give the output a fresh one."""
    count = axis.neuron.numel()
    if weight is None:  # without a weight the output's scale is 1
        return torch.zeros(count, dtype=torch.int64)
    s_out = builder.scales.fresh(count)
    shape = weight.meta.shape
    builder.bind(site, weight, Binding("normalisation weight", s_out.reshape(shape), outputs=axis))
    if bias is not None:
        builder.bind(site, bias, Binding("normalisation bias", s_out.reshape(shape), outputs=axis))
    return s_out


def _expect_parameters(site: Site, *parameters: object) -> None:
    for parameter in parameters:
        if parameter is not None and not isinstance(parameter, Parameter):
            raise site.refuse(
                "its weights are computed inside the network, not parameters of their own",
                "Use a plain nn.Parameter or the module form of the layer.",
            )


@module_rule(nn.Linear)
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
    s_in, neuron = builder.channels(site, x)
    axis = Axis.of(neuron)
    builder.axes.append(axis)
    builder.normalised_scales.append(s_in)
    builder.statistics.append(Statistics(site.path, s_in, axis))
    s_out = _affine_output(builder, site, own.get("weight"), own.get("bias"), axis)
    return Identities.by_channel(s_out, neuron, site.output.shape)
