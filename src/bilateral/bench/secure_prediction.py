"""`bench secure-prediction`: a secret-shared prediction by three processes on the loopback.

The bench's own process is the server; the querying and the answering party are two more. Networks have random weights
and queries are noise: neither time nor traffic depends on them. Every prediction is compared with fixed-point inference
in the clear.

Each repeat is a fresh session with one batch; keys are agreed on before. Styles of comparison (`--style`, repeatable)
take turns, batch by batch, each in processes of its own. Every case and style has rows for the phases

    offline   what does not need the queries, *the session included*: the masked weights are counted for one batch
    online    from the server's call for queries to the logits at the querying party
    total     both
    ahead     online again, by parties who had opened the session and dealt before, and read that from their disks

and for each of them a row for

    all                           seconds by the clock, megabytes that all parties sent
    querying, answering, server   seconds on a core (`busy_seconds...`: at work by the clock), megabytes sent + received

`..._later_batches`: a further batch of the same session, for which the masked weights are there already. Megabytes are
counted at the sockets, frames and headers included. `peak_memory_megabytes`: of the processes so far.
`modelled_seconds_on_a_slow_link`: computed from rounds and bytes, for 20 ms a round and 100 Mbit/s.
`ratio_to_hardened`: of total seconds, batch by batch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any, Final

from torch import Tensor

from bilateral.bench.metering import PartyCost
from bilateral.bench.prediction_party import Network, images
from bilateral.bench.three_parties import PARTIES, BatchCost, three_parties
from bilateral.errors import PlanError
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, predict_in_batches
from bilateral.protocols.share.gates.styles import HARDENED, SEALED, STYLES
from bilateral.protocols.share.prediction.messages import Phase

INPUT_SHAPE: Final = (3, 32, 32)
NUM_OUTPUTS: Final = 10
SEED: Final = 1
ALL: Final = "all"
AHEAD: Final = "ahead"
ROW_PHASES: Final[dict[str, tuple[Phase, ...]]] = {
    "offline": ("session", "offline"),
    "online": ("online",),
    "total": ("session", "offline", "online"),
    AHEAD: ("online",),
}
LINK_SECONDS: Final = 0.020
LINK_BYTES_PER_SECOND: Final = 100e6 / 8
WARMUP_BATCHES: Final = 1
"""Kernels are compiled at their first use, and later batches use the memory that the first one fetched."""
QUICK_REPEATS: Final = 2
WHOLE: Final = ("peak_memory_megabytes",)
"""Costs that are not divided by the batch size."""


@dataclass(frozen=True)
class PaperFigures:
    """One prediction as P4 reports it (table 3, CPU, on its own machine; its ResNet-8 is wider than ours)."""

    seconds: float
    megabytes: float


P4: Final = {
    "vgg-7": PaperFigures(1.03, 66.6),
    "resnet-8": PaperFigures(1.63, 73.9),
    "resnet-10": PaperFigures(2.00, 105.9),
}
GOAL_SECONDS: Final = {("vgg-7", 1): 0.17, ("vgg-7", 32): 0.12, ("resnet-8", 1): 0.08, ("resnet-8", 32): 0.03}
"""Ten (VGG-7) and five (ResNet-8) times as fast as the best other system on two cores."""
GOAL_MEGABYTES: Final = {("vgg-7", 1): 27.0, ("resnet-8", 1): 7.0}
"""Under half of the best other system's."""


@dataclass(frozen=True)
class SecurePrediction:
    """What is measured: every network with every batch size. `threads`: of each of the three processes."""

    models: tuple[str, ...] = ("vgg-7", "resnet-8", "resnet-10")
    batch_sizes: tuple[int, ...] = (1, 32)
    repeats: int = 5
    styles: tuple[str, ...] = (SEALED.name, HARDENED.name)
    threads: int = 1
    batch_norm: bool = False
    input_shape: tuple[int, ...] = INPUT_SHAPE

    def __post_init__(self) -> None:
        if not self.models or min(self.batch_sizes, default=0) < 1:
            raise PlanError(f"Expected networks and batch sizes of 1 or more, got {self.models}, {self.batch_sizes}.")
        if self.repeats < 1 or self.threads < 1:
            raise PlanError(f"Expected 1 or more repeats and threads, got {self.repeats} and {self.threads}.")
        if not self.styles or not set(self.styles) <= set(STYLES) or len(set(self.styles)) != len(self.styles):
            raise PlanError(f"Expected styles among {', '.join(STYLES)}, each once, got {', '.join(self.styles)}.")

    def network(self, model: str) -> Network:
        # ResNets and DenseNets have batch normalisation unless told otherwise; some others do not know the option.
        is_told = self.batch_norm or model.startswith(("resnet", "densenet"))
        options = {"batch_norm": self.batch_norm} if is_told else {}
        return Network(model, self.input_shape, NUM_OUTPUTS, json.dumps(options), SEED)


