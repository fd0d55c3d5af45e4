"""What a process of a heterogeneous job finds around itself: so far, a simulation only."""

from __future__ import annotations

from bilateral.documents import parse_json
from bilateral.engine.flare.surroundings import is_simulation
from bilateral.errors import PlanError
from bilateral.runs.hetero.plan import HeteroPlan, parse_hetero_plan


def hetero_plan_of_job(text: str) -> HeteroPlan:
    """The plan that a job carries, as JSON. Refused in a deployment, whatever the job says.

    A deployment's kits pin no identity of the server, which holds keys here, and sites draw their queries by the plan's
    seed: whoever knows the plan would know them.
    """
    if not is_simulation():
        raise PlanError(
            "Heterogeneous runs are for simulations so far: their keys and queries come from the plan's seed.",
            remedy="Run it with `bilateral hetero`, on one machine.",
        )
    try:
        values = parse_json(text)
    except (ValueError, TypeError) as error:
        raise PlanError("The job's plan is not JSON.", remedy="Start the run with `bilateral hetero`.") from error
    if not isinstance(values, dict):
        raise PlanError("The job's plan is not an object.", remedy="Start the run with `bilateral hetero`.")
    return parse_hetero_plan(values, "of the job")
