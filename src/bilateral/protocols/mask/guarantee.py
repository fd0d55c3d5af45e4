"""What masking claims, and what it does not hide."""

from __future__ import annotations

from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.mask.settings import MaskSettings


def guarantee(settings: MaskSettings, num_clients: int) -> Guarantee:
    """Of a round with `num_clients` participants."""
    in_sum = settings.threshold_of(num_clients)
    chosen = settings.num_chosen(num_clients)
    around = settings.threshold_of(chosen + 1)
    liars = 2 * in_sum - num_clients
    claims = (
        Claim(
            f"every upload and weight; it learns sums over at least {in_sum} of the {num_clients} participants",
            "server",
            f"identity keys are pinned, and fewer than {around} in a client's neighbourhood of {chosen + 1} or more "
            "collude with the server; the server follows the protocol or only splits lists",
        ),
        Claim(
            "a second sum of the same round, by showing clients different lists of survivors",
            "server",
            f"fewer than {liars} participants collude with it: lists carry more than half of all signatures",
        ),
        Claim(
            "other clients' uploads, weights and the sum",
            "clients",
            "the server does not collude with them",
        ),
    )
    leaks = (
        Leak("the size, to a factor of 2, of a row that does not fit the agreed range (RangeRefusal)", "server", 11),
        Leak(
            "the sum itself, and who takes part: with few clients, or sums over different sets, it tells", "server", 12
        ),
    )
    return Guarantee("masking", claims, leaks)


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
