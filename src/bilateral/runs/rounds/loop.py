"""The rounds of one run, with everything that is written down on the way: the same for every engine.

An engine brings the server's side of the training, an `Exchange` to its clients, and says who is there.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bilateral.data import Split
from bilateral.engine.checkpoint import Checkpoint, restore, training_tensors
from bilateral.engine.events import (
    MAX_REASON,
    Evaluated,
    Event,
    MessageRefused,
    RecoveryChecked,
    RoundDone,
    RoundFailed,
    SiteTold,
)
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.transcript import Transcript
from bilateral.errors import BilateralError, NumericalRangeError, ThresholdError
from bilateral.learning.aggregation import Incident
from bilateral.learning.client import invited_clients
from bilateral.learning.evaluation import Measured, Predict, measure
from bilateral.learning.exchange import Exchange
from bilateral.learning.training import Training, predict_with, relative_difference
from bilateral.models.coverage import Coverage, coverage
from bilateral.models.drawing import drawn_layers
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.objective import Objective
from bilateral.protocols.perturb.recovery_trial import RecoveryReport
from bilateral.protocols.site_reports import MetricsRequest, metrics_in
from bilateral.runs.rounds.best import BestModel
from bilateral.runs.rounds.result import OF_SITE, FailedRound, RoundReport, RunResult, told_by_sites, yardstick_of
from bilateral.runs.rounds.seen_by_clients import seen_by_clients

MAX_FAILED_IN_A_ROW = 10
MAX_INCIDENTS = 200
REFERENCE_PREFIX = "fedsgd_"
"""Of metrics in `metrics.csv` that are FedSGD's, trained beside the run."""
Gather = Callable[[int, Sequence[str]], Sequence[str]]
"""Called with a round's index and its invited clients; returns those that are there, after waiting if it must."""


@dataclass(frozen=True)
class Lane:
    """A training and the way to its clients."""

    training: Training
    exchange: Exchange


def everyone(round_index: int, invited: Sequence[str]) -> Sequence[str]:  # noqa: ARG001
    """Nobody is ever away: clients in this process."""
    return invited


