"""A run with everything that the audit needs of it: all messages, what the server held, and the truth to score against.

Attacks never get a `Recording`: `threat` cuts an adversary's view out of it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from bilateral.audit.audited_half import AuditedServer, audited
from bilateral.audit.views import ServerRound
from bilateral.data import Split
from bilateral.engine.federation import Federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import analyse, make_blueprint
from bilateral.engine.transcript import Transcript
from bilateral.errors import ModelError, NotAuditableError, ThresholdError
from bilateral.learning.client import TrainingClient, invited_clients
from bilateral.learning.exchange import Dropouts, Exchange
from bilateral.learning.halves import OpenedRound, Preparation, PreparingHalf, ServerHalf
from bilateral.learning.problem import Problem
from bilateral.learning.training import Training
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate
from bilateral.protocols.noise.privacy_report import PrivacyReport
from bilateral.protocols.site_reports import MetricsRequest
from bilateral.randomness import Randomness, SecureRandomness, SeededRandomness


@dataclass(frozen=True, repr=False)
class Recording:
    """A finished run, kept. `truth` of an attack on it: the batches, the shares, the parameters."""

    plan: RunPlan
    protection: str
    guarantee: Guarantee
    privacy: PrivacyReport | None
    problem: Problem
    graph: ScaleGraph
    transcript: Transcript
    server_rounds: tuple[ServerRound, ...]
    batches: Mapping[tuple[str, int], Split]
    """What each client trained on in each kept round."""
    shares: Mapping[str, Split]
    test: Split
    model: nn.Module
    """The true model after the last round."""
    initial: nn.Module
    """The architecture, with the initial weights of the plan's seed."""

    def server_round(self, round_index: int) -> ServerRound:
        return next(kept for kept in self.server_rounds if kept.round_index == round_index)


class _Observed:
    """The server's half of a protection, with a note of the sum that each round ends in."""

    def __init__(self, inner: AuditedServer) -> None:
        self._inner = inner
        self.total: Aggregate | None = None

    def start_round(self, round_index: int) -> Message:
        return self._inner.start_round(round_index)

    def answer(self, sender: str, message: Any) -> Message:
        return self._inner.answer(sender, message)

    def recover(self, total: Aggregate) -> RecoveredUpdate:
        self.total = total
        return self._inner.recover(total)

    def state_tensors(self) -> dict[str, Tensor]:
        return self._inner.state_tensors()

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._inner.load_state_tensors(tensors)

    def snapshot(self) -> AuditedServer:
        """The half as it is now, with its secrets; what it does later does not change it.

        Its streams are replaced: in a simulation they hold the seed, from which everybody's secrets follow.
        """
        streams = {id(stream): SecureRandomness() for stream in _streams_of(self._inner)}
        return copy.deepcopy(self._inner, dict(streams))


class _ObservedPreparing(_Observed):
    """One that prepares rounds."""

    def __init__(self, inner: AuditedServer, preparing: PreparingHalf) -> None:
        super().__init__(inner)
        self._preparing = preparing

    def prepare(self, opened: OpenedRound, names: tuple[str, ...], exchange: Exchange) -> Preparation:
        return self._preparing.prepare(opened, names, exchange)

    def expect_finished(self, sender: str) -> None:
        self._preparing.expect_finished(sender)


def _observed(half: AuditedServer) -> _Observed:
    return _ObservedPreparing(half, half) if isinstance(half, PreparingHalf) else _Observed(half)


def _streams_of(half: object) -> Iterator[Randomness]:
    """Every stream that can be reached from a half, whoever wrote it, however deep."""
    waiting, seen = [half], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Randomness):
            yield value
        else:
            waiting += _parts_of(value)


def _parts_of(value: object) -> Iterable[object]:
    """What `deepcopy` would copy along with it."""
    match value:
        case Tensor() | str() | bytes() | type() | ModuleType() | FunctionType():
            return ()
        case Mapping():
            return value.values()
        case list() | tuple() | set() | frozenset() | deque():
            return value
        case MethodType():
            return (value.__self__,)
        case partial():
            return (value.func, *value.args, *value.keywords.values())
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
    held = [getattr(value, name) for name in slots if name != "__dict__" and hasattr(value, name)]
    return (*held, *getattr(value, "__dict__", {}).values())


