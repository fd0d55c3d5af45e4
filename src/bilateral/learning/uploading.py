"""The client's side of what happens between a finished upload and the network: noise first, masks last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bilateral.errors import ProtocolError
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import MaskOpening, Roster, RoutedShares, SurvivorList, UnmaskRequest
from bilateral.protocols.membership import ClipNorm, KeyRequest, RoundMembers
from bilateral.protocols.messages import Message, Upload

Privatise = Callable[[Upload], Upload]
"""Clips an upload or adds noise that stays."""
AddPairwise = Callable[[Upload, int, Sequence[str]], Upload]
"""Adds noise that cancels in the sum over the named clients of a round."""


class NoisyUploader:
    """Uploads go out with noise, and without masks."""

    accepts: tuple[type[Message], ...] = ()

    def __init__(self, privatise: Privatise) -> None:
        self._privatise = privatise

    def handle(self, message: Message) -> Message | None:
        raise ProtocolError(f"{type(message).__name__} was not expected: uploads are not masked in this plan.")

    def finish(self, upload: Upload) -> Message:
        return self._privatise(upload)


class MaskUploader:
    """The client's half of ring masks, after noise if there is any."""

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
        privatise: Privatise | None = None,
        set_norm: Callable[[float], None] | None = None,
    ) -> None:
        self._masks = masks
        self._keys = keys
        self._privatise = privatise
        self._set_norm = set_norm

    def handle(self, message: Message) -> Message | None:
        match message:
            case KeyRequest():
                return announce(self._keys, message)
            case Roster():
                self._keys.accept(message)
            case ClipNorm():
                self._change_norm(message)
            case MaskOpening():
                return self._masks.open(message)
            case RoutedShares():
                self._masks.receive_shares(message)
                # In a second attempt the model does not come again: the upload of the first one is masked anew.
                return self._masks.mask_again() if message.attempt else None
            case SurvivorList():
                return self._masks.sign(message)
            case UnmaskRequest():
                return self._masks.reveal(message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is no message of masked aggregation.")
        return None

    def _change_norm(self, message: ClipNorm) -> None:
        norm = float(message.norm) if message.norm.numel() == 1 else float("nan")
        if self._set_norm is None or not 0 < norm < float("inf"):
            raise ProtocolError(
                f"{self._keys.name}: a clipping norm of {message.norm.tolist()} in round {message.round_index} is not "
                "part of this plan.",
                remedy="Both sides must run the same plan.",
            )
        self._set_norm(norm)

    def finish(self, upload: Upload) -> Message:
        return self._masks.mask(self._privatise(upload) if self._privatise is not None else upload)


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

    def finish(self, upload: Upload) -> Message:
        members = self._members
        if members is None or members.round_index != upload.round_index:
            raise ProtocolError(
                f"The server did not say who takes part in round {upload.round_index}.",
                remedy="Both sides must run the same plan.",
            )
        return self._add_pairwise(upload, upload.round_index, members.names)


def announce(keys: KeyRing, request: KeyRequest) -> Message:
    """The client's keys, for the run it believes to be in."""
    announcement = keys.announce()
    if announcement.run_id != request.run_id:
        raise ProtocolError("The server asks for keys of another run.", remedy="Both sides must run the same plan.")
    return announcement
