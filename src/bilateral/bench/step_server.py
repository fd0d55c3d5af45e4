"""Three processes that make training steps together: this one is the server; client and dealer are started here."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.bench.gate_clock import LINEAR, REST, GateClock
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
    Batch,
    BoxDelivery,
    DealOrder,
    DealtForStep,
    GateCosts,
    GateRequest,
    GradientRequest,
    GradientWords,
    MaskedWeights,
    StepMessage,
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
from bilateral.protocols.share.training.parties import FirstParty, encode_batch, seed_of_step
from bilateral.protocols.share.training.plain import plain_step
from bilateral.protocols.share.training.roles import First, FirstModel
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
    """Of what is dealt to the client: it passes through the server, and is counted on both ways."""
    peak_memory_bytes: Mapping[str, int]
    """Of every party's process, so far."""


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
        self._seeds: dict[int, bytes] = {}
        """With the dealer, of every step that was dealt and not made."""
        self._deliveries: dict[int, int] = {}
        """The tickets of boxes that are on their way to the client."""

    def give(self, work: StepWork) -> None:
        """All steps from now on are of this network, on this batch."""
        self._given = work
        for party in (CLIENT, DEALER):
            tell(self._switchboard, party, StepTask.of(work.terms), Heard)
        tell(self._switchboard, CLIENT, Batch(work.inputs, work.targets), Heard)

    def step(self) -> StepCost:
        """Dealing, preparing and the turns, one after the other."""
        self._begin()
        started = time.perf_counter()
        number = self._order()
        self._await_box(number)
        part = self._compute(number)
        return self._cost(time.perf_counter() - started, part)

    def steps_in_a_row(self, count: int) -> list[StepCost]:
        """So many steps, each while the dealer deals for the next.

        What the first needs is dealt before its clock starts; what a step after the last needs is dealt within.
        """
        number = self._order()
        self._await_box(number)
        found = []
        for _ in range(count):
            self._begin()
            started = time.perf_counter()
            following = self._order()
            part = self._compute(number)
            self._await_box(following)
            found.append(self._cost(time.perf_counter() - started, part))
            number = following
        self._seeds.clear()
        return found

    def _order(self) -> int:
        """A dealing begins; the number of its step."""
        self._num_steps += 1
        self._submit(DEALER, DealOrder(self._num_steps))
        return self._num_steps

    def _compute(self, number: int) -> Tensor:
        """The step of this number, whose box the client has; the server's part of the gradient."""
        work, with_dealer = self._work, self._seeds.pop(number)
        with_client = self._randomness.random_bytes(SEED_BYTES)
        self._enter(PREPARING)
        with self._clock.at(LINEAR):
            model = FirstModel.of(work.terms, work.layers, work.limits)
            masked = FirstParty(work.terms, model, with_dealer, with_client).masked_weights()
        self._reply(self._submit(CLIENT, MaskedWeights(number, with_client, masked)))
        self._enter(STEP)
        seeds = (seed_of_step(work.terms, seed) for seed in (with_dealer, with_client))
        role = First(work.terms, model, *seeds)
        self._clock.attach(role)
        speaker: Speaker[Tensor] = Speaker(self._clock.walk(REST, step(role, None, None)), CLIENT)
        told, is_first = speaker.take_told(), True
        while told or is_first or not speaker.is_done:
            reply = self._reply(self._submit(CLIENT, StepTurn(number, told)))
            assert isinstance(reply, StepTurn)
            speaker.hear(reply.parts, must_lead=False)
            told, is_first = speaker.take_told(), False
        return speaker.result

    def _enter(self, phase: str) -> None:
        self._transport.enter(phase)
        self._clock.phase = phase

    @property
    def _work(self) -> StepWork:
        if self._given is None:
            raise ProtocolError("The server was asked for a step before it had a network.")
        return self._given

    def _await_box(self, number: int) -> None:
        while number not in self._deliveries:
            self._take_reply()
        self._reply(self._deliveries.pop(number))

    def _reply(self, ticket: int) -> Message:
        while ticket not in self._replies:
            self._take_reply()
        return self._replies.pop(ticket)

    def _take_reply(self) -> None:
        """A box that comes from the dealer is passed on at once."""
        ticket, reply = self._transport.next_reply()
        if isinstance(reply, DealtForStep):
            self._seeds[reply.number], self._box_bytes = reply.seed, len(reply.box)
            self._deliveries[reply.number] = self._submit(CLIENT, BoxDelivery(reply.number, reply.box))
        else:
            self._replies[ticket] = reply

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
    with started(_MODULE, MAY_SAY, threads) as switchboard:
        yield StepServer(switchboard, threads)
