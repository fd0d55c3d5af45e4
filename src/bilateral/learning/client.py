"""A client with data: picks the batch of a round and hands it to its half of the protection."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.data import Split, random_flip_crop
from bilateral.errors import DataError, ProtocolError
from bilateral.learning.halves import ClientHalf
from bilateral.protocols.messages import Message, Upload
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
        # The last, smaller batch is joined to the one before: a rest of one sample would be useless to BatchNorm.
        return max(1, self.num_samples // self.batch_size) if self.batch_size else 1

    def batch(self, round_index: int) -> Tensor:
        """Indices of the round's samples, ascending (their order does not matter to a gradient)."""
        if self.batch_size == 0 or self.batch_size >= self.num_samples:
            return torch.arange(self.num_samples)
        epoch, position = divmod(round_index, self.batches_per_epoch)
        order = self.randomness.child("epoch", epoch).permutation(self.num_samples)
        start = position * self.batch_size
        last = position == self.batches_per_epoch - 1
        return order[start:].sort().values if last else order[start : start + self.batch_size].sort().values


class TrainingClient:
    """One participant: its data never leave it, its half of the protection does the talking."""

    def __init__(
        self,
        half: ClientHalf,
        data: Split,
        batch_size: int,
        randomness: Randomness,
        *,
        augment: bool = False,
        reordering: int = 0,
    ) -> None:
        if len(data) == 0:
            raise DataError(f"{half.name} has no samples.", remedy="Use fewer clients or another partition.")
        self.half = half
        self.name = half.name
        self.num_samples = len(data)
        self._data = data
        self._randomness = randomness
        self._schedule = BatchSchedule(len(data), batch_size, randomness.child("batches"))
        self._augment = augment
        self._reordering = reordering

    @property
    def batches_per_epoch(self) -> int:
        return self._schedule.batches_per_epoch

    def begin(self, message: Message, round_index: int) -> Message:
        """Train on the round's batch. Dropout draws from a stream of its own, derived from the round.

        Under perturbation its masks fall on permuted channels: as random as without, but not the same ones.
        """
        chosen = self._data.subset(self._schedule.batch(round_index))
        inputs = chosen.inputs
        generator = self._randomness.child("round", round_index).torch_generator()
        if self._augment:
            inputs = random_flip_crop(inputs, generator)
        targets = chosen.targets
        if self._reordering:
            order = reordered(len(inputs), self._reordering)
            inputs, targets = inputs[order], targets[order]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(generator.initial_seed())
            return self.half.train(message, inputs, targets, self.num_samples)

    def resume(self, message: Message) -> Upload:
        """Go on after the server's answer."""
        upload = self.half.receive(message)
        if not isinstance(upload, Upload):
            raise ProtocolError(f"{self.name} answered with {type(upload).__name__}, expected an upload.")
        return upload


def reordered(count: int, number: int) -> Tensor:
    """The `number`-th other order of a batch: the same sums, so a training that differs by rounding alone.

    (Not so with dropout, whose masks fall on samples by their place.)
    """
    return SeededRandomness(number, "reordering").permutation(count)


def prepare_targets(split: Split, num_outputs: int, loss: str) -> Split:
    """Targets in the form that the loss wants: class numbers for `ce`, one-hot or real vectors for `mse`."""
    targets = split.targets
    if loss == "mse" and not targets.is_floating_point():
        targets = F.one_hot(targets, num_outputs).to(split.inputs.dtype)
    if loss == "mse":
        targets = targets.to(split.inputs.dtype)
    if loss == "ce" and targets.is_floating_point():
        raise DataError(
            "Cross entropy needs class labels, but this is a regression set.", remedy="Use loss = 'mse' for it."
        )
    return Split(split.inputs, targets, split.sites)


def sample_clients(num_clients: int, participation: float, round_index: int, randomness: Randomness) -> list[int]:
    """The clients of a round: a random `participation` of all, at least one, ascending."""
    count = max(1, math.ceil(participation * num_clients - 1e-9))
    if count >= num_clients:
        return list(range(num_clients))
    chosen = randomness.child("participants", round_index).permutation(num_clients)[:count]
    return sorted(chosen.tolist())
