"""What a plan spends, whatever its mechanism: the form in which runs and `bilateral privacy` report it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from bilateral.protocols.noise.accounting import ReportRow
from bilateral.protocols.noise.clipping import Unit


@dataclass(frozen=True)
class PrivacyReport:
    """What is spent, against whom, and how far that is proved."""

    status: Literal["sound", "published, conditional"]
    unit: Unit
    deviations: dict[str, float]
    """The noise, by name: multipliers and standard deviations."""
    rows: tuple[ReportRow, ...]

    @property
    def is_conditional(self) -> bool:
        """Whether the bound is a paper's claim under conditions that nothing here enforces."""
        return self.status.endswith("conditional")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
