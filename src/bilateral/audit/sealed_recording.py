"""Sealed runs, cut into what each party has of their steps (`sealed_views`). Attacks never get this far.

In a simulation all secrets follow from the plan's seed: a client's keys are made again, to open its boxes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from bilateral.audit.recording import Recording
from bilateral.audit.sealed_views import SealedView, SeenStep
from bilateral.audit.threat import facts_of
from bilateral.audit.views import AdversaryName
from bilateral.data import Split
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.protections.sealed.boxes import BoxContent, open_box
from bilateral.protections.sealed.messages import Dealt, SealedModel, SealedTurn, SealedTurnReply, SealedWeights
from bilateral.protections.sealed.network import SealedNetwork
from bilateral.protections.sealed.terms import SealedTerms
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.parties import from_words, seed_of_step
from bilateral.protocols.transport import SERVER

M = TypeVar("M")
Dealers = Mapping[str, str]
"""Of a round: client to dealer."""
Parties = Callable[[Dealers], frozenset[str]]
"""Who is the adversary in a round: it depends on who deals for whom."""


@dataclass(frozen=True, eq=False)
class SealedRecording:
    """A recorded run whose plan is sealed, with all steps of the rounds that were kept."""

    recording: Recording
    _rings: dict[str, KeyRing] = field(default_factory=dict, repr=False)

    @cached_property
    def network(self) -> SealedNetwork:
        own = self.recording
        return SealedNetwork.of(own.initial, own.graph, own.problem.input_shape)

    @cached_property
    def terms(self) -> SealedTerms:
        own, network = self.recording, self.network
        counts = {name: len(share) for name, share in own.shares.items()}
        size, loss = own.plan.training.batch_size, own.problem.plain_loss
        return SealedTerms(network.circuit, loss, network.trains, size, counts)

    @cached_property
    def steps(self) -> tuple[SeenStep, ...]:
        """With everything in them: cut by `view`."""
        found = []
        for kept in self.recording.server_rounds:
            layers = self.layers_of(kept.parameters)
            found += [self._step(kept.round_index, name, layers) for name in self.dealers(kept.round_index)]
        return tuple(found)

    def dealers(self, round_index: int) -> Dealers:
        """Of those who were sent weights in a round."""
        sent = self._messages(SealedWeights, round_index)
        return {receiver: message.dealer for _, receiver, message in sent}

    def view(self, adversary: AdversaryName, parties: Parties) -> SealedView:
        """What these parties have, together."""
        found = []
        for one in self.steps:
            seen = _cut(one, parties(self.dealers(one.round_index)))
            if seen is not None:
                found.append(seen)
        return SealedView(adversary, facts_of(self.recording), tuple(found))

    def layers_of(self, parameters: Tensor) -> tuple[PrivateLayer, ...]:
        """A model as the server has it in a round."""
        return self.network.trainable.encode(self._model(parameters))

    def batch_of(self, client: str, round_index: int) -> Split:
        """As it enters the circuit."""
        batch = self.recording.batches[client, round_index]
        front = next((message.front for _, _, message in self._messages(SealedModel, round_index)), ())
        return Split(self.network.through_front(front, batch.inputs), batch.targets)

    def _model(self, parameters: Tensor) -> nn.Module:
        model = copy.deepcopy(self.recording.initial)
        values = self.recording.graph.unflatten(parameters)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(values[name])
        return model

    def _step(self, index: int, name: str, layers: tuple[PrivateLayer, ...]) -> SeenStep:
        ((_, _, weights),) = self._messages(SealedWeights, index, receiver=name)
        dealt = next(m for _, _, m in self._messages(Dealt, index, sender=weights.dealer) if name in m.clients)
        terms = self.terms.step(name, index)
        content = self._opened(name, weights, terms.digest)
        replies = [message.parts for _, _, message in self._messages(SealedTurnReply, index, receiver=name)]
        turns = [message.parts for _, _, message in self._messages(SealedTurn, index, sender=name)]
        return SeenStep(
            index,
            name,
            weights.dealer,
            terms,
            # As the parties use them: bound to the terms of the step.
            seed_of_step(terms, dealt.seeds[dealt.clients.index(name)]),
            seed_of_step(terms, content.seed),
            seed_of_step(terms, weights.seed),
            weights.weights,
            tuple(part for parts in (weights.parts, *replies) for part in parts),
            tuple(part for parts in turns for part in parts),
            self._dealt_for(name, index, dealt),
            self.batch_of(name, index),
            layers,
        )

    def _dealt_for(self, name: str, index: int, dealt: Dealt) -> tuple[Tensor, ...]:
        return from_words(self.terms.step(name, index), dealt.words[dealt.clients.index(name)], "the dealer")

    def _opened(self, name: str, weights: SealedWeights, digest: bytes) -> BoxContent:
        return open_box(self._ring(name), weights.dealer, weights.round_index, digest, weights.box)

    def _ring(self, name: str) -> KeyRing:
        if name not in self._rings:
            plan = self.recording.plan
            secrets = SimulatedSecrets(plan.seed, plan.parties(tuple(self.recording.shares)))
            ring = self._rings[name] = secrets.key_ring(name)
            entries = self.recording.transcript.entries
            ring.accept(next(entry.message for entry in entries if isinstance(entry.message, Roster)))
        return self._rings[name]

    def _messages(
        self, kind: type[M], round_index: int, *, sender: str | None = None, receiver: str | None = None
    ) -> list[tuple[str, str, M]]:
        return [
            (entry.sender, entry.receiver, entry.message)
            for entry in self.recording.transcript.entries
            if isinstance(entry.message, kind)
            and entry.round_index == round_index
            and sender in (None, entry.sender)
            and receiver in (None, entry.receiver)
        ]


def _cut(one: SeenStep, parties: frozenset[str]) -> SeenStep | None:
    """The table of `sealed_views`."""
    client, server, dealer = one.client in parties, SERVER in parties, one.dealer in parties
    if not (client or server or dealer):
        return None
    computes = client or server
    return SeenStep(
        one.round_index,
        one.client,
        one.dealer,
        one.terms,
        one.dealer_and_server if server or dealer else None,
        one.dealer_and_client if client or dealer else None,
        one.server_and_client if computes else None,
        one.weights if computes else (),
        one.told_by_server if computes else (),
        one.told_by_client if computes else (),
        one.dealt if server or dealer else (),
        one.batch if client else None,
        one.layers if server else (),
    )
