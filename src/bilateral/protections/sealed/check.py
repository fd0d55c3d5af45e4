"""Before the first round: a whole sealed step in the server's process, against plain autograd in float64.

The server plays all three parties, on inputs and targets of its own and with seeds drawn for this alone. Fixed point
rounds, so the limit is loose: what is found is a network that computes something else when it trains than its trace
shows, and numbers that would leave their range. The run's own random streams are not touched, nor is the model.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.errors import NumericalRangeError, RecoveryError
from bilateral.models.modes import set_training
from bilateral.protections.sealed.network import SealedNetwork, without_dropout
from bilateral.protections.sealed.terms import SealedTerms
from bilateral.protocols.perturb.recovery_trial import RecoveryReport
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.training.parties import FirstParty, SecondParty, deal
from bilateral.protocols.share.training.terms import StepTerms
from bilateral.randomness import Randomness, SeededRandomness

LIMIT: Final = 2.0**-6
"""Of |difference| / (|gradient of the parameter| + SHARE |whole gradient|)."""
SHARE: Final = 2.0**-4
NUM_TRIES: Final = 3
"""Two of them must be right: at a kink, rounding takes the other side."""
FIXED_POINT: Final = "fixed point"


@dataclass(frozen=True)
class SealedCheck:
    """One network under one plan. `examples`: a few inputs of the server's own."""

    network: SealedNetwork
    terms: SealedTerms
    examples: Tensor

    def run(self, model: nn.Module) -> RecoveryReport:
        """Raises `RecoveryError` where the sealed gradient is not plain autograd's."""
        if self.network.drops:
            still = without_dropout(model)
            network = SealedNetwork.of(still, self.network.graph, tuple(self.examples.shape[1:]))
            if network.drops:
                return RecoveryReport(0.0, "", "nothing: a function of the network drops")
            terms = replace(self.terms, circuit=network.circuit)
            return SealedCheck(network, terms, self.examples).run(still)
        reports = [self._attempt(model, 0)]
        if reports[0].error <= LIMIT:
            return reports[0]
        reports += [self._attempt(model, number) for number in range(1, NUM_TRIES)]
        fine = [report for report in reports if report.error <= LIMIT]
        if len(fine) < 2:
            worst = reports[0]
            raise RecoveryError(
                f"A sealed step would not be a step of plain training: the gradients of {worst.parameter} differ by "
                f"{worst.error:.2g} of their size, and rounding explains {LIMIT:.2g}.",
                remedy="Take out what acts in training alone (hooks, layers kept in evaluation mode), or scale the "
                "inputs to about 1.",
            )
        return fine[0]

    def _attempt(self, model: nn.Module, number: int) -> RecoveryReport:
        randomness = SeededRandomness(number, "sealed check")
        inputs, targets = self._batch(randomness)
        terms = StepTerms(self.terms.circuit, self.terms.loss, len(inputs), self.terms.trains)
        with torch.random.fork_rng(devices=[]):
            plain = self._plain(model, inputs, targets)
        found = self._sealed(model, terms, inputs, targets, randomness)
        return self._report(found / len(inputs), plain)

    def _batch(self, randomness: Randomness) -> tuple[Tensor, Tensor]:
        known = self.examples.double()
        spread = float(known.square().mean().sqrt()) if len(known) else 0.0
        normal = randomness.normal(len(known), *known.shape[1:])
        inputs = (known * (1 + 0.1 * normal) if spread else normal).clamp(-self._largest, self._largest)
        wanted = randomness.normal(len(known), self.terms.circuit.output.size)
        return inputs.to(self.examples.dtype), wanted.argmax(1) if self.terms.loss == "ce" else wanted

    @property
    def _largest(self) -> float:
        return float(self.terms.circuit.largest_input)

    def _plain(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient of the mean loss, flat."""
        own = set_training(copy.deepcopy(model).double(), self.network.graph.kept_in_evaluation)
        outputs = own(inputs.double())
        lost = F.cross_entropy(outputs, targets) if self.terms.loss == "ce" else F.mse_loss(outputs, targets.double())
        named = dict(own.named_parameters())
        trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        found = torch.autograd.grad(lost, list(trained.values()), allow_unused=True, materialize_grads=True)
        gradients = dict(zip(trained, found, strict=True))
        return self.network.graph.flatten(
            {name: gradients.get(name, torch.zeros_like(parameter)) for name, parameter in named.items()}, torch.float64
        )

    def _sealed(
        self, model: nn.Module, terms: StepTerms, inputs: Tensor, targets: Tensor, randomness: Randomness
    ) -> Tensor:
        with_first, with_second, common = (randomness.child("seed", n).random_bytes(32) for n in range(3))
        through = self.network.through_front(self.network.front_state(model), inputs)
        known = self.network.with_limits(self.network.first_model(model, terms), terms, through, num_clients=1)
        dealt = deal(terms, with_first, with_second)
        first = FirstParty(terms, known, dealt, with_first, common, dealer="the check")
        second = SecondParty(terms, first.masked_weights(), with_second, common, first="the check")
        try:
            words = _run_together(Speaker(first.work(), "second"), Speaker(second.work(through, targets), "first"))
        except NumericalRangeError as error:
            raise RecoveryError(
                f"On inputs of the server's own, numbers of a sealed step leave their range. {error}"
            ) from error
        return self.network.gradient(model, terms, words)

    def _report(self, found: Tensor, plain: Tensor) -> RecoveryReport:
        values, expected = self.network.graph.unflatten(found), self.network.graph.unflatten(plain)
        whole = float(plain.norm())
        errors = {
            name: float((values[name] - expected[name]).norm()) / (float(expected[name].norm()) + SHARE * whole or 1.0)
            for name in expected
        }
        parameter = max(errors, key=lambda name: errors[name])
        return RecoveryReport(errors[parameter], parameter, FIXED_POINT)


def _run_together(first: Speaker[Tensor], second: Speaker[Tensor]) -> Tensor:
    while not (first.is_done and second.is_done):
        first.hear(second.take_told(), must_lead=False)
        second.hear(first.take_told(), must_lead=False)
    return first.result + second.result
