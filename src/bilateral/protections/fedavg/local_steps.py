"""FedAvg: both halves of a round with local steps. Clients upload how their training changed the model.

BatchNorm is as FedAvg has it: the round's model comes with the server's running statistics, clients go on from these,
and the mean of what they end with becomes the server's.

Formal guarantee (tests/protections/test_local_steps.py): a round is that of an implementation of forty lines on the
same batches, to rounding; with `clip` the upload is the change, scaled down to the norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.errors import ModelError, ProtocolError
from bilateral.learning.local_steps import LocalSettings
from bilateral.models.layout import ModelLayout
from bilateral.protections.fedavg.halves import FedAvgServer
from bilateral.protocols.batch_check import check_batch
from bilateral.protocols.guarantee import Guarantee, Leak
from bilateral.protocols.local_model import LocalModel
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate, RoundModel, Upload
from bilateral.protocols.noise.adaptive import upload_of
from bilateral.protocols.noise.clipping import ClipSettings, clip_client
from bilateral.protocols.noise.sample_terms import refuse_batch_norm
from bilateral.protocols.objective import Objective
from bilateral.protocols.placement import Placement
from bilateral.protocols.statistics import batch_statistics, replace_running_statistics
from bilateral.protocols.workspace import Workspace

LOCAL_GUARANTEE = Guarantee(
    "FedAvg",
    claims=(),
    leaks=(
        Leak("the whole model", "clients", 0),
        Leak("each client's change of the model", "server", 0),
    ),
)


@dataclass(frozen=True)
class LocalRound(RoundModel):
    """The parameters as they are, and the running statistics of BatchNorm layers."""

    statistics: Tensor


class LocalStepsServer:
    """Sends the model as it is and averages how clients changed it."""

    def __init__(self, model: nn.Module, layout: ModelLayout) -> None:
        _refuse_cumulative(model, layout)
        self._model = model
        self.layout = layout
        self._plain = FedAvgServer(model, layout)

    def start_round(self, round_index: int) -> LocalRound:
        statistics = batch_statistics(self._model, self.layout)
        return LocalRound(round_index, self._plain.start_round(round_index).parameters, statistics)

    def answer(self, sender: str, message: Message) -> Message:
        raise ProtocolError(f"{sender} sent {type(message).__name__}, but FedAvg has no exchange inside a round.")

    def recover(self, total: Aggregate) -> RecoveredUpdate:
        return self._plain.recover(total)

    def state_tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """FedAvg keeps nothing between rounds but the model, and what its server's rule keeps."""


class LocalStepsClient:
    """Trains the round's model on batches of its own, with an optimiser that begins anew every round."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        layout: ModelLayout,
        objective: Objective,
        settings: LocalSettings,
        *,
        channels_last: bool | None = None,
        clip: ClipSettings | None = None,
        count_clipped: bool = False,
        workspace: Workspace | None = None,
        placement: Placement | None = None,
    ) -> None:
        if clip is not None:
            refuse_batch_norm(model)
        _refuse_cumulative(model, layout)
        self.name = name
        self.clip = clip
        """Public; adaptive clipping gives it another norm every round."""
        self._count_clipped = count_clipped
        self._model = LocalModel(
            model, layout, channels_last=channels_last, workspace=workspace, keeps_history=True, placement=placement
        )
        self.layout = layout
        self.objective = objective
        self._settings = settings

    def train(self, message: LocalRound, inputs: Tensor, targets: Tensor, weight: int) -> Upload:
        """A round of one step."""
        return self.train_locally(message, [(inputs, targets)], weight)

    def train_locally(self, message: LocalRound, batches: Iterable[tuple[Tensor, Tensor]], weight: int) -> Upload:
        """A step on each batch in turn; the upload is `before - after`."""
        message.expect_shape("the server", "parameters", (self.layout.num_parameters,))
        message.expect_shape("the server", "statistics", (self.layout.num_statistics,))
        self._model.load(message.parameters)
        replace_running_statistics(self._model.module, self.layout, message.statistics)
        self._take_steps(message.round_index, batches)
        terms = self._model.upload_rows(1, self._model.dtype)
        with torch.no_grad():
            for place, before, after in self._places(message.parameters):
                torch.sub(before, after, out=terms[0, place].view(after.shape))
        terms = terms.cpu()
        if self.clip is None:
            return Upload(message.round_index, weight, terms, self._model.batch_statistics())
        return upload_of(clip_client(terms, self.clip), message.round_index, with_count=self._count_clipped)

    def _take_steps(self, round_index: int, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        trained = self._model.parameters
        start = [p.detach().clone() for p in trained] if self._settings.proximal else []
        optimiser = self._settings.make_optimiser(trained, round_index)
        for inputs, targets in batches:
            if self.clip is None:  # else an error would be an answer: what is not finite counts as no change
                check_batch(self.name, inputs, targets, self.layout, self.objective)
            optimiser.zero_grad(set_to_none=True)
            for part, some, wanted in self._model.placement.parts(inputs, targets):
                outputs = self._model.run(self.name, round_index, some, check=self.clip is None)
                lost = self.objective.of_batch(outputs, wanted)
                (lost if part == 1 else lost * part).backward()  # type: ignore[no-untyped-call]
            for p, origin in zip(trained, start, strict=False):
                if p.grad is not None:
                    p.grad.add_(p.detach() - origin, alpha=self._settings.proximal)
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    def _places(self, parameters: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        before = self.layout.unflatten(parameters.to(self._model.placement.device, self._model.dtype))
        for place, after in zip(self.layout.parameters, self._model.parameters, strict=True):
            yield place.slice, before[place.name], after.detach()

    def receive(self, message: Message) -> Upload:
        raise ProtocolError(f"{self.name} received {type(message).__name__}, but FedAvg has no exchange in a round.")


def _refuse_cumulative(model: nn.Module, layout: ModelLayout) -> None:
    for layer in layout.statistics:
        if layer.tracked and getattr(model.get_submodule(layer.module), "momentum", 0.0) is None:
            raise ModelError(
                f"BatchNorm `{layer.module}` averages over all batches so far (momentum=None), which local steps of "
                "several clients have no count of.",
                remedy="Give it a momentum, such as 0.1.",
            )
