"""`bench sealed-step`: a secret-shared training step of one client, by three processes on the loopback.

The bench's own process is the server, which has the weights; the client, which has the batch, and the dealer are two
more. A step is forward, the loss's gradient and backward, until server and client each have their part of every
parameter's gradient. Networks have random weights and batches are noise: neither time nor traffic depends on them. Keys
are agreed on, and one step is made, before anything is measured. All that travels passes through the server, as in a
run: the client's seed, in a sealed box, is counted on both its ways (`megabytes_relayed` of it once).

Every case has rows for the phases

    dealing     the dealer makes correlations, which needs no value of anybody, and the server gets them
    preparing   the server masks the weights, and the client gets them
    step        all turns
    ahead       preparing and step: what is left when the dealer has dealt before
    total       a whole step, all of these at once: server and client begin as soon as they have seeds, and what is
                dealt is taken as it comes
    pipelined   a whole step in a row of them, in each of which the dealer deals for the next one

and for each of them a row for

    all                      seconds by the clock, megabytes that all parties sent
    server, client, dealer   seconds on a core (`busy_seconds`: at work by the clock), megabytes sent + received

`rounds`: messages of the server; a party speaks when it has something to say, so that both may speak at once.
`relative_error`: of the worst tensor and step, the largest difference from float64 autograd over the largest gradient,
of the loss summed over the batch (`..._in_fixed_point`: from the same step in the clear, whose ReLUs and poolings see
the same rounded numbers). `ratio_to_plain`: seconds over those of a plain torch float32 step (on a core, in the
parties' rows), which takes turns with ours but for `total` and `pipelined`: of them as many come one after the other,
as peers are measured. All spreads are over the repeats. `seconds_by_gate`, `megabytes_by_gate`: on a core, and as
told or dealt, of steps whose phases come one after the other; `messages` is encoding, sending and receiving them
(`gate_clock`). Timing every gate takes time itself, so it is not done in `total` and `pipelined`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bilateral.bench.clock import ratio_row
from bilateral.bench.gate_clock import GATES
from bilateral.bench.metering import PartyCost
from bilateral.bench.step_networks import NETWORKS
from bilateral.bench.step_party import DEALING, PHASES, PREPARING, STEP
from bilateral.bench.step_server import PARTIES, StepCost, StepServer, StepWork, step_server
from bilateral.errors import PlanError
from bilateral.protocols.share.training.terms import Loss

ALL: Final = "all"
TOTAL: Final = "total"
AHEAD: Final = "ahead"
PIPELINED: Final = "pipelined"
MESSAGES: Final = "messages"
ROW_PHASES: Final[Mapping[str, tuple[str, ...]]] = {
    DEALING: (DEALING,),
    PREPARING: (PREPARING,),
    STEP: (STEP,),
    TOTAL: PHASES,
    AHEAD: (PREPARING, STEP),
    PIPELINED: PHASES,
}
LOSSES: Final[tuple[Loss, ...]] = ("mse", "ce")
QUICK_REPEATS: Final = 2


@dataclass(frozen=True)
class SealedStep:
    """What is measured. `batch_sizes`: of every network; those of `NETWORKS` if empty. `threads`: of each process."""

    models: tuple[str, ...] = tuple(NETWORKS)
    losses: tuple[str, ...] = LOSSES
    batch_sizes: tuple[int, ...] = ()
    repeats: int = 5
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.models or not set(self.models) <= set(NETWORKS):
            raise PlanError(f"Expected networks among {', '.join(NETWORKS)}, got {', '.join(self.models)}.")
        if not self.losses or not set(self.losses) <= set(LOSSES):
            raise PlanError(f"Expected losses among {', '.join(LOSSES)}, got {', '.join(self.losses)}.")
        if min(self.batch_sizes, default=1) < 1 or self.repeats < 1 or self.threads < 1:
            raise PlanError(
                f"Expected batch sizes, repeats and threads of 1 or more, got {self.batch_sizes}, {self.repeats} and "
                f"{self.threads}."
            )
        if not self.cases:
            raise PlanError(
                f"{', '.join(self.models)} has one output and no classes for cross entropy.", remedy="Use --loss mse."
            )

    @property
    def cases(self) -> list[tuple[str, Loss, int]]:
        """Every network with every loss and batch size; no cross entropy where there is one output."""
        return [
            (model, loss, batch_size)
            for model in dict.fromkeys(self.models)
            for loss in LOSSES
            if loss in self.losses and (loss == "mse" or NETWORKS[model].num_outputs > 1)
            for batch_size in dict.fromkeys(self.batch_sizes or NETWORKS[model].batch_sizes)
        ]


@dataclass
class MeasuredSteps:
    """One case. `plain`: seconds of plain steps by the clock and on a core, one for each step."""

    steps: list[StepCost] = field(default_factory=list)
    """With their phases one after the other."""
    at_once: list[StepCost] = field(default_factory=list)
    in_a_row: list[StepCost] = field(default_factory=list)
    plain: list[tuple[float, float]] = field(default_factory=list)
    relative_error: float = 0.0
    relative_error_in_fixed_point: float = 0.0


def measure_sealed_step(
    quick: bool, progress: Callable[[int, int, str], None], chosen: SealedStep | None = None
) -> list[dict[str, Any]]:
    """24 rows a case. `quick`, unless something is chosen: the smallest network, few repeats."""
    if chosen is None:
        chosen = SealedStep(models=("mlp-tab",), repeats=QUICK_REPEATS) if quick else SealedStep()
    rows: list[dict[str, Any]] = []
    total = len(chosen.cases)
    progress(0, total, "starting the processes")
    with step_server(chosen.threads) as server:
        for number, case in enumerate(chosen.cases):
            model, loss, batch_size = case
            progress(number, total, f"{model}, {loss}, batch of {batch_size}")
            measured = measure_case(server, StepWork.of(NETWORKS[model], loss, batch_size), chosen.repeats)
            rows += case_rows(chosen, case, measured)
    progress(total, total, "done")
    return rows


def measure_case(server: StepServer, work: StepWork, repeats: int) -> MeasuredSteps:
    """One step of each kind to warm up, then ours, its phases one after the other, and the plain one in turn; then as
    many of ours all at once, one after the other, as peers are measured; and as many in a row."""
    found = MeasuredSteps()
    server.give(work)
    server.step()
    server.step(at_once=True)
    work.plain_step()
    for _ in range(repeats):
        found.steps.append(server.step())
        started, cpu = time.perf_counter(), time.process_time()
        work.plain_step()
        found.plain.append((time.perf_counter() - started, time.process_time() - cpu))
    found.at_once = [server.step(at_once=True) for _ in range(repeats)]
    found.in_a_row = server.steps_in_a_row(repeats)
    words = [cost.words for cost in (*found.steps, *found.at_once, *found.in_a_row)]
    found.relative_error = max(map(work.relative_error, words))
    found.relative_error_in_fixed_point = max(map(work.relative_error_in_fixed_point, words))
    return found


def case_rows(chosen: SealedStep, case: tuple[str, str, int], measured: MeasuredSteps) -> list[dict[str, Any]]:
    """The rows of one case; times are medians over the repeats."""
    model, loss, batch_size = case
    rows = []
    for row_phase, phases in ROW_PHASES.items():
        steps = {PIPELINED: measured.in_a_row, TOTAL: measured.at_once}.get(row_phase, measured.steps)
        rounds = sum(steps[0].phases[phase].rounds for phase in phases)
        for party in (ALL, *PARTIES):
            is_all = party == ALL
            seconds = _clock_seconds(row_phase, steps) if is_all else _cpu_seconds(party, steps, phases)
            plain = [by_clock if is_all else on_core for by_clock, on_core in measured.plain]
            rows.append(
                {
                    "model": model,
                    "loss": loss,
                    "batch_size": batch_size,
                    "phase": row_phase,
                    "party": party,
                    **_spread("seconds", seconds),
                    **(_traffic_of_all(steps, phases) if is_all else _books_of(party, steps, phases)),
                    **({} if is_all else _by_gate(party, measured.steps, phases)),
                    "rounds": rounds,
                    "relative_error": measured.relative_error,
                    "relative_error_in_fixed_point": measured.relative_error_in_fixed_point,
                    **{f"ratio_to_plain{name}": value for name, value in _ratio(seconds, plain).items()},
                    "plain_seconds": statistics.median(plain),
                    "threads": chosen.threads,
                    "repeats": len(steps),
                }
            )
    return rows


def _clock_seconds(row_phase: str, steps: Sequence[StepCost]) -> list[float]:
    if row_phase in (TOTAL, PIPELINED):
        return [cost.seconds for cost in steps]
    return [sum(cost.phases[phase].seconds for phase in ROW_PHASES[row_phase]) for cost in steps]


def _cpu_seconds(party: str, steps: Sequence[StepCost], phases: Sequence[str]) -> list[float]:
    return [sum(cost.phases[phase].parties[party].cpu_seconds for phase in phases) for cost in steps]


def _ratio(mine: list[float], plain: list[float]) -> dict[str, float]:
    """Of seconds that were measured in turn. The median has no name of its own."""
    return {name.removeprefix("ratio").replace("_median", ""): v for name, v in ratio_row(mine, plain).items()}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else [*values] * 9
    return {name: statistics.median(values), f"{name}_p10": cuts[0], f"{name}_p90": cuts[-1]}


def _traffic_of_all(steps: Sequence[StepCost], phases: Sequence[str]) -> dict[str, Any]:
    sent = [
        sum(party.bytes_sent for phase in phases for party in cost.phases[phase].parties.values()) for cost in steps
    ]
    return {
        "megabytes": statistics.median(sent) / 1e6,
        "megabytes_relayed": steps[0].box_bytes / 1e6 if DEALING in phases else 0.0,
        "peak_memory_megabytes": max(sum(cost.peak_memory_bytes.values()) for cost in steps) / 1e6,
    }


def _books_of(party: str, steps: Sequence[StepCost], phases: Sequence[str]) -> dict[str, Any]:
    def median(what: Callable[[PartyCost], float]) -> float:
        return statistics.median(sum(what(cost.phases[phase].parties[party]) for phase in phases) for cost in steps)

    sent, received = median(lambda cost: cost.bytes_sent) / 1e6, median(lambda cost: cost.bytes_received) / 1e6
    return {
        "megabytes": sent + received,
        "megabytes_sent": sent,
        "megabytes_received": received,
        "busy_seconds": median(lambda cost: cost.busy_seconds),
        "peak_memory_megabytes": max(cost.peak_memory_bytes[party] for cost in steps) / 1e6,
    }


def _by_gate(party: str, steps: Sequence[StepCost], phases: Sequence[str]) -> dict[str, dict[str, float]]:
    """Medians; what no gate has been charged for is work on messages."""
    indices = [PHASES.index(phase) for phase in phases]
    seconds = [cost.gates[party].seconds[indices].sum(dim=0).tolist() for cost in steps]
    told = [cost.gates[party].told_bytes[indices].sum(dim=0).tolist() for cost in steps]
    others = [cpu - sum(own) for cpu, own in zip(_cpu_seconds(party, steps, phases), seconds, strict=True)]
    by_gate = {gate: statistics.median(values) for gate, values in zip(GATES, zip(*seconds, strict=True), strict=True)}
    megabytes = {gate: statistics.median(v) / 1e6 for gate, v in zip(GATES, zip(*told, strict=True), strict=True)}
    return {
        "seconds_by_gate": {**by_gate, MESSAGES: max(0.0, statistics.median(others))},
        "megabytes_by_gate": {gate: value for gate, value in megabytes.items() if value},
    }
