"""FedSGD: plain averaging of gradients, without any protection, the yardstick.

As in the papers (P0 eq. 3), which call it FedAvg, a round is one gradient on every client's batch, weighted by the
clients' sample counts. It speaks the same messages as the protections, so that both run in the same loop. Identifiers
keep the papers' word: docs/decisions/0023-fedsgd-by-name.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from bilateral.errors import ProtocolError
from bilateral.models.layout import ModelLayout
from bilateral.protocols.batch_check import check_batch
from bilateral.protocols.flat_gradients import FlatGradients
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.local_model import LocalModel
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate, RoundModel, Upload
from bilateral.protocols.noise.adaptive import upload_of
from bilateral.protocols.noise.clipping import ClipSettings, clip_client, clip_samples
from bilateral.protocols.noise.sample_terms import SampleGradients, refuse_batch_norm
from bilateral.protocols.objective import Objective, as_objective
from bilateral.protocols.placement import Placement
from bilateral.protocols.workspace import Workspace

GUARANTEE = Guarantee(
    "FedSGD",
    claims=(),
    leaks=(
        Leak("the whole model", "clients", 0),
        Leak("each client's gradient", "server", 0),
    ),
)


@dataclass(frozen=True)
class PlainModel(RoundModel):
    """The parameters as they are."""


class FedAvgServer:
    """Sends the model as it is and averages what comes back."""

    def __init__(self, model: nn.Module, layout: ModelLayout) -> None:
        self._model = model
        self.layout = layout
        self._dtype = next(iter(model.parameters())).dtype

    def start_round(self, round_index: int) -> PlainModel:
        return PlainModel(round_index, self.layout.flatten(dict(self._model.named_parameters()), self._dtype))

    def answer(self, sender: str, message: Message) -> Message:
        raise ProtocolError(f"{sender} sent {type(message).__name__}, but FedSGD has no exchange inside a round.")

    def recover(self, total: Aggregate) -> RecoveredUpdate:
        return RecoveredUpdate(total.terms[0] / total.total_weight, total.statistics / total.total_weight)

    def recover_one(self, total: Aggregate) -> RecoveredUpdate:
        """Of any sum, also of one upload alone: the same."""
        return self.recover(total)

    @property
    def secrets(self) -> None:
        """FedSGD has none."""

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """FedSGD keeps nothing between rounds but the model."""


class FedAvgClient:
    """Computes the gradient of its batch. With `clip` (differential privacy) it is clipped, as `PerturbClient` does."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        layout: ModelLayout,
        loss: str | Objective,
        *,
        channels_last: bool | None = None,
        clip: ClipSettings | None = None,
        count_clipped: bool = False,
        workspace: Workspace | None = None,
        placement: Placement | None = None,
    ) -> None:
        if clip is not None:
            refuse_batch_norm(model)
        self.name = name
        self.clip = clip
        """Public; adaptive clipping gives it another norm every round."""
        self._count_clipped = count_clipped
        self._model = LocalModel(model, layout, channels_last=channels_last, workspace=workspace, placement=placement)
        self.layout = layout
        self.objective = as_objective(loss)
        self._samples = SampleGradients(self._model) if clip is not None and clip.unit == "sample" else None

    def train(self, message: PlainModel, inputs: Tensor, targets: Tensor, weight: int) -> Upload:
        message.expect_shape("the server", "parameters", (self.layout.num_parameters,))
        if self.clip is None:  # else checked before the first round: an error would be an answer about the batch
            check_batch(self.name, inputs, targets, self.layout, self.objective)
        self._model.load(message.parameters)
        if self._samples is not None:
            return self._upload_clipped_samples(self._samples, message.round_index, inputs, targets)
        terms = self._gradient(message.round_index, inputs, targets).cpu()
        if self.clip is None:
            return Upload(message.round_index, weight, terms, self._model.batch_statistics())
        return upload_of(clip_client(terms, self.clip), message.round_index, with_count=self._count_clipped)

    def _gradient(self, round_index: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """The batch's, one micro-batch after the other: a mean over samples is the mean of its parts."""
        total: Tensor | None = None
        for part, some, wanted in self._model.placement.parts(inputs, targets):
            lost = self.objective.of_batch(self._model.run(self.name, round_index, some), wanted)
            row = self._model.upload_rows(1, lost.dtype)
            FlatGradients(lost, self._model.parameters).write(row[0], None, {}, last=True)
            if part < 1:
                row.mul_(part)
            total = row if total is None else total.add_(row)
        assert total is not None, "a batch without samples is refused before"
        return total

    def _upload_clipped_samples(
        self, samples: SampleGradients, round_index: int, inputs: Tensor, targets: Tensor
    ) -> Upload:
        assert self.clip is not None
        clipped = clip_samples(samples.chunks(inputs, targets, self.objective), samples.shape, self.clip)
        return upload_of(clipped, round_index, with_count=self._count_clipped)

    def receive(self, message: Message) -> Upload:
        raise ProtocolError(f"{self.name} received {type(message).__name__}, but FedSGD has no exchange in a round.")
