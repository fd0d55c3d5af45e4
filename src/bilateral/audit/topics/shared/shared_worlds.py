"""Worlds for games about secret-shared prediction: what is asked, and what answers.

A run of a world is two predictions in sessions of their own, the first of two batches: masks that are used again,
within a tensor, in the next batch or in the next session, hide differences only. So worlds differ in what is constant
too: flat queries that are repeated, of a network that stays, against patterns that change from query to query and a
network that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from bilateral.audit.shared_truth import compared_numbers
from bilateral.protocols.share.circuit.description import FRACTION_BITS, Circuit
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, PrivateLayer
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.randomness import Randomness

_QUERIES: Final = (2, 1)
"""Of the two predictions of a run. Each is a batch of its own."""
SHIFT: Final = 8
"""By how much one answering party's logits are larger in one world, and smaller in the other."""
_LARGE_WEIGHT: Final = 4.0
"""Of a neuron's weights in sum: activations grow fourfold from layer to layer."""
_LARGE, _SMALL = 512, 8
"""Activations: far enough apart that no factor hides it, if places are known."""
HiddenName = Literal["up", "down", "exchanged", "large", "small", "zero"]
HIDDEN_NAMES: Final[tuple[HiddenName, ...]] = ("up", "down", "exchanged", "large", "small", "zero")
"""What a last hidden layer holds whose answer is always the same: half large and half small, all active; t and -t - 1
in another order; the halves exchanged; all large, all small, all zero."""


@dataclass(frozen=True, repr=False)
class Asked:
    """One prediction, in sessions of its own."""

    queries: Tensor
    models: Mapping[str, FixedPointModel]


World = Sequence[Asked]
"""What happens in one run, one prediction after the other."""
WorldName = Literal["bright", "negated", "black", "changing", "zero weights", "large weights"]
WORLD_NAMES: Final[tuple[WorldName, ...]] = (
    "bright", "negated", "black", "changing", "zero weights", "large weights",
)  # fmt: skip


def make_world(which: WorldName, name: str, model: FixedPointModel, randomness: Randomness) -> World:
    """`name` answers with `model`, or with other weights in its circuit. Queries are as large as its own samples."""
    size, shape = float(model.circuit.largest_input), model.circuit.input_shape
    if which == "changing":
        queries = [randomness.child("pattern", n).uniform(n, *shape, high=size).float() for n in _QUERIES]
        networks = model, random_network(model.circuit, randomness.child("another network"))
        return [Asked(asked, {name: network}) for asked, network in zip(queries, networks, strict=True)]
    if which == "zero weights":
        model = _with_weights(model, torch.zeros_like)
    elif which == "large weights":
        model = _with_weights(model, lambda weight: torch.full_like(weight, _large(weight)))
    pixel = {"negated": -size, "black": 0.0}.get(which, size)
    return [Asked(torch.full((n, *shape), pixel), {name: model}) for n in _QUERIES]


def _large(weight: Tensor) -> int:
    return max(1, round(_LARGE_WEIGHT * 2**FRACTION_BITS / weight[0].numel()))


def _with_weights(model: FixedPointModel, change: Callable[[Tensor], Tensor]) -> FixedPointModel:
    """The same circuit with other weights, which need not be sensible; without biases."""
    layers = (PrivateLayer(change(layer.weight), torch.zeros_like(layer.bias)) for layer in model.layers)
    return FixedPointModel(model.circuit, tuple(layers))


def random_network(circuit: Circuit, randomness: Randomness) -> FixedPointModel:
    """A network that whoever knows the circuit can make up."""
    layers = []
    for index, step in enumerate(circuit.linear_steps):
        shape = step.weight_shape(circuit.values[step.sources[0]])
        drawn = randomness.child("weight", index).normal(*shape) * (2.0 / np.prod(shape[1:])) ** 0.5
        bias = randomness.child("bias", index).normal(shape[0]) * 0.3
        layers.append(PrivateLayer(ring.encode(drawn, FRACTION_BITS), ring.encode(bias, _bias_bits(circuit, index))))
    return FixedPointModel(circuit, tuple(layers))


def varied(model: FixedPointModel, randomness: Randomness) -> FixedPointModel:
    """A network like this one: all weights of a layer larger or smaller by one factor."""
    layers = []
    for index, layer in enumerate(model.layers):
        factor = float(randomness.child(index).log_uniform(1, low=0.5, high=2.0))
        layers.append(PrivateLayer((layer.weight * factor).round().long(), layer.bias))
    return FixedPointModel(model.circuit, tuple(layers))


def answering(model: FixedPointModel, direction: Literal[1, -1], *, hidden: bool) -> FixedPointModel:
    """The network with all logits `SHIFT` up or down; with `hidden` its last hidden layer shows which, to who sees it.

    Up: all its neurons are active, the first half of them strongly. Down: none is, and the second half strongly not.
    Compared numbers are t and -t - 1 in another order, so their sizes (ledger, line 5) are the same in both worlds.
    """
    model = with_hidden(model, "up" if direction > 0 else "down") if hidden else model
    *layers, last = model.layers
    by = (direction * SHIFT) << _bias_bits(model.circuit, len(layers))
    return FixedPointModel(model.circuit, (*layers, PrivateLayer(last.weight, last.bias + by)))


def has_hidden_layer(model: FixedPointModel, queries: Tensor) -> bool:
    """Whether `answering` can use it: not if something is added to it, say, before it is compared."""
    if len(model.layers) < 2:
        return False
    compared = [compared_numbers(with_hidden(model, one), queries) for one in ("up", "down")]
    sizes = ([torch.where(part >= 0, part, -part - 1).sort(1).values for part in parts] for parts in compared)
    return all(torch.equal(up, down) for up, down in zip(*sizes, strict=True))


def with_hidden(model: FixedPointModel, which: HiddenName) -> FixedPointModel:
    """The last hidden layer ignores its input, and the output ignores the layer: the logits are the last bias."""
    *layers, hidden, last = model.layers
    half = len(hidden.bias) // 2
    constant = {"large": _LARGE, "zero": 0}.get(which, _SMALL)
    sizes = torch.full_like(hidden.bias, constant << FRACTION_BITS)
    if which in ("up", "down", "exchanged"):
        start = 0 if which == "up" else half
        sizes[start : start + half] = _LARGE << FRACTION_BITS
    sizes = -sizes - 1 if which == "down" else sizes
    bias = sizes << (_bias_bits(model.circuit, len(layers)) - FRACTION_BITS)
    shown = PrivateLayer(torch.zeros_like(hidden.weight), bias), PrivateLayer(torch.zeros_like(last.weight), last.bias)
    return FixedPointModel(model.circuit, (*layers, *shown))


def _bias_bits(circuit: Circuit, index: int) -> int:
    """A bias has the fraction bits of a product: the weights' and the input's."""
    return FRACTION_BITS + circuit.values[circuit.linear_steps[index].sources[0]].fraction_bits
