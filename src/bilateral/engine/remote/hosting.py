"""What a host of runs on many processes (FLARE's side) asks of a kind, besides what `engine/kind.py` says.

A job names a kind, and `hosted_kind` finds it in the package's own table: where code is, no job can say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bilateral.engine.kind import Plan, Result, RunKind, kind_named
from bilateral.engine.run_directory import RunDirectory

P = TypeVar("P", bound=Plan)


@dataclass(frozen=True)
class Quorum:
    """Which sites a term takes. `all_at_first`: the first term needs all, later ones `needed`.

    `patience`: how long a run waits for them.
    """

    needed: int
    all_at_first: bool = False
    patience: float = 600.0


class LocalRun(Protocol):
    """A run that all its parties carry out on this machine, before the first of them is started."""

    @property
    def directory(self) -> RunDirectory: ...

    @property
    def sites(self) -> tuple[str, ...]: ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What both ends are told besides the plan; values of JSON."""
        ...

    def look(self) -> Any:
        """How the run stands, from its directory."""
        ...

    def result(self) -> Result:
        """What the run left, or `DeploymentError`."""
        ...


class HostedKind(RunKind[P], Protocol[P]):
    """A kind of run whose parties can be processes of their own."""

    def quorum(self, plan: P, num_members: int) -> Quorum: ...

    def answer_seconds(self, plan: P) -> float:
        """How long to wait for a site when a job begins."""
        ...

    def prepare(
        self, plan: P, *, output: Path | None, data_dir: Path | None, resume: bool, options: Mapping[str, Any]
    ) -> LocalRun:
        """Refuse what cannot run; then make the run's directory, or open it again."""
        ...


class DeployableKind(HostedKind[P], Protocol[P]):
    """A kind whose parties may be on machines of their own."""

    def fingerprint_of(self, values: Mapping[str, Any]) -> str:
        """What operators agree to, before anything is known of the values. No two kinds may give the same."""
        ...


class SelfDescribingKind(DeployableKind[P], Protocol[P]):
    """A deployable kind that says by itself what a deployment of its plans is. (Of rounds, the host knows it.)"""

    def warnings(self, plan: P) -> tuple[str, ...]:
        """What the plan says about the limits of its deployment."""
        ...

    def questions(self, plan: P) -> tuple[str, ...]:
        """What the server's kit counts, by names RUN/CLIENT; made once for each, whatever plan asks for it."""
        ...

    def handbook(self, plan: P, places: Mapping[str, str]) -> str:
        """The steps of this very deployment, for its operators. `places`: names and paths, see `deployment.py`."""
        ...


def hosted_kind(name: object) -> HostedKind[Any]:
    """A kind of the table."""
    kind: Any = kind_named(name)
    return kind  # type: ignore[no-any-return]
