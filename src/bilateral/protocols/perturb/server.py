"""The server's half of model perturbation.

1. `start_round` draws fresh secrets and returns `PerturbedModel`
2. cross entropy as published: `answer` turns a client's `SoftmaxQuery` into `SoftmaxReply`
3. `recover` turns the *sum* of the uploads into the true gradient; single uploads are never needed

Formal guarantee (tests/protocols/test_perturb.py): without rounding, the recovered gradient equals the weighted mean
of the clients' gradients of the plain model, for every architecture that the scale graph accepts. With `norm_inputs =
"scaled"` it is that of a model whose normalisation layers have another eps (docs/decisions/0003). Every run checks it
on its own model before the first round (`recovery_check`).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from bilateral.arguments import checked
from bilateral.errors import PlanError, ProtocolError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate, UploadShape
from bilateral.protocols.perturb import cross_entropy, scheme
from bilateral.protocols.perturb.calibration import Calibration, Calibrator, inputs_for
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery, SoftmaxReply
from bilateral.protocols.perturb.secrets import DrawFactors, RoundSecrets, draw_secrets, log_uniform_factors
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import Randomness, SecureRandomness

CALIBRATE_EVERY = 20
"""Rounds between two looks at the true model's magnitudes, which change slowly."""


class PerturbServer:
    """Owns the true model and the secrets."""

    reads: ClassVar[tuple[type[Message], ...]] = (SoftmaxQuery,)

    @checked
    def __init__(
        self,
        model: nn.Module,
        graph: ScaleGraph,
        settings: PerturbationSettings,
        randomness: Randomness | None = None,
        calibration_inputs: Tensor | None = None,
        *,
        draw_factors: DrawFactors = log_uniform_factors,
    ) -> None:
        settings.check_outputs(graph.num_outputs)
        if settings.noise == "offset" and graph.head_bias is None:
            raise PlanError(
                f"Offset noise needs a bias in the head `{graph.head}`.",
                remedy="Give the last Linear a bias, or use noise = 'activation'.",
            )
        if len(graph.normalised_classes) and graph.norm_inputs != settings.norm_inputs:
            raise PlanError(
                f"The settings say norm_inputs = {settings.norm_inputs!r}, the scale graph was made with "
                f"{graph.norm_inputs!r}.",
                remedy=f"ScaleGraph.of(model, example_input, norm_inputs={settings.norm_inputs!r})",
            )
        self._model = model
        self._graph = graph
        self._settings = settings
        self._randomness = randomness or SecureRandomness()
        if calibration_inputs is None:
            calibration_inputs = inputs_for(graph, graph.input_shape, self._randomness.child("calibration"))
        self._draw_factors = draw_factors
        self._dtype = next(iter(model.parameters())).dtype
        if calibration_inputs.is_floating_point():
            calibration_inputs = calibration_inputs.to(self._dtype)
        self._calibrator = Calibrator(model, graph.head, calibration_inputs)
        self._calibration: tuple[int, Calibration] | None = None
        self._secrets: RoundSecrets | None = None
        self._answered: set[str] = set()
        self._round_index = -1

    def start_round(self, round_index: int) -> PerturbedModel:
        """Step 1: fresh secrets, and the model under them."""
        graph, randomness = self._graph, self._randomness.child("round", round_index)
        self._secrets = None  # those of the last round are four times the model
        secrets = draw_secrets(graph, self._settings, self._calibrated(round_index), randomness, self._draw_factors)
        scaled = graph.flatten(dict(self._model.named_parameters()), torch.float64).mul_(secrets.ratio)
        perturbed = scaled.index_select(0, secrets.source)
        del scaled
        noise = secrets.output_noise
        if self._settings.noise == "activation":
            weight = perturbed[graph.head_weight.slice].view(graph.head_weight.shape)
            weight.add_(noise[:, None])
        else:
            assert graph.head_bias is not None
            perturbed[graph.head_bias.slice].add_(noise)
        self._secrets, self._round_index = secrets, round_index
        self._answered.clear()
        told = secrets.group_secrets if self._settings.tells_noise else secrets.group_secrets[:0]
        return PerturbedModel(
            round_index, perturbed.to(self._dtype), secrets.output_directions, secrets.partition, told
        )

    def answer(self, sender: str, message: SoftmaxQuery) -> SoftmaxReply:
        """Step 2, cross entropy as published."""
        if not self._settings.has_exchange:
            raise ProtocolError(
                f"{sender} sent a SoftmaxQuery, but in this plan clients compute the softmax themselves.",
                remedy="Both sides must run the same plan.",
            )
        secrets = self._current(message.round_index, sender)
        outputs = self._graph.num_outputs
        for name, values in message.tensors():
            if not values.is_floating_point() or not values.dim():
                raise ProtocolError(
                    f"SoftmaxQuery from {sender}: expected real numbers in `{name}`, a row a sample, got "
                    f"{values.dtype} of shape {tuple(values.shape)}.",
                    remedy="Both sides must run the same plan.",
                )
        if message.blinded_exponentials.numel() == 0:
            raise ProtocolError(f"SoftmaxQuery from {sender} has no samples.", remedy="Leave out clients without data.")
        num_samples = len(message.blinded_exponentials)
        message.expect_shape(sender, "blinded_exponentials", (num_samples, outputs, outputs - 1))
        num_sums = num_samples if self._settings.noise == "activation" else 0
        message.expect_shape(sender, "activation_sum", (num_sums,))
        message.check_finite(sender)
        if sender in self._answered:  # a second one would be blinded anew: two equations for one unknown
            raise ProtocolError(
                f"{sender} sent a second SoftmaxQuery in round {message.round_index}.",
                remedy="One query a client and round is answered.",
            )
        self._answered.add(sender)
        draws = self._randomness.child("sample blinders", message.round_index, sender)
        return cross_entropy.reply(
            message,
            secrets.output_noise,
            secrets.group_blinders[secrets.partition],
            self._settings.noise == "activation",
            cross_entropy.draw_sample_blinders(message, draws),
        )

    def recover(self, total: Aggregate) -> RecoveredUpdate:
        """Step 3: combine the terms, then undo the exchange and the scaling, in float64."""
        secrets = self._current(total.round_index, "the aggregate")
        coefficients = scheme.recovery_coefficients(
            self._settings,
            secrets.group_secrets,
            secrets.group_blinders,
            secrets.output_directions,
            secrets.partition,
        )
        if total.terms.shape != (len(coefficients), self._graph.num_parameters):
            raise ProtocolError(
                f"Expected {len(coefficients)} terms of {self._graph.num_parameters} parameters, "
                f"got {tuple(total.terms.shape)}.",
                remedy="Both sides must run the same plan.",
            )
        if total.statistics.shape != (self._graph.num_statistics,):
            raise ProtocolError(
                f"Expected {self._graph.num_statistics} batch statistics, got {tuple(total.statistics.shape)}.",
                remedy="Both sides must run the same plan.",
            )
        weights = (coefficients / total.total_weight).tolist()
        combined = total.terms[0] * weights[0]
        for term, weight in zip(total.terms[1:], weights[1:], strict=True):
            combined.add_(term, alpha=weight)
        gradient = self._graph.move_back(combined, secrets.source, secrets.exchange).mul_(secrets.ratio)
        statistics = self._graph.unscale(total.statistics / total.total_weight, secrets.scale_factors, secrets.exchange)
        return RecoveredUpdate(gradient, statistics)

    def recover_one(self, total: Aggregate) -> RecoveredUpdate:
        """Of any sum, also of one upload alone: the same, for this server adds nothing."""
        return self.recover(total)

    @property
    def upload_shape(self) -> UploadShape:
        """Of every upload, and so of their sum: what an aggregation has to know."""
        graph = self._graph
        return UploadShape(len(scheme.term_names(self._settings)), graph.num_parameters, graph.num_statistics)

    @property
    def secrets(self) -> RoundSecrets:
        """The current round's secrets, for their owner: what a server that attacks its clients knows (the audit)."""
        return self._current(self._round_index, "nobody")

    def state_tensors(self) -> dict[str, Tensor]:
        """The current calibration: a resumed run must size its noise as the uninterrupted one does."""
        if self._calibration is None:
            return {}
        interval, measured = self._calibration
        return {
            "interval": torch.tensor(interval),
            "head_inputs": measured.head_inputs,
            "head_weight_sizes": measured.head_weight_sizes,
            "logit_spread": torch.tensor(measured.logit_spread, dtype=torch.float64),
        }

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        if "head_weight_sizes" in tensors:  # not so in checkpoints from before: such a run measures anew
            measured = Calibration(tensors["head_inputs"], tensors["head_weight_sizes"], float(tensors["logit_spread"]))
            self._calibration = (int(tensors["interval"]), measured)

    def _calibrated(self, round_index: int) -> Calibration:
        if self._calibration is None or round_index // CALIBRATE_EVERY != self._calibration[0]:
            self._calibration = (round_index // CALIBRATE_EVERY, self._calibrator.measure())
        return self._calibration[1]

    def _current(self, round_index: int, sender: str) -> RoundSecrets:
        if self._secrets is None or round_index != self._round_index:
            raise ProtocolError(
                f"A message from {sender} is of round {round_index}, the current round is {self._round_index}.",
                remedy="It came late or was sent twice; it is not used.",
            )
        return self._secrets


def guarantee(settings: PerturbationSettings) -> Guarantee:
    """What perturbation does not hide. It claims nothing: our audit refutes what the papers claim, and what we did.

    A client that takes the model as it comes is misled. One that tries gets the function (line 1) and, to some percent,
    the parameters (line 15).
    """
    fitted = (
        f"the {settings.num_partitions} group secret(s) are fitted with a few labelled samples, and well guessed "
        "without any"
    )
    how = "the noise on its outputs comes with it" if settings.tells_noise else fitted
    leaks = [
        Leak(f"the function the model computes: {how}", "clients", 1),
        Leak("each client's upload: it is a gradient, and is not masked in this protection", "server", 3),
        Leak(
            "path products of weights, and directions of first-layer neurons, from round to round",
            "clients that compare rounds",
            7,
        ),
        Leak("factors of parameters whose true value it knows, such as a fresh BatchNorm's 1", "clients", 9),
        Leak(
            "the parameters, to some percent: sizes of weights tell the factors, and rounds average them out",
            "clients",
            15,
        ),
    ]
    if settings.norm_inputs == "exact":
        clear = (
            "weights that carry no factor (`inspect` lists them), such as those between the inputs and a normalisation"
        )
        leaks.append(Leak(f"{clear}: their values, though not their places", "clients", 15))
    if settings.loss == "ce":
        leaks += _leaks_of_cross_entropy(settings)
    return Guarantee("perturbation", (), tuple(sorted(leaks, key=lambda leak: leak.ledger_line)))


def _leaks_of_cross_entropy(settings: PerturbationSettings) -> list[Leak]:
    if settings.tells_noise:
        return [Leak("every true softmax: it computes it", "clients", 2)]
    leaks = [
        Leak("every true softmax, by a linear system of a few samples", "clients", 2),
        Leak("the softmax of every training sample, from the query of the exchange", "server", 8),
    ]
    if settings.noise == "activation":
        leaks.append(Leak("the sum of every training sample's head inputs, from the query", "server", 10))
    whom = "a server that chooses the blinders of its softmax answers, which nobody can tell"
    leaks.append(Leak("one training sample's gradient a round, in the sum of all clients' uploads", whom, 16))
    return leaks
