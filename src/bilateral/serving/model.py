"""A run's network, as it answers on shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from torch import Tensor

from bilateral.errors import NumericalRangeError, PlanError
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.circuit.served import compile_served
from bilateral.protocols.share.serving.parties import model_of, with_limits
from bilateral.protocols.share.serving.terms import QuestionTerms, Reveal
from bilateral.protocols.share.training.roles import FirstModel
from bilateral.runs.rounds.export import TrainedNetwork, trained_network

NUM_EXAMPLES: Final = 64
"""Of the server's own test data: limits of what is watched are sized by them."""
MOST_TOGETHER: Final = 64
"""Questions. More would save rounds, and few of them."""


@dataclass(repr=False)
class ServedModel:
    """`examples`: the server's own; nothing of them leaves it."""

    circuit: Circuit
    first: FirstModel
    examples: Tensor
    batch_size: int
    protection: str
    model: str
    dataset: str
    task: str
    class_names: tuple[str, ...]
    _known: dict[bytes, FirstModel] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of_run(
        cls,
        run: Path,
        command: tuple[str, ...],
        *,
        data_dir: Path | None = None,
        data_settings: Mapping[str, Any] | None = None,
        model: str | None = None,
        data: str | None = None,
        loss: str | None = None,
        reveal: Reveal = "logits",
    ) -> ServedModel:
        """The model of a run directory, of whatever protection. Refuses by name what does not go on shares."""
        trained = trained_network(
            run, command, data_dir=data_dir, data_settings=data_settings, model=model, data=data, loss=loss
        )
        return cls.of(trained, reveal)

    @classmethod
    def of(cls, trained: TrainedNetwork, reveal: Reveal = "logits") -> ServedModel:
        """`reveal`: the most that will be."""
        problem, plan = trained.view.problem, trained.plan
        if problem.form is not None:
            raise PlanError(
                f"A model of several inputs, {problem.form}, is not served on shares.",
                remedy="Export it (`bilateral export`), or train a model of one input.",
            )
        examples = trained.view.test_data.inputs[:NUM_EXAMPLES]
        served = compile_served(trained.network.eval(), examples)
        terms = QuestionTerms(served.circuit, 1, reveal=reveal)
        found = cls(
            served.circuit,
            model_of(terms, served.layers),
            examples,
            min(MOST_TOGETHER, served.circuit.largest_batch),
            trained.protection,
            plan.model.name,
            problem.dataset,
            problem.task,
            problem.class_names,
        )
        found._find_batch_size(reveal)
        return found

    def model_for(self, terms: QuestionTerms) -> FirstModel:
        """With limits for these terms; found once."""
        with self._lock:
            if terms.digest not in self._known:
                self._known[terms.digest] = with_limits(terms, self.first, self.examples)
            return self._known[terms.digest]

    def _find_batch_size(self, reveal: Reveal) -> None:
        """The largest for which numbers have room: in small batches, fewer of them are watched together."""
        while True:
            try:
                self.model_for(QuestionTerms(self.circuit, self.batch_size, reveal=reveal))
            except NumericalRangeError as error:
                if self.batch_size == 1:
                    raise NumericalRangeError(f"This model cannot answer on shares. {error}") from error
                self.batch_size //= 2
            else:
                return
