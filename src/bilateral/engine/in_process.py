"""The engine that runs a whole federation in one process: simulation, and the reference for every other engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from bilateral.engine.checkpoint import Checkpoint, load_checkpoint, restore, save_checkpoint, training_tensors
from bilateral.engine.client_view import ClientView, client_view
from bilateral.engine.federation import Federation, load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.setup import REFERENCE, build_trainings, reference_plan
from bilateral.engine.transcript import Transcript
from bilateral.errors import CheckpointError, NumericalRangeError, PlanError, ThresholdError
from bilateral.learning.aggregation import Incident
from bilateral.learning.client import sample_clients
from bilateral.learning.evaluation import evaluate, main_metric
from bilateral.learning.exchange import Dropouts
from bilateral.learning.training import Training, relative_difference
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Message
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.perturb.messages import PerturbedModel
from bilateral.randomness import SeededRandomness

MAX_FAILED_IN_A_ROW = 10


@dataclass(frozen=True)
class FailedRound:
    """A round that could not be unmasked; it changed nothing."""

    round_index: int
    reason: str


@dataclass(frozen=True)
class RoundReport:
    """What there is to tell after a round; metrics are of the last evaluation."""

    round_index: int
    num_rounds: int
    metrics: dict[str, float]
    difference_to_fedavg: float | None
    num_failed: int = 0


@dataclass(frozen=True)
class RunResult:
    """A finished (or interrupted) run."""

    plan: RunPlan
    model: nn.Module
    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    rounds: int
    seconds: float
    transcript: Transcript
    difference_to_fedavg: float | None
    """Largest relative difference of the weights to FedAvg's, over all rounds."""
    final_difference_to_fedavg: float | None
    metrics_of_fedavg: dict[str, float] | None
    view: ClientView | None
    guarantee: Guarantee
    privacy: PrivacyReport | None
    """What was spent, if the plan adds noise."""
    failed: tuple[FailedRound, ...]
    """Rounds that had too few clients."""
    incidents: tuple[Incident, ...]
    """Messages that were refused, and from whom."""
    output: Path | None
    finished: bool

    def as_dict(self) -> dict[str, Any]:
        metric, value = main_metric(self.metrics)
        return {
            "metric": metric,
            "metric_value": value,
            "metrics": self.metrics,
            "metrics_of_fedavg": self.metrics_of_fedavg,
            "rounds": self.rounds,
            "finished": self.finished,
            "seconds": round(self.seconds, 3),
            "megabytes_up": round(self.transcript.bytes_up / 1e6, 6),
            "megabytes_down": round(self.transcript.bytes_down / 1e6, 6),
            "difference_to_fedavg": self.difference_to_fedavg,
            "final_difference_to_fedavg": self.final_difference_to_fedavg,
            "client_view": self.view.as_dict() if self.view else None,
            "rounds_failed": [asdict(failed) for failed in self.failed],
            "incidents": [asdict(incident) for incident in self.incidents],
            "privacy": self.privacy.as_dict() if self.privacy else None,
            "guarantee": self.guarantee.as_dict(),
            "output": str(self.output) if self.output else None,
        }


