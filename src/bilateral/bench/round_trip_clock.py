"""The clock of `bench round-trip`: the coordinator and the site of production, with a watch beside them.

The server notes how long every round, exchange and call took and how many bytes went each way; a site notes how long it
worked on each packet, in a file of its own. Nothing is added to what travels. Kits do not list these classes, so no
deployment runs them; the benchmark lists them in kits of its own (`round_trip_run`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO, cast

import torch

from bilateral.data import Dataset, Split
from bilateral.engine.checkpoint import Checkpoint
from bilateral.engine.flare.coordinator import Coordinator
from bilateral.engine.flare.premises import ServerPremises
from bilateral.engine.flare.site import Site
from bilateral.engine.kind import ENROLMENT, Result, ServerAround, ServerRun, Sites
from bilateral.engine.plan import RunPlan
from bilateral.engine.remote.edge import REPLY
from bilateral.engine.remote.hosting import HostedKind
from bilateral.engine.run_directory import RunDirectory
from bilateral.learning.exchange import Exchange
from bilateral.learning.training import Training
from bilateral.runs.rounds.attendance import Attendance
from bilateral.runs.rounds.conductor import Conductor, RoundsOverSites
from bilateral.runs.rounds.kind import RoundsKind
from bilateral.runs.rounds.loop import Lane, RoundLoop
from bilateral.runs.rounds.remote_exchange import Timing

TIMING_CLASSES = (f"{__name__}.",)
"""What kits must list besides the classes of production."""
SERVER_FILE, SITE_FILE = "timings.json", "site_timings.txt"
NUM_CLASSES = 10


def random_images(num_samples: int, shape: Sequence[int] = (3, 32, 32), seed: int = 0) -> Dataset:
    """Images of CIFAR-10's shape whose content is noise: what a step costs does not depend on it."""
    generator = torch.Generator().manual_seed(seed)  # nothing is secret here, and our streams take their time

    def split(size: int) -> Split:
        return Split(torch.randn(size, *shape, generator=generator), torch.arange(size) % NUM_CLASSES)

    return Dataset("random-images", "classification", split(num_samples), split(2 * NUM_CLASSES), NUM_CLASSES)


@dataclass(frozen=True)
class CallTiming:
    """One packet to one site and its answer, as the server saw it."""

    site: str
    lane: int
    ticket: int
    seconds: float
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class ExchangeTiming:
    """One exchange with all sites; with the published cross entropy, training is a conversation of two calls a site."""

    stage: str
    seconds: float
    calls: list[CallTiming]


@dataclass(frozen=True)
class RoundTiming:
    """One round of one lane, from the first exchange to the server's step. `started` is on the server's clock."""

    lane: int
    round_index: int
    started: float
    seconds: float
    exchanges: list[ExchangeTiming]


@dataclass
class Watch:
    """Collects calls into exchanges and exchanges into rounds. An exchange ends after its last call has."""

    rounds: list[RoundTiming] = field(default_factory=list)
    _calls: list[CallTiming] = field(default_factory=list)
    _exchanges: list[ExchangeTiming] = field(default_factory=list)

    def call(self, timing: CallTiming) -> None:
        """From many threads: appending to a list is one step."""
        self._calls.append(timing)

    def exchange(self, timing: Timing) -> None:
        calls, self._calls = self._calls, []
        self._exchanges.append(ExchangeTiming(timing.stage, timing.seconds, calls))

    def round(self, lane: int, round_index: int, started: float, seconds: float) -> None:
        exchanges, self._exchanges = self._exchanges, []
        self.rounds.append(RoundTiming(lane, round_index, started, seconds, exchanges))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(timing) for timing in self.rounds]), encoding="utf-8")


def read_rounds(path: Path) -> list[RoundTiming]:
    """What `Watch.write` wrote."""
    return [
        RoundTiming(
            **{
                **values,
                "exchanges": [
                    ExchangeTiming(**{**exchange, "calls": [CallTiming(**call) for call in exchange["calls"]]})
                    for exchange in values["exchanges"]
                ],
            }
        )
        for values in json.loads(path.read_text(encoding="utf-8"))
    ]


