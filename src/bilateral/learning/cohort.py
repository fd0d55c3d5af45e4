"""Masked sums for a loop of one's own: the server's part, and what everybody has agreed on beforehand.

    cohort = Cohort({"north": key, "south": key, "west": key})   # the same everywhere
    site   = CohortSite(cohort, identity, train)                 # at each site: site.answer(data) -> data
    server = CohortServer(cohort, carry)                         # carry({site: data}) -> {site: data}
    state  = server.mean(state)                                  # one round: the mean of what sites made of it
    update = server.update(half)                                 # one round of a protection's server half

Keys, shares, survivors, further attempts for values out of range, sites that are gone, cheat or send garbage: all that
is `MaskedAggregation`, the same as in a run. What travels are bytes, by whatever the user has.

Formal guarantee (tests/learning/test_cohort.py): the server has of the sites' tensors their sum over the sites whose
lists they all signed, and nothing else; sites that were sent different models, openings or lists have no sum in common.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from bilateral.arguments import checked, require
from bilateral.documents import parse_json
from bilateral.errors import MalformedMessageError, OutOfRangeError, PlanError, ProtocolError
from bilateral.learning.aggregation import Incident
from bilateral.learning.exchange import Enough, Packet, Respond, Unanswered, Unusable, kept_of
from bilateral.learning.masked_aggregation import MaskedAggregation
from bilateral.protocols.mask.injective import injective
from bilateral.protocols.mask.keys import KEY_BYTES, RUN_ID_BYTES
from bilateral.protocols.mask.messages import (
    KeyAnnouncement,
    MaskedUpload,
    RangeRefusal,
    RevealedShares,
    SealedShares,
    ShareComplaint,
    SurvivorSignature,
)
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.messages import (
    Aggregate,
    Message,
    NamedTensors,
    Question,
    RecoveredUpdate,
    RoundModel,
    UploadShape,
)
from bilateral.protocols.wire import decode, encode_packet
from bilateral.randomness import SecureRandomness

Carry = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
"""Brings each site its bytes and returns the answers of those that gave one: over HTTP, a queue, or in this process."""
_READ: Final[tuple[type[Message], ...]] = (
    KeyAnnouncement,
    SealedShares,
    ShareComplaint,
    MaskedUpload,
    RangeRefusal,
    SurvivorSignature,
    RevealedShares,
)
"""What a site may send. An upload in the clear is not among it."""


def _new_number() -> bytes:
    return SecureRandomness().random_bytes(RUN_ID_BYTES)


@dataclass(frozen=True)
class Cohort:
    """What the server and all sites of one run agree on beforehand: who takes part, and how uploads are masked.

    `pinned`: the identity key of every site (`Identity.public_bytes`), as each got it from that site and not from the
    server. `masks`: where they name no `min_in_sum`, no sum is over fewer than the threshold (two thirds) of the whole
    cohort, however few a server invites. `number`: of this run, never used for two. Whoever has another cohort than the
    others is refused.
    """

    pinned: Mapping[str, bytes]
    masks: MaskSettings = field(default_factory=MaskSettings)
    number: bytes = field(default_factory=_new_number)

    def __post_init__(self) -> None:
        require(self.pinned, Mapping[str, Any], "Cohort: expected `pinned` to be")
        require(self.masks, MaskSettings, "Cohort: expected `masks` to be")
        require(self.number, bytes, "Cohort: expected `number` to be")
        if len(self.pinned) < 2:
            raise PlanError(
                f"Expected the identity keys of 2 or more sites, got {len(self.pinned)}.",
                remedy="A sum over one site hides nothing: Cohort({name: identity.public_bytes, ...}).",
            )
        for name, key in self.pinned.items():
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                came = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
                raise PlanError(
                    f"Cohort: expected `pinned[{name!r}]` to be {KEY_BYTES} bytes, got {came}.",
                    remedy="It is the `public_bytes` of that site's Identity.",
                )
        if self.masks.min_in_sum is None:
            least = self.masks.threshold_of(len(self.pinned))
            object.__setattr__(self, "masks", replace(self.masks, min_in_sum=least))
        object.__setattr__(self, "pinned", MappingProxyType(dict(self.pinned)))  # the run id is a digest of it
        if len(self.number) != RUN_ID_BYTES:
            raise PlanError(
                f"Cohort: expected `number` to be {RUN_ID_BYTES} bytes, got {len(self.number)}.",
                remedy="Leave it out, and send the cohort to the others as `to_json`.",
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.pinned))

    @property
    def run_id(self) -> bytes:
        """A digest of all of it: who agreed on something else is in another run."""
        settings = json.dumps(asdict(self.masks), sort_keys=True)
        keys = tuple(self.pinned[name] for name in self.names)
        return hashlib.sha256(injective("bilateral cohort v1", self.number, self.names, keys, settings)).digest()

    def to_json(self) -> str:
        """For the others: it holds no secret, but must reach them unchanged."""
        keys = {name: self.pinned[name].hex() for name in self.names}
        return json.dumps({"pinned": keys, "masks": asdict(self.masks), "number": self.number.hex()}, indent=2)

    @staticmethod
    @checked
    def from_json(text: str) -> Cohort:
        try:
            values = parse_json(text)
            keys = {str(name): bytes.fromhex(key) for name, key in values["pinned"].items()}
            return Cohort(keys, MaskSettings(**values["masks"]), bytes.fromhex(values["number"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PlanError(
                f"Expected the text of a cohort, as `Cohort.to_json` writes it: {type(error).__name__}, {error}.",
                remedy="Have it sent again, whole.",
            ) from error


class MaskableHalf(Protocol):
    """A protection's server half whose clients' uploads can be summed under masks."""

    @property
    def reads(self) -> tuple[type[Message], ...]:
        """Questions of its clients in the middle of a round."""
        ...

    @property
    def upload_shape(self) -> UploadShape: ...

    def start_round(self, round_index: int) -> RoundModel: ...

    def answer(self, sender: str, message: Question) -> Message: ...

    def recover(self, total: Aggregate) -> RecoveredUpdate: ...


class CohortServer:
    """The server of a cohort: sends a model, and gets the sum of what the sites made of it.

    A `ThresholdError` ends a round without a sum, and the next one may be tried. `incidents`: what was refused so far.
    """

    @checked
    def __init__(self, cohort: Cohort, carry: Carry) -> None:
        self.cohort = cohort
        self._carry = carry
        self._aggregation: MaskedAggregation | None = None
        self._shape: UploadShape | None = None
        self.round_index = 0
        """Of the next round."""
        self.contributors: tuple[str, ...] = ()
        """Whose uploads were in the last sum."""

    @property
    def incidents(self) -> tuple[Incident, ...]:
        return tuple(self._aggregation.incidents) if self._aggregation is not None else ()

    @checked
    def mean(self, tensors: Mapping[str, Tensor], *, sites: Sequence[str] | None = None) -> dict[str, Tensor]:
        """One round: sends `tensors`, and returns the mean of what sites made of them, by the weights they gave.

        The result has the names, shapes and precisions of `tensors`. `sites`: those of this round, by default all.
        """
        model = as_message(self.round_index, tensors)
        shape = UploadShape(1, model.parameters.numel(), 0)
        total = self._sum(model, shape, sites, (), None)
        mean = total.terms[0] / total.total_weight
        parts = torch.split(mean, [math.prod(one) for one in model.shapes])
        return {
            name: part.view(tensors[name].shape).to(tensors[name].dtype)
            for name, part in zip(model.names, parts, strict=True)
        }

    def update(self, half: MaskableHalf, *, sites: Sequence[str] | None = None) -> RecoveredUpdate:
        """One round of a protection: its server half's model goes down, and it recovers the gradient from the sum."""
        model = half.start_round(self.round_index)
        return half.recover(self._sum(model, half.upload_shape, sites, half.reads, half))

    def _sum(
        self,
        model: RoundModel,
        shape: UploadShape,
        sites: Sequence[str] | None,
        questions: tuple[type[Message], ...],
        half: MaskableHalf | None,
    ) -> Aggregate:
        aggregation, number = self._aggregation_of(shape), self.round_index
        if strangers := set(sites or ()).difference(self.cohort.names):
            raise PlanError(
                f"{min(strangers)!r} is no site of this cohort; they are {', '.join(self.cohort.names)}.",
                remedy="Name some of those, or make a cohort with the new site's key.",
            )
        self.round_index += 1
        exchange = partial(self._exchange, questions)
        opened = aggregation.open(number, tuple(sites or self.cohort.names), exchange)
        packets = {name: (*before, model) for name, before in opened.items()}
        replies = exchange(number, packets, partial(self._respond, number, half))
        answered = {name: reply for name, reply in replies.items() if not isinstance(reply, Unanswered)}
        total = aggregation.close(number, answered, exchange, (model,))
        self.contributors = total.contributors
        return total

    def _aggregation_of(self, shape: UploadShape) -> MaskedAggregation:
        if self._aggregation is None:
            names, run_id = self.cohort.names, self.cohort.run_id
            masks = MaskServer(run_id, names, self.cohort.masks, pinned=dict(self.cohort.pinned))
            self._aggregation, self._shape = MaskedAggregation(masks, run_id, names, shape), shape
        if shape != self._shape:
            raise PlanError(
                f"A cohort sums uploads of one shape: expected {self._shape}, got {shape}.",
                remedy="Make another cohort for other tensors.",
            )
        return self._aggregation

    def _respond(self, number: int, half: MaskableHalf | None, sender: str, reply: Message) -> Packet:
        assert self._aggregation is not None
        try:
            if isinstance(reply, Question) and half is not None:
                return (half.answer(sender, reply),)
        except OutOfRangeError:
            raise
        except ProtocolError as error:
            self._aggregation.incidents.append(Incident(number, sender, str(error)))
            return Enough.keeping(Unanswered(number))
        return self._aggregation.take(number, sender, reply)

    def _exchange(
        self,
        questions: tuple[type[Message], ...],
        round_index: int,  # noqa: ARG002 (every message says it)
        packets: Mapping[str, Packet],
        respond: Respond | None = None,
    ) -> dict[str, Message]:
        """An `Exchange` over the user's transport: bytes down, bytes up, until nobody has a question left."""
        replies: dict[str, Message] = {}
        waiting = dict(packets)
        while waiting:
            answers = self._carry({name: encode_packet(packet) for name, packet in waiting.items()})
            following: dict[str, Packet] = {}
            for name in waiting:
                if name not in answers:
                    continue
                reply = _read(answers[name], (*_READ, *questions), name)
                packet = () if respond is None or isinstance(reply, Unusable) else respond(name, reply)
                if packet:
                    following[name] = packet
                else:
                    replies[name] = kept_of(packet, reply)
            waiting = following
        return replies


def _read(data: object, types: tuple[type[Message], ...], sender: str) -> Message:
    """What a site sent, or why it is none: its sender is out of the round, and nobody else."""
    if not isinstance(data, bytes | bytearray):
        return Unusable(f"{sender} answered with {type(data).__name__}, expected bytes.")
    try:
        return decode(data, types, sender)
    except MalformedMessageError as error:
        return Unusable(str(error))


def as_message(round_index: int, tensors: Mapping[str, Tensor]) -> NamedTensors:
    """Tensors of real numbers as a message: in float64 if one of them is, else in float32."""
    if not tensors:
        raise PlanError("Expected named tensors, got none.", remedy="Give dict(network.named_parameters()), for one.")
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise PlanError(
                f"Expected real numbers in `{name}`, got {tensor.dtype}: their mean would be none.",
                remedy="Leave it out (of a state_dict: {k: v for k, v in state.items() if v.is_floating_point()}).",
            )
    wide = any(tensor.dtype == torch.float64 for tensor in tensors.values())
    dtype = torch.float64 if wide else torch.float32
    flat = torch.cat([tensor.detach().reshape(-1).to("cpu", dtype) for tensor in tensors.values()])
    return NamedTensors(round_index, flat, tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()))
