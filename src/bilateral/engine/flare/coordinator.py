"""The server's end of a FLARE job: the one main function of the recipe. It conducts a term of a run.

While the job runs, an administrator's session can ask it for its status and to stop after the round at hand.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.collab import CollabCallError, collab

from bilateral.engine.flare.surroundings import accepted_plan, is_simulation, kit_settings, plan_of_job, server_secrets
from bilateral.engine.remote.edge import SiteSilentError
from bilateral.runs.rounds.conductor import Conductor
from bilateral.runs.rounds.result import RoundReport
from bilateral.version import __version__

log = logging.getLogger("bilateral.server")
STATUS, STOP = "bilateral.status", "bilateral.stop"
OUTCOME_FILE = "outcome.json"
PING_TIMEOUT = 5.0


class FlareSites:
    """The sites of a job as the conductor sees them: every call is a FLARE call of a published method."""

    def __init__(self, proxies: Sequence[Any]) -> None:
        self._proxies = {proxy.name: proxy for proxy in proxies}

    def names(self) -> Sequence[str]:
        return list(self._proxies)

    def introduce(self, site: str, timeout: float) -> Mapping[str, Any]:
        return _mapping(self._do(site, timeout, "introduce"))

    def brief(self, site: str, briefing: bytes, timeout: float) -> Mapping[str, Any]:
        return _mapping(self._do(site, timeout, "brief", briefing))

    def call(self, site: str, lane: int, ticket: int, packet: list[bytes], timeout: float) -> Mapping[str, Any]:
        return _mapping(self._do(site, timeout, "deliver", lane, ticket, packet))

    def ping(self, site: str) -> bool | None:
        try:
            return self._do(site, PING_TIMEOUT, "is_idle") is True
        except SiteSilentError:
            return None

    def _do(self, site: str, timeout: float, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._proxies[site](timeout=timeout), method)(*arguments)
        except CollabCallError as error:
            raise SiteSilentError(_reason(error)) from error


def _mapping(answer: Any) -> Mapping[str, Any]:
    """What came back, if it has the form of an answer at all."""
    return answer if isinstance(answer, Mapping) else {}


def _reason(error: CollabCallError) -> str:
    """FLARE's own words about a call that failed, without the remote traceback."""
    return str(getattr(error, "cause", error)).strip().partition("\n")[0][:200] or type(error).__name__


class Coordinator:
    """Runs in the server's job process. The arguments are what FLARE writes into the job.

    `output`: the run directory; in a deployment a name below the server's own directory for runs.
    """

    def __init__(self, plan: str, output: str, engine: str, reference: bool = False, data_dir: str = "") -> None:
        self.plan = plan
        self.output = output
        self.engine = engine
        self.reference = reference
        self.data_dir = data_dir
        self._stop = threading.Event()
        self._last: RoundReport | None = None
        self._num_rounds = 0

    @collab.main
    def conduct(self) -> None:
        """One term of the run."""
        workspace, engine = collab.workspace, collab.fl_ctx.get_engine()
        engine.register_app_command(STATUS, self._status)
        engine.register_app_command(STOP, self._ask_to_stop)
        try:
            result = self._conductor(workspace, FlareSites(list(collab.clients))).conduct()
        except Exception as error:  # told to the administrator, and raised: FLARE ends the job
            self._write_outcome(workspace, {"error": str(error), "kind": type(error).__name__})
            log.error("%s: %s", type(error).__name__, error)
            raise
        self._write_outcome(workspace, result.as_dict())

    def _conductor(self, workspace: Any, sites: FlareSites) -> Conductor:
        path, data_dir = Path(self.output), Path(self.data_dir) if self.data_dir else None
        settings: dict[str, Any] = {}
        if is_simulation():
            plan = plan_of_job(self.plan)
        else:
            own = kit_settings(workspace)
            plan = accepted_plan(self.plan, own)  # the server opens data too, with the loader that the plan names
            path, data_dir, settings = own.run_directory(self.output), own.data_directory, own.data.options
        self._num_rounds = plan.training.rounds
        return Conductor(
            plan,
            path,
            sites,
            partial(server_secrets, plan, workspace),
            __version__,
            self.engine,
            reference=self.reference,
            data_dir=data_dir,
            data_settings=settings,
            on_round=self._note,
            should_stop=self._stop.is_set,
        )

    def _write_outcome(self, workspace: Any, outcome: dict[str, Any]) -> None:
        """Into the job's own workspace, from where FLARE lets the administrator download it."""
        path = Path(workspace.get_run_dir(collab.fl_ctx.get_job_id())) / OUTCOME_FILE
        path.write_text(json.dumps(outcome, indent=2) + "\n", encoding="utf-8")

    def _note(self, report: RoundReport) -> None:
        self._last = report

    def _status(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:  # noqa: ARG002
        """What an administrator sees of a running job."""
        report = self._last
        if report is None:
            return {"round": 0, "num_rounds": self._num_rounds, "metrics": {}}
        return {"round": report.round_index, "num_rounds": report.num_rounds, "metrics": report.metrics}

    def _ask_to_stop(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:  # noqa: ARG002
        self._stop.set()
        return {"stopping": True}
