"""A server that shows clients different things, to get two sums with a client in common, or a sum of one upload.

Each strategy drives a real round with the clients behind an exchange. It returns what it takes for the victim's upload
(terms x parameters), or the refusal that it met. Against ring masks:

- `different_models`: the victim trains on the true model, all others on one of zeros, whose gradients (nearly) vanish;
- `different_openings`: the victim encodes finely, all others so coarsely that their uploads round to zero;
- `two_lists`: some clients are told that all survived, the others that the victim did not;
- `another_attempt`: after the sum over all, the same round again without the victim.

Against real-valued masks, which check nothing: `different_models_without_checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from bilateral.errors import BilateralError, ThresholdError
from bilateral.learning.exchange import SETUP, Exchange, Packet, Respond
from bilateral.learning.halves import ServerHalf
from bilateral.protocols.mask.fixed_point import MAX_BOUND_BITS, FixedPointFormat
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.mask.messages import (
    KeyAnnouncement,
    MaskedUpload,
    MaskOpening,
    RevealedShares,
    SealedShares,
    SurvivorSignature,
)
from bilateral.protocols.mask.ring_words import format_of
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.membership import KeyRequest, RoundMembers
from bilateral.protocols.messages import Aggregate, Message, RoundModel, Upload, UploadShape, aggregate
from bilateral.protocols.wire import digest


@dataclass(frozen=True)
class Attempted:
    """What came of a strategy: a guess of the victim's upload, or why there is none."""

    guess: Tensor | None
    refusal: str = ""


@dataclass(frozen=True)
class StagedRound:
    """What a dishonest server has: its clients, its model of the round, and the public settings."""

    exchange: Exchange
    run_id: bytes
    names: tuple[str, ...]
    settings: MaskSettings
    shape: UploadShape
    round_index: int
    model: RoundModel
    respond: Respond
    half: ServerHalf = field(repr=False)
    """Its own half of the protection, with the round's secrets."""
    fixed_bounds: Sequence[float] | None = None
    """Ranges that clients hold the server to (sound noise); otherwise it may announce any."""

    @property
    def zeros(self) -> RoundModel:
        return replace(self.model, parameters=torch.zeros_like(self.model.parameters))

    def send(self, packets: Mapping[str, Packet]) -> dict[str, Message]:
        return self.exchange(self.round_index, packets, self.respond)


M = TypeVar("M", bound=Message)
Strategy = Callable[[StagedRound, str], Tensor]


def attempt(strategy: Strategy, stage: StagedRound, victim: str) -> Attempted:
    """Carry a strategy out; a client that refuses, or a sum that does not unmask, ends it."""
    try:
        return Attempted(strategy(stage, victim))
    except BilateralError as error:
        return Attempted(None, str(error))


def honest_sum(stage: StagedRound) -> Aggregate:
    """A round by the book."""
    masked = _Masked(stage)
    masked.share(dict.fromkeys(stage.names, masked.open(stage.names)))
    masked.upload(dict.fromkeys(stage.names, stage.model))
    return masked.finish(stage.model, stage.names)


def bare_sum(stage: StagedRound) -> Aggregate:
    """A round of clients that do not mask."""
    uploads = _expect(stage.send(dict.fromkeys(stage.names, (stage.model,))), Upload)
    return aggregate(uploads, stage.round_index)


def different_models(stage: StagedRound, victim: str) -> Tensor:
    """The victim need not sign: the others are enough."""
    masked = _Masked(stage)
    masked.share(dict.fromkeys(stage.names, masked.open(stage.names)))
    masked.upload({name: stage.model if name == victim else stage.zeros for name in stage.names})
    return _share_of_one(masked.finish(stage.zeros, [name for name in stage.names if name != victim]))


def different_openings(stage: StagedRound, victim: str) -> Tensor:
    """The server's own record is of the fine format, in which the victim's upload stands."""
    masked = _Masked(stage)
    fine = masked.open(stage.names)
    width = format_of(fine).width
    form = FixedPointFormat.for_bound_bits([MAX_BOUND_BITS] * len(fine.fraction_bits), len(stage.names), width)
    coarse = replace(fine, fraction_bits=form.fraction_bits)
    masked.share({name: fine if name == victim else coarse for name in stage.names})
    masked.upload(dict.fromkeys(stage.names, stage.model))
    return _share_of_one(masked.finish(stage.model, stage.names))


def two_lists(stage: StagedRound, victim: str) -> Tensor:
    """Two records of one attempt, one of them without the victim's upload; the others are asked to sign both lists."""
    everybody = _Masked(stage)
    fewer = everybody.twin()
    opening = everybody.open(stage.names)
    fewer.open(stage.names)
    fewer.take_shares(everybody.share(dict.fromkeys(stage.names, opening)))
    uploads = everybody.upload(dict.fromkeys(stage.names, stage.model))
    fewer.server.route()
    fewer.take_uploads({name: upload for name, upload in uploads.items() if name != victim})
    others = [name for name in stage.names if name != victim]
    everybody.sign(stage.model, stage.names)
    fewer.sign(stage.model, others)
    return difference_of_sums(everybody.reveal(), fewer.reveal())


