"""One term of a run, whatever its kind: one life of the server's process in the run's directory.

The shell holds the directory, puts a checkpoint back, tells of the beginning and the end, saves between steps, and
stops when it is asked to. What a step is, and what it does, is the `ServerRun`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bilateral.engine.checkpoint import Checkpoint, matching_checkpoint, putting_back, save_checkpoint
from bilateral.engine.events import Event, RunEnded, RunStarted
from bilateral.engine.kind import Plan, Progress, Result, RunKind, ServerAround, ServerRun
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import BilateralError, PlanError

LOCK_PATIENCE = 60.0
"""How long a new term waits for the process of the last one to be gone."""
IN_PROCESS = "in-process"


def checkpoint_to_resume(plan: Plan, directory: RunDirectory | None) -> Checkpoint:
    """What a run in one process goes on from."""
    if directory is None:
        raise PlanError("Resuming needs the directory of the run.", remedy="Give it as `output`.")
    return matching_checkpoint(plan.digest(), directory.checkpoint)


def conduct(
    kind: RunKind[Any],
    plan: Plan,
    path: Path,
    around: ServerAround,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Result:
    """One term of a run over `around.sites`, in its directory: a new one, or one that an earlier term left behind.

    Every step is durable before the next begins: killed at any moment, a run goes on with nothing lost or done twice.
    """
    directory = RunDirectory.create_or_open(path, plan)
    every = min(1, kind.checkpoint_every(plan))
    term = Term(kind, plan, around.engine, directory, every, on_progress, around.should_stop)

    def note() -> None:
        on_progress(server.progress())

    with term.held(LOCK_PATIENCE):
        checkpoint = term.last_checkpoint()
        server = kind.server(
            plan, replace(around, path=path, tell=term.tell, keep=term.keep, note=note, should_stop=term.stops)
        )
        result: Result = term.drive(server, checkpoint)
    return result


@dataclass
class Term:
    """One term. `directory` None: nothing is written down.

    `every`: how many steps there are from checkpoint to checkpoint; 0 if the run itself says when. `on_step` is told of
    the progress after every step, when it is saved.
    """

    kind: RunKind[Any]
    plan: Plan
    engine: str
    directory: RunDirectory | None
    every: int = 1
    on_step: Callable[[Any], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False
    _server: ServerRun | None = field(default=None, init=False)
    _num_done: int = field(default=0, init=False)

    @contextmanager
    def held(self, patience: float = 0.0) -> Iterator[None]:
        """Hold the directory. Whatever goes wrong meanwhile is told as the end of the term, and raised."""
        if self.directory is None:
            yield
            return
        with self.directory.locked(patience):
            self.directory.clear_stop()
            try:
                yield
            except BilateralError as error:
                self._end(finished=False, reason=str(error))
                raise
            except Exception:
                self._end(finished=False, reason="an internal error")
                raise
            except KeyboardInterrupt:
                self._end(finished=False, reason="interrupted")
                raise
            finally:
                if self._server is not None:
                    self._server.close()

    def last_checkpoint(self) -> Checkpoint | None:
        """What the term before left, if there was one."""
        if self.directory is None or not self.directory.checkpoint.exists():
            return None
        found = matching_checkpoint(self.plan.digest(), self.directory.checkpoint)
        self._num_done = found.next_round
        return found

    def drive(self, server: ServerRun, checkpoint: Checkpoint | None) -> Any:
        """The steps that are left, unless asked to stop between two. Returns the kind's `Result`."""
        self._server = server
        if checkpoint is not None:
            with putting_back(self.directory.checkpoint if self.directory is not None else Path("The checkpoint")):
                server.load(checkpoint)
        server.enrol()
        at, digest = server.progress(), self.plan.digest()
        self.tell(RunStarted(self.engine, server.term, at.num_done, at.num_steps, tuple(server.members), digest))
        server.begin()
        self.keep()  # from here on the directory can be resumed, and the term is counted
        self._do_steps(server)
        result = server.result(self.directory.path if self.directory is not None else None)
        if self.directory is not None and (result.finished or self.kind.useful_when_stopped):
            self.directory.write_result(result.as_dict())
        unit = self.kind.outline(self.plan).unit
        self._end(result.finished, f"the plan's {unit}s are done" if result.finished else "asked to stop")
        return result

    def stops(self) -> bool:
        """Was it asked to stop, by its caller or by a file in the directory?"""
        return self.should_stop() or (self.directory is not None and self.directory.stop_requested)

    def keep(self) -> None:
        """Save the state as it is now."""
        if self.directory is not None and self._server is not None:
            save_checkpoint(self._server.state(), self.directory.checkpoint)

    def tell(self, event: Event) -> None:
        """Append to the run's log, if it has one."""
        if self.directory is not None:
            self.directory.tell(event)

    def _do_steps(self, server: ServerRun) -> None:
        if not self.kind.useful_when_stopped and self.stops():
            return
        for step in server.steps():
            server.do(step)
            at = server.progress()
            last = at.num_done >= at.num_steps
            stopping = not last and self.stops()
            if self.every and (last or stopping or at.num_done % self.every == 0):
                self.keep()
            self.on_step(at)
            if stopping:
                return

    def _end(self, finished: bool, reason: str) -> None:
        done = self._num_done if self._server is None else self._server.progress().num_done
        self.tell(RunEnded(done, finished, reason))
