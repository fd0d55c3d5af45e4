"""`--engine flare-sim`: FLARE's simulator, which runs the server and a process a site from one command.

It runs in a process of its own, so that its output, its signals and its threads stay apart from the caller's:

    python -m bilateral.engine.flare.simulator JOB.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bilateral.engine.flare.kit_builder import JOB_CLASSES
from bilateral.engine.flare.premises import plan_of_job
from bilateral.engine.remote.hosting import hosted_kind

JOB_NAME = "bilateral"
ENGINE = "flare-sim"
STORES = "sites"
"""Where the sites of a run on one machine keep their state, below its directory."""


@dataclass(frozen=True)
class SimulatedJob:
    """What the simulator's process is told, as JSON."""

    kind: str
    plan: str
    facts: Mapping[str, Any]
    output: str
    sites: tuple[str, ...]
    data_dir: str
    workspace: str


def start_simulator(
    kind: str,
    plan: Any,
    facts: Mapping[str, Any],
    output: Path,
    sites: Sequence[str],
    workspace: Path,
    environment: Mapping[str, str],
    *,
    data_dir: Path | None,
    module: str = "bilateral.engine.flare.simulator",
) -> subprocess.Popen[bytes]:
    """Start the simulator; what it prints goes to `simulator.log` in the workspace. `module` is run, with the job."""
    folder = str(data_dir.resolve()) if data_dir else ""
    job = SimulatedJob(
        kind, plan.model_dump_json(), dict(facts), str(output.resolve()), tuple(sites), folder, str(workspace)
    )
    workspace.mkdir(parents=True, exist_ok=True)
    file = workspace / "job.json"
    file.write_text(json.dumps(asdict(job)), encoding="utf-8")
    with (workspace / "simulator.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(file)],
            cwd=workspace,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def main(file: Path, classes: Sequence[str] = (), **ends: Any) -> None:
    """Run a simulated job to its end, with a process a site.

    `classes`: what it may build besides ours; `ends`: see `make_recipe`.
    """
    from nvflare.recipe import SimEnv  # noqa: PLC0415 (slow to import, and only here)

    from bilateral.engine.flare.recipe import make_recipe  # noqa: PLC0415 (slow to import, and only here)

    job = SimulatedJob(**json.loads(file.read_text(encoding="utf-8")))
    recipe = make_recipe(
        job.kind,
        plan_of_job(hosted_kind(job.kind), job.plan),
        job.output,
        engine=ENGINE,
        facts=job.facts,
        stores=Path(job.output) / STORES,
        data_dir=Path(job.data_dir) if job.data_dir else None,
        min_sites=len(job.sites),
        name=JOB_NAME,
        **ends,
    )
    workspace, sites = Path(job.workspace), list(job.sites)
    _allow_only(workspace / JOB_NAME, (*JOB_CLASSES, *classes))
    recipe.run(SimEnv(clients=sites, num_threads=len(sites), workspace_root=str(workspace), log_config="WARNING"))


def _allow_only(workspace: Path, classes: Sequence[str]) -> None:
    """The same limit as in the kits of a deployment: what runs here would run there."""
    local = workspace / "local"
    local.mkdir(parents=True, exist_ok=True)
    resources = {"format_version": 2, "class_allow_list": list(classes)}
    (local / "resources.json").write_text(json.dumps(resources, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
