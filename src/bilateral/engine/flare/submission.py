"""`bilateral submit`: a run on a deployment, from the administrator's kit.

The administrator sees what the server's part of the job says of itself, and the outcome that it leaves behind. The run
directory, with the model, stays at the server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.deployment import check_deployable, deployable_kind
from bilateral.engine.flare.recipe import make_recipe
from bilateral.engine.flare.site_settings import check_run_name
from bilateral.engine.flare.supervisor import STOPPED, Outcome, Progress, Supervisor
from bilateral.errors import DeploymentError, PlanError

ENGINE = "flare"


@dataclass(frozen=True)
class Submitted:
    """A run on a deployment. `values`: its result, or None if it was left alone (`detach`)."""

    run: str
    job_id: str
    values: dict[str, Any] | None

    @property
    def finished(self) -> bool:
        return bool(self.values and self.values.get("finished"))

    @property
    def rounds(self) -> int:
        return int(self.values["rounds"]) if self.values else 0

    def as_dict(self) -> dict[str, Any]:
        return {"run": self.run, "job": self.job_id, **(self.values or {})}


def new_run_name() -> str:
    """By the time of day: later runs sort after earlier ones."""
    return f"{datetime.now():%Y%m%d-%H%M%S}"


def submit_run(
    kit: Path,
    plan: Any,
    *,
    name: str,
    resume: bool = False,
    detach: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Submitted:
    """Run a plan on the deployment of an administrator's kit, term by term, until it is finished or asked to stop.

    `resume` goes on with a run that was stopped, or looks after one that is under way. `detach` hands over one job and
    leaves it alone: if it dies, nobody begins the next term before the run is resumed.
    """
    check_run_name(name)
    check_deployable(plan)
    kind = deployable_kind(plan)
    sites = kind.members(plan)
    quorum = kind.quorum(plan, len(sites))
    with Admin(kit) as admin, tempfile.TemporaryDirectory(prefix="bilateral-job-") as folder:
        running = _running_job(admin, name, resume=resume)
        recipe = make_recipe(kind.name, plan, name, engine=ENGINE, min_sites=quorum.needed, name=_job_name(name))
        recipe.export(folder)
        supervisor = Supervisor(
            admin,
            Path(folder) / recipe.job_name,
            sites,
            quorum.needed,
            lambda job_id: _outcome(admin, job_id),
            quorum.patience,
            on_progress=on_progress or (lambda _: None),
            on_note=on_note or (lambda _: None),
            should_stop=should_stop or (lambda: False),
            all_at_first=quorum.all_at_first and not resume,
            job_id=running,
        )
        if detach:
            if not running:
                supervisor.begin()
            return Submitted(name, supervisor.job_id, None)
        outcome = supervisor.supervise()
    if "error" in outcome.values and outcome.values.get("kind") != STOPPED:
        raise DeploymentError(
            f"The run {name} did not end as it should: {outcome.values['error']}",
            remedy="Every round so far is in its run directory at the server: put it right, and go on with --resume.",
        )
    return Submitted(name, supervisor.job_id, outcome.values)


def _job_name(run: str) -> str:
    return f"bilateral-{run}"


def _running_job(admin: Admin, name: str, *, resume: bool) -> str:
    """The job of this run that is under way, or ""."""
    jobs = admin.jobs(_job_name(name))
    if jobs and not resume:
        raise PlanError(
            f"There is a run {name} on this deployment already.", remedy="Go on with it by --resume, or name another."
        )
    if resume and not jobs:
        raise PlanError(f"There is no run {name} on this deployment.", remedy="Leave out --resume to begin one.")
    return next((job for job, status in jobs.items() if not status.has_ended and not admin.status(job).has_ended), "")


def _outcome(admin: Admin, job_id: str) -> Outcome | None:
    values = admin.outcome(job_id)
    return None if values is None else Outcome(values)
