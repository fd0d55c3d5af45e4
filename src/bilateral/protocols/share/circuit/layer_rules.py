"""How each layer becomes steps of a circuit. What is not in the two tables at the end is refused by name."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bilateral.protocols.share.circuit.description import (
    Add,
    AvgPool,
    Concat,
    Conv,
    Dense,
    LeakyRelu,
    MaxPool,
    Pair,
    Relu,
    Reshape,
)
from bilateral.protocols.share.circuit.graph_compiler import TRACED_BATCH, Call, GraphCompiler, Rule


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _linear(compiler: GraphCompiler, call: Call) -> int:
    module = call.module
    assert isinstance(module, nn.Linear)
    step = Dense((compiler.source(call),), module.out_features)
    return compiler.append_layer(step, lambda: (module.weight, module.bias), call.node)


def _conv(compiler: GraphCompiler, call: Call) -> int:
    module = call.module
    assert isinstance(module, nn.Conv2d)
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        raise call.refuse("only padding with a number of zeros has a rule")
    kernel, stride, padding, dilation = (
        _pair(v) for v in (module.kernel_size, module.stride, module.padding, module.dilation)
    )
    step = Conv((compiler.source(call),), module.out_channels, kernel, stride, padding, dilation, module.groups)
    return compiler.append_layer(step, lambda: (module.weight, module.bias), call.node)


def _batch_norm(compiler: GraphCompiler, call: Call) -> int:
    norm = call.module
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
    if norm.running_mean is None or norm.running_var is None:
        raise call.refuse("it keeps no running statistics")
    source, source_node = compiler.source(call), call.input_node
    assert isinstance(source_node, fx.Node)
    if source_node in compiler.layer_of_node and len(source_node.users) == 1:
        compiler.layers[compiler.layer_of_node[source_node]].norms.append(lambda: _scale_and_shift(norm))
        return source
    shape, channels = compiler.shape_of(source), norm.num_features
    if len(shape) == 1:
        source = compiler.append(Reshape((source,), (channels, 1, 1)))

    def own() -> tuple[Tensor, Tensor]:
        scale, shift = _scale_and_shift(norm)
        return scale.reshape(-1, 1, 1, 1), shift

    step = Conv((source,), channels, (1, 1), (1, 1), (0, 0), (1, 1), channels)
    value = compiler.append_layer(step, own)
    return compiler.append(Reshape((value,), (channels,))) if len(shape) == 1 else value


def _scale_and_shift(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """What it does with its running statistics."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -norm.running_mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


def _relu(compiler: GraphCompiler, call: Call) -> int:
    return compiler.append(Relu((compiler.source(call),)))


def _max_pool(compiler: GraphCompiler, call: Call) -> int:
    kernel, stride, padding, dilation, ceil_mode = call.settings(
        "kernel_size", "stride", "padding", "dilation", "ceil_mode", padding=0, dilation=1, ceil_mode=False
    )
    if _pair(dilation) != (1, 1) or ceil_mode:
        raise call.refuse("dilation and ceil_mode have no rule")
    source, source_node = compiler.source(call), call.input_node
    settings = (_pair(kernel), _pair(kernel if stride is None else stride), _pair(padding))
    assert isinstance(source_node, fx.Node)
    before = compiler.steps[source - 1] if source > 0 else None
    if settings[2] != (0, 0):
        if not isinstance(before, Relu):
            raise call.refuse("padding has a rule only directly after a ReLU")
        return compiler.append(MaxPool((source,), *settings))
    is_own = len(source_node.users) == 1 and sum(1 for value in compiler.values.values() if value == source) == 1
    if isinstance(before, Relu | LeakyRelu) and source == len(compiler.steps) and is_own:
        compiler.steps.pop()
        return compiler.append(replace(before, sources=(compiler.append(MaxPool(before.sources, *settings)),)))
    return compiler.append(MaxPool((source,), *settings))


def _avg_pool(compiler: GraphCompiler, call: Call) -> int:
    kernel, stride, padding, ceil_mode, include_pad, override = call.settings(
        "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override",
        padding=0, ceil_mode=False, count_include_pad=True,
    )  # fmt: skip
    if ceil_mode or override is not None or (_pair(padding) != (0, 0) and not include_pad):
        raise call.refuse("ceil_mode, divisor_override and count_include_pad=False have no rule")
    source = compiler.source(call)
    return compiler.append_average(
        AvgPool((source,), _pair(kernel), _pair(kernel if stride is None else stride), _pair(padding))
    )


