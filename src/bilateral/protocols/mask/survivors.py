"""What both sides must agree on before anything is unmasked: over whom the sum is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bilateral.errors import ProtocolError, ThresholdError
from bilateral.protocols.mask.graph import PairGraph
from bilateral.protocols.mask.injective import Part
from bilateral.protocols.mask.messages import SurvivorList
from bilateral.protocols.mask.sealing import Occasion


def signed_content(occasion: Occasion, context: bytes, listed: SurvivorList) -> tuple[Part, ...]:
    """What a survivor signs (`KeyRing.statement` adds the run's roster): the opening, the model and the list."""
    return (
        "survivors",
        listed.round_index,
        listed.attempt,
        occasion.opening_digest,
        context,
        listed.sharers,
        listed.survivors,
    )


def check_context(context: bytes, where: str) -> None:
    """Refuse to bind a mask or a list to nothing: clients that trained on different models would not find out."""
    if not context:
        raise ProtocolError(
            f"{where}: expected `context` to be a digest of what clients were sent to train on, got nothing.",
            remedy="Give digest(model) of the message that came (bilateral.digest), at every client and at the server.",
        )


def check_sum(graph: PairGraph, floor: int, survivors: Collection[str], note: str = "") -> None:
    """Refuse a sum over too few, or over parts of the graph that no mask connects. `note` is added to the error.

    Guarantee for a client that checks: the sum is over `floor` or more (`MaskSettings.floor_of` of the round's first
    opening), and no sum over a part of the survivors can be separated from it.
    """
    if len(survivors) < floor:
        raise ThresholdError(
            f"Expected uploads of at least {floor} of {len(graph.participants)} participants, "
            f"got {len(survivors)}.{note}",
            remedy="Repeat with the clients that are there, or lower the threshold.",
        )
    if not graph.is_connected(survivors):
        raise ThresholdError(
            "The survivors are not connected by masks: sums over parts of them would show.",
            remedy="Repeat the round, or raise num_neighbours.",
        )


def check_names(names: Sequence[str], allowed: Collection[str], what: str) -> None:
    """Refuse a list of names that is not strictly in order or has a name that does not belong there."""
    if list(names) != sorted(set(names)):
        raise ProtocolError(f"{what}: the names are not in order, or one comes twice.")
    strangers = set(names).difference(allowed)
    if strangers:
        raise ProtocolError(f"{what}: {min(strangers)!r} does not belong there.")


def mask_sign(own: str, other: str) -> int:
    """+1 at the client whose name comes first, -1 at the other: the two masks of a pair cancel."""
    return 1 if own < other else -1
