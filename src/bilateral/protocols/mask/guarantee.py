"""What masking claims, and what it does not hide.

All of it rests on X25519, which is not post-quantum: whoever recorded a run's messages (the server has them all) and
has a quantum computer some day computes the pair secrets from the public keys, opens the shares, and takes the masks
off every single upload of every round.
"""

from __future__ import annotations

import math

from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.mask.neighbours import (
    LARGEST_PRIVACY_FAILURE,
    TOLERATED_COLLUSION,
    TOLERATED_DROPOUT,
    default_num_neighbours,
    failure_probabilities,
)
from bilateral.protocols.mask.settings import MaskSettings

HARD = "nobody breaks X25519 (a quantum computer would, years later too, from recorded messages)"


def guarantee(settings: MaskSettings, num_clients: int, *, shows_batch: bool = False) -> Guarantee:
    """Of a round with `num_clients` participants. `shows_batch`: the server learns batch sizes in another way."""
    floor, quorum = settings.floor_of(num_clients), settings.threshold_of(num_clients)
    is_sparse = settings.num_chosen(num_clients) < num_clients - 1
    hidden = "every upload" if shows_batch else "every upload and weight"
    follows = "the server follows the protocol" + (", also where it draws random numbers" if shows_batch else "")
    claims = (
        Claim(
            "single uploads",
            f"{hidden}; it learns one sum a round and the total of the weights in it, over at least {floor} of the "
            f"{num_clients} participants",
            "server",
            f"identity keys are pinned, {HARD}, {follows}, and {_limit(settings, num_clients, floor)}",
        ),
        Claim(
            "overlapping sums",
            "two sums of one attempt that have a client in common, by showing clients different openings, models or "
            "lists of survivors",
            "server",
            f"identity keys are pinned, and fewer than {2 * quorum - num_clients} of the {num_clients} participants "
            f"collude with it: {quorum} or more must have signed the same"
            + ("; it does not choose by the graph who colludes or is said to have dropped out" if is_sparse else ""),
        ),
        Claim(
            "other clients' uploads",
            "other clients' single uploads and weights",
            "clients",
            "the server does not collude with them. Where the model is sent as it is, successive models tell clients "
            f"the sums; then {_at_most(floor - 2)} of them may pool what they know",
        ),
    )
    leaks = (
        Leak("the size, to a factor of 2, of a row that does not fit the agreed range (RangeRefusal)", "server", 11),
        Leak(
            "the sum itself, the total of its weights, and who takes part: with few clients, or sums over different "
            "sets, it tells (a client's weight, if two sets differ by it); and the size of what is one client's alone",
            "server",
            12,
        ),
    )
    return Guarantee("masking", claims, leaks)


def _limit(settings: MaskSettings, num_clients: int, floor: int) -> str:
    """How many may tell the server what they know."""
    chosen = settings.num_chosen(num_clients)
    # Of a sum over `floor`, two honest uploads must remain; and colluders alone must not reconstruct a secret.
    most = min(floor - 2, settings.threshold_of(num_clients) - 1)
    if chosen >= num_clients - 1:
        return f"{_colluding(most)} with it (with {floor - 1} a sum can hold one honest upload)"
    colluders = min(math.floor(TOLERATED_COLLUSION * num_clients), most)
    dropouts = math.floor(TOLERATED_DROPOUT * num_clients)
    failure = failure_probabilities(
        num_clients, chosen, settings.threshold, collusion=TOLERATED_COLLUSION, dropout=TOLERATED_DROPOUT
    ).privacy
    stated = (
        f"{_colluding(colluders)} with it and at most {dropouts} drop out, "
        f"which must not depend on the round's graph; even so it fails with probability up to {failure:.1g} a round"
    )
    needed = default_num_neighbours(num_clients, settings.threshold)
    if failure > LARGEST_PRIVACY_FAILURE:
        stated += f" (num_neighbours = {chosen} is too few: {needed} would make that {LARGEST_PRIVACY_FAILURE:.1g})"
    return stated


def _at_most(count: int) -> str:
    return "none" if count < 1 else f"at most {count}"


def _colluding(count: int) -> str:
    if count < 1:
        return "no participant colludes"
    return f"at most {count} participant{' colludes' if count == 1 else 's collude'}"


def float_mask_guarantee(scale: float) -> Guarantee:
    """Of the papers' real-valued masks: nothing is claimed."""
    leaks = (
        Leak(
            f"what is large beside the mask scale {scale:g}, and what rounding leaves of an upload; all weights",
            "server",
            6,
        ),
        Leak("the sum itself, and who takes part", "server", 12),
    )
    return Guarantee("float masks", (), leaks)