def measure_secure_prediction(
    quick: bool, progress: Callable[[int, int, str], None], chosen: SecurePrediction | None = None
) -> list[dict[str, Any]]:
    """Sixteen rows a case and style. `quick`, unless something is chosen: a small network, few repeats."""
    if chosen is None:
        quick_choice = SecurePrediction(models=("convnet",), batch_sizes=(1, 2), repeats=QUICK_REPEATS)
        chosen = quick_choice if quick else SecurePrediction()
    networks = {model: chosen.network(model).compile() for model in chosen.models}  # refuses before processes start
    cases = [(model, batch_size) for model in chosen.models for batch_size in chosen.batch_sizes]
    num_batches = WARMUP_BATCHES + chosen.repeats
    progress(0, len(cases) * num_batches, "starting the processes")
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        groups = {style: _Groups(stack, style, chosen.threads) for style in chosen.styles}
        for number, (model, batch_size) in enumerate(cases):

            def step(done: int, case: str = f"{model}, batch of {batch_size}", before: int = number) -> None:
                progress(before * num_batches + done, len(cases) * num_batches, case)

            for group in groups.values():
                group.offer(chosen.network(model))
            drawn = [images(batch_size, chosen.input_shape, SEED + 1 + one) for one in range(num_batches)]
            measured = _measure(groups, networks[model], drawn, step)
            for style, found in measured.items():
                rows += case_rows(chosen, style, model, batch_size, found, measured)
    progress(len(cases) * num_batches, len(cases) * num_batches, "done")
    return rows


class _Groups:
    """Of one style: three parties who deal and compute at once, and three who deal ahead, to disk."""

    def __init__(self, stack: ExitStack, style: str, threads: int) -> None:
        folder = stack.enter_context(TemporaryDirectory(prefix="bilateral-dealt-"))
        self.at_once = stack.enter_context(three_parties(style, threads))
        self.ahead = stack.enter_context(three_parties(style, threads, folder))

    def offer(self, network: Network) -> None:
        self.at_once.offer(network)
        self.ahead.offer(network)


@dataclass
class Measured:
    """One case in one style: batches after the warm-up, online batches from the store, the largest error of a logit."""

    batches: list[BatchCost] = field(default_factory=list)
    ahead: list[BatchCost] = field(default_factory=list)
    max_logit_error: float = 0.0


def _measure(
    groups: Mapping[str, _Groups],
    model: FixedPointModel,
    drawn: Sequence[Tensor],
    step: Callable[[int], None],
) -> dict[str, Measured]:
    """All styles in turn, batch by batch: what a busy machine does to one it does to the others."""
    found = {style: Measured() for style in groups}
    for number, queries in enumerate(drawn):
        step(number)
        expected = predict_in_batches(model, queries)
        for style, group in groups.items():
            batch, ahead, one = group.at_once.predict(queries), group.ahead.predict_ahead(queries), found[style]
            for cost in (batch, ahead):
                one.max_logit_error = max(one.max_logit_error, float((cost.logits - expected).abs().max()))
            if number >= WARMUP_BATCHES:
                one.batches.append(batch)
                one.ahead.append(ahead)
    return found


