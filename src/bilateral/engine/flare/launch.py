"""`bilateral run --engine flare-sim|flare-poc`: a simulated run on FLARE, all parties as processes on this machine.

    flare-sim   FLARE's simulator: a process a site, no TLS, one term
    flare-poc   a provisioned deployment on loopback: parent and job processes, mutual TLS, as many terms as it takes

Both draw secrets from the plan's seed, as the in-process engine does, and end with the same model. The processes use
one thread each (OMP_NUM_THREADS, unless it is set): many processes that spin on few cores are slower, and the bits of a
sum depend on the number of threads that made it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from bilateral.engine.checkpoint import matching_checkpoint
from bilateral.engine.federation import member_names, needs_sample_counts
from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.kit_builder import ENVIRONMENT
from bilateral.engine.flare.processes import LocalProcesses, free_ports
from bilateral.engine.flare.provisioning import Deployment, provision
from bilateral.engine.flare.recipe import make_recipe
from bilateral.engine.flare.simulator import start_simulator
from bilateral.engine.flare.supervisor import Outcome, Supervisor
from bilateral.engine.flare.surroundings import SIMULATION
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.run_status import RunReader, RunStatus
from bilateral.engine.setup import REFERENCE
from bilateral.errors import BilateralError, CheckpointError, DeploymentError, PlanError
from bilateral.runs.rounds.conductor import sites_needed

FlareEngine = Literal["flare-sim", "flare-poc"]
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class FlareResult:
    """A finished (or stopped) run on FLARE; the model is in the run directory's checkpoint."""

    plan: RunPlan
    output: Path
    values: dict[str, Any]

    @property
    def finished(self) -> bool:
        return bool(self.values["finished"])

    @property
    def rounds(self) -> int:
        return int(self.values["rounds"])

    def as_dict(self) -> dict[str, Any]:
        return self.values


