"""Write a traced network, an input batch and its float logits to the npz that the peers read.

Formal guarantee (tested under this name): the exported layers compute the network's logits.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from bilateral.errors import UnsupportedLayerError
from torch import Tensor, fx, nn


def export_network(model: nn.Module, inputs: Tensor, path: Path) -> None:
    """Write weights, `inputs`, logits and the list of layers; refuse by name what the format cannot say.

    The format is described in `benchmarks/peers/prediction_task.py`.
    """
    model = model.eval()
    with torch.no_grad():
        logits = model(inputs)
    arrays = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    np.savez(
        path,
        architecture=np.array(json.dumps(layers_of(model))),
        inputs=inputs.numpy(),
        logits=logits.numpy(),
        **arrays,  # type: ignore[arg-type]  # numpy's stub takes **kwds for its own options
    )


def layers_of(model: nn.Module) -> list[dict[str, Any]]:
    """The layers as the peers read them (`peers/prediction_task.py`), or a refusal by name."""
    graph = fx.Tracer().trace(model)
    modules = dict(model.named_modules())
    layers: list[dict[str, Any]] = []
    names: dict[fx.Node, str] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = "input"
        elif node.op != "output":
            names[node] = node.name
            described = _module(modules[node.target], node) if node.op == "call_module" else _function(node)
            inputs = [names[argument] for argument in node.args if isinstance(argument, fx.Node)]
            layers.append({"name": node.name, "inputs": inputs, **described})
    return layers


def _module(module: nn.Module, node: fx.Node) -> Mapping[str, Any]:
    """A layer with settings of its own. Only square windows with equal strides are in the benchmark's networks."""
    weights = {"weight": f"{node.target}.weight", "bias": f"{node.target}.bias"}
    if isinstance(module, nn.Linear) and module.bias is not None:
        return {"kind": "linear", **weights}
    if isinstance(module, nn.Conv2d) and module.bias is not None and module.groups == 1 and module.dilation == (1, 1):
        stride, padding = module.stride, module.padding
        if isinstance(padding, tuple) and len(set(stride)) == len(set(padding)) == 1:
            return {"kind": "conv", **weights, "stride": stride[0], "padding": padding[0]}
    if isinstance(module, nn.MaxPool2d) and module.stride == module.kernel_size and module.padding == 0:
        return {"kind": "max_pool", "size": module.kernel_size}
    if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size == 1:
        return {"kind": "average_pool"}
    raise _refusal(f"{node.target} = {module}")


def _function(node: fx.Node) -> Mapping[str, Any]:
    if node.target is F.relu:
        return {"kind": "relu"}
    if node.target is torch.flatten and node.args[1:] == (1,):
        return {"kind": "flatten"}
    if node.target in (operator.add, torch.add):
        return {"kind": "add"}
    raise _refusal(str(node.target))


def _refusal(what: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"The peers' benchmark has no layer for {what}.",
        remedy="It takes convolutions and Linear with bias, ReLU, max pooling, mean, flatten and addition; "
        "build with batch_norm=False.",
    )