def run(
    plan: RunPlan,
    *,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    reference: bool | None = None,
    save: bool = True,
    keep_messages: bool = False,
    on_round: Callable[[RoundReport], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunResult:
    """Train as the plan says.

    `reference` trains plain FedAvg beside it, round by round, and reports the difference; on the same batches, unless
    the plan adds sound noise (which draws its own). By default it does so except with sound noise: a model without
    noise has no place in the directory of a private run.
    `save` keeps plan, metrics and checkpoints in `output`; `resume` goes on from the checkpoint there.
    `should_stop` is asked after every round; a stopped run leaves a checkpoint.
    """
    output = None if output is None else Path(output)
    checkpoint = None
    if resume:
        if output is None:
            raise PlanError("Resuming needs the directory of the run.", remedy="Give it as `output`.")
        checkpoint = _matching_checkpoint(plan, RunDirectory(output))
        reference = any(name.startswith(f"{REFERENCE}/") for name in checkpoint.tensors)
    federation = load_federation(plan, None if data_dir is None else Path(data_dir))
    bare = reference_plan(plan)
    if reference is None:
        reference = plan.noise.mechanism != "sound"
    trainings = build_trainings([plan, bare] if reference and plan != bare else [plan], federation)
    directory = None
    if checkpoint is not None and output is not None:
        directory = RunDirectory(output)
    elif save:
        directory = RunDirectory.create(output, plan)
    loop = _Loop(plan, federation, trainings, directory, Transcript(keep_messages))
    if checkpoint is not None:
        loop.resume(checkpoint)
    return loop.run(on_round or (lambda _: None), should_stop or (lambda: False))


def _matching_checkpoint(plan: RunPlan, directory: RunDirectory) -> Checkpoint:
    checkpoint = load_checkpoint(directory.checkpoint)
    if checkpoint.plan_digest != plan.digest():
        raise CheckpointError(
            f"{directory.checkpoint} was made with another plan.", remedy="Resume with the plan of that run."
        )
    return checkpoint


class _Loop:
    """The rounds of one run, with everything that is written down on the way."""

    def __init__(
        self,
        plan: RunPlan,
        federation: Federation,
        trainings: list[Training],
        directory: RunDirectory | None,
        transcript: Transcript,
    ) -> None:
        self._plan = plan
        self._federation = federation
        self._trainings = trainings
        self._main = trainings[0]
        self._reference = trainings[1] if len(trainings) > 1 else None
        self._directory = directory
        self._transcript = transcript
        self._next_round = 0
        self._rows: list[dict[str, Any]] = []
        self._failed: list[FailedRound] = []
        self._seconds_before = 0.0
        self._largest_difference = 0.0
        self._randomness = SeededRandomness(plan.seed, "federation")
        self._names = [client.name for client in federation.clients]
        rate = plan.federation.dropout
        dropouts = Dropouts(rate, SeededRandomness(plan.seed, "dropouts")) if rate else None
        self._exchange = self._main.local_exchange(transcript.record, dropouts)
        if self._reference is not None:
            self._reference_exchange = self._reference.local_exchange(_no_record)

    def resume(self, checkpoint: Checkpoint) -> None:
        assert self._directory is not None
        restore(self._trainings, checkpoint, self._directory.checkpoint)
        self._next_round = checkpoint.next_round
        self._rows = list(checkpoint.rows)
        self._transcript.bytes_up = int(checkpoint.counters["bytes_up"])
        self._transcript.bytes_down = int(checkpoint.counters["bytes_down"])
        self._transcript.num_messages = int(checkpoint.counters["num_messages"])
        self._seconds_before = checkpoint.counters["seconds"]
        self._largest_difference = checkpoint.counters["largest_difference"]
        self._failed = [FailedRound(**failed) for failed in checkpoint.failed]
        self._main.aggregation.incidents.extend(Incident(**incident) for incident in checkpoint.incidents)

    def run(self, on_round: Callable[[RoundReport], None], should_stop: Callable[[], bool]) -> RunResult:
        training = self._plan.training
        started = time.perf_counter()
        metrics = self._evaluate(self._main)
        if not self._rows:
            self._rows.append({"round": 0, **metrics, "difference_to_fedavg": 0.0 if self._reference else None})
            self._save(0.0)  # from here on the directory can be resumed
        while self._next_round < training.rounds:
            self._advance(self._next_round)
            self._next_round += 1
            last = self._next_round == training.rounds
            difference = self._difference()
            if last or self._next_round % training.evaluate_every == 0:
                metrics = self._evaluate(self._main)
                self._rows.append({"round": self._next_round, **metrics, "difference_to_fedavg": difference})
            stopping = should_stop() and not last
            if last or stopping or self._next_round % training.checkpoint_every == 0:
                self._save(self._seconds_before + time.perf_counter() - started)
            on_round(RoundReport(self._next_round, training.rounds, metrics, difference, len(self._failed)))
            if stopping:
                break
        return self._result(self._seconds_before + time.perf_counter() - started)

    def _advance(self, round_index: int) -> None:
        participants = sample_clients(self._names, self._plan.federation.participation, round_index, self._randomness)
        try:
            contributors = self._main.advance(round_index, participants, self._exchange)
        except ThresholdError as error:
            self._fail(round_index, error)
            return
        if self._reference is not None:  # FedAvg over the same clients
            self._reference.advance(round_index, contributors, self._reference_exchange)

    def _fail(self, round_index: int, error: ThresholdError) -> None:
        """A round without enough clients is no disaster: the model is untouched. Many in a row are."""
        self._failed.append(FailedRound(round_index, str(error)))
        recent = [failed.round_index for failed in self._failed[-MAX_FAILED_IN_A_ROW:]]
        if recent == list(range(round_index - MAX_FAILED_IN_A_ROW + 1, round_index + 1)):
            raise ThresholdError(
                f"{MAX_FAILED_IN_A_ROW} rounds in a row failed, the last one so: {error}",
                remedy="The model is as it was before them; resume when the clients are back.",
            )

    def _difference(self) -> float | None:
        if self._reference is None:
            return None
        difference = relative_difference(self._main.weights(), self._reference.weights())
        self._largest_difference = max(self._largest_difference, difference)
        return difference

    def _evaluate(self, training: Training) -> dict[str, float]:
        metrics = evaluate(training.predict, self._federation.test, self._federation.loss)
        if not all(math.isfinite(value) for value in metrics.values()):
            raise NumericalRangeError(
                f"The model's predictions are NaN or infinite after round {self._next_round}.",
                remedy="Lower the learning rate, and resume or start anew: the last checkpoint is from before.",
            )
        return metrics

    def _save(self, seconds: float) -> None:
        if self._directory is None:
            return
        counters = {
            "bytes_up": self._transcript.bytes_up,
            "bytes_down": self._transcript.bytes_down,
            "num_messages": self._transcript.num_messages,
            "seconds": seconds,
            "largest_difference": self._largest_difference,
        }
        tensors = training_tensors(self._trainings)
        save_checkpoint(
            Checkpoint(
                self._plan.digest(),
                self._next_round,
                tensors,
                self._rows,
                counters,
                [asdict(failed) for failed in self._failed],
                [asdict(incident) for incident in self._main.aggregation.incidents],
            ),
            self._directory.checkpoint,
        )
        self._directory.write_metrics(self._rows)

    def _result(self, seconds: float) -> RunResult:
        view = None
        opening = self._main.server.start_round(self._next_round)
        if isinstance(opening, PerturbedModel):  # what a client would be sent next
            view = client_view(self._main, opening, self._federation.test, self._federation.loss)
        result = RunResult(
            plan=self._plan,
            model=self._main.model,
            metrics=self._evaluate(self._main),
            rows=self._rows,
            rounds=self._next_round,
            seconds=seconds,
            transcript=self._transcript,
            difference_to_fedavg=self._largest_difference if self._reference else None,
            final_difference_to_fedavg=self._difference(),
            metrics_of_fedavg=self._evaluate(self._reference) if self._reference else None,
            view=view,
            guarantee=self._main.guarantee,
            privacy=self._main.privacy,
            failed=tuple(self._failed),
            incidents=tuple(self._main.aggregation.incidents),
            output=self._directory.path if self._directory else None,
            finished=self._next_round == self._plan.training.rounds,
        )
        if self._directory is not None:
            self._directory.write_result(result.as_dict())
        return result


def _no_record(round_index: int, sender: str, receiver: str, message: Message) -> None:
    """FedAvg beside a protected run is a yardstick; its traffic is not the run's."""
