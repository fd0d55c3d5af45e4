"""Labels from the head's gradient: they leak where images no longer do, so they are read, and audited, by themselves.

For one sample with cross entropy the head's bias has the gradient `softmax - target`: below zero at the label alone
(Zhao et al. 2020, iDLG). With squared error it is `2/outputs (y - target)`, and `y` follows from the head's input,
which is a row of the weight's gradient over the bias's. Without a bias, rows of the weight's gradient are multiples of
one vector, and the label's points the other way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bilateral.audit.topics.inversion.attacks.gradient_matching import GradientModel


def read_label(model: GradientModel, parameters: Tensor, gradient: Tensor) -> int:
    """The label of the one sample behind a gradient."""
    graph = model.graph
    rows = graph.unflatten(gradient)[graph.head_weight.name].double()
    if graph.head_bias is None:
        return _by_direction(rows)
    biases = graph.unflatten(gradient)[graph.head_bias.name].double()
    if model.loss == "ce":
        return int(biases.argmin())
    unit = int(biases.abs().argmax())
    if biases[unit] == 0:
        return 0
    head_input = rows[unit] / biases[unit]
    values = graph.unflatten(parameters)
    outputs = values[graph.head_weight.name].double() @ head_input + values[graph.head_bias.name].double()
    return int((outputs - biases * len(biases) / 2).argmax())


def _by_direction(rows: Tensor) -> int:
    """The row that points against most of the others' weight."""
    products = rows @ rows.T
    return int((products.sum(1) - products.diagonal()).argmin())


def read_labels_of_sum(
    model: GradientModel, parameters: Tensor, gradient: Tensor, count: int, public_samples: Tensor
) -> Tensor:
    """The labels of `count` samples behind a mean gradient, ascending: as often as their share of it says.

    What the network answers to the samples is taken to be what it answers to public ones, on average.
    """
    graph = model.graph
    with torch.no_grad():
        outputs = model.outputs(parameters, public_samples).double()
    usual = outputs.softmax(1).mean(0) if model.loss == "ce" else outputs.mean(0)
    if graph.head_bias is not None:
        observed = graph.unflatten(gradient)[graph.head_bias.name].double()
    else:
        observed = _along_usual_input(model, parameters, gradient, public_samples)
    if model.loss == "mse":
        observed = observed * len(observed) / 2
    shares = torch.clamp(usual - torch.nan_to_num(observed), min=0.0)
    shares = shares / shares.sum() if float(shares.sum()) > 0 else torch.full_like(shares, 1.0 / len(shares))
    return _apportioned(shares, count)


def _along_usual_input(model: GradientModel, parameters: Tensor, gradient: Tensor, samples: Tensor) -> Tensor:
    """What the bias's gradient would be, from the weight's: its rows over the mean of public head inputs."""
    seen: list[Tensor] = []
    head = model.network.get_submodule(model.graph.head)
    handle = head.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0].detach().double()))
    try:
        with torch.no_grad():
            model.outputs(parameters, samples)
    finally:
        handle.remove()
    usual = seen[0].flatten(0, -2).mean(0)
    rows = model.graph.unflatten(gradient)[model.graph.head_weight.name].double()
    return rows @ usual / torch.clamp(usual @ usual, min=1e-12)


def _apportioned(shares: Tensor, count: int) -> Tensor:
    """`count` seats by largest remainder."""
    wanted = shares * count
    seats = wanted.floor()
    rest = count - int(seats.sum())
    order = (wanted - seats).argsort(descending=True)
    seats[order[:rest]] += 1
    return torch.repeat_interleave(torch.arange(len(shares)), seats.long())
