"""The server's side of a heterogeneous run: clients train, ask each other, and learn from the sums (P4 algorithm 1).

1. train: every client, on its own data.
2. In every iteration, ask: every client makes queries; a fraction of the others answer; it gets the sum.
3. In the same iteration, retrain: every client. All answers of an iteration come from the models before it, so the
   order of the clients does not matter. (P4's algorithm lets a client ask those that have just retrained.)

The algorithm is here, once. Where the clients are is for `Clients` to say: in this process (`here.py`), where steps are
of one client each, or at sites (`remote.py`), where all train at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from bilateral.engine.checkpoint import Checkpoint
from bilateral.engine.events import Evaluated, StageDone
from bilateral.engine.kind import ServerAround
from bilateral.runs.hetero.record import HeteroRecord
from bilateral.runs.hetero.result import HeteroProgress, HeteroResult
from bilateral.runs.hetero.staged_client import Measure
from bilateral.runs.hetero.steps import Step, num_stages, step_of

MEAN_ACCURACY = "mean_test_accuracy"


class Clients(Protocol):
    """The clients of a run as its server reaches them."""

    at_once: bool
    """Do all train at the same time?"""

    def enrol(self, record: HeteroRecord) -> None:
        """Who is there, and how far: into the record."""
        ...

    def agree(self, record: HeteroRecord) -> None:
        """Keys of the term."""
        ...

    def train(self, names: Sequence[str]) -> Iterator[tuple[str, Measure]]:
        """Each as it is done."""
        ...

    def get_ready(self, iteration: int, waiting: Sequence[str]) -> None:
        """Before anybody asks in an iteration; `waiting` have not asked yet."""
        ...

    def ask(self, name: str, iteration: int, following: Sequence[str], on_answered: Callable[[float], None]) -> None:
        """One client asks, and keeps the sums. `following` ask after it; they may be dealt for already.

        `on_answered`: which further share of its queries is answered.
        """
        ...

    def retrain(self, names: Sequence[str], iteration: int) -> Iterator[tuple[str, Measure]]: ...

    def bytes_sent(self) -> int:
        """By all parties of secret-shared prediction, in this term."""
        ...

    def state_tensors(self) -> dict[str, Tensor]:
        """Of clients that keep nothing themselves."""
        ...

    def load_state(self, record: HeteroRecord, tensors: Mapping[str, Tensor]) -> None: ...

    def close(self) -> None: ...


class HeteroServer:
    """A `ServerRun`. `until`: no further than this stage of every client; None is the whole plan.

    Saves after every stage of a client, and while one is answered.
    """

    def __init__(self, record: HeteroRecord, clients: Clients, around: ServerAround, until: int | None = None) -> None:
        self.record = record
        self._clients, self._around = clients, around
        self._end = num_stages(record.plan) if until is None else until
        self._ready_for = 0
        self._since = time.perf_counter()

    @property
    def term(self) -> int:
        return max(self.record.term, 0)

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self.record.sites)

    def load(self, state: Checkpoint) -> None:
        self.record.load_state(state)
        self._clients.load_state(self.record, state.tensors)

    def enrol(self) -> None:
        self.record.begin_term()
        self._around.keep()  # a term that was begun has used its keys
        self._since = time.perf_counter()
        self._clients.enrol(self.record)

    def begin(self) -> None:
        self._clients.agree(self.record)
        self._around.note()

    def steps(self) -> Iterator[Step]:
        """Those that are left, by what is done when each is asked for."""
        while (stage := min(site.stage for site in self.record.sites.values())) < self._end:
            waiting = self.record.at_stage(stage)
            step = step_of(stage, tuple(waiting))
            yield step if self._clients.at_once and step.kind != "ask" else step_of(stage, (waiting[0],))

    def do(self, step: Step) -> None:
        started = self._since = time.perf_counter()
        match step.kind:
            case "train":
                self._measure(self._clients.train(step.clients), started)
            case "ask":
                self._ask(step.clients[0], step.iteration)
            case "retrain":
                self._measure(self._clients.retrain(step.clients, step.iteration), started)

    def progress(self) -> HeteroProgress:
        return self.record.progress()

    def state(self) -> Checkpoint:
        return self.record.checkpoint(self._clients.state_tensors())

    def result(self, output: Path | None) -> HeteroResult:
        return self.record.result(output)

    def close(self) -> None:
        self._clients.close()

    def _measure(self, measures: Iterator[tuple[str, Measure]], started: float) -> None:
        for name, measure in measures:
            self.record.measured(name, measure)
            self._keep()
            self._tell_done(name, started)
            accuracies = [site.accuracies[-1] for site in self.record.sites.values() if site.accuracies]
            metrics = {MEAN_ACCURACY: sum(accuracies) / len(accuracies)}
            self._around.tell(Evaluated(self.record.stages_done, metrics))

    def _ask(self, name: str, iteration: int) -> None:
        started = time.perf_counter()
        if self._ready_for != iteration:
            self._clients.get_ready(iteration, self.record.at_stage(self.record.sites[name].stage))
            self._ready_for = iteration
        waiting = self.record.at_stage(self.record.sites[name].stage)
        following = [other for other in waiting if other != name]
        before = self._clients.bytes_sent()
        self._clients.ask(name, iteration, following, self._note_answered)
        self.record.advance(name)
        self._keep()
        self._tell_done(name, started, self._clients.bytes_sent() - before)

    def _note_answered(self, share: float) -> None:
        self.record.answered += share
        if self._clients.at_once:  # whoever starts such a run reads how far it is from its directory
            self._keep()
        else:
            self._around.note()

    def _tell_done(self, name: str, started: float, num_bytes: int = 0) -> None:
        seconds = round(time.perf_counter() - started, 4)
        self._around.tell(StageDone(self.record.stages_done, seconds, (name,), round(num_bytes / 1e6, 6)))

    def _keep(self) -> None:
        now = time.perf_counter()
        self.record.seconds += now - self._since
        self._since = now
        self._around.keep()
        self._around.note()
