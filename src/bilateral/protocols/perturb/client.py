"""The client's half of model perturbation.

1. receive `PerturbedModel`, run one forward pass on a batch
2. cross entropy as published: send `SoftmaxQuery`, receive `SoftmaxReply`
3. send `Upload`: all terms, batch statistics, and the client's weight

With `clip` (differential privacy) the upload is clipped before it leaves, sample by sample or as a whole: weight 1, no
statistics but the count of adaptive clipping. Noise is added to it afterwards (`protocols/noise/sound.py`). An error in
the middle of a run would be an answer about the batch, so data are checked before the first round (`check_batch` on all
of them), a Poisson batch may be empty, and what is not finite counts as zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.arguments import checked
from bilateral.errors import ProtocolError, UnsoundPlanError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.batch_check import check_batch
from bilateral.protocols.local_model import LocalModel
from bilateral.protocols.messages import Message, Upload
from bilateral.protocols.noise.adaptive import upload_of
from bilateral.protocols.noise.clipping import ClipSettings, clip_client, clip_samples
from bilateral.protocols.noise.sample_terms import SampleTerms, refuse_batch_norm
from bilateral.protocols.objective import plain_objective
from bilateral.protocols.perturb import cross_entropy, scheme
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery, SoftmaxReply
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.protocols.perturb.terms import ForwardPass, forward, term_gradients
from bilateral.protocols.workspace import Workspace
from bilateral.randomness import Randomness, SecureRandomness


class PerturbClient:
    """Trains on a perturbed model that it can use but not undo. Holds a module of its own."""

    reads: ClassVar[tuple[type[Message], ...]] = (PerturbedModel, SoftmaxReply)

    @checked
    def __init__(
        self,
        name: str,
        model: nn.Module,
        graph: ScaleGraph,
        settings: PerturbationSettings,
        randomness: Randomness | None = None,
        *,
        channels_last: bool | None = None,
        clip: ClipSettings | None = None,
        count_clipped: bool = False,
        workspace: Workspace | None = None,
    ) -> None:
        if clip is not None:
            _refuse_unsound(model, settings)
        self.name = name
        self.clip = clip
        """Public; adaptive clipping gives it another norm every round."""
        self._count_clipped = count_clipped
        self._model = LocalModel(model, graph, channels_last=channels_last, workspace=workspace)
        self._graph = graph
        self._settings = settings
        self._randomness = randomness or SecureRandomness()
        self._pending: _Pending | None = None
        self._samples: SampleTerms | None = None
        if clip is not None and clip.unit == "sample":
            self._samples = SampleTerms(self._model, len(scheme.term_names(settings)))

    def train(self, message: PerturbedModel, inputs: Tensor, targets: Tensor, weight: int) -> SoftmaxQuery | Upload:
        """Step 1. `targets`: class numbers for cross entropy, (batch, outputs) for MSE. `weight`: see `Upload`."""
        self._check_model(message)
        if self.clip is None:
            check_batch(self.name, inputs, targets, self._graph, plain_objective(self._settings.loss))
        self._model.load(message.parameters)
        if self._samples is not None:
            return self._upload_clipped_samples(self._samples, message, inputs, targets)
        passed = forward(self._model, self.name, message.round_index, inputs)
        activation_sum = passed.head_inputs.detach().double().sum(1)
        if self._settings.loss == "mse":
            error = passed.outputs - targets.to(passed.outputs.dtype)
            dtype = error.dtype
            cotangents = scheme.mse_cotangents(
                self._settings,
                error,
                activation_sum.to(dtype),
                message.output_directions.to(dtype),
                message.partition,
            )
            return self._upload(message.round_index, passed, cotangents, weight)
        if self._settings.tells_noise:
            cotangents = self._with_local_softmax(message, passed.outputs, activation_sum, targets)
            return self._upload(message.round_index, passed, cotangents, weight)
        if self._settings.noise == "offset":
            activation_sum = activation_sum[:0]  # the server has no use for it, so it does not get it
        sent, blinders = cross_entropy.query(
            message.round_index,
            passed.outputs,
            activation_sum,
            self._randomness.child("blinders", message.round_index),
        )
        self._pending = _Pending(message, passed, targets, weight, blinders)
        return sent

    def receive(self, message: SoftmaxReply) -> Upload:
        """Step 3 of cross entropy."""
        pending = self._pending
        if pending is None or message.round_index != pending.model.round_index:
            raise ProtocolError(f"{self.name}: a softmax reply of round {message.round_index} was not asked for.")
        outputs = pending.passed.outputs
        for name in ("blinded_denominators", "blinder_coefficients", "corrections"):
            message.expect_shape("the server", name, tuple(outputs.shape))
        message.check_finite("the server")
        self._pending = None
        self._model.expect_loaded(self.name)
        softmax = cross_entropy.unblind(message, pending.blinders)
        target = F.one_hot(pending.targets, outputs.shape[1]).double()
        cotangents = scheme.cross_entropy_cotangents(
            self._settings,
            softmax.blinded,
            softmax.corrected,
            target,
            pending.model.output_directions,
            pending.model.partition,
        )
        return self._upload(message.round_index, pending.passed, cotangents, pending.weight)

    def _with_local_softmax(
        self, message: PerturbedModel, noisy_outputs: Tensor, activation_sum: Tensor, targets: Tensor
    ) -> scheme.Cotangents:
        """In float64: the noise may be as large as the outputs."""
        outputs = noisy_outputs.detach().double()
        noise = message.group_secrets.double()[message.partition] * message.output_directions.double()
        target = F.one_hot(targets, outputs.shape[1]).double()
        return scheme.local_cross_entropy_cotangents(self._settings, outputs, activation_sum, target, noise)

    def _upload(self, round_index: int, passed: ForwardPass, cotangents: scheme.Cotangents, weight: int) -> Upload:
        terms = term_gradients(self._model, passed, cotangents)
        if self.clip is not None:
            return upload_of(clip_client(terms, self.clip), round_index, with_count=self._count_clipped)
        upload = Upload(round_index, weight, terms, self._model.batch_statistics())
        upload.check_finite(self.name)
        return upload

    def _upload_clipped_samples(
        self, samples: SampleTerms, message: PerturbedModel, inputs: Tensor, targets: Tensor
    ) -> Upload:
        assert self.clip is not None
        directions, partition = message.output_directions, message.partition

        def cotangents_of(head_inputs: Tensor, outputs: Tensor, goals: Tensor) -> scheme.Cotangents:
            dtype = outputs.dtype
            if self._settings.tells_noise:
                return self._with_local_softmax(message, outputs, head_inputs.double().sum(1), goals)
            alpha = head_inputs.double().sum(1).to(dtype)
            return scheme.mse_cotangents(
                self._settings, outputs - goals.to(dtype), alpha, directions.to(dtype), partition
            )

        clipped = clip_samples(samples.chunks(inputs, targets, cotangents_of), samples.shape, self.clip)
        return upload_of(clipped, message.round_index, with_count=self._count_clipped)

    def _check_model(self, message: PerturbedModel) -> None:
        outputs = self._graph.num_outputs
        message.expect_shape("the server", "parameters", (self._graph.num_parameters,))
        message.expect_shape("the server", "output_directions", (outputs,))
        message.expect_shape("the server", "partition", (outputs,))
        num_told = self._settings.num_partitions if self._settings.tells_noise else 0
        message.expect_shape("the server", "group_secrets", (num_told,))
        message.check_finite("the server")
        low, high = int(message.partition.min()), int(message.partition.max())
        if low < 0 or high >= self._settings.num_partitions or message.partition.dtype != torch.int64:
            raise ProtocolError(
                f"PerturbedModel from the server: expected output groups 0 to {self._settings.num_partitions - 1}, "
                f"got {low} to {high} ({message.partition.dtype}).",
                remedy="Both sides must run the same plan.",
            )


def _refuse_unsound(model: nn.Module, settings: PerturbationSettings) -> None:
    """Clipping bounds the upload; it is worth nothing where something else is sent beside it."""
    refuse_batch_norm(model)
    if settings.has_exchange:
        raise UnsoundPlanError(
            "No (epsilon, delta) holds for the published cross entropy under perturbation: its exchange shows the "
            "server the softmax of every training sample (leakage ledger, line 8).",
            remedy="Use softmax = 'local', or loss = 'mse'.",
        )


@dataclass(frozen=True, repr=False)
class _Pending:
    """What the client keeps between its query and the server's reply."""

    model: PerturbedModel
    passed: ForwardPass
    targets: Tensor
    weight: int
    blinders: cross_entropy.ClientBlinders
