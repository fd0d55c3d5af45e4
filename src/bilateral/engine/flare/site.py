"""The site's end of a FLARE job: a long-lived object whose published methods are the server's calls.

It runs in the site's own process, from the `bilateral` that is installed there; a job brings a plan and no code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from nvflare.collab import collab

from bilateral.engine.flare.site_edge import ask_desk
from bilateral.engine.flare.surroundings import make_site_desk
from bilateral.runs.rounds.desk import SiteDesk


class Site:
    """Published to the job: FLARE lets every participant call it, so each call checks that the server is asking.

    The arguments are what FLARE writes into the job: `plan` as JSON, and whether FedSGD is trained beside it.
    """

    def __init__(self, plan: str, reference: bool = False, data_dir: str = "") -> None:
        self.plan = plan
        self.reference = reference
        self.data_dir = data_dir
        self._desk: SiteDesk | None = None
        self._lock = threading.Lock()

    @collab.publish
    def introduce(self) -> dict[str, Any]:
        """Open the site's data; see `SiteDesk`."""
        return self._ask(lambda desk: desk.introduce())

    @collab.publish
    def brief(self, briefing: bytes) -> dict[str, Any]:
        """The facts of the term."""
        return self._ask(lambda desk: desk.brief(briefing))

    @collab.publish
    def deliver(self, lane: int, ticket: int, packet: list[bytes]) -> dict[str, Any]:
        """A packet of messages; the answer holds the client's reply."""
        return self._ask(lambda desk: desk.deliver(lane, ticket, packet))

    @collab.publish
    def is_idle(self) -> bool:
        """Is the site there, with nothing left to do?"""
        return self._desk is None or self._desk.is_idle()

    def _ask(self, question: Callable[[SiteDesk], dict[str, Any]]) -> dict[str, Any]:
        return ask_desk(collab.caller, self._at_desk, question)

    def _at_desk(self) -> SiteDesk:
        with self._lock:
            if self._desk is None:
                self._desk = make_site_desk(
                    collab.site_name, collab.workspace, self.plan, reference=self.reference, data_dir=self.data_dir
                )
            return self._desk
