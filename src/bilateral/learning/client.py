"""A client with data: picks the batch of a round and hands it to its half of the protection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bilateral.data import Split, random_flip_crop
from bilateral.errors import DataError, ProtocolError
from bilateral.learning.halves import ClientHalf, LocalHalf, WeighedHalf
from bilateral.protocols.class_balance import ClassTotals, CountClasses, as_terms, count_classes, weights_from
from bilateral.protocols.messages import Message, RoundModel, Upload
from bilateral.protocols.objective import Objective, as_objective
from bilateral.protocols.site_reports import MetricsRequest
from bilateral.randomness import Randomness, SeededRandomness


@dataclass(frozen=True)
class BatchSchedule:
    """Which samples a client uses in which round: a fresh shuffle every epoch, derived from the round alone.

    `batch_size` 0 means all samples in every round.
    """

    num_samples: int
    batch_size: int
    randomness: Randomness

    @property
    def batches_per_epoch(self) -> int:
        return _batches_per_epoch(self.num_samples, self.batch_size)

    def batch(self, round_index: int) -> Tensor:
        """Indices of the round's samples, ascending (their order does not matter to a gradient)."""
        if self.batch_size == 0 or self.batch_size >= self.num_samples:
            return torch.arange(self.num_samples)
        epoch, position = divmod(round_index, self.batches_per_epoch)
        order = self.randomness.child("epoch", epoch).permutation(self.num_samples)
        start = position * self.batch_size
        last = position == self.batches_per_epoch - 1
        return order[start:].sort().values if last else order[start : start + self.batch_size].sort().values


def batch_size_in(num_samples: int, batch_size: int, round_index: int) -> int:
    """How many samples `BatchSchedule` takes in a round."""
    if batch_size == 0 or batch_size >= num_samples:
        return num_samples
    count = _batches_per_epoch(num_samples, batch_size)
    is_last = round_index % count == count - 1
    return num_samples - (count - 1) * batch_size if is_last else batch_size


def largest_batch_size(num_samples: int, batch_size: int) -> int:
    """Of all rounds: the last of an epoch is the largest."""
    return batch_size_in(num_samples, batch_size, _batches_per_epoch(num_samples, batch_size) - 1)


