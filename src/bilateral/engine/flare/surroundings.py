"""What a process of a FLARE job finds around itself: a simulation on one machine, or a kit of a deployment.

Whether secrets come from the seed is never for a job to say: whoever submits jobs could then read everything. It is
said by the environment of the process (`SIMULATION`), which our own launchers set and an operator's start script does
not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bilateral.engine.flare.site_settings import SETTINGS_FILE, SiteSettings, load_site_settings
from bilateral.engine.plan import RunPlan, parse_plan
from bilateral.engine.remote.enrolment import Briefing
from bilateral.engine.remote.site_desk import SiteDesk
from bilateral.engine.secrets import OwnSecrets, Secrets, SimulatedSecrets
from bilateral.errors import PlanError
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.randomness import SecureRandomness
from bilateral.version import __version__

SIMULATION = "BILATERAL_SIMULATION"
RUN_ID_BYTES = 16


def is_simulation() -> bool:
    """Did one of our launchers start this process, for a run whose secrets come from the seed?"""
    return os.environ.get(SIMULATION) == "1"


def plan_of_job(text: str) -> RunPlan:
    """The plan that a job carries, as JSON."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise PlanError("The job's plan is not JSON.", remedy="Submit it with `bilateral submit`.") from error
    if not isinstance(values, dict):
        raise PlanError("The job's plan is not an object.", remedy="Submit it with `bilateral submit`.")
    return parse_plan(values, "of the job")


def kit_settings(workspace: Any) -> SiteSettings:
    """The party's own settings, from its kit."""
    return load_site_settings(Path(workspace.get_site_config_dir()) / SETTINGS_FILE)


def make_site_desk(name: str, workspace: Any, plan: str, *, reference: bool, data_dir: str) -> SiteDesk:
    """The desk of the site in whose process we are."""
    chosen = plan_of_job(plan)
    if is_simulation():

        def simulated(briefing: Briefing) -> Secrets:
            return SimulatedSecrets(chosen.seed, briefing.members, briefing.term)

        return SiteDesk(
            name,
            chosen,
            simulated,
            version=__version__,
            reference=reference,
            data_dir=Path(data_dir) if data_dir else None,
        )
    settings = kit_settings(workspace)
    settings.check_accepted(chosen)
    identity, pinned = settings.identity(), settings.pinned()

    def own(briefing: Briefing) -> Secrets:
        return OwnSecrets(briefing.run_id, pinned, name, identity)

    return SiteDesk(
        name,
        chosen,
        own,
        version=__version__,
        data_dir=settings.data_directory,
        data_settings=settings.data.options,
        counter=FileCounter(settings.spent_file(chosen)) if chosen.noise.mechanism == "sound" else None,
    )


def server_secrets(plan: RunPlan, workspace: Any, term: int, names: Sequence[str]) -> Secrets:
    """The server's secrets of a term."""
    if is_simulation():
        return SimulatedSecrets(plan.seed, names, term)
    pinned = kit_settings(workspace).pinned()
    if missing := [name for name in names if name not in pinned]:
        raise PlanError(
            f"The server's kit pins no identity of {', '.join(missing)}.",
            remedy="Provision the deployment for this plan.",
        )
    return OwnSecrets(SecureRandomness().random_bytes(RUN_ID_BYTES), pinned)
