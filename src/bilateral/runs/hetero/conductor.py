"""The server of a heterogeneous run whose clients are sites, in one term."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bilateral.engine.kind import HETERO, ServerAround, kind_named
from bilateral.engine.remote.lines import LineCall, SiteLines
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.term import LOCK_PATIENCE, Term
from bilateral.errors import CheckpointError
from bilateral.protocols.transport import Traffic
from bilateral.runs.hetero.messages import REPLY_OF
from bilateral.runs.hetero.parties import check_secure
from bilateral.runs.hetero.plan import HeteroPlan, load_hetero_plan
from bilateral.runs.hetero.record import HeteroRecord, PublicFacts
from bilateral.runs.hetero.remote import ClientsAtSites
from bilateral.runs.hetero.result import HeteroProgress, HeteroResult
from bilateral.runs.hetero.server import HeteroServer


class HeteroSites(Protocol):
    """The transport, as the server sees it. Called from many threads."""

    @property
    def call(self) -> LineCall:
        """A packet to a site; may raise `SiteSilentError`."""
        ...

    def names(self) -> Sequence[str]:
        """The sites of this term."""
        ...

    def ping(self, site: str) -> bool | None: ...


@dataclass
class HeteroConductor:
    """One term. `conduct` returns when the plan is done, or after a stage when `should_stop` says so.

    `path`: the run directory, with the plan in it (`RunDirectory.create`).
    """

    plan: HeteroPlan
    path: Path
    sites: HeteroSites
    facts: PublicFacts
    version: str
    engine: str
    on_progress: Callable[[HeteroProgress], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    ping_after: float = 3.0
    traffic: Traffic = field(default_factory=Traffic)
    """Of secret-shared prediction, in this term."""

    def conduct(self) -> HeteroResult:
        directory, found = RunDirectory.open(self.path, load_hetero_plan)
        if found.digest() != self.plan.digest():
            raise CheckpointError(f"{self.path} is the directory of another plan.", remedy="Choose another --output.")
        check_secure(self.plan)
        term = Term(kind_named(HETERO), self.plan, self.engine, directory, every=0, should_stop=self.should_stop)
        record = HeteroRecord(self.plan, self.facts)
        around = ServerAround(
            self.engine,
            self.version,
            path=self.path,
            tell=term.tell,
            keep=term.keep,
            note=lambda: self.on_progress(record.progress()),
            should_stop=term.stops,
        )
        with term.held(LOCK_PATIENCE):
            checkpoint = term.last_checkpoint()
            there = [name for name in self.plan.clients.names if name in self.sites.names()]
            clients = ClientsAtSites(
                self.plan, SiteLines(there, self.sites.call, self.sites.ping, REPLY_OF, self.ping_after), around
            )
            result: HeteroResult = term.drive(HeteroServer(record, clients, around), checkpoint)
            self.traffic = clients.traffic
        return result
