"""`bench round-trip`: a round on FLARE under the default protection against plain FedSGD on the same engine.

Both are trained in one job, round by round in turn, by the same processes. All parties are on this machine and share
its cores, so that with many sites a step takes longer by the clock than it would on a machine of its own; so do the
exchanges. The data are random images of CIFAR-10's shape.

    seconds_per_round        from the round's first exchange to the server's step; checkpoints are not in it
    client_step_seconds      the exchange in which clients train: model out, training, upload in (and with cross entropy
                             the question in between)
    overhead_on_client_step  what the round takes on top of that: (seconds_per_round - client_step) / client_step
    client_work_seconds      what a site did in that exchange, by its own clock; client_cpu_seconds: on a core
    megabytes_per_round      our messages in both directions and to all sites, without FLARE's frames
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from bilateral.bench.clock import ratio_row
from bilateral.engine.plan import RunPlan
from bilateral.errors import PlanError
from bilateral.protocols.perturb.settings import Loss

if TYPE_CHECKING:  # FLARE is an extra, and slow to import
    from bilateral.bench.round_trip_clock import RoundTiming
    from bilateral.bench.round_trip_run import TimedRun

Engine = Literal["flare-sim", "flare-poc"]
PROTECTED, FEDAVG = 0, 1
"""The lanes of a job."""
PROTECTIONS = {PROTECTED: "perturbation + ring masks", FEDAVG: "fedavg"}
TRAINING = "training"
WARMUP_ROUNDS = 3
"""The first round also agrees on keys, and the first ones fetch the memory that later ones use again."""

QUICK_ROUNDS = 5


@dataclass(frozen=True)
class RoundTrip:
    """What is measured: every model with every number of sites and every loss."""

    engine: Engine = "flare-sim"
    sites: tuple[int, ...] = (5, 20)
    models: tuple[str, ...] = ("mlp-5", "resnet-20")
    losses: tuple[Loss, ...] = ("mse", "ce")
    rounds: int = 20
    batch_size: int = 32

    def __post_init__(self) -> None:
        if self.engine not in get_args(Engine):
            raise PlanError(f"Expected one of {', '.join(get_args(Engine))}, got engine {self.engine!r}.")
        if min(self.sites, default=0) < 2:
            raise PlanError("Expected 2 or more sites: one site has nobody to mask with.")
        if not self.models or not self.losses or not set(self.losses) <= set(get_args(Loss)):
            raise PlanError(f"Expected models, and losses among {', '.join(get_args(Loss))}.")
        if self.rounds < 1 or self.batch_size < 1:
            raise PlanError(f"Expected 1 or more rounds and samples, got {self.rounds} and {self.batch_size}.")

    @property
    def cases(self) -> list[Case]:
        return [Case(s, model, loss) for s in self.sites for model in self.models for loss in self.losses]

    def plan(self, case: Case) -> RunPlan:
        """The default protection; everything that is not measured is kept out of the way."""
        rounds = WARMUP_ROUNDS + self.rounds
        return RunPlan().with_settings(
            {
                "data.name": "bilateral.bench.round_trip_clock:random_images",
                "data.options": {"num_samples": 2 * self.batch_size * case.sites},
                "model.name": case.model,
                "federation.clients": case.sites,
                "training.rounds": rounds,
                "training.batch_size": self.batch_size,
                "training.loss": case.loss,
                "training.learning_rate": 1e-3,
                "training.evaluate_every": rounds,
            }
        )


@dataclass(frozen=True)
class Case:
    """One job."""

    sites: int
    model: str
    loss: Loss


def measure_round_trip(
    quick: bool, progress: Callable[[int, int, str], None], chosen: RoundTrip | None = None
) -> list[dict[str, Any]]:
    """Two rows a case. `quick`, unless something is chosen: the MLP on 5 sites, few rounds."""
    if chosen is None:
        chosen = RoundTrip(sites=(5,), models=("mlp-5",), rounds=QUICK_ROUNDS) if quick else RoundTrip()
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(chosen.cases):
        progress(number, len(chosen.cases), f"{case.model} with {case.loss} on {case.sites} sites")
        rows += case_rows(chosen, case, _run(chosen.plan(case), chosen.engine))
    progress(len(chosen.cases), len(chosen.cases), "done")
    return rows


def _run(plan: RunPlan, engine: Engine) -> TimedRun:
    from bilateral.bench.round_trip_run import run_timed  # noqa: PLC0415 (an extra, and slow to import)

    workspace = Path(tempfile.mkdtemp(prefix="bilateral-round-trip-"))
    run = run_timed(plan, engine, workspace)
    shutil.rmtree(workspace, ignore_errors=True)  # after an error it stays, with the logs
    return run


def case_rows(chosen: RoundTrip, case: Case, run: TimedRun) -> list[dict[str, Any]]:
    """The protection's row and FedSGD's, over the rounds that both finished, without the first ones."""
    lanes: dict[int, dict[int, RoundTiming]] = {PROTECTED: {}, FEDAVG: {}}
    for timing in run.rounds:
        if timing.round_index >= WARMUP_ROUNDS:
            lanes[timing.lane][timing.round_index] = timing
    common = sorted(lanes[PROTECTED].keys() & lanes[FEDAVG].keys())
    if not common:
        raise PlanError(f"No round of {case.model} on {case.sites} sites was finished.", remedy="Measure more rounds.")
    rounds = {lane: [by_index[index] for index in common] for lane, by_index in lanes.items()}
    seconds = {lane: [timing.seconds for timing in timings] for lane, timings in rounds.items()}
    rows = []
    for lane, protection in PROTECTIONS.items():
        ratio = ratio_row(seconds[lane], seconds[FEDAVG])
        cuts = _cuts(seconds[lane])
        rows.append(
            {
                "engine": chosen.engine,
                "sites": case.sites,
                "model": case.model,
                "protection": protection,
                "seconds_per_round": statistics.median(seconds[lane]),
                "ratio_to_fedavg": ratio["ratio_median"],
                "megabytes_per_round": statistics.median(_num_bytes(timing) for timing in rounds[lane]) / 1e6,
                "loss": case.loss,
                "batch_size": chosen.batch_size,
                "rounds": len(common),
                "seconds_p10": cuts[0],
                "seconds_p90": cuts[-1],
                "ratio_p10": ratio["ratio_p10"],
                "ratio_p90": ratio["ratio_p90"],
                "client_step_seconds": statistics.median(_step(timing) for timing in rounds[lane]),
                "overhead_on_client_step": _overhead(rounds[lane]),
                "overhead_of_fedavg": _overhead(rounds[FEDAVG]),
                **_work(rounds[lane], run),
                **_stages(rounds[lane]),
            }
        )
    return rows


def _cuts(values: Sequence[float]) -> Sequence[float]:
    return statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else [*values] * 9


def _num_bytes(timing: RoundTiming) -> int:
    return sum(call.bytes_down + call.bytes_up for exchange in timing.exchanges for call in exchange.calls)


def _step(timing: RoundTiming) -> float:
    """The exchange in which clients train."""
    return sum(exchange.seconds for exchange in timing.exchanges if exchange.stage == TRAINING)


def _overhead(rounds: Sequence[RoundTiming]) -> float:
    return statistics.median((timing.seconds - _step(timing)) / _step(timing) for timing in rounds)


def _work(rounds: Sequence[RoundTiming], run: TimedRun) -> dict[str, float]:
    """What one site does in the training exchange: its mean over the sites, the median over the rounds."""
    wall, cpu = [], []
    for timing in rounds:
        calls = [call for exchange in timing.exchanges if exchange.stage == TRAINING for call in exchange.calls]
        work = [run.work[call.site, call.ticket] for call in calls]
        num_sites = len({call.site for call in calls})
        wall.append(sum(each.seconds for each in work) / num_sites)
        cpu.append(sum(each.cpu_seconds for each in work) / num_sites)
    return {"client_work_seconds": statistics.median(wall), "client_cpu_seconds": statistics.median(cpu)}


def _stages(rounds: Sequence[RoundTiming]) -> Mapping[str, float]:
    """Median seconds of every exchange, and of what the server does by itself."""
    by_stage: dict[str, list[float]] = {}
    for timing in rounds:
        for exchange in timing.exchanges:
            by_stage.setdefault(exchange.stage, []).append(exchange.seconds)
    alone = [timing.seconds - sum(exchange.seconds for exchange in timing.exchanges) for timing in rounds]
    named = {f"{stage.replace(' ', '_')}_seconds": statistics.median(values) for stage, values in by_stage.items()}
    return {**named, "server_alone_seconds": statistics.median(alone)}