def another_attempt(stage: StagedRound, victim: str) -> Tensor:
    """In a further attempt clients mask the upload of the round again."""
    masked = _Masked(stage)
    again = masked.twin()
    masked.share(dict.fromkeys(stage.names, masked.open(stage.names)))
    masked.upload(dict.fromkeys(stage.names, stage.model))
    total = masked.finish(stage.model, stage.names)
    others = [name for name in stage.names if name != victim]
    again.open(stage.names)  # attempt 0, which was the first record's
    again.share(dict.fromkeys(others, again.open(others)))
    again.upload({})
    return difference_of_sums(total, again.finish(stage.model, others))


def difference_of_sums(everybody: Aggregate, others: Aggregate) -> Tensor:
    """The upload of the one client that is in the first sum and not in the second."""
    return (everybody.terms - others.terms) / (everybody.total_weight - others.total_weight)


def different_models_without_checks(stage: StagedRound, victim: str) -> Tensor:
    """The same against real-valued masks: they do not depend on the model, and cancel."""
    directory = KeyDirectory(stage.run_id, stage.names)
    announced = stage.exchange(SETUP, dict.fromkeys(stage.names, (KeyRequest(stage.run_id),)))
    for name, message in _expect(announced, KeyAnnouncement).items():
        directory.register(name, message)
    before = (directory.roster(), RoundMembers(stage.round_index, tuple(sorted(stage.names))))
    models = {name: stage.model if name == victim else stage.zeros for name in stage.names}
    uploads = _expect(stage.send({name: (*before, model) for name, model in models.items()}), Upload)
    total = aggregate(uploads, stage.round_index)
    return total.terms / uploads[victim].weight


class _Masked:
    """The server's side of one masked round, with whatever each client is to be shown."""

    def __init__(self, stage: StagedRound, announced: Mapping[str, KeyAnnouncement] | None = None) -> None:
        self._stage = stage
        if announced is None:
            request = KeyRequest(stage.run_id)
            announced = _expect(stage.exchange(SETUP, dict.fromkeys(stage.names, (request,))), KeyAnnouncement)
        self._announced = announced
        self.server = MaskServer(stage.run_id, stage.names, stage.settings, stage.fixed_bounds)
        for name, message in announced.items():
            self.server.register(name, message)
        self._roster: Packet = (self.server.roster(),)

    def twin(self) -> _Masked:
        """A second record over the same keys. Clients take one roster a run."""
        other = _Masked(self._stage, self._announced)
        other._roster = ()
        return other

    def open(self, names: Sequence[str]) -> MaskOpening:
        shape = self._stage.shape
        return self.server.open_round(self._stage.round_index, names, shape.num_terms + 1, shape.num_values)

    def share(self, shown: Mapping[str, MaskOpening]) -> dict[str, SealedShares]:
        packets = {name: (*self._roster, opening) for name, opening in shown.items()}
        sealed = _expect(self._stage.send(packets), SealedShares)
        self.take_shares(sealed)
        return sealed

    def take_shares(self, sealed: Mapping[str, SealedShares]) -> None:
        for name, message in sealed.items():
            self.server.collect_shares(name, message)

    def upload(self, models: Mapping[str, RoundModel]) -> dict[str, MaskedUpload]:
        """Routed shares travel with the model; in a further attempt no model is sent."""
        packets = {n: (routed, models[n]) if n in models else (routed,) for n, routed in self.server.route().items()}
        uploads = _expect(self._stage.send(packets), MaskedUpload)
        self.take_uploads(uploads)
        return uploads

    def take_uploads(self, uploads: Mapping[str, MaskedUpload]) -> None:
        for name, message in uploads.items():
            self.server.collect_upload(name, message)

    def finish(self, model: RoundModel, signers: Sequence[str]) -> Aggregate:
        """The sum over all uploads of this record, if `signers` sign it."""
        self.sign(model, signers)
        return self.reveal()

    def sign(self, model: RoundModel, signers: Sequence[str]) -> None:
        listed = self.server.close_uploads(context=digest(model))
        for name, signed in _expect(self._stage.send(dict.fromkeys(signers, (listed,))), SurvivorSignature).items():
            self.server.collect_signature(name, signed)

    def reveal(self) -> Aggregate:
        request, shape = self.server.request_shares(), self._stage.shape
        revealed = _expect(self._stage.send(dict.fromkeys(request.signers, (request,))), RevealedShares)
        for name, message in revealed.items():
            self.server.collect_reveal(name, message)
        return self.server.unmask((shape.num_terms, shape.num_parameters), shape.num_statistics)


def _share_of_one(total: Aggregate) -> Tensor:
    """If all other uploads are zero; weights are taken to be equal, for they are hidden."""
    return total.terms * len(total.contributors) / total.total_weight


def _expect(replies: Mapping[str, Message], kind: type[M]) -> dict[str, M]:
    """All replies, which must be of one kind: a complaint or a refusal ends the attack."""
    found = {name: reply for name, reply in replies.items() if isinstance(reply, kind)}
    if len(found) < len(replies):
        name, reply = next((name, reply) for name, reply in replies.items() if name not in found)
        raise ThresholdError(f"{name} answered with {type(reply).__name__} instead of {kind.__name__}.")
    return found
