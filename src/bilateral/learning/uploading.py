"""The client's side of what happens between a finished upload and the network: noise first, masks last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bilateral.errors import ProtocolError, SealedShareError
from bilateral.learning.client import Uploader
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import (
    MaskOpening,
    Roster,
    RoutedShares,
    ShareComplaint,
    SurvivorList,
    UnmaskRequest,
)
from bilateral.protocols.membership import ClipNorm, KeyRequest, RoundMembers
from bilateral.protocols.messages import Message, RoundModel, Upload
from bilateral.protocols.wire import digest

Opened = Callable[[KeyRing, MaskOpening], None]
"""Told of an opening that was taken, with the client's keys of the run."""
Agreed = Callable[[int], None]
"""Told of a round in which shares of others opened: they were shown the same opening."""
Privatise = Callable[[Upload], Upload]
"""Clips an upload or adds noise that stays."""
AddPairwise = Callable[[Upload, int, Sequence[str]], Upload]
"""Adds noise that cancels in the sum over the named clients of a round."""


class PrivateUploader:
    """Noise that stays, below whatever `inner` does with the upload: masks, noise between clients, or nothing.

    The round is paid for when its model has come: an error while training would be an answer too.
    """

    def __init__(self, inner: Uploader, privatise: Privatise | None, pay: Callable[[int], None] | None) -> None:
        self.accepts = inner.accepts
        self._inner = inner
        self._privatise = privatise
        self._pay = pay

    def handle(self, message: Message) -> Message | None:
        return self._inner.handle(message)

    def bind(self, model: RoundModel, *beside: Message) -> None:
        if self._pay is not None:
            self._pay(model.round_index)
        self._inner.bind(model, *beside)

    def finish(self, upload: Upload) -> Message:
        return self._inner.finish(upload if self._privatise is None else self._privatise(upload))


class MaskUploader:
    """The client's half of ring masks.

    Masks and signatures are bound to what the client was sent to train on: the clipping norm and the model.
    """

    accepts: tuple[type[Message], ...] = (
        KeyRequest,
        Roster,
        ClipNorm,
        MaskOpening,
        RoutedShares,
        SurvivorList,
        UnmaskRequest,
    )

    def __init__(
        self,
        masks: MaskClient,
        keys: KeyRing,
        set_norm: Callable[[float], None] | None = None,
        opened: Opened | None = None,
        agreed: Agreed | None = None,
    ) -> None:
        self._opened, self._agreed = opened, agreed
        self._masks = masks
        self._keys = keys
        self._set_norm = set_norm
        self._norm: ClipNorm | None = None
        self._context = b""

    def handle(self, message: Message) -> Message | None:
        match message:
            case KeyRequest():
                return announce(self._keys, message)
            case Roster():
                self._keys.accept(message)
            case ClipNorm():
                self._norm = message
            case MaskOpening():
                reply = self._masks.open(message)
                if self._opened is not None:
                    self._opened(self._keys, message)
                return reply
            case RoutedShares():
                return self._receive_shares(message)
            case SurvivorList():
                return self._masks.sign(message)
            case UnmaskRequest():
                return self._masks.reveal(message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is no message of masked aggregation.")
        return None

    def bind(self, model: RoundModel, *beside: Message) -> None:
        """Take over the round's clipping norm, if the plan adapts it, and remember what the upload depends on."""
        norm, self._norm = self._norm, None
        if norm is None and self._set_norm is None:
            self._context = digest(*beside, model)
            return
        if norm is None or self._set_norm is None or norm.round_index != model.round_index:
            said = "none" if norm is None else f"one of round {norm.round_index}"
            raise ProtocolError(
                f"{self._keys.name}: expected {'a' if self._set_norm else 'no'} clipping norm of round "
                f"{model.round_index} from the server, got {said}.",
                remedy="Both sides must run the same plan.",
            )
        value = float(norm.norm) if norm.norm.numel() == 1 else float("nan")
        if not 0 < value < float("inf"):
            raise ProtocolError(
                f"{self._keys.name}: expected a clipping norm above 0 from the server in round {norm.round_index}, "
                f"got {norm.norm.tolist()}."
            )
        self._set_norm(value)
        self._context = digest(norm, *beside, model)

    def finish(self, upload: Upload) -> Message:
        return self._masks.mask(upload, context=self._context)

    def _receive_shares(self, message: RoutedShares) -> Message | None:
        try:
            self._masks.receive_shares(message)
        except SealedShareError as error:  # the dealer's fault or the server's; this client stays out of the attempt
            return ShareComplaint(message.round_index, message.attempt, (error.dealer,))
        if self._agreed is not None:
            self._agreed(message.round_index)
        # In a second attempt the model does not come again: the upload of the first one is masked anew.
        return self._masks.mask_again() if message.attempt else None


class PairwiseUploader:
    """Real-valued noise that cancels between pairs of clients: float masks, and P2's pairwise noise."""

    accepts: tuple[type[Message], ...] = (KeyRequest, Roster, RoundMembers)

    def __init__(self, keys: KeyRing, add_pairwise: AddPairwise) -> None:
        self._keys = keys
        self._add_pairwise = add_pairwise
        self._members: RoundMembers | None = None

    def handle(self, message: Message) -> Message | None:
        match message:
            case KeyRequest():
                return announce(self._keys, message)
            case Roster():
                self._keys.accept(message)
            case RoundMembers():
                self._members = message
            case _:
                raise ProtocolError(f"{type(message).__name__} is no message of pairwise noise.")
        return None

    def bind(self, model: RoundModel, *beside: Message) -> None:
        """Pairwise noise as published does not depend on the model."""

    def finish(self, upload: Upload) -> Message:
        members = self._members
        if members is None or members.round_index != upload.round_index:
            raise ProtocolError(
                f"{self._keys.name}: the server did not say who takes part in round {upload.round_index}.",
                remedy="Both sides must run the same plan.",
            )
        return self._add_pairwise(upload, upload.round_index, members.names)


def announce(keys: KeyRing, request: KeyRequest) -> Message:
    """The client's keys, for the run it believes to be in."""
    announcement = keys.announce()
    if announcement.run_id != request.run_id:
        raise ProtocolError(
            f"{keys.name}: the server asks for keys of another run.", remedy="Both sides must run the same plan."
        )
    return announcement
