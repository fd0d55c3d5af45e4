"""Who deals for whom: a named party without data, or another participant, drawn afresh in each round.

The draw is a hash of what all clients are shown (the roster of keys, the round, the participants), so that clients
compute it as the server does, and refuse a dealer that was not drawn. Participants stand in a circle, in the order of
the draw, and each is dealt for by the next. The server invites the participants, so it can try sets of them until it
likes the draw; it cannot choose within one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from bilateral.errors import ProtocolError
from bilateral.protocols.mask.injective import injective


def dealers_of(
    participants: Sequence[str], round_index: int, roster_digest: bytes, named: str | None = None
) -> Mapping[str, str]:
    """The dealer of each participant; never itself. `participants` as the round was opened."""
    if named is not None:
        if named in participants:
            raise ProtocolError(f"{named} deals in this run, so it cannot take part in round {round_index}.")
        return dict.fromkeys(participants, named)
    if len(participants) < 2:
        raise ProtocolError(f"Expected two or more participants who deal for each other, got {len(participants)}.")
    ordered = sorted(participants)
    seed = injective("bilateral dealers v1", roster_digest, round_index, ordered)
    keys = np.frombuffer(hashlib.shake_256(seed).digest(8 * len(ordered)), dtype="<u8")
    circle = [ordered[place] for place in np.argsort(keys, kind="stable")]
    return {name: circle[(place + 1) % len(circle)] for place, name in enumerate(circle)}
