"""Heterogeneous runs in one process: clients train, ask each other, and learn from the summed answers (P4 algorithm 1).

Stages, in this order; after each a checkpoint is written:
1. train: every client, on its own data.
2. In every iteration, ask: every client makes queries; a fraction of the others answer; it gets the sum.
3. In the same iteration, retrain: every client. All answers of an iteration come from the models before it, so the
   order of the clients does not matter. (P4's algorithm lets a client ask those that have just retrained.)

A client is touched only by the methods of `HeteroClient`, and `Answers` alone sees queries and answering models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from bilateral.arguments import checked
from bilateral.data import Split
from bilateral.engine.checkpoint import (
    Checkpoint,
    load_checkpoint,
    matching_checkpoint,
    putting_back,
    save_checkpoint,
)
from bilateral.errors import CheckpointError, PlanError
from bilateral.learning.hetero.answers import Answers
from bilateral.learning.hetero.client import AnsweredQueries, HeteroClient
from bilateral.runs.hetero.directory import HeteroDirectory
from bilateral.runs.hetero.parties import answerers_of, deal, guarantee_of, make_answers, make_client
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.result import ClientOutcome, HeteroProgress, HeteroResult, Stage

_WORK_OF_AN_ANSWER = {"plain": 0.3, "secure": 10.0}
"""Of one prediction, in sample passes of a training (forward and backward)."""


@checked
def run_hetero(
    plan: HeteroPlan,
    *,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    save: bool = True,
    answers: Answers | None = None,
    trained: str | Path | None = None,
    training_only: bool = False,
    on_progress: Callable[[HeteroProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> HeteroResult:
    """Run as the plan says.

    `save` keeps plan, checkpoint and result in `output`; `resume` goes on from the checkpoint there, to the same models
    bit for bit with plain answers; with secure ones the masks are new, and sums may differ in the last place.
    `should_stop` is asked after every stage. `answers` replaces the plan's way of asking.
    `training_only` stops when every client has trained alone; `trained` is the directory of such a run, to start from
    its models (same data, clients, training and seed).
    """
    directory = None if output is None else HeteroDirectory(Path(output))
    checkpoint: Checkpoint | None = None
    if resume:
        if directory is None:
            raise PlanError("Resuming needs the directory of the run.", remedy="Give it as `output`.")
        checkpoint = matching_checkpoint(plan.digest(), directory.checkpoint)
    elif trained is not None:
        checkpoint = _trained_alone(plan, Path(trained))
    if answers is None:
        term = checkpoint.next_round if checkpoint is not None and resume else 0
        answers = make_answers(plan, lambda count: loop.count_answered(count), term)  # noqa: PLW0108 (`loop` is below)
    shares = deal(plan, None if data_dir is None else Path(data_dir))
    clients = {name: make_client(plan, name, share, shares.num_classes) for name, share in shares.clients.items()}
    loop = HeteroLoop(plan, shares.dataset, clients, shares.test, answers)
    if checkpoint is not None:
        with putting_back(Path(trained or output or "The checkpoint")):
            loop.restore(checkpoint)
    if not resume:  # made only now: a plan or data that are refused leave nothing behind
        directory = HeteroDirectory.create(None if output is None else Path(output), plan) if save else None
    with directory.locked() if directory is not None else nullcontext():
        loop.run(
            directory,
            until=len(clients) if training_only else None,
            on_progress=on_progress or (lambda _: None),
            should_stop=should_stop or (lambda: False),
        )
        result = loop.result(directory)
        if directory is not None and result.finished:
            directory.write_result(result.as_dict())
    return result


class HeteroLoop:
    """The state of a run between two stages: the clients, the sums that wait for a retraining, the accuracies."""

    def __init__(
        self, plan: HeteroPlan, dataset: str, clients: Mapping[str, HeteroClient], test: Split, answers: Answers
    ) -> None:
        self.plan = plan
        self.stages = stages_of(plan, {name: client.num_samples for name, client in clients.items()})
        self.done = 0
        self._dataset = dataset
        self._clients = clients
        self._test = test
        self._answers = answers
        self._sums: dict[str, Tensor] = {}
        self._offered: set[str] = set()
        self._rows: list[dict[str, Any]] = []
        self._seconds = 0.0
        self._num_answered = 0
        self._on_progress: Callable[[HeteroProgress], None] = lambda _: None

    def run(
        self,
        directory: HeteroDirectory | None,
        *,
        until: int | None,
        on_progress: Callable[[HeteroProgress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Do the stages that are left, or those before number `until`."""
        end = len(self.stages) if until is None else until
        if directory is not None and not directory.checkpoint.exists():
            save_checkpoint(self._checkpoint(), directory.checkpoint)  # a stop in the first stage can be resumed too
        self._on_progress = on_progress
        on_progress(self._progress())
        while self.done < end and not should_stop():
            started = time.perf_counter()
            self._do(self.stages[self.done])
            self.done += 1
            self._num_answered = 0
            self._seconds += time.perf_counter() - started
            if directory is not None:
                save_checkpoint(self._checkpoint(), directory.checkpoint)
            on_progress(self._progress())

    def count_answered(self, count: int) -> None:
        """So many more queries of the stage at hand are answered."""
        self._num_answered += count
        self._on_progress(self._progress())

    def restore(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint's state back."""
        for name, client in self._clients.items():
            prefix = f"model/{name}/"
            client.load_state_tensors(
                {key.removeprefix(prefix): t for key, t in checkpoint.tensors.items() if key.startswith(prefix)}
            )
        self._sums = {
            key.removeprefix("sums/"): tensor for key, tensor in checkpoint.tensors.items() if key.startswith("sums/")
        }
        self._rows = list(checkpoint.rows)
        self._seconds = checkpoint.counters["seconds"]
        self.done = checkpoint.next_round

    def result(self, directory: HeteroDirectory | None) -> HeteroResult:
        return HeteroResult(
            self.plan,
            self._dataset,
            tuple(self._outcome(name) for name in self._clients),
            guarantee_of(self.plan),
            self._seconds,
            self.done,
            len(self.stages),
            directory.path if directory is not None else None,
        )

    def _do(self, stage: Stage) -> None:
        client = self._clients[stage.client]
        match stage.kind:
            case "train":
                client.local_train()
                self._measure(client, 0, None)
            case "ask":
                names = answerers_of(self.plan, client.name, stage.iteration)
                self._offer(names)
                queries = client.make_queries(stage.iteration)
                self._sums[client.name] = self._answers.summed_logits(client.name, queries, names)
            case "retrain":
                # The model has not changed since it asked: these are the same queries.
                queries = client.make_queries(stage.iteration)
                num_answers = len(answerers_of(self.plan, client.name, stage.iteration))
                answered = AnsweredQueries(queries, self._sums.pop(client.name), num_answers)
                client.retrain(answered, stage.iteration)
                self._offered.discard(client.name)
                self._measure(client, stage.iteration, len(queries))

    def _offer(self, names: Sequence[str]) -> None:
        """Whoever answers for the first time since it (re)trained offers its network."""
        for name in names:
            if name not in self._offered:
                self._clients[name].offer_to(self._answers)
                self._offered.add(name)

    def _measure(self, client: HeteroClient, iteration: int, num_queries: int | None) -> None:
        accuracy = client.evaluate(self._test)["test_accuracy"]
        self._rows.append({"client": client.name, "iteration": iteration, "accuracy": accuracy, "queries": num_queries})

    def _outcome(self, name: str) -> ClientOutcome:
        own = [row for row in self._rows if row["client"] == name]
        asked = [row["queries"] for row in own if row["queries"] is not None]
        return ClientOutcome(
            name,
            self.plan.clients.label(name),
            self._clients[name].num_samples,
            tuple(row["accuracy"] for row in own),
            asked[-1] if asked else None,
        )

    def _progress(self) -> HeteroProgress:
        work = [stage.work for stage in self.stages]
        stage = self.stages[self.done] if self.done < len(self.stages) else None
        within = min(1.0, self._num_answered / self.plan.queries.number) * stage.work if stage is not None else 0.0
        return HeteroProgress((sum(work[: self.done]) + within) / sum(work), self.done, len(self.stages), stage)

    def _checkpoint(self) -> Checkpoint:
        tensors = {
            f"model/{name}/{key}": tensor
            for name, client in self._clients.items()
            for key, tensor in client.state_tensors().items()
        }
        tensors.update({f"sums/{name}": tensor for name, tensor in self._sums.items()})
        return Checkpoint(self.plan.digest(), self.done, tensors, self._rows, {"seconds": self._seconds})


def stages_of(plan: HeteroPlan, num_samples: Mapping[str, int]) -> list[Stage]:
    """All stages of a run, in order."""
    training, retraining = plan.training, plan.retraining
    stages = [Stage("train", name, 0, training.epochs * count) for name, count in num_samples.items()]
    for iteration in range(1, plan.iterations + 1):
        for name in num_samples:
            answers = plan.queries.number * plan.num_answerers
            stages.append(Stage("ask", name, iteration, _WORK_OF_AN_ANSWER[plan.answers] * answers))
        for name, count in num_samples.items():
            passes = retraining.epochs * (count + plan.queries.number)
            most = passes if retraining.max_steps is None else retraining.max_steps * retraining.batch_size
            stages.append(Stage("retrain", name, iteration, min(passes, most)))
    return stages


def _trained_alone(plan: HeteroPlan, path: Path) -> Checkpoint:
    directory, other = HeteroDirectory.open(path)
    if other.training_digest() != plan.training_digest():
        raise CheckpointError(
            f"{path} trained other models than this plan would.",
            remedy="Use the same data, clients, training and seed.",
        )
    checkpoint = load_checkpoint(directory.checkpoint)
    if checkpoint.next_round != plan.clients.number:
        raise CheckpointError(
            f"{path} is not a run that stopped after local training.", remedy="Make it with `training_only`."
        )
    return checkpoint
