"""The site's end of a FLARE job: a long-lived object whose published methods are the server's calls.

It runs in the site's own process, from the `bilateral` that is installed there; a job brings a plan and no code.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from nvflare.collab import collab

from bilateral.engine.flare.premises import open_site
from bilateral.engine.flare.site_edge import ask_desk
from bilateral.engine.kind import SiteParty


class Site:
    """Published to the job: FLARE lets every participant call it, so each call checks that the server is asking.

    The arguments are what FLARE writes into the job: the name of a kind of run, its `plan` and the `facts` beside it as
    JSON, and where the sites of a simulation keep their state, each in a directory of its own.
    """

    def __init__(self, kind: str, plan: str, facts: str, stores: str = "", data_dir: str = "") -> None:
        self.kind = kind
        self.plan = plan
        self.facts = facts
        self.stores = stores
        self.data_dir = data_dir
        self._party: SiteParty | None = None
        self._lock = threading.Lock()

    @collab.publish
    def deliver(self, lane: int, number: int, packet: list[bytes]) -> dict[str, Any]:
        """A packet of messages; the answer holds what the site replies."""
        return self._deliver(lane, number, packet)

    @collab.publish
    def is_idle(self) -> bool:
        """Is the site there, with nothing left to do?"""
        return self._party is None or self._party.is_idle()

    def _deliver(self, lane: int, number: int, packet: list[bytes]) -> dict[str, Any]:
        return ask_desk(collab.caller, self._open, lambda party: party.deliver(lane, number, packet))

    def _name(self) -> str:
        return str(collab.site_name)

    def _job_folder(self) -> Path:
        """The job's own directory, which goes with the job."""
        return Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))

    def _open(self) -> SiteParty:
        with self._lock:
            if self._party is None:
                self._party = open_site(
                    self._name(),
                    collab.workspace,
                    self.kind,
                    self.plan,
                    facts=self.facts,
                    stores=self.stores,
                    data_dir=self.data_dir,
                )
            return self._party