def case_rows(
    chosen: SecurePrediction,
    style: str,
    model: str,
    batch_size: int,
    measured: Measured,
    others: Mapping[str, Measured],
) -> list[dict[str, Any]]:
    """The rows of one network, batch size and style; times are medians over the batches."""
    rows = []
    ratio = _ratio(measured.batches, others[HARDENED.name].batches) if HARDENED.name in others else None
    for row_phase, phases in ROW_PHASES.items():
        batches = measured.ahead if row_phase == AHEAD else measured.batches
        rounds = sum(batches[0].phases[phase].rounds for phase in phases)
        for party in (ALL, *PARTIES):
            costs = _costs_of_all(batches, phases) if party == ALL else _costs_of_party(party, batches, phases)
            if party == ALL:
                costs["modelled_seconds_on_a_slow_link"] = on_a_slow_link(costs, rounds)
            rows.append(
                {
                    "model": model,
                    "batch_size": batch_size,
                    "phase": row_phase,
                    "party": party,
                    **{name: value if name in WHOLE else value / batch_size for name, value in costs.items()},
                    "rounds": rounds,
                    "max_logit_error": measured.max_logit_error,
                    "style": style,
                    "ratio_to_hardened": ratio if (row_phase, party) == ("total", ALL) else None,
                    "threads": chosen.threads,
                    "batch_norm": chosen.batch_norm,
                    "repeats": len(batches),
                }
            )
    return rows


def _ratio(batches: Sequence[BatchCost], others: Sequence[BatchCost]) -> dict[str, float]:
    """Of the seconds of batches that were measured in turn."""
    pairs = zip(batches, others, strict=True)
    found = [_seconds(one) / _seconds(other) for one, other in pairs]
    cuts = statistics.quantiles(found, n=10, method="inclusive") if len(found) > 1 else found * 9
    return {"median": statistics.median(found), "p10": cuts[0], "p90": cuts[-1]}


def _seconds(batch: BatchCost) -> float:
    return sum(phase.seconds for phase in batch.phases.values())


def on_a_slow_link(costs: Mapping[str, float], rounds: int) -> float:
    """Seconds a batch would take where every round costs `LINK_SECONDS` and all bytes pass `LINK_BYTES_PER_SECOND`.

    What was measured on the loopback, plus what the link adds: all that travels has the server at one end, so one link
    carries it, and nothing overlaps. So it is an upper bound for one link.
    """
    bytes_sent = costs["megabytes_per_prediction"] * 1e6
    return costs["seconds_per_prediction"] + rounds * LINK_SECONDS + bytes_sent / LINK_BYTES_PER_SECOND


def _costs_of_all(batches: Sequence[BatchCost], phases: Sequence[Phase]) -> dict[str, float]:
    seconds = [sum(batch.phases[phase].seconds for phase in phases) for batch in batches]
    later = [sum(batch.phases[phase].seconds for phase in _later(phases)) for batch in batches]
    cuts = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
    return {
        "seconds_per_prediction": statistics.median(seconds),
        "megabytes_per_prediction": _median_megabytes(batches, phases, lambda cost: cost.bytes_sent),
        "seconds_p10": cuts[0],
        "seconds_p90": cuts[-1],
        "seconds_per_prediction_later_batches": statistics.median(later),
        "megabytes_per_prediction_later_batches": _median_megabytes(
            batches, _later(phases), lambda cost: cost.bytes_sent
        ),
        "peak_memory_megabytes": max(sum(batch.peak_memory_bytes.values()) for batch in batches) / 1e6,
    }


def _costs_of_party(party: str, batches: Sequence[BatchCost], phases: Sequence[Phase]) -> dict[str, float]:
    def median(what: Callable[[PartyCost], float]) -> float:
        return statistics.median(sum(what(batch.phases[phase].parties[party]) for phase in phases) for batch in batches)

    sent = median(lambda cost: cost.bytes_sent) / 1e6
    received = median(lambda cost: cost.bytes_received) / 1e6
    return {
        "seconds_per_prediction": median(lambda cost: cost.cpu_seconds),
        "megabytes_per_prediction": sent + received,
        "busy_seconds_per_prediction": median(lambda cost: cost.busy_seconds),
        "megabytes_sent": sent,
        "megabytes_received": received,
        "peak_memory_megabytes": max(batch.peak_memory_bytes[party] for batch in batches) / 1e6,
    }


def _later(phases: Sequence[Phase]) -> list[Phase]:
    """What a further batch of a session needs of these phases."""
    return [phase for phase in phases if phase != "session"]


def _median_megabytes(batches: Sequence[BatchCost], phases: Sequence[Phase], what: Callable[[PartyCost], int]) -> float:
    """Of all parties together."""
    found = [sum(what(cost) for phase in phases for cost in batch.phases[phase].parties.values()) for batch in batches]
    return statistics.median(found) / 1e6
