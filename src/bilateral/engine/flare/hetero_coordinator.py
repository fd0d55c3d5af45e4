"""The server's end of a heterogeneous job on FLARE: it conducts a term of a run."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.collab import collab

from bilateral.engine.flare.coordinator import STATUS, STOP, FlareSites
from bilateral.engine.flare.hetero_surroundings import hetero_plan_of_job
from bilateral.runs.hetero.conductor import HeteroConductor
from bilateral.runs.hetero.record import PublicFacts
from bilateral.runs.hetero.result import HeteroProgress
from bilateral.version import __version__

log = logging.getLogger("bilateral.server")


class HeteroFlareSites:
    """The sites of a job as the conductor sees them."""

    def __init__(self, proxies: Sequence[Any]) -> None:
        self._sites = FlareSites(proxies)

    def names(self) -> Sequence[str]:
        return self._sites.names()

    def ping(self, site: str) -> bool | None:
        return self._sites.ping(site)

    def call(self, site: str, number: int, packet: list[bytes], timeout: float) -> Mapping[str, Any]:
        answer = self._sites._do(site, timeout, "deliver", number, packet)
        return answer if isinstance(answer, Mapping) else {}


class HeteroCoordinator:
    """Runs in the server's job process. The arguments are what FLARE writes into the job.

    `output`: the run directory. `facts`: `PublicFacts` as JSON.
    """

    def __init__(self, plan: str, output: str, engine: str, facts: str) -> None:
        self.plan = plan
        self.output = output
        self.engine = engine
        self.facts = facts
        self._stop = threading.Event()
        self._last: HeteroProgress | None = None

    @collab.main
    def conduct(self) -> None:
        """One term of the run. How it ended stands in the run directory."""
        plan = hetero_plan_of_job(self.plan)
        engine = collab.fl_ctx.get_engine()
        engine.register_app_command(STATUS, self._status)
        engine.register_app_command(STOP, self._ask_to_stop)
        facts = PublicFacts(**json.loads(self.facts))
        conductor = HeteroConductor(
            plan,
            Path(self.output),
            HeteroFlareSites(list(collab.clients)),
            facts,
            __version__,
            self.engine,
            on_progress=self._note,
            should_stop=self._stop.is_set,
        )
        try:
            conductor.conduct()
        except Exception as error:  # told to the log, and raised: FLARE ends the job
            log.error("%s: %s", type(error).__name__, error)
            raise

    def _note(self, progress: HeteroProgress) -> None:
        self._last = progress

    def _status(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:  # noqa: ARG002
        """What an administrator sees of a running job; its rounds are stages."""
        last = self._last
        return {"round": last.stages_done if last else 0, "num_rounds": last.num_stages if last else 0, "metrics": {}}

    def _ask_to_stop(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:  # noqa: ARG002
        self._stop.set()
        return {"stopping": True}
