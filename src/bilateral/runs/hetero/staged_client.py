"""One client of a heterogeneous run and how far it is: the same in one process and at a site of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bilateral.data import Split
from bilateral.errors import ProtocolError
from bilateral.learning.hetero.client import AnsweredQueries, HeteroClient
from bilateral.runs.hetero.parties import answerers_of
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.state import ClientState
from bilateral.runs.hetero.steps import asking_stage, num_stages


@dataclass(frozen=True)
class Measure:
    """How good a client's network is after a stage, and how many queries it learned from there."""

    accuracy: float
    num_queries: int


class StagedClient:
    """A client that takes its stages in order, and no other.

    `keep` is called with the state after every stage, before anybody hears that it is done.
    """

    def __init__(
        self, plan: HeteroPlan, client: HeteroClient, test: Split, keep: Callable[[ClientState], None] = lambda _: None
    ) -> None:
        self.client = client
        self.state = ClientState()
        self._plan, self._test, self._keep = plan, test, keep

    def load(self, state: ClientState) -> None:
        """Go on from what was kept."""
        self.client.load_state_tensors(state.model)
        self.state = state

    def train(self) -> Measure:
        """Stage 1, alone."""
        self._expect_stage(0, "train alone")
        self.client.local_train()
        return self._measure(0)

    def has_asked(self, iteration: int) -> bool:
        """Has it in this iteration, or is it about to? Anything else is refused."""
        asked = self.state.stage == self._asking(iteration) + 1
        self._expect_stage(self._asking(iteration) + asked, f"get ready for iteration {iteration}")
        return asked

    def make_queries(self, iteration: int) -> Tensor:
        """What it asks in this iteration."""
        return self.client.make_queries(iteration)

    def check_asks(self, iteration: int) -> None:
        """Refuse answers that it does not wait for."""
        self._expect_stage(self._asking(iteration), f"keep the answers of iteration {iteration}")

    def keep_sums(self, iteration: int, sums: Tensor) -> None:
        """Its queries are answered."""
        self.check_asks(iteration)
        self._advance(sums=sums)

    def retrain(self, iteration: int) -> Measure:
        """Learn from the sums of the iteration."""
        self._expect_stage(self._asking(iteration) + 1, f"retrain in iteration {iteration}")
        assert self.state.sums is not None
        queries = self.make_queries(iteration)  # the network is the one that asked, so these are the same
        num_answers = len(answerers_of(self._plan, self.client.name, iteration))
        self.client.retrain(AnsweredQueries(queries, self.state.sums, num_answers), iteration)
        return self._measure(len(queries))

    def _measure(self, num_queries: int) -> Measure:
        accuracy = self.client.evaluate(self._test)["test_accuracy"]
        state = self.state
        self._advance(accuracies=(*state.accuracies, accuracy), num_queries=(*state.num_queries, num_queries))
        return Measure(accuracy, num_queries)

    def _advance(self, **changed: Any) -> None:
        """One stage further; kept before anybody is told."""
        values = {"accuracies": self.state.accuracies, "num_queries": self.state.num_queries, **changed}
        self.state = ClientState(self.state.stage + 1, self.client.state_tensors(), **values)
        self._keep(self.state)

    def _asking(self, iteration: int) -> int:
        """`asking_stage`, if the plan has such an iteration."""
        if not 1 <= iteration <= self._plan.iterations:
            raise ProtocolError(f"{self.client.name} has iterations 1 to {self._plan.iterations}, not {iteration}.")
        return asking_stage(iteration)

    def _expect_stage(self, stage: int, what: str) -> None:
        if self.state.stage != stage or stage >= num_stages(self._plan):
            raise ProtocolError(
                f"{self.client.name} was asked to {what}, but has done {self.state.stage} of its stages.",
                remedy="Resume the run: the server then learns how far every site is.",
            )
