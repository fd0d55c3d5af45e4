"""What a process of a FLARE job finds around itself: a simulation on one machine, or a kit of a deployment.

Whether secrets come from the seed is never for a job to say: whoever submits jobs could then read everything. It is
said by the environment of the process (`SIMULATION`), which our own launchers set and an operator's start script does
not.

What a job carries is never quoted, in no error: it may have been filled in from what the site keeps to itself. A plan's
fingerprint is compared with those that the operator accepted before anything else of it is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bilateral.documents import parse_json
from bilateral.engine.flare.site_settings import SETTINGS_FILE, SiteSettings, check_layout, load_site_settings
from bilateral.engine.plan import RunPlan, fingerprint_of, parse_plan
from bilateral.engine.secrets import OwnSecrets, SimulatedSecrets
from bilateral.errors import PlanError
from bilateral.learning.secrets import Secrets
from bilateral.protocols.mask.keys import RUN_ID_BYTES
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.randomness import SecureRandomness
from bilateral.runs.rounds.desk import SiteDesk
from bilateral.runs.rounds.enrolment import Briefing
from bilateral.version import __version__

SIMULATION = "BILATERAL_SIMULATION"
_SUBMIT = "Submit it with `bilateral submit`."


def is_simulation() -> bool:
    """Did one of our launchers start this process, for a run whose secrets come from the seed?"""
    return os.environ.get(SIMULATION) == "1"


def plan_of_job(text: str) -> RunPlan:
    """The plan that a job of ours carries, as JSON, in a simulation."""
    return parse_plan(_values(text), "of the job")


def accepted_plan(text: str, settings: SiteSettings) -> RunPlan:
    """The plan that a job carries to a kit, if its operator has agreed to it and to the code that it names."""
    values = _values(text)
    settings.check_fingerprint(fingerprint_of(values))
    try:
        plan = parse_plan(values, "of the job")
    except PlanError as error:
        raise PlanError("The job's plan is not as this version writes it.", remedy=_SUBMIT) from error
    settings.check_accepted(plan)
    return plan


def _values(text: str) -> dict[str, Any]:
    try:
        values = parse_json(text)
    except (ValueError, TypeError):
        raise PlanError("The job's plan is not JSON.", remedy=_SUBMIT) from None
    if not isinstance(values, dict):
        raise PlanError("The job's plan is not an object.", remedy=_SUBMIT)
    return values


def kit_settings(workspace: Any) -> SiteSettings:
    """The party's own settings, from its kit."""
    root = Path(workspace.get_root_dir()).resolve()
    check_layout(root)
    return load_site_settings(root.parent / SETTINGS_FILE)


def make_site_desk(name: str, workspace: Any, plan: str, *, reference: bool, data_dir: str) -> SiteDesk:
    """The desk of the site in whose process we are."""
    if is_simulation():
        here = plan_of_job(plan)

        def simulated(briefing: Briefing) -> Secrets:
            return SimulatedSecrets(here.seed, briefing.members, briefing.term)

        return SiteDesk(
            name,
            here,
            simulated,
            version=__version__,
            reference=reference,
            data_dir=Path(data_dir) if data_dir else None,
        )
    settings = kit_settings(workspace)
    chosen = accepted_plan(plan, settings)
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
        counter=FileCounter(settings.spent_file(chosen)) if chosen.traits.spends_budget else None,
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
