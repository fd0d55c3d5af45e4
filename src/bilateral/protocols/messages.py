"""What all protocols share: messages that know their size, uploads that can be summed, and the recovered update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bilateral.arguments import checked
from bilateral.errors import NumericalRangeError, ProtocolError


@dataclass(frozen=True)
class Message:
    """What the messages have in common: they know their size and check themselves at the edge."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                yield item.name, value

    @property
    def num_bytes(self) -> int:
        """Size of what the fields hold, arrays as raw buffers; names and framing add little to it (`wire`)."""
        return sum(_num_bytes(getattr(self, item.name)) for item in fields(self))

    def check_finite(self, sender: str) -> None:
        for name, tensor in self.tensors():
            # A sum is finite only if all its parts are; only a sum that overflowed needs the slower look.
            suspect = tensor.is_floating_point() and not bool(torch.isfinite(tensor.sum()))
            if suspect and not bool(torch.isfinite(tensor).all()):
                raise NumericalRangeError(
                    f"{type(self).__name__} from {sender}: `{name}` holds NaN or infinite values.",
                    remedy="Check that client's data and the learning rate.",
                )

    def expect_shape(self, sender: str, name: str, expected: tuple[int, ...]) -> None:
        got = tuple(getattr(self, name).shape)
        if got != expected:
            raise ProtocolError(
                f"{type(self).__name__} from {sender}: expected `{name}` of shape {expected}, got {got}.",
                remedy="Both sides must run the same plan.",
            )


def _num_bytes(value: object) -> int:
    match value:
        case Tensor():
            return value.numel() * value.element_size()
        case bytes():
            return len(value)
        case str():
            return len(value.encode())
        case int():
            return 8
        case tuple():
            return sum(_num_bytes(part) for part in value)
        case _:
            raise TypeError(f"a message cannot hold {type(value).__name__}")


@dataclass(frozen=True)
class RoundModel(Message):
    """What every protection opens a round with: the parameters that clients train on, as a flat vector."""

    round_index: int
    parameters: Tensor


@dataclass(frozen=True)
class NamedTensors(RoundModel):
    """Named tensors of any shapes, laid end to end in `parameters`: what a loop of one's own sends down."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Question(Message):
    """What a client asks in the middle of a round; the server's half of the protection answers it."""


@dataclass(frozen=True)
class Upload(Message):
    """Batch means of all terms (terms x parameters), batch statistics, and the client's weight in the average."""

    round_index: int
    weight: int
    terms: Tensor
    statistics: Tensor


@dataclass(frozen=True)
class UploadShape:
    """What every upload of a run looks like."""

    num_terms: int
    num_parameters: int
    num_statistics: int
    weight: int | None = None
    """What the plan fixes; None is the client's own affair."""

    @property
    def num_values(self) -> int:
        """All of it as one vector, with the weight at the end."""
        return self.num_terms * self.num_parameters + self.num_statistics + 1


@dataclass(frozen=True)
class HiddenUpload(Message):
    """An upload that its receiver cannot read: to an attacker, bytes."""

    round_index: int
    ciphertext: bytes

    def as_numbers(self) -> Tensor:
        """The bytes as whole numbers of 64 bits, which is what somebody has who takes it for an upload."""
        data = self.ciphertext
        return torch.frombuffer(bytearray(data[: len(data) // 8 * 8] or bytes(8)), dtype=torch.int64)


@dataclass(frozen=True, repr=False)
class RecoveredUpdate:
    """The true aggregated gradient as a flat float64 vector, and plain batch statistics."""

    gradient: Tensor
    statistics: Tensor


@dataclass(frozen=True)
class Aggregate:
    """The weighted sum of uploads, and whose: all that the server needs of them."""

    round_index: int
    total_weight: int
    terms: Tensor
    statistics: Tensor
    contributors: tuple[str, ...] = ()


@checked
def aggregate(uploads: Mapping[str, Upload], round_index: int) -> Aggregate:
    """Sum of the uploads times their weights, in float64 and in the order of the senders' names."""
    if not uploads:
        raise ProtocolError(f"Round {round_index} has no uploads.", remedy="At least one client must answer.")
    for sender, upload in uploads.items():
        if upload.round_index != round_index:
            raise ProtocolError(f"Upload from {sender} is of round {upload.round_index}, expected {round_index}.")
        if not upload.weight > 0:
            raise ProtocolError(f"Upload from {sender} has weight {upload.weight}; expected a positive number.")
        upload.check_finite(sender)
    # What most uploads look like is right: the error must name the one that is wrong.
    (shapes, _), *_ = Counter((u.terms.shape, u.statistics.shape) for u in uploads.values()).most_common(1)
    for sender, upload in uploads.items():
        upload.expect_shape(sender, "terms", tuple(shapes[0]))
        upload.expect_shape(sender, "statistics", tuple(shapes[1]))
    first, *others = sorted(uploads)
    terms = uploads[first].terms.to(torch.float64, copy=True).mul_(uploads[first].weight)
    statistics = uploads[first].statistics.to(torch.float64, copy=True).mul_(uploads[first].weight)
    for sender in others:
        terms.add_(uploads[sender].terms, alpha=uploads[sender].weight)
        statistics.add_(uploads[sender].statistics, alpha=uploads[sender].weight)
    return Aggregate(round_index, sum(u.weight for u in uploads.values()), terms, statistics, (first, *others))
