"""The model that a client makes of a sealed round, and what pairs that collude make of it: attacks on models go on.

A client has weights under a mask. Naive: it takes the words for weights. Adaptive: it takes off, layer by layer, every
mask that its seeds give (of all steps that it has a part of), and keeps what looks most like weights. Biases are never
sent. With its dealer's seed it has them too: the server's blinds are the dealer's, so it knows what every layer was
given and what came of it, and fits biases to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.audit.sealed_views import SealedView, SeenStep
from bilateral.audit.topics.sealed.attacks.known_masks import stream, weight_mask_guesses
from bilateral.audit.views import Facts, View
from bilateral.data import Split
from bilateral.engine.transcript import Entry
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.training.loss import SOFTMAX_BITS
from bilateral.protocols.share.training.terms import ONE
from bilateral.protocols.transport import SERVER

_PLAUSIBLE: Final = 1 << 40
"""A weight in fixed point is smaller."""
_RING_UNIT: Final = 2.0**-63
_FIT_STEPS: Final = 60


def read_model(view: SealedView, round_index: int, client: str, *, adaptive: bool) -> Tensor:
    """All parameters, flat (float64); words that are no weights as fractions of the ring."""
    seen = view.step(round_index, client)
    assert seen is not None
    weights = []
    for layer, words in enumerate(seen.weights):
        guesses = list(weight_mask_guesses(view, seen, layer)) if adaptive else [words.new_zeros(())]
        best = max((words - mask for mask in guesses), key=_plausible)
        weights.append(best.double() * (2.0**-FRACTION_BITS if _plausible(best) > 0.5 else _RING_UNIT))
    return flat_parameters(view.facts, weights)


def _plausible(words: Tensor) -> float:
    return float(((words < _PLAUSIBLE) & (words > -_PLAUSIBLE)).double().mean())


def flat_parameters(facts: Facts, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> Tensor:
    """In the graph's order, of linear layers in the order of the circuit; zeros for what is not given."""
    network = facts.network(torch.zeros(facts.graph.num_parameters, dtype=torch.float64))
    layers = _linear_layers(network)
    with torch.no_grad():
        for place, (module, weight) in enumerate(zip(layers, weights, strict=True)):
            module.weight.copy_(weight.reshape(module.weight.shape))
            if biases is not None and module.bias is not None:
                module.bias.copy_(biases[place])
    return facts.graph.flatten(dict(network.named_parameters()), torch.float64)


def as_view(view: SealedView, client: str, models: dict[int, Tensor], data: Split) -> View:
    """A client's view in which every round's model is what it made of it: attacks on models take it from there."""
    entries = tuple(Entry(index, SERVER, client, PlainModel(index, found)) for index, found in models.items())
    return View(view.adversary, (client,), view.facts, entries, {client: data})


def read_by_pair(view: SealedView, round_index: int, client: str) -> Tensor:
    """A client and its dealer: weights less their masks; biases fitted to what passed every layer."""
    seen = view.step(round_index, client)
    assert seen is not None
    network = view.facts.network(read_model(view, round_index, client, adaptive=True))
    values, wanted = _passed(seen)
    if seen.batch is not None and values:
        _fit_biases(network, seen.batch.inputs.double(), values, wanted, view.facts.loss)
    return view.facts.graph.flatten(dict(network.named_parameters()), torch.float64)


def read_batch_by_pair(seen: SeenStep) -> tuple[Tensor, Tensor]:
    """The server and a client's dealer: the batch's inputs, and its targets as rows, without their masks."""
    terms, seed = seen.terms, seen.dealer_and_client
    assert seed is not None
    assert seen.layers
    told = seen.told_by_client[0]
    inputs = told + stream(terms, seed, "value mask", terms.source_values[0]).words(*told.shape)
    targets = _targets(seen)
    return inputs.double() * 2.0**-FRACTION_BITS, targets


def _targets(seen: SeenStep) -> Tensor:
    """The last layer's delta is (outputs - targets): its sign tells the class."""
    last, seed = len(seen.terms.linear_steps) - 1, seen.dealer_and_client
    assert seed is not None
    delta = _masked_delta(seen, last)
    return torch.zeros(0) if delta is None else -delta.double()


def _masked_delta(seen: SeenStep, layer: int) -> Tensor | None:
    """What the server blinds and shows of a delta, without blind and mask: the delta itself, in the ring."""
    first, second = seen.dealer_and_server, seen.dealer_and_client
    if first is None or second is None:
        return None
    shape = (seen.terms.batch_size, *seen.terms.linear_values[layer].shape)
    mask = stream(seen.terms, second, "delta mask", layer).words(*shape)
    blind = stream(seen.terms, first, "delta blind", layer).words(*shape)
    for words in seen.told_by_server:
        if tuple(words.shape) == shape and float(_plausible(found := words - blind + mask)) > 0.5:
            return found
    return None


def _passed(seen: SeenStep) -> tuple[dict[int, Tensor], Tensor]:
    """What every linear layer read (as numbers), and the outputs' errors."""
    terms, first, second = seen.terms, seen.dealer_and_server, seen.dealer_and_client
    found: dict[int, Tensor] = {}
    if first is None or second is None:
        return found, torch.zeros(0)
    for layer, source in enumerate(terms.source_values):
        described = terms.circuit.values[source]
        shape = (terms.batch_size, *described.shape)
        mask = stream(terms, second, "value mask", source).words(*shape)
        blind = stream(terms, first, "value blind", source).words(*shape)
        for words in seen.told_by_server:
            if tuple(words.shape) == shape and _plausible(value := words - blind + mask) > 0.5:
                found[layer] = value.double() * 2.0**-described.fraction_bits
                break
    error = _masked_delta(seen, len(terms.linear_steps) - 1)
    if error is None or seen.batch is None:
        return {}, torch.zeros(0)
    errors = error.double() * 2.0**-FRACTION_BITS * (ONE / terms.factor)
    targets = seen.batch.targets
    rows = F.one_hot(targets, errors.shape[1]).double() if targets.dim() == 1 else targets.double()
    return found, errors + rows


def _fit_biases(network: nn.Module, inputs: Tensor, values: dict[int, Tensor], outputs: Tensor, loss: str) -> None:
    """Least squares, over biases alone, of what every layer reads and of the outputs (of the softmax, if so)."""
    layers = _linear_layers(network)
    biases = [module.bias for module in layers if module.bias is not None]
    read: dict[int, Tensor] = {}
    handles = [
        module.register_forward_pre_hook(lambda _, args, place=place: read.update({place: args[0]}))
        for place, module in enumerate(layers)
    ]
    optimiser = torch.optim.LBFGS(biases, max_iter=_FIT_STEPS, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        found = network(inputs)
        found = found.log_softmax(1) if loss == "ce" else found
        wanted = outputs.clamp_min(2.0**-SOFTMAX_BITS).log() if loss == "ce" else outputs
        lost = (found - wanted).square().mean()
        for place, value in values.items():
            lost = lost + (read[place].reshape(value.shape) - value).square().mean()
        lost.backward()
        return float(lost.detach())

    try:
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()


def _linear_layers(network: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    return [module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
