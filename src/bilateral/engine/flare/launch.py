"""`--engine flare-sim|flare-poc`: a simulated run on FLARE, all parties as processes on this machine.

    result = run_on_flare(KIND, plan, "flare-sim", output="out")

    flare-sim   FLARE's simulator: a process a site, no TLS, one term
    flare-poc   a provisioned deployment on loopback: parent and job processes, mutual TLS, as many terms as it takes

Both draw secrets from the plan's seed, as the in-process engine does, and end with the same model. The processes use
one thread each (OMP_NUM_THREADS, unless it is set): many processes that spin on few cores are slower, and the bits of a
sum depend on the number of threads that made it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from bilateral.engine.event_tail import EventTail
from bilateral.engine.events import Event, RunEnded, SiteMissed
from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.kit_builder import ENVIRONMENT
from bilateral.engine.flare.premises import SIMULATION
from bilateral.engine.flare.processes import LocalProcesses, free_ports
from bilateral.engine.flare.provisioning import Deployment, provision
from bilateral.engine.flare.recipe import make_recipe
from bilateral.engine.flare.simulator import STORES, start_simulator
from bilateral.engine.flare.supervisor import Outcome, Supervisor
from bilateral.engine.kind import Result
from bilateral.engine.remote.hosting import HostedKind, LocalRun
from bilateral.errors import BilateralError, DeploymentError, SitesMissingError

FlareEngine = Literal["flare-sim", "flare-poc"]
POLL_SECONDS = 0.5
LAST_SECONDS = 5.0
"""After an error the processes have so long to write their logs; FLARE would wait minutes for a site that is gone."""


def run_on_flare(
    kind: HostedKind[Any],
    plan: Any,
    engine: FlareEngine,
    *,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    options: Mapping[str, Any] | None = None,
    on_status: Callable[[Any], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Any:
    """Run as the plan says, on FLARE; the kind's own result. `options`: what the kind takes besides the plan.

    `on_status` is told what the kind says of its progress (`LocalRun.look`). Raises `SitesMissingError` if a site was
    lost for good in the simulator: `resume` goes on. `flare-poc` starts it again.
    """
    folder = None if data_dir is None else Path(data_dir).resolve()
    run = kind.prepare(
        plan, output=None if output is None else Path(output), data_dir=folder, resume=resume, options=options or {}
    )
    launched = _Launched(
        kind,
        plan,
        run,
        folder,
        on_status or (lambda _: None),
        on_note or (lambda _: None),
        should_stop or (lambda: False),
    )
    return launched.simulate() if engine == "flare-sim" else launched.deploy()


@dataclass
class _LastWords:
    """What was told last in this term: how a run ended, once it did."""

    tail: EventTail
    _recent: deque[Event] = field(default_factory=lambda: deque(maxlen=2))

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A new term begins: earlier ones are of no account."""
        self.tail.read_new()
        self._recent.clear()

    def ended(self) -> RunEnded | None:
        """None while a term is under way, or if it was killed."""
        self._recent.extend(told.event for told in self.tail.read_new().told)
        last = self._recent[-1] if self._recent else None
        return last if isinstance(last, RunEnded) else None

    @property
    def site_was_missed(self) -> bool:
        return any(isinstance(event, SiteMissed) for event in self._recent)


@dataclass
class _Launched:
    kind: HostedKind[Any]
    plan: Any
    run: LocalRun
    data_dir: Path | None
    on_status: Callable[[Any], None]
    on_note: Callable[[str], None]
    should_stop: Callable[[], bool]
    _seen: Any = None

    def __post_init__(self) -> None:
        self._directory = self.run.directory
        self._directory.result.unlink(missing_ok=True)
        self._directory.clear_stop()
        self._last_words = _LastWords(EventTail(self._directory.events))

    def simulate(self) -> Result:
        with local_workspace(self.on_note) as workspace:
            self.on_note(f"starting FLARE's simulator with {len(self.run.sites)} sites")
            process = start_simulator(
                self.kind.name,
                self.plan,
                self.run.facts,
                self._directory.path,
                self.run.sites,
                workspace,
                local_environment(),
                data_dir=self.data_dir,
            )
            try:
                while process.poll() is None and self._last_words.ended() is None:
                    self._look()
                    if self.should_stop():
                        self._directory.request_stop()
                    time.sleep(POLL_SECONDS)
                self._look()
                ended = self._last_words.ended()
                if ended is not None and not ended.finished:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(LAST_SECONDS)
            finally:
                end_with_children(process.pid)
                process.wait()
            return self._result(workspace)

    def deploy(self) -> Result:
        with local_workspace(self.on_note) as workspace:
            sites = self.run.sites
            quorum = self.kind.quorum(self.plan, len(sites))
            self.on_note(f"provisioning a server and {len(sites)} sites on this machine")
            kits = provision(Deployment("poc", "localhost", sites, fed_learn_port=free_ports(1)[0]), workspace / "kits")
            recipe = make_recipe(
                self.kind.name,
                self.plan,
                str(self._directory.path),
                engine="flare-poc",
                facts=self.run.facts,
                stores=self._directory.path / STORES,
                data_dir=self.data_dir,
                min_sites=quorum.needed,
            )
            recipe.export(str(workspace / "job"))
            with LocalProcesses(kits, local_environment()) as processes, Admin(kits.admin) as admin:
                processes.start_server()
                processes.start_sites()
                Supervisor(
                    admin,
                    workspace / "job" / recipe.job_name,
                    sites,
                    quorum.needed,
                    lambda _: self._outcome(),
                    quorum.patience,
                    on_term=self._begin_term,
                    on_tick=lambda: self._keep_alive(processes),
                    on_note=self.on_note,
                    should_stop=self.should_stop,
                    all_at_first=quorum.all_at_first and not self._directory.checkpoint.exists(),
                ).supervise()
            self._look()
            return self._result(workspace)

    def _begin_term(self) -> None:
        self._directory.result.unlink(missing_ok=True)
        self._last_words.forget()

    def _keep_alive(self, processes: LocalProcesses) -> None:
        """Start a party again whose process has ended, as the start script of a kit does."""
        for name in processes.names:
            if not processes.is_running(name):
                self.on_note(f"{name} ended; it is started again")
                processes.restart(name)
        self._look()

    def _look(self) -> None:
        """Tell of progress if there is any."""
        status = self.run.look()
        if status != self._seen:
            self._seen = status
            self.on_status(status)

    def _outcome(self) -> Outcome | None:
        """What the last term left in the run directory."""
        ended = self._last_words.ended()
        if ended is None:
            return None
        values: dict[str, Any] = {"finished": ended.finished, "rounds": ended.round}
        return Outcome(values if self._directory.result.exists() else {**values, "error": ended.reason})

    def _result(self, workspace: Path) -> Result:
        """The kind's result, unless the run ended early and was not asked to."""
        ended = self._last_words.ended()
        if not (self.should_stop() or self._directory.result.exists() or (ended is not None and ended.finished)):
            reason = "no reason was given" if ended is None else ended.reason
            missed = self._last_words.site_was_missed
            raise (SitesMissingError if missed else DeploymentError)(
                f"The run on FLARE ended early: {reason}", remedy=f"The logs of all parties are in {workspace}."
            )
        return self.run.result()


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


def end_with_children(pid: int) -> None:
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
