"""Runs a plan once on FLARE with a clock beside it: the launcher of `bench round-trip`.

    rounds = run_timed(plan, "flare-sim", Path("empty-directory"))

FedSGD is trained beside the plan, round by round, in the same job and by the same processes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bilateral.bench.round_trip_clock import (
    SERVER_FILE,
    TIMING_CLASSES,
    RoundTiming,
    TimedCoordinator,
    TimedSite,
    Work,
    read_rounds,
    read_work,
)
from bilateral.engine.federation import member_names
from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.launch import FlareEngine, end_with_children
from bilateral.engine.flare.premises import SIMULATION
from bilateral.engine.flare.processes import LocalProcesses, free_ports
from bilateral.engine.flare.provisioning import Deployment, Kits, provision
from bilateral.engine.flare.recipe import make_recipe
from bilateral.engine.flare.simulator import main, start_simulator
from bilateral.engine.flare.site_settings import WORKSPACE_FOLDER
from bilateral.engine.flare.supervisor import Outcome, Supervisor
from bilateral.engine.kind import ROUNDS
from bilateral.engine.plan import RunPlan
from bilateral.errors import DeploymentError
from bilateral.runs.rounds.hosted import REFERENCE_OPTION

POLL_SECONDS = 0.5
_FACTS = {REFERENCE_OPTION: True}


@dataclass(frozen=True)
class TimedRun:
    """Rounds of both lanes (0 is the plan, 1 is FedSGD), and how long each site worked on each ticket."""

    rounds: list[RoundTiming]
    work: Mapping[tuple[str, int], Work]


def run_timed(
    plan: RunPlan, engine: FlareEngine, workspace: Path, on_note: Callable[[str], None] = lambda _: None
) -> TimedRun:
    """One run in an empty workspace. Raises `DeploymentError` if it did not end as it should."""
    output = workspace / "run"
    sites = member_names(plan)
    (_simulate if engine == "flare-sim" else _deploy)(plan, output, sites, workspace, on_note)
    if not (output / SERVER_FILE).exists():
        raise DeploymentError(
            f"The timed run on {engine} ended without timings.", remedy=f"The logs of all parties are in {workspace}."
        )
    return TimedRun(read_rounds(output / SERVER_FILE), read_work(workspace))


def _environment() -> dict[str, str]:
    """One thread a process: many processes that spin on few cores measure one another."""
    return {**os.environ, "OMP_NUM_THREADS": "1", SIMULATION: "1"}


def _simulate(
    plan: RunPlan, output: Path, sites: tuple[str, ...], workspace: Path, on_note: Callable[[str], None]
) -> None:
    on_note("FLARE's simulator")
    process = start_simulator(
        ROUNDS,
        plan,
        _FACTS,
        output,
        sites,
        workspace / "flare",
        _environment(),
        data_dir=None,
        module=__spec__.name,
    )
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
    finally:
        end_with_children(process.pid)
        process.wait()


def _deploy(
    plan: RunPlan, output: Path, sites: tuple[str, ...], workspace: Path, on_note: Callable[[str], None]
) -> None:
    kits = provision(Deployment("bench", "localhost", sites, fed_learn_port=free_ports(1)[0]), workspace / "kits")
    _allow_timing(kits)
    recipe = make_recipe(
        ROUNDS,
        plan,
        str(output),
        engine="flare-poc",
        facts=_FACTS,
        min_sites=len(sites),
        coordinator=TimedCoordinator,
        site=TimedSite,
    )
    recipe.export(str(workspace / "job"))

    def outcome_of(job_id: str) -> Outcome:  # noqa: ARG001
        finished = (output / SERVER_FILE).exists()
        return Outcome({"finished": True} if finished else {"error": "no timings", "kind": "PlanError"})

    with LocalProcesses(kits, _environment()) as processes, Admin(kits.admin) as admin:
        processes.start_server()
        processes.start_sites()
        job = workspace / "job" / recipe.job_name
        Supervisor(admin, job, sites, len(sites), outcome_of, patience=600.0, on_note=on_note).supervise()


def _allow_timing(kits: Kits) -> None:
    """The kits of this run, and no others, may build the timed ends."""
    for kit in (kits.server, *kits.sites.values()):
        path = kit / WORKSPACE_FOLDER / "local" / "resources.json"
        resources = json.loads(path.read_text(encoding="utf-8"))
        resources["class_allow_list"] += TIMING_CLASSES
        path.write_text(json.dumps(resources, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), TIMING_CLASSES, coordinator=TimedCoordinator, site=TimedSite)