def _batches_per_epoch(num_samples: int, batch_size: int) -> int:
    # The last, smaller batch is joined to the one before: a rest of one sample would be useless to BatchNorm.
    return max(1, num_samples // batch_size) if batch_size else 1


class Schedule(Protocol):
    """Which samples a client uses in which round."""

    def batch(self, round_index: int) -> Tensor: ...


@runtime_checkable
class StepSchedule(Protocol):
    """Which samples a client uses in each local step of a round."""

    def of_round(self, round_index: int) -> Iterator[Tensor]: ...


COUNTED_AT_ONCE = 512


class Uploader(Protocol):
    """What happens to a finished upload on its way out (noise, masks), and the messages that this needs."""

    accepts: tuple[type[Message], ...]

    def handle(self, message: Message) -> Message | None:
        """Take a message of `accepts`; the reply, if it has one."""
        ...

    def bind(self, model: RoundModel, *beside: Message) -> None:
        """Called with the model that the next upload is trained on, before the training; and what came beside it."""
        ...

    def finish(self, upload: Upload) -> Message:
        """What is sent in place of the upload."""
        ...


class PlainUploader:
    """Uploads go out as they are."""

    accepts: tuple[type[Message], ...] = ()

    def handle(self, message: Message) -> Message | None:
        raise ProtocolError(f"{type(message).__name__} was not expected: uploads are not masked in this plan.")

    def bind(self, model: RoundModel, *beside: Message) -> None:
        """An upload in the clear depends on nothing."""

    def finish(self, upload: Upload) -> Message:
        return upload


class TrainingClient:
    """One participant: its data never leave it, its half of the protection does the talking.

    `weight` is its weight in the average: by default the number of its samples.
    """

    def __init__(
        self,
        half: ClientHalf,
        data: Split,
        schedule: Schedule,
        randomness: Randomness,
        *,
        uploader: Uploader | None = None,
        weight: int | None = None,
        augment: bool = False,
        reordering: int = 0,
        look: Callable[[RoundModel], None] | None = None,
        report: Callable[[MetricsRequest], Message] | None = None,
    ) -> None:
        """`look` is shown each model before it is trained on; `report` tells the server what was found."""
        if len(data) == 0:
            raise DataError(f"{half.name} has no samples.", remedy="Use fewer clients or another partition.")
        self.half = half
        self.name = half.name
        self.weight = len(data) if weight is None else weight
        self._data = data
        self._randomness = randomness
        self._schedule = schedule
        self._uploader = uploader or PlainUploader()
        self._augment = augment
        self._reordering = reordering
        self._totals: ClassTotals | None = None
        self._look, self._report = look, report

    def batch(self, round_index: int) -> Split:
        """The samples of a round, before augmentation."""
        return self._data.subset(self._schedule.batch(round_index))

    def handle(self, packet: Sequence[Message]) -> Message:
        """Take the messages of a packet in order, up to the first that has an answer: normally the last.

        What has an answer before (shares that do not open) makes the rest pointless.
        """
        for message in packet:
            reply = self._handle(message)
            if reply is not None:
                return reply
        names = ", ".join(type(message).__name__ for message in packet) or "nothing"
        raise ProtocolError(f"{self.name} was sent {names}, which has no answer.")

    def _handle(self, message: Message) -> Message | None:
        if isinstance(message, self._uploader.accepts):
            return self._uploader.handle(message)
        if isinstance(message, ClassTotals):
            self._totals = message
            return None
        if isinstance(message, MetricsRequest):
            return self._metrics(message)
        if isinstance(message, RoundModel):
            totals, self._totals = self._totals, None
            self._uploader.bind(message, *(() if totals is None else (totals,)))
            self._weigh(message, totals)
            if self._look is not None and not isinstance(message, CountClasses):
                self._look(message)
            reply: Message | None = (
                self._counted(message) if isinstance(message, CountClasses) else self._train(message)
            )
        else:
            reply = self.half.receive(message)
        return self._uploader.finish(reply) if isinstance(reply, Upload) else reply

    def _metrics(self, request: MetricsRequest) -> Message:
        if self._report is None:
            raise ProtocolError(
                f"{self.name} was asked for its metrics, which stay here.",
                remedy="Only where the plan says evaluation.site_metrics = 'share' are they told.",
            )
        return self._report(request)

    def _weigh(self, model: RoundModel, totals: ClassTotals | None) -> None:
        """Set the weights of a balanced loss from the totals; refuse totals without such a loss, or it without them."""
        half = self.half
        balanced = isinstance(half, WeighedHalf) and half.objective.balanced
        wanted = balanced and not isinstance(model, CountClasses)
        if wanted != (totals is not None) or (isinstance(model, CountClasses) and not balanced):
            raise ProtocolError(
                f"{self.name}: expected {'class totals' if wanted else 'no class totals'} of round "
                f"{model.round_index} from the server, and to count only where the plan says so.",
                remedy="Both sides must run the same plan.",
            )
        if totals is None or not isinstance(half, WeighedHalf):
            return
        if totals.round_index != model.round_index:
            raise ProtocolError(f"{self.name}: class totals of round {totals.round_index} in {model.round_index}.")
        weights = weights_from(totals, half.objective, half.layout.num_outputs)
        half.objective = replace(half.objective, class_weights=weights)

    def _counted(self, model: CountClasses) -> Upload:
        """The classes of all samples here, as an upload."""
        half = self.half
        assert isinstance(half, WeighedHalf)
        known = self._data.known_targets
        parts = [known] if known is not None else (part.targets for part in self._data.chunks(COUNTED_AT_ONCE))
        counts = sum(count_classes(half.objective, part, half.layout.num_outputs) for part in parts)
        assert isinstance(counts, Tensor)
        terms = as_terms(counts, (1, half.layout.num_parameters), torch.float64)
        return Upload(model.round_index, 1, terms, terms.new_zeros(half.layout.num_statistics))

    def _train(self, model: RoundModel) -> Message:
        """Train on the round's batch. Dropout draws from a stream of its own, derived from the round.

        Under perturbation its masks fall on permuted channels: as random as without, but not the same ones.
        """
        round_index = model.round_index
        with torch.random.fork_rng(devices=[]):
            if isinstance(self.half, LocalHalf) and isinstance(self._schedule, StepSchedule):
                batches = self._local_batches(round_index, self._schedule)
                return self.half.train_locally(model, batches, self.weight)
            inputs, targets = self._prepared(self._schedule.batch(round_index), "round", round_index)
            return self.half.train(model, inputs, targets, self.weight)

    def _local_batches(self, round_index: int, schedule: StepSchedule) -> Iterator[tuple[Tensor, Tensor]]:
        for step, indices in enumerate(schedule.of_round(round_index)):
            yield self._prepared(indices, "round", round_index, "step", step)

    def _prepared(self, indices: Tensor, *labels: str | int) -> tuple[Tensor, Tensor]:
        """A batch as it is trained on; what the training draws comes from a stream with these labels."""
        chosen = self._data.drawn(indices, lambda: _seed(self._randomness.child("samples", *labels)))
        inputs, targets = chosen.inputs, chosen.targets
        generator = self._randomness.child(*labels).torch_generator()
        if self._augment:
            inputs = random_flip_crop(inputs, generator)
        if self._reordering:
            order = reordered(len(inputs), self._reordering)
            inputs, targets = inputs[order], targets[order]
        torch.default_generator.manual_seed(generator.initial_seed())
        return inputs, targets


def _seed(randomness: Randomness) -> int:
    return int.from_bytes(randomness.random_bytes(7), "little")


def reordered(count: int, number: int) -> Tensor:
    """The `number`-th other order of a batch: the same sums, so a training that differs by rounding alone.

    (Not so with dropout, whose masks fall on samples by their place.)
    """
    return SeededRandomness(number, "reordering").permutation(count)


def prepare_targets(split: Split, num_outputs: int, loss: str | Objective) -> Split:
    """Targets in the form that the loss wants: class numbers for `ce`, one-hot or real vectors for `mse`."""
    targets = as_objective(loss).prepared(split.targets, num_outputs, split.inputs.dtype)
    return Split(split.inputs, targets, split.sites, split.form)


def num_participants(num_clients: int, participation: float) -> int:
    """How many clients a round has."""
    return max(1, math.ceil(participation * num_clients - 1e-9))


def invited_clients(clients: Sequence[str], participation: float, seed: int, round_index: int) -> tuple[str, ...]:
    """Whom a run with this seed invites to a round. What it spends, and what an audit records, replay just this."""
    return sample_clients(clients, participation, round_index, SeededRandomness(seed, "federation"))


def sample_clients(
    clients: Sequence[str], participation: float, round_index: int, randomness: Randomness
) -> tuple[str, ...]:
    """The clients of a round: a random `participation` of all, at least one, in the order of `clients`."""
    count = num_participants(len(clients), participation)
    if count >= len(clients):
        return tuple(clients)
    chosen = randomness.child("participants", round_index).permutation(len(clients))[:count]
    return tuple(clients[index] for index in sorted(chosen.tolist()))