def run_on_flare(
    plan: RunPlan,
    engine: FlareEngine,
    *,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    reference: bool | None = None,
    on_status: Callable[[RunStatus], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> FlareResult:
    """Train as the plan says, on FLARE; see `in_process.run` for the arguments that both have."""
    if plan.federation.dropout:
        raise PlanError(
            "Simulated dropouts (federation.dropout) belong to the in-process engine.",
            remedy="Use `--engine in-process`; on FLARE, kill a site's processes instead.",
        )
    directory = _directory(plan, output, resume)
    if resume:
        checkpoint = matching_checkpoint(plan.digest(), directory.checkpoint)
        reference = any(name.startswith(f"{REFERENCE}/") for name in checkpoint.tensors)
    elif reference is None:
        reference = not plan.traits.spends_budget
    around = _LocalRun(
        plan,
        directory,
        member_names(plan, None if data_dir is None else Path(data_dir)),
        reference,
        None if data_dir is None else Path(data_dir).resolve(),
        on_status or (lambda _: None),
        on_note or (lambda _: None),
        should_stop or (lambda: False),
    )
    directory.result.unlink(missing_ok=True)
    directory.clear_stop()
    if engine == "flare-sim":
        around.simulate()
    else:
        around.deploy()
    return FlareResult(plan, directory.path, around.result())


def _directory(plan: RunPlan, output: str | Path | None, resume: bool) -> RunDirectory:
    if not resume:
        created = RunDirectory.create(None if output is None else Path(output), plan)
        return RunDirectory(created.path.resolve())
    if output is None:
        raise PlanError("Resuming needs the directory of the run.", remedy="Give it as `output`.")
    return RunDirectory(Path(output).resolve())


@dataclass
class _LocalRun:
    plan: RunPlan
    directory: RunDirectory
    sites: Sequence[str]
    reference: bool
    data_dir: Path | None
    on_status: Callable[[RunStatus], None]
    on_note: Callable[[str], None]
    should_stop: Callable[[], bool]

    def simulate(self) -> None:
        with local_workspace(self.on_note) as workspace:
            self.on_note(f"starting FLARE's simulator with {len(self.sites)} sites")
            process = start_simulator(
                self.plan,
                self.directory.path,
                self.sites,
                workspace,
                local_environment(),
                reference=self.reference,
                data_dir=self.data_dir,
            )
            try:
                reader = RunReader(self.directory.path)
                while process.poll() is None:
                    self._look(reader)
                    if self.should_stop():
                        self.directory.request_stop()
                    time.sleep(POLL_SECONDS)
                self._look(reader)
            finally:
                _end_with_children(process.pid)
                process.wait()
            if not self.directory.result.exists():
                raise DeploymentError(
                    f"FLARE's simulator ended with code {process.returncode} and no result: {self._last_words()}",
                    remedy=f"Its logs are in {workspace}.",
                )

    def deploy(self) -> None:
        with local_workspace(self.on_note) as workspace:
            self.on_note(f"provisioning a server and {len(self.sites)} sites on this machine")
            deployment = Deployment("poc", "localhost", self.sites, fed_learn_port=free_ports(1)[0])
            kits = provision(deployment, workspace / "kits")
            needed = sites_needed(self.plan, len(self.sites))
            recipe = make_recipe(
                self.plan,
                str(self.directory.path),
                engine="flare-poc",
                reference=self.reference,
                data_dir=self.data_dir,
                min_sites=needed,
            )
            recipe.export(str(workspace / "job"))
            reader = RunReader(self.directory.path)
            with LocalProcesses(kits, local_environment()) as processes, Admin(kits.admin) as admin:
                processes.start_server()
                processes.start_sites()
                supervisor = Supervisor(
                    admin,
                    workspace / "job" / recipe.job_name,
                    self.sites,
                    needed,
                    lambda _: self._outcome(),
                    self.plan.federation.patience,
                    on_term=lambda: self.directory.result.unlink(missing_ok=True),
                    on_tick=lambda: self._keep_alive(processes, reader),
                    on_note=self.on_note,
                    should_stop=self.should_stop,
                    all_at_first=needs_sample_counts(self.plan) and not self.directory.checkpoint.exists(),
                )
                outcome = supervisor.supervise()
            self._look(reader)
            if not self.directory.result.exists():
                raise DeploymentError(
                    f"The run ended without a result: {outcome.values.get('error') or self._last_words()}",
                    remedy=f"The logs of all parties are in {workspace}.",
                )

    def result(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.directory.result.read_text(encoding="utf-8"))
        return values

    def _keep_alive(self, processes: LocalProcesses, reader: RunReader) -> None:
        """Start a party again whose process has ended, as the start script of a kit does."""
        for name in processes.names:
            if not processes.is_running(name):
                self.on_note(f"{name} ended; it is started again")
                processes.restart(name)
        self._look(reader)

    def _look(self, reader: RunReader) -> None:
        self.on_status(reader.read())

    def _outcome(self) -> Outcome | None:
        """What the last term left in the run directory."""
        if self.directory.result.exists():
            return Outcome(self.result())
        status = RunReader(self.directory.path).read()
        ended = status.state.value == "stopped"
        return Outcome({"error": status.reason, "rounds": status.round}) if ended else None

    def _last_words(self) -> str:
        try:
            return RunReader(self.directory.path).read().reason or "no reason was given"
        except CheckpointError as error:
            return str(error)


def local_environment() -> dict[str, str]:
    """Of all processes of a simulated run."""
    return {"OMP_NUM_THREADS": "1", **ENVIRONMENT, **os.environ, SIMULATION: "1"}


@contextmanager
def local_workspace(on_note: Callable[[str], None]) -> Iterator[Path]:
    """A temporary directory for kits and logs; it stays only if the run failed."""
    workspace = Path(tempfile.mkdtemp(prefix="bilateral-flare-"))
    try:
        yield workspace
    except BilateralError:
        on_note(f"The logs of all parties are kept in {workspace}")
        raise
    except BaseException:
        shutil.rmtree(workspace, ignore_errors=True)
        raise
    else:
        shutil.rmtree(workspace, ignore_errors=True)


def _end_with_children(pid: int) -> None:
    """SIGKILL to what is left of a process and its children."""
    try:
        process = psutil.Process(pid)
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
