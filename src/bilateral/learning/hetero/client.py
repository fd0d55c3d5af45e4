"""One client of a heterogeneous federation: its data and its model stay with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.data import Split
from bilateral.errors import CheckpointError, DataError, ModelError, ProtocolError
from bilateral.learning.evaluation import evaluate
from bilateral.learning.hetero.answers import Answers, soft_labels
from bilateral.learning.hetero.fitting import (
    SoftSamples,
    fit,
    in_fast_format,
    local_course,
    logits_and_features,
    predict,
    retraining_course,
)
from bilateral.learning.hetero.pools import build_pool
from bilateral.learning.hetero.scaling import answering_copy
from bilateral.learning.hetero.selection import select
from bilateral.learning.hetero.settings import HeteroSettings
from bilateral.randomness import Randomness


@dataclass(frozen=True, eq=False)
class AnsweredQueries:
    """Queries with the sum of what `num_answers` others said to each."""

    queries: Tensor
    summed_logits: Tensor
    num_answers: int


class HeteroClient:
    """Trains, asks, answers and retrains.

    Formal guarantees (each has a test of this name):
    - every stage depends on the client's data, its model, its randomness and the stage's number only, so stages of
      different clients may run in any order and in processes of their own;
    - with seeded randomness, `make_queries` gives the same queries again until the model changes.
    """

    def __init__(
        self,
        name: str,
        data: Split,
        model: nn.Module,
        num_classes: int,
        settings: HeteroSettings,
        randomness: Randomness,
    ) -> None:
        if len(data) < 2:
            raise DataError(f"{name} has {len(data)} samples; expected at least 2.", remedy="Use fewer clients.")
        if data.targets.is_floating_point():
            raise DataError("Expected class labels, got a regression set.", remedy="Queries teach classification only.")
        self.name = name
        self.model = in_fast_format(model)
        self._data = data
        self._num_classes = num_classes
        self._settings = settings
        self._randomness = randomness
        self._check_outputs()

    @property
    def num_samples(self) -> int:
        return len(self._data)

    def local_train(self) -> None:
        """Stage 1: train on the own data alone."""
        fit(self.model, self._own(1.0), local_course(self._settings.training), self._generator("train", 0))

    def make_queries(self, iteration: int) -> Tensor:
        """Stage 2: the inputs to ask in this iteration."""
        chosen = self._settings.queries
        generator = self._generator("queries", iteration)
        plenty = 1 if chosen.selection == "random" else chosen.pool_factor
        pool = build_pool(chosen.pool, self._data.inputs, chosen.number * plenty, generator, chosen.mixup_weight)
        if chosen.selection == "random":  # the pool is already a random one of the right size
            return pool
        logits, features = logits_and_features(self.model, pool)
        _, known = logits_and_features(self.model, self._data.inputs)
        picked = select(
            chosen.selection,
            chosen.number,
            logits=logits,
            features=features,
            known_features=known,
            generator=generator,
        )
        return pool[picked]

    def answering_model(self) -> nn.Module:
        """A frozen copy of the network, normalised as the settings say, that answers others."""
        return answering_copy(self.model, self._settings.queries.normalisation, self._data.inputs)

    def offer_to(self, answers: Answers) -> None:
        """Stage 3, for others: let `answers`, and nobody else, have the network that answers."""
        answers.offer(self.name, self.answering_model(), self._data.inputs)

    def retrain(self, answered: AnsweredQueries, iteration: int) -> None:
        """Stage 4: learn from the own data and from the answers."""
        expected = (len(answered.queries), self._num_classes)
        if tuple(answered.summed_logits.shape) != expected or answered.num_answers < 1:
            raise ProtocolError(
                f"{self.name} expected answers of shape {list(expected)} from somebody, got "
                f"{list(answered.summed_logits.shape)} from {answered.num_answers}."
            )
        settings = self._settings.retraining
        labels = soft_labels(
            answered.summed_logits.float(),
            answered.num_answers,
            temperature=settings.temperature,
            are_probabilities=self._settings.queries.normalisation == "softmax",
        )
        asked = SoftSamples(answered.queries, labels, torch.ones(len(labels)))
        own = self._own(settings.private_weight)
        samples, course = own.and_then(asked) if settings.private_weight else asked, retraining_course(settings)
        if not settings.from_answers:
            samples, course = own, course.as_long_as(len(samples))
        fit(self.model, samples, course, self._generator("retrain", iteration))

    def evaluate(self, test: Split) -> dict[str, float]:
        """Metrics on a test split."""
        return evaluate(lambda inputs: predict(self.model, inputs), test, "ce")

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must keep."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            self.model.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise CheckpointError(
                f"The stored model of {self.name} is another one than the plan's: {error}.",
                remedy="Resume with the plan it was made with.",
            ) from error
        self.model.eval()

    def _own(self, weight: float) -> SoftSamples:
        """The private samples, their labels as probabilities."""
        labels = F.one_hot(self._data.targets, self._num_classes).float()
        return SoftSamples(self._data.inputs, labels, torch.full((len(labels),), weight))

    def _generator(self, stage: str, iteration: int) -> torch.Generator:
        return self._randomness.child(stage, iteration).torch_generator()

    def _check_outputs(self) -> None:
        outputs = tuple(predict(self.model, self._data.inputs[:2]).shape)
        if outputs != (2, self._num_classes):
            raise ModelError(
                f"{self.name}: expected a network with {self._num_classes} outputs, got outputs of shape "
                f"{list(outputs[1:])} a sample.",
                remedy="Give its last Linear layer one output a class.",
            )
