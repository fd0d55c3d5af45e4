"""Three processes that make training steps together: this one is the server; client and dealer are started here."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.bench.gate_clock import DEALT, LINEAR, GateClock
from bilateral.bench.metering import MeteredTransport, PhaseCost, add_books
from bilateral.bench.party import Heard, peak_memory_bytes
from bilateral.bench.processes import agree_on_keys, ask_costs, started, tell
from bilateral.bench.step_networks import StepNetwork, make_batch
from bilateral.bench.step_party import (
    CLIENT,
    DEALER,
    MAY_SAY,
    PHASES,
    PREPARING,
    STEP,
    UNASKED,
    Batch,
    DealOrder,
    DealtForStep,
    DealtParts,
    GateCosts,
    GateRequest,
    GradientRequest,
    GradientWords,
    MaskedWeights,
    StepBegin,
    StepMessage,
    StepNotice,
    StepTask,
    StepTurn,
    phase_of,
)
from bilateral.engine.remote.loopback import Switchboard
from bilateral.errors import ProtocolError
from bilateral.protections.sealed.boxes import SEED_BYTES
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.circuit.trainable import TrainableModel, compile_trainable
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.training.parties import encode_batch, seed_of_step
from bilateral.protocols.share.training.plain import plain_step
from bilateral.protocols.share.training.roles import First, FirstModel, weight_masks
from bilateral.protocols.share.training.script import step
from bilateral.protocols.share.training.sizing import sized
from bilateral.protocols.share.training.terms import Loss, StepTerms
from bilateral.protocols.transport import SERVER
from bilateral.randomness import SecureRandomness

PARTIES: Final = (SERVER, CLIENT, DEALER)
NUM_CLIENTS: Final = 5
"""Whose sum has room: limits are set for it."""
NUM_EXAMPLES: Final = 8
_MODULE: Final = "bilateral.bench.step_party"


@dataclass(frozen=True, repr=False)
class StepWork:
    """A network and a batch: what a step computes, and what it must come near to."""

    model: nn.Module
    trainable: TrainableModel
    layers: tuple[PrivateLayer, ...]
    terms: StepTerms
    limits: dict[str, int]
    inputs: Tensor
    targets: Tensor
    """Classes for cross entropy, numbers for MSE."""

    @classmethod
    def of(cls, network: StepNetwork, loss: Loss, batch_size: int) -> StepWork:
        model = network.build()
        trainable = compile_trainable(model, network.input_shape)
        layers = trainable.encode(model)
        terms = StepTerms(trainable.circuit, loss, batch_size, trainable.trains)
        inputs, targets = make_batch(network, batch_size)
        first = FirstModel.of(terms, layers, {})
        limits = sized(terms, first, layers, inputs[:NUM_EXAMPLES], NUM_CLIENTS).limits
        return cls(model, trainable, layers, terms, limits, inputs, targets.argmax(1) if loss == "ce" else targets)

    def plain_step(self) -> None:
        """What torch needs for the same, in float32."""
        torch.autograd.grad(self._loss(self.model(self.inputs), "mean"), list(self.model.parameters()))

    def relative_error(self, words: Tensor) -> float:
        """Against autograd in float64, of the worst tensor: the largest difference over the largest gradient."""
        return _worst(self._gradients(words), self._exact)

    def relative_error_in_fixed_point(self, words: Tensor) -> float:
        """The same, against the step in fixed point in the clear, which rounds numbers before it decides on them."""
        return _worst(self._gradients(words), self._in_fixed_point)

    def _gradients(self, words: Tensor) -> dict[str, Tensor]:
        return self.trainable.gradients(self.model, self.terms.decode(words))

    @cached_property
    def _exact(self) -> dict[str, Tensor]:
        exact = copy.deepcopy(self.model).double()
        named = dict(exact.named_parameters())
        gradients = torch.autograd.grad(self._loss(exact(self.inputs.double()), "sum"), list(named.values()))
        return dict(zip(named, gradients, strict=True))

    @cached_property
    def _in_fixed_point(self) -> dict[str, Tensor]:
        model = FirstModel.of(self.terms, self.layers, {})
        return self._gradients(plain_step(self.terms, model, *encode_batch(self.terms, self.inputs, self.targets))[0])

    def _loss(self, outputs: Tensor, over_batch: str) -> Tensor:
        if self.terms.loss == "ce":
            return F.cross_entropy(outputs, self.targets, reduction=over_batch)
        each = (outputs - self.targets.to(outputs.dtype)).square().mean(dim=1)
        return each.mean() if over_batch == "mean" else each.sum()


def _worst(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    return max(float((found[name] - one).abs().max() / one.abs().max()) for name, one in expected.items())


@dataclass(frozen=True)
class StepCost:
    """One step. `seconds`: by the clock, of all phases; `words`: both parties' parts of the gradient together."""

    seconds: float
    phases: Mapping[str, PhaseCost]
    gates: Mapping[str, GateCosts]
    words: Tensor
    box_bytes: int
    """Of the client's seed: it passes through the server, and is counted on both ways."""
    peak_memory_bytes: Mapping[str, int]
    """Of every party's process, so far."""


