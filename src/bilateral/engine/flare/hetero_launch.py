"""Heterogeneous runs on FLARE: the server and every client a process of its own, all on this machine.

    result = run_hetero_on_flare(plan, "flare-sim", output="out")

A run without faults ends with the networks of the in-process engine, bit for bit (one thread a process, as there).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bilateral.engine.events import read_events
from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.hetero_recipe import HeteroJob
from bilateral.engine.flare.launch import FlareEngine, _end_with_children, local_environment, local_workspace
from bilateral.engine.flare.processes import LocalProcesses, free_ports
from bilateral.engine.flare.provisioning import Deployment, provision
from bilateral.engine.flare.simulator import start_module
from bilateral.engine.flare.supervisor import Outcome, Supervisor
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import DeploymentError, PlanError, SitesMissingError
from bilateral.runs.hetero.parties import deal, make_client
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.record import HeteroRecord, PublicFacts
from bilateral.runs.hetero.result import HeteroProgress, HeteroResult

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 600.0
LAST_SECONDS = 5.0


def run_hetero_on_flare(
    plan: HeteroPlan,
    engine: FlareEngine,
    *,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    on_progress: Callable[[HeteroProgress], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> HeteroResult:
    """Run as the plan says, on FLARE; see `run_hetero` for the arguments that both have.

    Raises `SitesMissingError` if a site was lost in the simulator: `resume` goes on. `flare-poc` starts it again.
    """
    if plan.answers != "secure":
        raise PlanError(
            f"answers = {plan.answers!r} would show every query to the server.",
            remedy="Use secure answers, or --engine in-process.",
        )
    folder = None if data_dir is None else Path(data_dir).resolve()
    facts = _facts(plan, folder)
    if resume:
        if output is None:
            raise PlanError("Resuming needs the directory of the run.", remedy="Give it as `output`.")
        directory = RunDirectory(Path(output).resolve())
        HeteroRecord.load(plan, facts, directory)  # refused before any process is started
    else:  # made only now: a plan or data that are refused leave nothing behind
        created = RunDirectory.create(None if output is None else Path(output), plan)
        directory = RunDirectory(created.path.resolve())
        HeteroRecord(plan, facts).save(directory)  # a stop before the processes are up can be resumed too
    run = _LocalHeteroRun(
        plan,
        facts,
        directory,
        folder,
        on_progress or (lambda _: None),
        on_note or (lambda _: None),
        should_stop or (lambda: False),
    )
    if engine == "flare-sim":
        run.simulate()
    else:
        run.deploy()
    return run.record().result(directory.path)


def _facts(plan: HeteroPlan, data_dir: Path | None) -> PublicFacts:
    """What the result names. Builds every client once, so that a plan or data that do not fit are refused here."""
    shares = deal(plan, data_dir)
    for name, share in shares.clients.items():
        make_client(plan, name, share, shares.num_classes)
    return PublicFacts(shares.dataset, {name: len(share) for name, share in shares.clients.items()})


@dataclass
class _LocalHeteroRun:
    plan: HeteroPlan
    facts: PublicFacts
    directory: RunDirectory
    data_dir: Path | None
    on_progress: Callable[[HeteroProgress], None]
    on_note: Callable[[str], None]
    should_stop: Callable[[], bool]
    _seen: HeteroProgress | None = None
    _events_before: int = 0

    def __post_init__(self) -> None:
        self._files = RunDirectory(self.directory.path)
        self._files.clear_stop()
        self._events_before = sum(1 for _ in read_events(self._files.events))

    def simulate(self) -> None:
        with local_workspace(self.on_note) as workspace:
            self.on_note(f"starting FLARE's simulator with {self.plan.clients.number} sites")
            job = asdict(self._job("flare-sim", workspace))
            module = "bilateral.engine.flare.hetero_recipe"
            process = start_module(module, job, workspace, local_environment())
            try:
                while process.poll() is None and self._last_words() is None:
                    self._look()
                    if self.should_stop():
                        self._files.request_stop()
                    time.sleep(POLL_SECONDS)
                self._look()
                self._let_end(process)
            finally:
                _end_with_children(process.pid)
                process.wait()
            self._check_end(workspace)

    def _let_end(self, process: subprocess.Popen[bytes]) -> None:
        """After an error, let the processes write their logs; FLARE would wait minutes for a site that is gone."""
        ended = self._last_words()
        if ended is not None and not ended["finished"]:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LAST_SECONDS)

    def deploy(self) -> None:
        with local_workspace(self.on_note) as workspace:
            sites = self.plan.clients.names
            self.on_note(f"provisioning a server and {len(sites)} sites on this machine")
            kits = provision(Deployment("poc", "localhost", sites, fed_learn_port=free_ports(1)[0]), workspace / "kits")
            recipe = self._job("flare-poc", workspace).recipe()
            recipe.export(str(workspace / "job"))
            with LocalProcesses(kits, local_environment()) as processes, Admin(kits.admin) as admin:
                processes.start_server()
                processes.start_sites()
                supervisor = Supervisor(
                    admin,
                    workspace / "job" / recipe.job_name,
                    sites,
                    len(sites),
                    lambda _: self._outcome(),
                    PATIENCE_SECONDS,
                    on_tick=lambda: self._keep_alive(processes),
                    on_note=self.on_note,
                    should_stop=self.should_stop,
                )
                supervisor.supervise()
            self._look()
            self._check_end(workspace)

    def record(self) -> HeteroRecord:
        return HeteroRecord.load(self.plan, self.facts, self.directory)

    def _job(self, engine: FlareEngine, workspace: Path) -> HeteroJob:
        return HeteroJob(
            self.plan.model_dump_json(),
            str(self.directory.path),
            engine,
            self.plan.clients.names,
            self.facts.dataset,
            dict(self.facts.num_samples),
            str(self.data_dir) if self.data_dir else "",
            str(workspace),
        )

    def _look(self) -> None:
        """Tell of progress if there is any."""
        progress = self.record().progress()
        if progress != self._seen:
            self._seen = progress
            self.on_progress(progress)

    def _keep_alive(self, processes: LocalProcesses) -> None:
        """Start a party again whose process has ended, as the start script of a kit does."""
        for name in processes.names:
            if not processes.is_running(name):
                self.on_note(f"{name} ended; it is started again")
                processes.restart(name)
        self._look()

    def _outcome(self) -> Outcome | None:
        """What the last term left in the run directory."""
        ended = self._last_words()
        if ended is None:
            return None
        values: dict[str, Any] = {"finished": ended["finished"], "rounds": ended["round"]}
        return Outcome(values if ended["finished"] else {**values, "error": ended["reason"]})

    def _last_words(self) -> dict[str, Any] | None:
        """How the last term ended, if it did; None while one is under way or if it was killed."""
        events = list(read_events(self._files.events))[self._events_before :]
        return events[-1] if events and events[-1]["event"] == "run_ended" else None

    def _check_end(self, workspace: Path) -> None:
        """Raise, unless the run is finished or was asked to stop."""
        ended = self._last_words()
        if self.should_stop() or (ended is not None and ended["finished"]):
            return
        reason = "no reason was given" if ended is None else ended["reason"]
        missed = any(event["event"] == "site_missed" for event in list(read_events(self._files.events))[-2:])
        kind = SitesMissingError if missed else DeploymentError
        raise kind(f"The run on FLARE ended early: {reason}", remedy=f"The logs of all parties are in {workspace}.")
