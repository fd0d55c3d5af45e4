"""Membership inference on a model that somebody has: was this sample among those that it was trained on?

1. `read_model`: what a client makes of the model of a round. The naive client takes the outputs as they come, the
   adaptive one first fits the group secrets to its own labelled samples (`group_secrets`).
2. `confidence`: the loss threshold (Yeom et al. 2018). A sample with a small loss is called a member.
3. `attack_network`: a network on the outputs of the last layers, the loss and the label (Nasr et al. 2019), trained on
   samples whose membership the client knows: its own.

`lira` has the likelihood ratio of shadow models. Scores are one number a sample, higher for members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.audit.topics.model.attacks.group_secrets import Outputs, ReceivedModel, fit_group_secrets
from bilateral.audit.views import View
from bilateral.data import Split
from bilateral.randomness import Randomness

SMALLEST_ERROR = 1e-12
HIDDEN_UNITS = 32
NETWORK_STEPS = 150


@dataclass(frozen=True, eq=False)
class ModelReading:
    """A model as its reader sees it: outputs, and what its last layers say before the head."""

    outputs: Outputs
    layers: Callable[[Tensor], list[Tensor]]
    """The outputs of the layers before the head, the last one first; channels are averaged over an image."""


def read_model(view: View, round_index: int, samples: Split, *, adaptive: bool) -> ModelReading:
    """What a client with these labelled samples makes of the model of a round."""
    received = ReceivedModel.of(view, round_index, samples.inputs)
    outputs: Outputs = lambda inputs: received.run(inputs).outputs  # noqa: E731
    if adaptive and received.directions is not None:
        outputs = received.without_noise(fit_group_secrets(received, samples, view.facts.loss))
    return ModelReading(outputs, lambda inputs: _layer_outputs(received.network, received.head, inputs))


def _layer_outputs(network: nn.Module, head: nn.Module, inputs: Tensor) -> list[Tensor]:
    found: list[Tensor] = []
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d) and m is not head]
    handles = [layer.register_forward_hook(lambda _, __, output: found.append(output)) for layer in layers]
    try:
        with torch.no_grad():
            network(inputs.to(next(network.parameters()).dtype))
    finally:
        for handle in handles:
            handle.remove()
    return [(out.flatten(2).mean(2) if out.dim() > 2 else out).relu().double() for out in reversed(found)]


def confidence(outputs: Tensor, targets: Tensor) -> Tensor:
    """How sure a model is of the right answer, on a scale where it is roughly normal.

    Classes: log p / (1 - p) of the right one, the logit scaling of LiRA (Carlini et al. 2022, section IV-C); vectors:
    minus the log of the squared error. Both fall as the loss grows, so that a threshold is a loss threshold.
    """
    outputs = outputs.double()
    if targets.is_floating_point():
        return -(outputs - targets).square().mean(1).clamp_min(SMALLEST_ERROR).log()
    right = outputs.gather(1, targets[:, None])
    others = outputs.scatter(1, targets[:, None], -torch.inf).logsumexp(1, keepdim=True)
    return (right - others)[:, 0]


def loss_threshold(reading: ModelReading, candidates: Split) -> Tensor:
    """A candidate's confidence: any threshold on it is one on the loss."""
    with torch.no_grad():
        return confidence(reading.outputs(candidates.inputs), candidates.targets)


@dataclass(frozen=True, eq=False)
class Known:
    """Samples whose membership the attacker knows."""

    members: Split
    strangers: Split


def attack_network(
    reading: ModelReading, known: Known, candidates: Split, num_layers: int, randomness: Randomness
) -> Tensor:
    """Scores of a network that was trained on the last `num_layers` layers' outputs for known samples."""
    parts = [_features(reading, part, num_layers) for part in (known.members, known.strangers, candidates)]
    blocks = [
        _standardised(list(block), len(known.members) + len(known.strangers)) for block in zip(*parts, strict=True)
    ]
    inputs, asked = (torch.cat([block[k] for block in blocks], 1) for k in range(2))
    is_member = torch.cat([torch.ones(len(known.members)), torch.zeros(len(known.strangers))])
    network = _small_network(inputs.shape[1], randomness)
    # Half of each is kept to stop by: the attacker has no other samples of known membership.
    training = torch.arange(len(inputs)) % 2 == 0
    best, chosen = float("inf"), torch.zeros(len(asked))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-3)
    for step in range(NETWORK_STEPS):
        optimiser.zero_grad()
        guesses = network(inputs)[:, 0]
        F.binary_cross_entropy_with_logits(guesses[training], is_member[training]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % 10 == 9:
            with torch.no_grad():
                lost = float(F.binary_cross_entropy_with_logits(network(inputs)[~training, 0], is_member[~training]))
                if lost < best:
                    best, chosen = lost, network(asked)[:, 0].clone()
    return chosen


def _features(reading: ModelReading, samples: Split, num_layers: int) -> list[Tensor]:
    """Blocks of features: confidence, outputs, label, and the outputs of layers before the head."""
    with torch.no_grad():
        outputs = reading.outputs(samples.inputs)
        hidden = reading.layers(samples.inputs)[: num_layers - 1]
    labels = samples.targets
    labels = labels.double() if labels.is_floating_point() else F.one_hot(labels, outputs.shape[1]).double()
    return [confidence(outputs, samples.targets)[:, None], outputs, labels, *hidden]


def _standardised(parts: list[Tensor], num_known: int) -> tuple[Tensor, Tensor]:
    """A block for known samples and for candidates, by what is known; wide blocks weigh no more than narrow ones."""
    values = torch.cat(parts)
    known = values[:num_known]
    scaled = ((values - known.mean(0)) / known.std(0).clamp_min(1e-6)).clamp(-5, 5) / values.shape[1] ** 0.5
    return scaled[:num_known].float(), scaled[num_known:].float()


def _small_network(num_inputs: int, randomness: Randomness) -> nn.Module:
    network = nn.Sequential(nn.Linear(num_inputs, HIDDEN_UNITS), nn.ReLU(), nn.Linear(HIDDEN_UNITS, 1))
    generator = randomness.torch_generator()
    with torch.no_grad():
        for parameter in network.parameters():
            size = 0.5 if parameter.dim() > 1 else 0.0
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
    return network