@dataclass(repr=False)
class _Dealing:
    """What has come of a step's dealing. Secret."""

    seed: bytes | None = None
    box: bytes | None = None
    parts: deque[Tensor] = field(default_factory=deque)
    is_done: bool = False

    def take(self, parts: tuple[Tensor, ...]) -> None:
        self.parts.extend(parts)
        self.is_done = not parts


class StepServer:
    """The server with a client and a dealer, who have agreed on keys. Made by `step_server`."""

    def __init__(self, switchboard: Switchboard, threads: int) -> None:
        self._switchboard = switchboard
        self._transport = MeteredTransport(switchboard, PHASES, phase_of)
        agree_on_keys(switchboard, threads, lambda _, setup: setup)
        self._randomness = SecureRandomness()
        self._clock = GateClock(PHASES)
        self._given: StepWork | None = None
        self._num_steps = self._num_tickets = self._box_bytes = 0
        self._replies: dict[int, Message] = {}
        self._dealings: dict[int, _Dealing] = {}
        """Of every step that was ordered and not made."""
        self._heard: deque[tuple[Tensor, ...]] = deque()
        """Turns of the client that the server has not come to."""

    def give(self, work: StepWork) -> None:
        """All steps from now on are of this network, on this batch."""
        self._given = work
        for party in (CLIENT, DEALER):
            tell(self._switchboard, party, StepTask.of(work.terms), Heard)
        tell(self._switchboard, CLIENT, Batch(work.inputs, work.targets), Heard)

    def step(self, *, at_once: bool = False) -> StepCost:
        """Dealing, preparing and the turns: one after the other with every gate timed, or `at_once`, each as soon as it
        can begin."""
        self._begin()
        started = time.perf_counter()
        number = self._order(is_timed=not at_once)
        if not at_once:
            self._await_dealing(number)
        part = self._compute(number, is_timed=not at_once)
        return self._cost(time.perf_counter() - started, part)

    def steps_in_a_row(self, count: int) -> list[StepCost]:
        """So many steps, each while the dealer deals for the next.

        What the first needs is dealt before its clock starts; what a step after the last needs is dealt within.
        """
        number = self._order(is_timed=False)
        self._await_dealing(number)
        found = []
        for _ in range(count):
            self._begin()
            started = time.perf_counter()
            following = self._order(is_timed=False)
            part = self._compute(number, is_timed=False)
            self._await_dealing(following)
            found.append(self._cost(time.perf_counter() - started, part))
            number = following
        self._dealings.clear()
        return found

    def _order(self, *, is_timed: bool) -> int:
        """A dealing begins; the number of its step."""
        self._num_steps += 1
        self._dealings[self._num_steps] = _Dealing()
        self._submit(DEALER, DealOrder(self._num_steps, int(is_timed)))
        return self._num_steps

    def _compute(self, number: int, *, is_timed: bool) -> Tensor:
        """The step of this number; the server's part of the gradient."""
        work, dealing = self._work, self._dealings[number]
        with_client = self._randomness.random_bytes(SEED_BYTES)
        self._enter(PREPARING)
        if not is_timed:
            self._transport.say(CLIENT, StepNotice(number))
        with self._clock.at(LINEAR):
            model = FirstModel.of(work.terms, work.layers, work.limits)
        while dealing.seed is None or dealing.box is None:
            self._take_message()
        with_dealer = seed_of_step(work.terms, dealing.seed)
        with self._clock.at(LINEAR):
            masked = tuple(
                layer.weight + weight_masks(work.terms, with_dealer, place) for place, layer in enumerate(work.layers)
            )
        prepared = self._submit(CLIENT, MaskedWeights(number, dealing.box, with_client, masked))
        if is_timed:  # phase after phase
            self._reply(prepared)
        self._enter(STEP)
        taken = self._submit(CLIENT, StepBegin(number, int(is_timed)))
        dealt = self._dealt(dealing)
        role = First(work.terms, model, dealt, with_dealer, seed_of_step(work.terms, with_client), DEALER)
        if not is_timed:
            role.plan(work.terms.shape_of_step.orders)
        walk = step(role, None, None)

        def say(parts: tuple[Tensor, ...]) -> None:
            self._transport.say(CLIENT, StepTurn(number, parts))

        speaker: Speaker[Tensor] = Speaker(self._clock.timed(role, walk) if is_timed else walk, CLIENT, early=say)
        while True:
            if told := speaker.take_told():
                say(told)
            if speaker.is_done:
                break
            while not self._heard:
                if self._switchboard.has_something or not role.work_ahead():
                    self._take_message()
            speaker.hear(self._heard.popleft(), must_lead=False)
        for ticket in (taken,) if is_timed else (prepared, taken):
            self._reply(ticket)
        role.expect_all_used()
        del self._dealings[number]
        return speaker.result

    def _dealt(self, dealing: _Dealing) -> Iterator[Tensor]:
        """As it comes; waits for it."""
        while True:
            while not dealing.parts and not dealing.is_done:
                with self._clock.at(DEALT):
                    self._take_message()
            if not dealing.parts:
                return
            yield dealing.parts.popleft()

    def _enter(self, phase: str) -> None:
        self._transport.enter(phase)
        self._clock.phase = phase

    @property
    def _work(self) -> StepWork:
        if self._given is None:
            raise ProtocolError("The server was asked for a step before it had a network.")
        return self._given

    def _await_dealing(self, number: int) -> None:
        while not self._dealings[number].is_done:
            self._take_message()

    def _reply(self, ticket: int) -> Message:
        while ticket not in self._replies:
            self._take_message()
        return self._replies.pop(ticket)

    def _take_message(self) -> None:
        """The next of anybody, put where it belongs."""
        ticket, message = self._transport.next_reply()
        match message:
            case DealtForStep():
                dealing = self._dealings[message.number]
                dealing.seed, dealing.box, self._box_bytes = message.seed, message.box, len(message.box)
            case DealtParts():
                self._dealings[message.number].take(message.parts)
            case StepTurn():
                self._heard.append(message.parts)
            case _:
                self._replies[ticket] = message

    def _submit(self, party: str, message: StepMessage) -> int:
        self._num_tickets += 1
        self._transport.submit(self._num_tickets, party, message)
        return self._num_tickets

    def _begin(self) -> None:
        """What was before is not counted."""
        ask_costs(self._switchboard)
        self._gates()
        self._transport.begin()

    def _cost(self, seconds: float, part: Tensor) -> StepCost:
        phases = self._transport.end()
        costs = ask_costs(self._switchboard)
        add_books(phases, costs)
        words = part + tell(self._switchboard, CLIENT, GradientRequest(), GradientWords).words
        peaks = {**{party: found.peak_memory_bytes for party, found in costs.items()}, SERVER: peak_memory_bytes()}
        return StepCost(seconds, phases, self._gates(), words, self._box_bytes, peaks)

    def _gates(self) -> dict[str, GateCosts]:
        found = {party: tell(self._switchboard, party, GateRequest(), GateCosts) for party in (CLIENT, DEALER)}
        return {SERVER: GateCosts(*self._clock.take()), **found}


@contextmanager
def step_server(threads: int) -> Iterator[StepServer]:
    """Start client and dealer, and end them whatever happens."""
    with started(_MODULE, MAY_SAY, threads, UNASKED) as switchboard:
        yield StepServer(switchboard, threads)