@dataclass(frozen=True)
class WatchedSites:
    """The same sites; every call is timed."""

    sites: Sites
    watch: Watch

    def names(self) -> Sequence[str]:
        return self.sites.names()

    def ping(self, site: str) -> bool | None:
        return self.sites.ping(site)

    def call(self, site: str, lane: int, number: int, packet: list[bytes], timeout: float) -> Mapping[str, Any]:
        started = time.perf_counter()
        answer = self.sites.call(site, lane, number, packet, timeout)
        seconds = time.perf_counter() - started
        if lane == ENROLMENT:
            return answer
        reply = answer.get(REPLY, b"")
        self.watch.call(CallTiming(site, lane, number, seconds, sum(map(len, packet)), len(reply)))
        return answer


@dataclass
class WatchedTraining(Training):
    """The same training; every round is timed."""

    on_advanced: Callable[[int, float, float], None] = lambda _, __, ___: None

    def advance(self, round_index: int, participants: Sequence[str], exchange: Exchange) -> tuple[str, ...]:
        started = time.perf_counter()
        contributors = super().advance(round_index, participants, exchange)
        self.on_advanced(round_index, started, time.perf_counter() - started)
        return contributors


@dataclass
class WatchedConductor(Conductor):
    """The same term; its lanes are timed. FedSGD runs beside the protection, round by round."""

    watch: Watch = field(default_factory=Watch)

    def _prepare(
        self, directory: RunDirectory, pool: ThreadPoolExecutor, checkpoint: Checkpoint | None
    ) -> tuple[RoundLoop, Attendance]:
        loop, attendance = super()._prepare(directory, pool, checkpoint)
        loop.main = self._watched(0, loop.main)
        if loop.reference is not None:
            loop.reference = self._watched(1, loop.reference)
        return loop, attendance

    def _watched(self, number: int, lane: Lane) -> Lane:
        def note(round_index: int, started: float, seconds: float) -> None:
            self.watch.round(number, round_index, started, seconds)

        return Lane(WatchedTraining(**_values(lane.training), on_advanced=note), lane.exchange)


@dataclass(frozen=True)
class WatchedRounds(RoundsKind):
    """The same rounds, with a watch beside them."""

    watch: Watch = field(default_factory=Watch)

    def server(self, plan: RunPlan, around: ServerAround) -> ServerRun:
        assert around.sites is not None and around.path is not None
        plain = self.conductor(plan, replace(around, sites=WatchedSites(around.sites, self.watch)))
        plain.on_exchange = self.watch.exchange
        return RoundsOverSites(WatchedConductor(**_values(plain), watch=self.watch), RunDirectory(around.path))


class TimedCoordinator(Coordinator):
    """The server's side of a timed job: it leaves `timings.json` in the run directory."""

    def _conduct(self, premises: ServerPremises, sites: Sites) -> Result:
        watch = Watch()
        result = super()._conduct(replace(premises, kind=cast("HostedKind[Any]", WatchedRounds(watch=watch))), sites)
        watch.write(premises.path / SERVER_FILE)
        return result


class TimedSite(Site):
    """The site of a timed job: a line for every packet, in its own workspace."""

    _file: TextIO | None = None

    def _deliver(self, lane: int, number: int, packet: list[bytes]) -> dict[str, Any]:
        """The answer holds nothing of the clock."""
        started, started_cpu = time.perf_counter(), time.thread_time()
        answer = super()._deliver(lane, number, packet)
        cpu, seconds = time.thread_time() - started_cpu, time.perf_counter() - started
        if lane == ENROLMENT:
            return answer
        if self._file is None:
            self._file = (self._job_folder() / SITE_FILE).open("w", encoding="utf-8", buffering=1)
        self._file.write(f"{self._name()} {number} {seconds:.6f} {cpu:.6f}\n")
        return answer


@dataclass(frozen=True)
class Work:
    """How long a site worked on a packet: by the clock, and on a core (others may have had it in between)."""

    seconds: float
    cpu_seconds: float


def read_work(workspace: Path) -> dict[tuple[str, int], Work]:
    """The work of each site on each ticket, from the files that sites left below a workspace."""
    lines = [line for file in workspace.rglob(SITE_FILE) for line in file.read_text(encoding="utf-8").splitlines()]
    return {(site, int(ticket)): Work(float(wall), float(cpu)) for site, ticket, wall, cpu in map(str.split, lines)}


def _values(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass, as they are: no copies."""
    return {each.name: getattr(instance, each.name) for each in fields(instance)}
