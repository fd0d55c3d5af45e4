"""Who attacks sealed training, alone or together, and what each is about: a claim, or the ledger line that admits it.

The suspected client is dealt for by another; who that is changes from round to round, unless a named party deals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bilateral.audit.ledger import SEALED_LINE
from bilateral.audit.sealed_recording import Dealers, Parties
from bilateral.audit.views import AdversaryName
from bilateral.protocols.guarantee import Subject
from bilateral.protocols.transport import SERVER


@dataclass(frozen=True)
class Adversary:
    """`guesses`: which of two models it is, or which of two batches."""

    name: AdversaryName
    tests: Subject | int
    of_batches: bool
    parties: Parties


def adversaries(suspect: str, names: Sequence[str], named_dealer: str | None) -> tuple[Adversary, ...]:
    """All that there can be: of fewer than four clients that deal for each other, any two have a dealer among them."""
    alone: Final = frozenset({suspect})
    found = [
        Adversary("curious client", "sealed model", of_batches=False, parties=lambda _: alone),
        Adversary("curious server", "sealed batch", of_batches=True, parties=lambda _: frozenset({SERVER})),
        Adversary("dealer", "sealed dealing", of_batches=False, parties=lambda d: frozenset({d[suspect]})),
        Adversary("dealer", "sealed dealing", of_batches=True, parties=lambda d: frozenset({d[suspect]})),
        Adversary("client with its dealer", SEALED_LINE, of_batches=False, parties=lambda d: alone | {d[suspect]}),
        Adversary(
            "server with a client's dealer",
            SEALED_LINE,
            of_batches=True,
            parties=lambda d: frozenset({SERVER, d[suspect]}),
        ),
    ]
    if len(names) >= 3 and (named_dealer is not None or len(names) >= 4):
        found.append(
            Adversary(
                "colluding clients", "sealed model", of_batches=False, parties=lambda d: alone | {_other(d, suspect)}
            )
        )
    if len(names) >= 3 and named_dealer is None:
        found.append(
            Adversary(
                "server with another client's dealer",
                "sealed batch",
                of_batches=True,
                parties=lambda d: _dealer_of_another(d, suspect, names[1]),
            )
        )
    return tuple(found)


def _other(dealers: Dealers, suspect: str) -> str:
    """A client that neither deals for the suspect nor is dealt for by it."""
    return next(
        name
        for name, dealer in sorted(dealers.items())
        if name not in (suspect, dealers[suspect]) and dealer != suspect
    )


def _dealer_of_another(dealers: Dealers, suspect: str, partner: str) -> frozenset[str]:
    """With the server: one that neither deals for the two whose batches are swapped nor is one of them; or nobody."""
    taken = {suspect, partner, dealers[suspect], dealers.get(partner, partner)}
    free = sorted(set(dealers.values()) - taken)
    return frozenset({SERVER, free[0]}) if free else frozenset()
