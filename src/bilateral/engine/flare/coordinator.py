"""The server's end of a FLARE job: the one main function of the recipe. It conducts a term of a run.

While the job runs, an administrator's session can ask it for its status and to stop after the round at hand.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvflare.collab import CollabCallError, collab

from bilateral.engine.flare.premises import ServerPremises, open_server
from bilateral.engine.kind import Progress, Result, Sites
from bilateral.engine.remote.edge import SiteSilentError
from bilateral.engine.term import conduct

log = logging.getLogger("bilateral.server")
STATUS, STOP = "bilateral.status", "bilateral.stop"
OUTCOME_FILE = "outcome.json"
PING_TIMEOUT = 5.0


class FlareSites:
    """The sites of a job as the server's side sees them: every call is a FLARE call of a published method."""

    def __init__(self, proxies: Sequence[Any]) -> None:
        self._proxies = {proxy.name: proxy for proxy in proxies}

    def names(self) -> Sequence[str]:
        return list(self._proxies)

    def call(self, site: str, lane: int, number: int, packet: list[bytes], timeout: float) -> Mapping[str, Any]:
        return _mapping(self._do(site, timeout, "deliver", lane, number, packet))

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

    `kind`: a name of the table of kinds. `plan` and `facts` are JSON. `output`: the run directory; in a deployment a
    name below the server's own directory for runs.
    """

    def __init__(self, kind: str, plan: str, facts: str, output: str, engine: str, data_dir: str = "") -> None:
        self.kind = kind
        self.plan = plan
        self.facts = facts
        self.output = output
        self.engine = engine
        self.data_dir = data_dir
        self._stop = threading.Event()
        self._last: Progress | None = None
        self._metrics: dict[str, float] = {}
        self._num_steps, self._is_open = 0, False

    @collab.main
    def conduct(self) -> None:
        """One term of the run."""
        workspace, engine = collab.workspace, collab.fl_ctx.get_engine()
        engine.register_app_command(STATUS, self._status)
        engine.register_app_command(STOP, self._ask_to_stop)
        try:
            premises = open_server(
                workspace,
                self.kind,
                self.plan,
                output=self.output,
                engine=self.engine,
                facts=self.facts,
                data_dir=self.data_dir,
            )
            result = self._conduct(premises, FlareSites(list(collab.clients)))
        except Exception as error:  # told to the administrator, and raised: FLARE ends the job
            self._write_outcome(workspace, {"error": str(error), "kind": type(error).__name__})
            log.error("%s: %s", type(error).__name__, error)
            raise
        self._write_outcome(workspace, result.as_dict())

    def _conduct(self, premises: ServerPremises, sites: Sites) -> Result:
        around = replace(premises.around, sites=sites, should_stop=self._stop.is_set)
        outline = premises.kind.outline(premises.plan)
        self._num_steps, self._is_open = outline.num_steps, outline.is_open
        return conduct(premises.kind, premises.plan, premises.path, around, self._note)

    def _write_outcome(self, workspace: Any, outcome: dict[str, Any]) -> None:
        """Into the job's own workspace, from where FLARE lets the administrator download it."""
        path = Path(workspace.get_run_dir(collab.fl_ctx.get_job_id())) / OUTCOME_FILE
        path.write_text(json.dumps(outcome, indent=2) + "\n", encoding="utf-8")

    def _note(self, progress: Progress) -> None:
        self._last = progress
        self._metrics = dict(progress.metrics) or self._metrics

    def _status(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:  # noqa: ARG002
        """What an administrator sees of a running job. A round is whatever the kind counts."""
        last = self._last
        if last is None:
            return {"round": 0, "num_rounds": self._num_steps, "metrics": {}}
        told = {"round": last.num_done, "num_rounds": last.num_steps, "metrics": self._metrics}
        return {**told, "open": True} if self._is_open else told

    def _ask_to_stop(self, topic: str, data: Any, fl_ctx: Any) -> dict[str, Any]:  # noqa: ARG002
        self._stop.set()
        return {"stopping": True}
