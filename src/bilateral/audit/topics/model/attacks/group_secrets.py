"""What a client makes of the model it was sent: the true outputs, by fitting the head's few secrets (ledger line 1).

A perturbed model computes the true function plus noise in known directions: `received = true + carrier * r_a * gamma`,
where the carrier (the sum of the head's inputs, or 1) and the directions `r_a` are known to whoever has the model. One
unknown number a group of outputs is left. With `softmax = "local"` it comes with the model (`told_outputs`).
Otherwise, three attackers:

- `naive_outputs`: reads outputs as they come (the papers' attacker);
- `guess_outputs`: has inputs and no labels; random directions are hardly correlated with true outputs, so that the
  projection on them is mostly noise;
- `fit_outputs`: has labelled samples; least squares (squared error) or maximum likelihood (cross entropy), with the
  guess as a prior that fades as samples come in.

What they return is a function of inputs, sample by sample, differentiable, in float64. With plain FedSGD all of them
return the model's own outputs. A network with BatchNorm normalises with the statistics of the adversary's own data,
since a client is sent no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.audit.views import View
from bilateral.data import Split
from bilateral.errors import DataError, PlanError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.transitional import expand
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protocols.perturb.messages import PerturbedModel
from bilateral.protocols.perturb.scheme import group_masks
from bilateral.protocols.statistics import collect_batch_statistics

Outputs = Callable[[Tensor], Tensor]
Method = Literal["auto", "least squares", "likelihood"]
NUM_STATISTICS_SAMPLES = 512
CHUNK = 1024
_NEWTON_STEPS = 50
_NOISE_ESTIMATES = 8


def naive_outputs(view: View, round_index: int) -> Outputs:
    """Outputs as they come."""
    received = ReceivedModel.of(view, round_index, None)
    return lambda inputs: received.run(inputs).outputs


def guess_outputs(view: View, round_index: int, inputs: Tensor) -> Outputs:
    """The true outputs as a client without labels guesses them, up to a number that all outputs of a sample share."""
    received = ReceivedModel.of(view, round_index, inputs)
    if received.directions is None:
        return lambda x: received.run(x).outputs
    with torch.no_grad():
        guess, _ = _guess(received, received.run(inputs))
    return received.without_noise(guess)


def told_secrets(view: View, round_index: int) -> Tensor | None:
    """The group secrets that came with the model of a round; None if none did."""
    message = view.message(PerturbedModel, round_index=round_index)
    return None if message is None or not len(message.group_secrets) else message.group_secrets.double()


def told_outputs(view: View, round_index: int, inputs: Tensor) -> Outputs:
    """The true outputs where the noise comes with the model."""
    secrets = told_secrets(view, round_index)
    if secrets is None:
        raise DataError(f"No noise came with the model of round {round_index}.", remedy="Use `fit_outputs`.")
    return ReceivedModel.of(view, round_index, inputs).without_noise(secrets)


def fit_outputs(view: View, round_index: int, samples: Split, *, method: Method = "auto") -> Outputs:
    """The true outputs as the adaptive client computes them, from the model of that round and labelled samples.

    `auto`: likelihood for cross entropy, least squares for the squared error.
    """
    received = ReceivedModel.of(view, round_index, samples.inputs)
    if received.directions is None:
        return lambda inputs: received.run(inputs).outputs
    return received.without_noise(fit_group_secrets(received, samples, view.facts.loss, method))


def fit_group_secrets(received: ReceivedModel, samples: Split, loss: str, method: Method = "auto") -> Tensor:
    """One number a group of outputs."""
    if method == "auto":
        method = "likelihood" if loss == "ce" else "least squares"
    with torch.no_grad():
        passed = received.run(samples.inputs)
        guess, spread = _guess(received, passed)
        patterns = received.patterns(passed)
        if method == "likelihood":
            return _maximise_likelihood(passed.outputs, patterns, _labels(samples.targets), guess, spread)
        return _least_squares(passed.outputs - _goals(samples.targets, received.num_outputs), patterns, guess, spread)


@dataclass(frozen=True)
class Passed:
    """One pass of a received model: its outputs, and what the noise on them is multiplied with, one a sample."""

    outputs: Tensor
    carrier: Tensor


@dataclass(frozen=True, eq=False)
class ReceivedModel:
    """A round's model as a client has it. `directions` and `partition` are None if it carries no noise."""

    network: nn.Module
    head: nn.Linear
    noise_follows_activation: bool
    num_outputs: int
    directions: Tensor | None = None
    partition: Tensor | None = None

    @staticmethod
    def of(view: View, round_index: int, inputs: Tensor | None) -> ReceivedModel:
        """The last model of that round that the view has. `inputs`: the adversary's, beside those in the view."""
        message = view.message(PerturbedModel, round_index=round_index)
        plain = view.message(PlainModel, round_index=round_index)
        if message is None and plain is None:
            raise DataError(
                f"The {view.adversary} saw no model in round {round_index}.", remedy="Record that round (`keep`)."
            )
        parameters = message.parameters if message is not None else plain.parameters  # type: ignore[union-attr]
        network, published = _network(view, parameters)
        _fix_statistics(network, view, inputs)
        head = network.get_submodule(view.facts.graph.head)
        assert isinstance(head, nn.Linear)
        outputs = view.facts.num_outputs
        if message is None:
            return ReceivedModel(network, head, False, outputs)
        follows = published or view.facts.perturbation.noise == "activation"
        return ReceivedModel(network, head, follows, outputs, message.output_directions.double(), message.partition)

    def run(self, inputs: Tensor) -> Passed:
        """Outputs and carriers in float64; gradients flow to the inputs."""
        parts = [self._run(part) for part in torch.tensor_split(inputs, max(1, -(-len(inputs) // CHUNK)))]
        return Passed(torch.cat([part.outputs for part in parts]), torch.cat([part.carrier for part in parts]))

    def _run(self, inputs: Tensor) -> Passed:
        captured: list[Tensor] = []
        handle = self.head.register_forward_pre_hook(lambda _, args: captured.append(args[0]))
        try:
            outputs = self.network(inputs.to(self.head.weight.dtype)).double()
        finally:
            handle.remove()
        sums = captured[0].double().sum(1)
        return Passed(outputs, sums if self.noise_follows_activation else torch.ones_like(sums))

    def patterns(self, passed: Passed) -> Tensor:
        """The noise on these outputs a unit of each group's secret (see `noise_patterns`)."""
        assert self.directions is not None and self.partition is not None
        return noise_patterns(self.directions, self.partition, passed.carrier)

    def without_noise(self, secrets: Tensor) -> Outputs:
        """The outputs if these are the group secrets."""

        def outputs(inputs: Tensor) -> Tensor:
            passed = self.run(inputs)
            return passed.outputs - torch.einsum("s,sno->no", secrets, self.patterns(passed))

        return outputs


def noise_patterns(directions: Tensor, partition: Tensor, carrier: Tensor) -> Tensor:
    """groups x samples x outputs: the noise on the outputs if one group's secret were 1 and the others 0."""
    masks = group_masks(partition, int(partition.max()) + 1, torch.float64)
    return (masks * directions)[:, None, :] * carrier[None, :, None]


def parameters_without_noise(view: View, round_index: int, secrets: Tensor) -> Tensor:
    """The received parameters if these are the group secrets: a scaled and permuted model, and nothing else (float64).

    Of the perturbed model of the plan's own architecture (P2's expanded one has other parameters).
    """
    message = view.message(PerturbedModel, round_index=round_index)
    graph = view.facts.graph
    if message is None or message.parameters.numel() != graph.num_parameters:
        raise DataError(f"Expected a perturbed model of {graph.num_parameters} parameters in round {round_index}.")
    parameters = message.parameters.double().clone()
    noise = secrets[message.partition] * message.output_directions.double()
    if view.facts.perturbation.noise == "activation":
        parameters[graph.head_weight.slice].view(graph.head_weight.shape).sub_(noise[:, None])
    elif graph.head_bias is not None:
        parameters[graph.head_bias.slice].sub_(noise)
    return parameters


def _network(view: View, parameters: Tensor) -> tuple[nn.Module, bool]:
    """The architecture with the received parameters; P2's clients have an expanded one."""
    facts = view.facts
    if parameters.numel() == facts.graph.num_parameters:
        return facts.network(parameters).requires_grad_(False), False
    example = torch.zeros(2, *facts.input_shape, dtype=parameters.dtype)
    expanded = expand(facts.network(torch.zeros(facts.graph.num_parameters, dtype=parameters.dtype)), example)
    graph = ScaleGraph.of(expanded, example)
    values = graph.unflatten(parameters)
    with torch.no_grad():
        for name, parameter in expanded.named_parameters():
            parameter.copy_(values[name])
    return expanded.requires_grad_(False), True


def _fix_statistics(network: nn.Module, view: View, inputs: Tensor | None) -> None:
    """Evaluation mode, with BatchNorm statistics of what the adversary has; of the batch itself if it has nothing."""
    network.eval()
    if not view.facts.graph.statistics:
        return
    own = [share.inputs for share in view.data.values()] or ([] if inputs is None else [inputs])
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    collect_batch_statistics(network)
    for norm in norms:
        norm.train()
    if own and sum(map(len, own)) > 1:
        known = torch.cat(own)[:NUM_STATISTICS_SAMPLES]
        with torch.no_grad():
            network(known.to(next(network.parameters()).dtype))
        for norm in norms:
            norm.eval()


def _guess(received: ReceivedModel, passed: Passed) -> tuple[Tensor, Tensor]:
    """Group secrets without labels, and how far off they may be: the projection of one sample's outputs alone."""
    patterns = received.patterns(passed)
    centred = passed.outputs - passed.outputs.mean(1, keepdim=True) * (received.num_outputs > 1)
    energy = patterns.square().sum((1, 2)).clamp_min(torch.finfo(torch.float64).tiny)
    guess = (patterns * centred).sum((1, 2)) / energy
    rest = centred - torch.einsum("s,sno->no", guess, patterns)
    return guess, rest.square().mean().sqrt() / (energy / len(centred)).sqrt()


def _least_squares(residuals: Tensor, patterns: Tensor, guess: Tensor, spread: Tensor) -> Tensor:
    """gamma minimises `|residuals - patterns gamma|^2 / noise + |(gamma - guess) / spread|^2`.

    `noise` is how far labels are from true outputs, which the fit itself tells better every time.
    """
    flat, goals = patterns.flatten(1), residuals.flatten()
    prior = 1.0 / spread.clamp_min(1e-9).square()
    secrets = guess
    for _ in range(_NOISE_ESTIMATES):
        noise = (goals - secrets @ flat).square().mean().clamp_min(1e-12)
        matrix = flat @ flat.T / noise + torch.diag(prior)
        secrets = torch.linalg.solve(matrix, flat @ goals / noise + prior * guess)
    return secrets


def _maximise_likelihood(outputs: Tensor, patterns: Tensor, labels: Tensor, guess: Tensor, spread: Tensor) -> Tensor:
    """Newton's method on the (convex) cross entropy of the samples, plus the prior around the guess."""
    prior = 1.0 / spread.clamp_min(1e-9).square()

    def objective(secrets: Tensor) -> Tensor:
        true = outputs - torch.einsum("s,sno->no", secrets, patterns)
        return F.cross_entropy(true, labels, reduction="sum") + 0.5 * (prior * (secrets - guess).square()).sum()

    secrets = guess.clone()
    for _ in range(_NEWTON_STEPS):
        p = torch.softmax(outputs - torch.einsum("s,sno->no", secrets, patterns), 1)
        error = p - F.one_hot(labels, p.shape[1])
        slope = -(patterns * error).sum((1, 2)) + prior * (secrets - guess)
        means = (patterns * p).sum(2)
        curvature = torch.einsum("sno,tno,no->st", patterns, patterns, p) - means @ means.T + torch.diag(prior)
        step = torch.linalg.solve(curvature, slope)
        length, before = 1.0, objective(secrets)
        while objective(secrets - length * step) > before and length > 1e-6:
            length /= 2
        secrets = secrets - length * step
        if float((length * step).abs().max()) <= 1e-10 * float(secrets.abs().max()):
            break
    return secrets


def _labels(targets: Tensor) -> Tensor:
    if not targets.is_floating_point():
        return targets
    if targets.shape[1] < 2:
        raise PlanError("Likelihood needs classes.", remedy="Use method 'least squares' for regression.")
    return targets.argmax(1)


def _goals(targets: Tensor, num_outputs: int) -> Tensor:
    return targets.double() if targets.is_floating_point() else F.one_hot(targets, num_outputs).double()
