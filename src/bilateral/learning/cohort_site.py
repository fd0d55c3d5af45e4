"""A site of a cohort: bytes in, bytes out. `cohort` has the server's part.

Formal guarantee (tests/learning/test_cohort.py): what leaves a site is its keys, its sealed shares, one masked upload
an attempt, bound to the very model that it was sent, one signature a round on the list of those in the sum, and one
share of each neighbour for it. Once the server is caught (`AuthenticationError`) the site answers nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import torch
from torch import Tensor

from bilateral.arguments import checked
from bilateral.errors import ArgumentError, AuthenticationError, PlanError, ProtocolError
from bilateral.learning.cohort import Cohort
from bilateral.learning.uploading import MaskUploader
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.fixed_point import MAX_WEIGHT
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.messages import Message, NamedTensors, RoundModel, Upload
from bilateral.protocols.wire import decode_packet, encode
from bilateral.randomness import Randomness, SecureRandomness

SERVER: Final = "the server"
Train = Callable[[dict[str, Tensor]], tuple[Mapping[str, Tensor], int]]
"""The round's tensors -> what training made of them, and its weight in the mean (a number of samples)."""


class TrainingHalf(Protocol):
    """A protection's client half, as `PerturbClient`."""

    @property
    def reads(self) -> tuple[type[Message], ...]:
        """What the server's half may send it."""
        ...

    def train(self, message: RoundModel, inputs: Tensor, targets: Tensor, weight: int) -> Message: ...

    def receive(self, message: Message) -> Message: ...


class _Work(Protocol):
    """What a site does with what comes besides masks: an upload at the end."""

    reads: tuple[type[Message], ...]

    def take(self, message: Message) -> Message: ...


class CohortSite:
    """One site. `train` is called with the round's tensors once a round, and returns its own and their weight.

    One object a run: a site that starts anew needs a new cohort, with everybody else. `randomness` is for simulations
    that are to be repeatable; by default every secret is drawn from the operating system's generator.
    """

    @checked
    def __init__(
        self, cohort: Cohort, identity: Identity, train: Train, *, randomness: Randomness | None = None
    ) -> None:
        self._begin(cohort, identity, _Averaging(_name_of(cohort, identity), train), randomness)

    @classmethod
    def with_half(
        cls,
        cohort: Cohort,
        identity: Identity,
        half: TrainingHalf,
        batch: Callable[[int], tuple[Tensor, Tensor]],
        *,
        randomness: Randomness | None = None,
    ) -> CohortSite:
        """A site with a protection's client half. `batch`: a round's number -> its inputs and targets."""
        site = cls.__new__(cls)
        site._begin(cohort, identity, _Halved(half, batch), randomness)
        return site

    def _begin(self, cohort: Cohort, identity: Identity, work: _Work, randomness: Randomness | None) -> None:
        self.name = _name_of(cohort, identity)
        draws = randomness or SecureRandomness()
        others = {name: key for name, key in cohort.pinned.items() if name != self.name}
        ring = KeyRing(self.name, cohort.run_id, identity, others, draws)
        self._uploader = MaskUploader(MaskClient(ring, cohort.masks, draws), ring)
        self._work = work
        self._left = ""

    def answer(self, data: bytes) -> bytes:
        """What goes back to the server for what came from it.

        An error is for this site's operator: whoever carries bytes sends nothing then, and not its text, which may say
        something of the data.
        """
        if self._left:
            raise AuthenticationError(
                f"{self.name} has left this run: {self._left}", remedy="Find out about the server, then begin anew."
            )
        try:
            return encode(self._answer(decode_packet(data, (*self._uploader.accepts, *self._work.reads), SERVER)))
        except AuthenticationError as error:
            self._left = str(error)
            raise

    def _answer(self, packet: tuple[Message, ...]) -> Message:
        for message in packet:
            reply = self._take(message)
            if reply is not None:
                return reply
        came = ", ".join(type(message).__name__ for message in packet) or "nothing"
        raise ProtocolError(f"{self.name} was sent {came}, which has no answer.", remedy="Ask whoever runs the server.")

    def _take(self, message: Message) -> Message | None:
        if isinstance(message, self._uploader.accepts):
            return self._uploader.handle(message)
        if isinstance(message, RoundModel):
            self._uploader.bind(message)
        reply = self._work.take(message)
        return self._uploader.finish(reply) if isinstance(reply, Upload) else reply


def _name_of(cohort: Cohort, identity: Identity) -> str:
    for name, key in cohort.pinned.items():
        if key == identity.public_bytes:
            return name
    raise AuthenticationError(
        f"This identity is none of {', '.join(cohort.names)}: its public key is not in the cohort.",
        remedy="Give its `public_bytes` to whoever makes the cohort, or load the identity that is in it.",
    )


class _Averaging:
    """Plain tensors down, plain tensors up, under masks."""

    reads: tuple[type[Message], ...] = (NamedTensors,)

    def __init__(self, name: str, train: Train) -> None:
        self._name = name
        self._train = train

    def take(self, message: Message) -> Message:
        assert isinstance(message, NamedTensors)
        tensors = self._tensors(message)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        made = self._train(tensors)
        if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], Mapping):
            raise ArgumentError(
                f"{self._name}: expected `train` to return named tensors and a weight, got {type(made).__name__}.",
                remedy="return dict(local.named_parameters()), len(targets)",
            )
        after, weight = made
        if type(weight) is not int or not 1 <= weight <= MAX_WEIGHT:
            raise ArgumentError(
                f"{self._name}: expected a weight between 1 and 2^40 from `train`, a whole number, got {weight!r}.",
                remedy="Return how many samples it trained on; a site without any takes no part in the round.",
            )
        found = {name: getattr(tensor, "shape", None) for name, tensor in after.items()}
        if found != shapes:
            wrong = sorted(name for name in {*found, *shapes} if found.get(name) != shapes.get(name))
            raise PlanError(
                f"{self._name}: expected `train` to return tensors of the names and shapes that it was given; "
                f"different are {', '.join(wrong[:5])}.",
                remedy="Sum just what all parties know: return {name: after[name] for name in given}.",
            )
        row = torch.cat([after[name].detach().reshape(-1).to("cpu", message.parameters.dtype) for name in shapes])
        upload = Upload(message.round_index, weight, row[None], row.new_zeros(0))
        upload.check_finite(self._name)
        return upload

    def _tensors(self, message: NamedTensors) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in message.shapes]
        flat = message.parameters
        fits = len(message.names) == len(message.shapes) == len(set(message.names)) and flat.is_floating_point()
        if not fits or flat.shape != (sum(sizes),) or any(size < 0 for shape in message.shapes for size in shape):
            raise ProtocolError(
                f"{self._name}: NamedTensors from the server: names, shapes and values do not fit together.",
                remedy="Ask whoever runs the server.",
            )
        message.check_finite(SERVER)
        parts = zip(message.names, message.shapes, torch.split(flat, sizes), strict=True)
        return {name: part.view(shape).clone() for name, shape, part in parts}


class _Halved:
    """A protection's client half, with batches of its own choice."""

    def __init__(self, half: TrainingHalf, batch: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        self.reads: tuple[type[Message], ...] = half.reads
        self._half = half
        self._batch = batch

    def take(self, message: Message) -> Message:
        if not isinstance(message, RoundModel):
            return self._half.receive(message)
        inputs, targets = self._batch(message.round_index)
        return self._half.train(message, inputs, targets, weight=len(targets))