@dataclass
class RoundLoop:
    """The server's side of rounds: a `ServerRun` whose steps are rounds.

    `reference`: plain FedSGD over the same contributors, round by round, as a yardstick. A checkpoint after every
    round makes each durable before the next begins: killed at any moment, a run goes on with no round lost or applied
    twice. The line about a round is written before its checkpoint, so a round may be told of twice; the last counts.
    """

    plan: RunPlan
    names: Sequence[str]
    test: Split
    objective: Objective
    main: Lane
    reference: Lane | None
    directory: RunDirectory | None
    transcript: Transcript
    gather: Gather = everyone
    on_contributors: Callable[[Sequence[str]], None] = lambda _: None
    on_close: Callable[[], None] = lambda: None
    validation: Split | None = None
    class_names: Sequence[str] = ()
    _next_round: int = field(default=0, init=False)
    _term: int = field(default=0, init=False)
    _rows: list[dict[str, Any]] = field(default_factory=list, init=False)
    _failed: list[FailedRound] = field(default_factory=list, init=False)
    _seconds_before: float = field(default=0.0, init=False)
    _largest_difference: float = field(default=0.0, init=False)
    _num_told: int = field(default=0, init=False)
    _recovery: RecoveryReport | None = field(default=None, init=False)
    _metrics: dict[str, float] = field(default_factory=dict, init=False)
    _difference: float | None = field(default=None, init=False)
    _started: float | None = field(default=None, init=False)
    _best: BestModel = field(init=False)

    def __post_init__(self) -> None:
        self._best = BestModel(self.plan.evaluation.monitor, self.plan.evaluation.patience_rounds)

    @property
    def next_round(self) -> int:
        """Rounds done so far; the index of the next one."""
        return self._next_round

    @property
    def term(self) -> int:
        return self._term

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self.names)

    def load(self, state: Checkpoint) -> None:
        """Put everything back as it was after the checkpoint's last round."""
        assert self.directory is not None
        self._restore(state, self.directory.checkpoint)

    def _restore(self, checkpoint: Checkpoint, path: Path) -> None:
        restore(self._trainings, checkpoint, path)
        self._next_round = checkpoint.next_round
        self._rows = list(checkpoint.rows)
        self.transcript.load_counters(checkpoint.counters)
        self._seconds_before = checkpoint.counters["seconds"]
        self._largest_difference = checkpoint.counters["largest_difference"]
        self._term = int(checkpoint.counters["term"]) + 1
        self._best.load(checkpoint, self.main.training.model)
        self._failed = [FailedRound(**failed) for failed in checkpoint.failed]
        self.main.training.aggregation.incidents.extend(Incident(**incident) for incident in checkpoint.incidents)
        self._num_told = len(checkpoint.incidents)

    def enrol(self) -> None:
        """Whoever built this has enrolled the clients."""

    def begin(self) -> None:
        """The recovery is checked and the initial model measured."""
        self._started = time.perf_counter()
        self._check_recovery()
        self._metrics = self._measure()
        if not self._rows:
            self._rows.append(self._row(0.0 if self.reference else None))
            self.tell(Evaluated(0, self._metrics, 0.0 if self.reference else None))
            self._write_privacy()
        self._write_metrics()

    def steps(self) -> Iterator[int]:
        """The rounds that are left, by index."""
        while not self._is_last:
            yield self._next_round

    def do(self, step: int) -> None:
        """One round; the model is measured as often as the plan says, and after the last."""
        try:
            asks = self._asks_sites(step)
            contributors = self._advance(step)
            if asks and contributors:
                self._ask_sites(step, contributors)
            self._next_round += 1
            self._difference = self._compare()
            if self._is_last or self._next_round % self.plan.training.evaluate_every == 0:
                self._metrics = self._measure()
                self._rows.append(self._row(self._difference))
                self.tell(Evaluated(self._next_round, self._metrics, self._difference))
                self._write_metrics()
        except BilateralError:
            self._tell_incidents()
            raise

    def _row(self, difference: float | None) -> dict[str, Any]:
        """The model as it is now, beside FedSGD's if that is trained."""
        reference = self._evaluate(self.reference.training) if self.reference is not None else {}
        plain = {f"{REFERENCE_PREFIX}{name}": value for name, value in reference.items()}
        return {"round": self._next_round, **self._metrics, "difference_to_fedavg": difference, **plain}

    def progress(self) -> RoundReport:
        rounds = self._next_round if self._is_last else self.plan.training.rounds
        told = yardstick_of(self.plan)
        evaluated = self._rows[-1]["round"] if self._rows else None
        return RoundReport(
            self._next_round, rounds, self._metrics, self._difference, len(self._failed), evaluated, told
        )

    def close(self) -> None:
        self.on_close()

    @property
    def _is_last(self) -> bool:
        return self._next_round >= self.plan.training.rounds or self._best.is_over(self._next_round)

    @property
    def _seconds(self) -> float:
        """Of all terms."""
        return self._seconds_before + (0.0 if self._started is None else time.perf_counter() - self._started)

    def _check_recovery(self) -> None:
        """Before anything else, in every term: an evaluation would reset the modes of the model's layers."""
        began = time.perf_counter()
        self._recovery = self.main.training.check_recovery()
        if self._recovery is not None:
            report = self._recovery
            self.tell(RecoveryChecked(report.error, report.parameter, report.dtype, time.perf_counter() - began))

    def tell(self, event: Event) -> None:
        """Append to the run's log, if it has one."""
        if self.directory is not None:
            self.directory.tell(event)

    @property
    def _trainings(self) -> list[Training]:
        return [lane.training for lane in (self.main, self.reference) if lane is not None]

    def _asks_sites(self, round_index: int) -> bool:
        """Whether sites measure the model of this round, and tell."""
        shared = self.plan.evaluation.shares_site_metrics and round_index % self.plan.training.evaluate_every == 0
        return shared and not self.main.training.is_to_count

    def _ask_sites(self, round_index: int, names: Sequence[str]) -> None:
        """Put what sites tell of the model after so many rounds beside what was measured of it here."""
        request = MetricsRequest(round_index)
        replies = self.main.exchange(round_index, dict.fromkeys(names, (request,)))
        row: dict[str, Any] = next((row for row in reversed(self._rows) if row["round"] == round_index), {})
        for name, reply in replies.items():
            try:
                told = metrics_in(reply, name, round_index, self.plan.evaluation.told_metrics)
            except BilateralError as error:
                self.main.training.aggregation.incidents.append(Incident(round_index, name, str(error)))
                continue
            row.update({f"{metric}{OF_SITE}{name}": value for metric, value in told.items()})
            self.tell(SiteTold(name, round_index, told))
        self._tell_incidents()
        self._write_metrics()

    def _advance(self, round_index: int) -> tuple[str, ...]:
        """Whose uploads are in the round; nobody's in one that failed."""
        invited = invited_clients(self.names, self.plan.federation.participation, self.plan.seed, round_index)
        if self.main.training.is_to_count:
            invited = tuple(self.names)
        outsiders = self.main.training.aggregation.outsiders()
        present = self.gather(round_index, [name for name in invited if name not in outsiders])
        started, up, down = time.perf_counter(), self.transcript.bytes_up, self.transcript.bytes_down
        try:
            contributors = self.main.training.advance(round_index, present, self.main.exchange)
        except ThresholdError as error:
            self._tell_incidents()
            self._fail(round_index, error)
            return ()
        self.on_contributors(contributors)
        self._tell_incidents()
        self.tell(
            RoundDone(
                round_index + 1,
                round(time.perf_counter() - started, 4),
                tuple(contributors),
                (self.transcript.bytes_up - up) / 1e6,
                (self.transcript.bytes_down - down) / 1e6,
                _digest(self.main.training.last_gradient),
            )
        )
        if self.reference is not None:  # FedSGD over the same clients
            self.reference.training.advance(round_index, contributors, self.reference.exchange)
        return contributors

    def _fail(self, round_index: int, error: ThresholdError) -> None:
        """A round without enough clients is no disaster: the model is untouched. Many in a row are."""
        self._failed.append(FailedRound(round_index, str(error)))
        self.tell(RoundFailed(round_index + 1, str(error)))
        recent = [failed.round_index for failed in self._failed[-MAX_FAILED_IN_A_ROW:]]
        if recent == list(range(round_index - MAX_FAILED_IN_A_ROW + 1, round_index + 1)):
            raise ThresholdError(
                f"{MAX_FAILED_IN_A_ROW} rounds in a row failed, the last one so: {error}",
                remedy="The model is as it was before them; resume when the clients are back.",
            )

    def _tell_incidents(self) -> None:
        incidents = self.main.training.aggregation.incidents
        for incident in incidents[self._num_told :]:
            self.tell(MessageRefused(incident.client, incident.round_index + 1, incident.reason[:MAX_REASON]))
        self._num_told = len(incidents)

    def _incidents(self) -> list[Incident]:
        """The last ones, cut short: clients wrote them, and may have written much."""
        recent = self.main.training.aggregation.incidents[-MAX_INCIDENTS:]
        return [replace(incident, reason=incident.reason[:MAX_REASON]) for incident in recent]

    def _compare(self) -> float | None:
        if self.reference is None:
            return None
        difference = relative_difference(self.main.training.weights(), self.reference.training.weights())
        self._largest_difference = max(self._largest_difference, difference)
        return difference

    def _measure(self) -> dict[str, float]:
        """Of the run's model as it is now; the best so far is kept by what is measured on the validation data."""
        training = self.main.training
        metrics = self._evaluate(training)
        if self.validation is not None:
            predict = predict_with(training.model, training.device)
            chosen_by = self._checked(self._measured(predict, self.validation).metrics("validation"))
            metrics = {**metrics, **chosen_by}
            self._best.look(self._next_round, chosen_by, training.model)
        return metrics

    def _evaluate(self, training: Training) -> dict[str, float]:
        return self._checked(self._measured(predict_with(training.model, training.device), self.test).metrics())

    def _measured(self, predict: Predict, split: Split) -> Measured:
        return measure(predict, split, self.objective, self.plan.evaluation.measures)

    def _checked(self, metrics: dict[str, float]) -> dict[str, float]:
        if not all(math.isfinite(value) for value in metrics.values()):
            raise NumericalRangeError(
                f"The model's predictions are NaN or infinite after round {self._next_round}.",
                remedy="Lower the learning rate and start anew.",
            )
        return metrics

    def _write_metrics(self) -> None:
        if self.directory is not None:
            self.directory.write_metrics(self._rows)

    def _write_privacy(self) -> None:
        if self.directory is not None:
            privacy = self.main.training.privacy
            self.directory.write_privacy(self.main.training.guarantee.as_dict(), privacy.as_dict() if privacy else None)

    def state(self) -> Checkpoint:
        """After the rounds so far."""
        counters = {
            **self.transcript.counters(),
            "seconds": self._seconds,
            "largest_difference": self._largest_difference,
            "term": self._term,
            **self._best.counters(),
        }
        return Checkpoint(
            self.plan.digest(),
            self._next_round,
            {**training_tensors(self._trainings), **self._best.tensors()},
            self._rows,
            counters,
            [asdict(failed) for failed in self._failed],
            [asdict(incident) for incident in self._incidents()],
        )

    def result(self, output: Path | None) -> RunResult:
        seconds, main = self._seconds, self.main.training
        view = seen_by_clients(main, self._next_round, self.test, self.objective)
        model = self._best.model(main.model)
        measured = self._measured(predict_with(model, main.device), self.test)
        return RunResult(
            plan=self.plan,
            model=model,
            view=view,
            metrics=self._checked(measured.metrics()),
            rows=self._rows,
            rounds=self._next_round,
            seconds=seconds,
            transcript=self.transcript,
            difference_to_fedavg=self._largest_difference if self.reference else None,
            final_difference_to_fedavg=self._compare(),
            metrics_of_fedavg=self._evaluate(self.reference.training) if self.reference else None,
            guarantee=main.guarantee,
            privacy=main.privacy,
            failed=tuple(self._failed),
            incidents=tuple(self._incidents()),
            output=output,
            finished=self._is_last,
            recovery=self._recovery,
            best_round=self._best.round_index,
            per_class=measured.per_class(self.class_names),
            per_site=measured.per_site() if self.plan.evaluation.metrics else {},
            told_by_sites=told_by_sites(self._rows),
            warnings=tuple(self._warnings(measured)),
            network=drawn_layers(main.model),
            coverage=self._coverage(),
        )

    def _coverage(self) -> Coverage | None:
        """What clients are not sent as it is; nothing to say where they are sent another network, or none."""
        traits, layout = self.plan.traits, self.main.training.layout
        if not isinstance(layout, ScaleGraph) or not traits.hides_model or traits.expands_network:
            return None
        return coverage(layout)

    def _warnings(self, measured: Measured) -> Iterator[str]:
        only = measured.only_prediction()
        if only is not None:
            name = f"{self.class_names[only]!r} (class {only})" if self.class_names else f"class {only}"
            yield (
                f"The model predicts {name} for every test sample. Its accuracy says how frequent that class is, and "
                "nothing else: look at balanced accuracy and auroc, train longer, or weigh the classes "
                "(training.class_weights)."
            )
        if self._best.is_over(self._next_round) and self._next_round < self.plan.training.rounds:
            yield (
                f"Training ended after round {self._next_round}: {self._best.name} on the validation data was best "
                f"after round {self._best.round_index}. That model is the result."
            )


def _digest(gradient: Tensor | None) -> str:
    if gradient is None:
        return ""
    return hashlib.sha256(gradient.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
