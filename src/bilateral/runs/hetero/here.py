"""The clients of a heterogeneous run, all in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from bilateral.learning.hetero.answers import Answers
from bilateral.runs.hetero.parties import answerers_of
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.record import HeteroRecord
from bilateral.runs.hetero.secure_answers import SecureAnswers
from bilateral.runs.hetero.staged_client import Measure, StagedClient
from bilateral.runs.hetero.state import ClientState
from bilateral.runs.hetero.steps import waits_for_retraining

MakeAnswers = Callable[[Callable[[int], None], int], Answers]
"""How the clients are asked, given what to call when so many more queries are answered, and a number for the masks that
is another in every process that goes on with a run: no mask is used for two queries."""


class ClientsHere:
    """A member is touched only by its own methods, and `Answers` alone sees queries and answering models."""

    at_once = False

    def __init__(self, plan: HeteroPlan, members: Mapping[str, StagedClient], make_answers: MakeAnswers) -> None:
        self._plan, self._members = plan, members
        self._make_answers = make_answers
        self._answers: Answers | None = None
        self._offered: set[str] = set()
        self._num_queries = 1
        self._on_answered: Callable[[float], None] = lambda _: None

    def enrol(self, record: HeteroRecord) -> None: ...

    def agree(self, record: HeteroRecord) -> None:
        self._answers = self._make_answers(self._count_answered, record.stages_done if record.term > 0 else 0)

    def train(self, names: Sequence[str]) -> Iterator[tuple[str, Measure]]:
        for name in names:
            yield name, self._members[name].train()

    def get_ready(self, iteration: int, waiting: Sequence[str]) -> None: ...

    def ask(self, name: str, iteration: int, following: Sequence[str], on_answered: Callable[[float], None]) -> None:
        """Whoever answers for the first time since it (re)trained offers its network. One thing at a time: nobody deals
        for those who follow."""
        del following
        assert self._answers is not None
        member, answerers = self._members[name], answerers_of(self._plan, name, iteration)
        for answerer in answerers:
            if answerer not in self._offered:
                self._members[answerer].client.offer_to(self._answers)
                self._offered.add(answerer)
        queries = member.make_queries(iteration)
        self._num_queries, self._on_answered = len(queries), on_answered
        member.keep_sums(iteration, self._answers.summed_logits(name, queries, answerers))

    def retrain(self, names: Sequence[str], iteration: int) -> Iterator[tuple[str, Measure]]:
        for name in names:
            measure = self._members[name].retrain(iteration)
            self._offered.discard(name)
            yield name, measure

    def bytes_sent(self) -> int:
        return self._answers.traffic.total_bytes() if isinstance(self._answers, SecureAnswers) else 0

    def state_tensors(self) -> dict[str, Tensor]:
        tensors = {
            f"model/{name}/{key}": tensor
            for name, member in self._members.items()
            for key, tensor in member.client.state_tensors().items()
        }
        sums = {f"sums/{name}": member.state.sums for name, member in self._members.items()}
        return tensors | {key: tensor for key, tensor in sums.items() if tensor is not None}

    def load_state(self, record: HeteroRecord, tensors: Mapping[str, Tensor]) -> None:
        for name, member in self._members.items():
            site, prefix = record.sites[name], f"model/{name}/"
            model = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
            sums = tensors.get(f"sums/{name}")
            if (sums is not None) != waits_for_retraining(site.stage):
                raise ValueError(f"{name} has sums that no stage left, or none")
            member.load(ClientState(site.stage, model, sums, tuple(site.accuracies), tuple(site.num_queries)))

    def close(self) -> None: ...

    def _count_answered(self, count: int) -> None:
        self._on_answered(count / self._num_queries)