def _adaptive_avg_pool(compiler: GraphCompiler, call: Call) -> int:
    (size,) = call.settings("output_size")
    source = compiler.source(call)
    _, *image = compiler.shape_of(source)
    wanted = [now if size is None else size for size, now in zip(_sizes(size), image, strict=True)]
    if any(now % then for now, then in zip(image, wanted, strict=True)):
        raise call.refuse(f"{tuple(image)} pixels do not divide evenly into {tuple(wanted)}")
    kernel = (image[0] // wanted[0], image[1] // wanted[1])
    return compiler.append_average(AvgPool((source,), kernel, kernel, (0, 0)))


def _sizes(size: Any) -> Sequence[int | None]:
    return (size, size) if size is None or isinstance(size, int) else tuple(size)


def _mean(compiler: GraphCompiler, call: Call) -> int:
    dims, keepdim = call.settings("dim", "keepdim", keepdim=False)
    source = compiler.source(call)
    shape = compiler.shape_of(source)
    if len(shape) != 3 or not isinstance(dims, tuple | list) or sorted(d % 4 for d in dims) != [2, 3]:
        raise call.refuse("only the mean over an image's height and width has a rule")
    kernel = (shape[1], shape[2])
    value = compiler.append_average(AvgPool((source,), kernel, kernel, (0, 0)))
    return value if keepdim else compiler.append(Reshape((value,), (shape[0],)))


def _reshape(compiler: GraphCompiler, call: Call) -> int:
    batch, *shape = call.node.meta["tensor_meta"].shape
    if batch != TRACED_BATCH or len(shape) not in (1, 3):
        raise call.refuse("it must keep the samples apart and give flat values or images")
    return compiler.append(Reshape((compiler.source(call),), tuple(shape)))


def _add(compiler: GraphCompiler, call: Call) -> int:
    if call.node.kwargs:
        raise call.refuse("only a plain sum of two values has a rule")
    return compiler.append(Add((compiler.source(call, 0), compiler.source(call, 1))))


def _concat(compiler: GraphCompiler, call: Call) -> int:
    parts = call.node.args[0] if call.node.args else call.node.kwargs.get("tensors")
    dim = call.settings("dim", dim=0)[0]
    if dim not in (1, 1 - len(call.node.meta["tensor_meta"].shape)):
        raise call.refuse("only concatenation of channels or features (dim=1) has a rule")
    if not isinstance(parts, list | tuple) or not all(part in compiler.values for part in parts):
        raise call.refuse("it joins something that is not a value of the network")
    return compiler.append(Concat(tuple(compiler.values[part] for part in parts if isinstance(part, fx.Node))))


def _dropout(compiler: GraphCompiler, call: Call) -> int:
    _, is_training = call.settings("p", "training", training=True)
    if is_training and call.module is None:
        raise call.refuse("it drops at random in evaluation, too")
    return compiler.source(call)


def _nothing(compiler: GraphCompiler, call: Call) -> int:
    return compiler.source(call)


MODULE_RULES: Final[dict[type[nn.Module] | None, Rule]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.ReLU: _relu,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _avg_pool,
    nn.AdaptiveAvgPool2d: _adaptive_avg_pool,
    nn.Flatten: _reshape,
    nn.Identity: _nothing,
    nn.Dropout: _nothing,
    nn.Dropout2d: _nothing,
}
FUNCTION_RULES: Final[dict[Any, Rule]] = {
    F.relu: _relu,
    torch.relu: _relu,
    "relu": _relu,
    F.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    F.avg_pool2d: _avg_pool,
    F.adaptive_avg_pool2d: _adaptive_avg_pool,
    torch.mean: _mean,
    "mean": _mean,
    torch.flatten: _reshape,
    "flatten": _reshape,
    "view": _reshape,
    "reshape": _reshape,
    torch.reshape: _reshape,
    operator.add: _add,
    operator.iadd: _add,
    torch.add: _add,
    "add": _add,
    torch.cat: _concat,
    torch.concat: _concat,
    F.dropout: _dropout,
}
