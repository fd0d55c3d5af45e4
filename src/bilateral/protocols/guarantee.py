"""What a protection hides from whom, under which assumption, and what still leaks.

Every protection states its guarantee as one of these objects, reports print it, and the audit tests it claim by
claim: `Claim.subject` is what attacks name when they say which claim they test, and a claim whose subject no attack
names is reported as not tested. `Leak.ledger_line` is the line of docs/leakage-ledger.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Subject = Literal[
    "single uploads",
    "overlapping sums",
    "other clients' uploads",
    "differential privacy",
    "published differential privacy",
    "shared prediction, server",
    "shared prediction, answering party",
    "signs of activations",
    "activations",
    "single answers",
    "sealed model",
    "sealed batch",
    "sealed dealing",
]
"""What a claim is about, in a word: stable where the sentence is not."""


@dataclass(frozen=True)
class Claim:
    """`what` stays hidden from `whom`, if `assumption` holds."""

    subject: Subject
    what: str
    whom: str
    assumption: str


@dataclass(frozen=True)
class Leak:
    """Something that a party learns all the same."""

    what: str
    whom: str
    ledger_line: int


@dataclass(frozen=True)
class Guarantee:
    """The sum of what a protection claims and admits."""

    protection: str
    claims: tuple[Claim, ...]
    leaks: tuple[Leak, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