def _stays_at_the_site(name: str, row: dict[str, Any]) -> None:
    """What a site notes for itself of the models that it measures: no adversary's, and no truth that is scored."""


def _traced(training: Training, problem: Problem, model: nn.Module) -> ScaleGraph:
    """Attacks read a network by its scale graph, whether or not the plan's protection needs one."""
    if isinstance(training.layout, ScaleGraph):
        return training.layout
    if not all(p.requires_grad for p in model.parameters()):
        raise ModelError(
            "Frozen parameters do not travel under this protection, and no attack is written for that.",
            remedy="Audit the plan with all parameters trained.",
        )
    return analyse(model, problem)


def record(
    plan: RunPlan,
    federation: Federation,
    *,
    keep: Collection[int] | None = None,
    on_round: Callable[[int, int], None] | None = None,
    before_round: Callable[[int, nn.Module], None] = lambda _round_index, _model: None,
    played_by: Callable[[ServerHalf], ServerHalf] = lambda half: half,
) -> Recording:
    """Run the plan in this process, by the real parties, and keep all messages of the rounds in `keep` (all, if None).

    Messages of the set-up (round -1) are always kept. `on_round` is called with (rounds done, rounds in all).
    `before_round` may change the server's model: worlds that differ in it. `played_by` makes a dishonest server of the
    plan's.
    """
    if plan.training.takes_local_steps:
        raise NotAuditableError(
            "Attacks are written for gradients, and with local steps clients upload changes of the model.",
            remedy="Audit the plan without training.local_steps and training.local_epochs.",
        )
    blueprint = make_blueprint(plan, federation)
    training = blueprint.server()
    initial = copy.deepcopy(training.model)
    observed = _observed(audited(played_by(training.server)))
    training.server = observed
    transcript = Transcript(keep_messages=True)
    rate = plan.federation.dropout
    dropouts = Dropouts(rate, SeededRandomness(plan.seed, "dropouts"), plan.traits.replies_in_a_round) if rate else None
    measured = _stays_at_the_site if plan.evaluation.site_holdout else None
    exchange = blueprint.local_exchange(transcript.record, dropouts, note=measured)
    server_rounds: list[ServerRound] = []
    batches: dict[tuple[str, int], Split] = {}
    for round_index in range(plan.training.rounds):
        kept = keep is None or round_index in keep
        transcript.keep_messages = kept or round_index == 0  # the set-up happens inside the first round
        present = invited_clients(federation.names, plan.federation.participation, plan.seed, round_index)
        before_round(round_index, training.model)
        before = training.weights()
        try:
            counts = training.is_to_count
            contributors = training.advance(round_index, present, exchange)
            if plan.evaluation.shares_site_metrics and not (counts or round_index % plan.training.evaluate_every):
                exchange(round_index, dict.fromkeys(contributors, (MetricsRequest(round_index),)))
            happened = True
        except ThresholdError:  # too few survived; the model is as it was, and the run goes on
            happened = False
        if not kept:
            transcript.entries = [entry for entry in transcript.entries if entry.round_index != round_index]
        elif happened:
            assert observed.total is not None
            server_rounds.append(ServerRound(round_index, before, observed.snapshot(), observed.total))
            for name in present:
                client = exchange.clients[name]
                assert isinstance(client, TrainingClient)
                batches[name, round_index] = client.batch(round_index)
        if on_round is not None:
            on_round(round_index + 1, plan.training.rounds)
    return Recording(
        plan=plan,
        protection=blueprint.guarantee.protection,
        guarantee=training.guarantee,
        privacy=training.privacy,
        problem=federation.problem,
        graph=_traced(training, federation.problem, initial),
        transcript=transcript,
        server_rounds=tuple(server_rounds),
        batches=batches,
        shares=federation.shares,
        test=federation.test_data,
        model=training.model,
        initial=initial,
    )
