"""The site's end of a heterogeneous job on FLARE: an object whose published methods are the server's calls."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from nvflare.collab import collab

from bilateral.engine.flare.hetero_surroundings import hetero_plan_of_job
from bilateral.engine.flare.site_edge import ask_desk
from bilateral.runs.hetero.desk import HeteroSiteDesk
from bilateral.version import __version__


class HeteroSite:
    """Published to the job: FLARE lets every participant call it, so each call checks that the server is asking.

    The arguments are what FLARE writes into the job: `plan` as JSON, and where the sites of a simulation keep their
    state, each in a directory of its own.
    """

    def __init__(self, plan: str, stores: str, data_dir: str = "") -> None:
        self.plan = plan
        self.stores = stores
        self.data_dir = data_dir
        self._desk: HeteroSiteDesk | None = None
        self._lock = threading.Lock()

    @collab.publish
    def deliver(self, number: int, packet: list[bytes]) -> dict[str, Any]:
        """A packet of messages; the answer holds the replies."""
        return ask_desk(collab.caller, self._at_desk, lambda desk: desk.deliver(0, number, packet))

    @collab.publish
    def is_idle(self) -> bool:
        """Is the site there, with nothing left to do?"""
        return self._desk is None or self._desk.is_idle()

    def _at_desk(self) -> HeteroSiteDesk:
        with self._lock:
            if self._desk is None:
                self._desk = HeteroSiteDesk(
                    collab.site_name,
                    hetero_plan_of_job(self.plan),
                    Path(self.stores) / collab.site_name,
                    version=__version__,
                    data_dir=Path(self.data_dir) if self.data_dir else None,
                )
            return self._desk
