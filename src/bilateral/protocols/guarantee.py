"""What a protection hides from whom, under which assumption, and what still leaks.

Every protection states its guarantee as one of these objects, reports print it, and the audit tests it claim by
claim. `Leak.ledger_line` is the line of docs/leakage-ledger.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """`what` stays hidden from `whom`, if `assumption` holds."""

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
