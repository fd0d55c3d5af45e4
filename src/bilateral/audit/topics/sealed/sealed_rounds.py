"""Sealed rounds in one of two worlds each: two models that the server may train, two batches that a client may have.

Models are the server's to choose, batches are swapped between two clients (`swapped_rounds`), so that sums say nothing.
Coins of both are tossed for every round by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import nn

from bilateral.audit.experiment import Context
from bilateral.audit.ledger import SEALED_LINE
from bilateral.audit.sealed_recording import SealedRecording
from bilateral.audit.sealed_views import SealedView, SeenStep, Worlds
from bilateral.audit.topics.sealed.sealed_adversaries import Adversary
from bilateral.audit.topics.swapped.swapped_rounds import Match, Table, play
from bilateral.data import Split
from bilateral.engine.setup import initial_model
from bilateral.protocols.share.training.parties import encode_batch
from bilateral.protocols.transport import SERVER
from bilateral.randomness import Randomness

LARGER: Final = 3.0
"""The second model's weights beside freshly drawn ones: worlds should be far apart."""


@dataclass(frozen=True, eq=False)
class SealedMatch:
    """A played run. `models`, `batches`: by round, which world the coin chose."""

    sealed: SealedRecording
    models: dict[int, int]
    batches: dict[int, int]
    worlds: Worlds
    suspect: str
    partner: str
    """Who has the other batch."""
    _views: dict[Adversary, SealedView] = field(default_factory=dict, repr=False)

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(self.batches)

    def truth(self, adversary: Adversary) -> dict[int, int]:
        """Of the rounds in which there is such an adversary. Who has the partner's batch would know the suspect's."""
        worlds = self.batches if adversary.of_batches else self.models
        return {index: world for index, world in worlds.items() if self._is_fair(adversary, index)}

    def _is_fair(self, adversary: Adversary, index: int) -> bool:
        dealers = self.sealed.dealers(index)
        parties = adversary.parties(dealers)
        if not parties or not adversary.of_batches or adversary.tests == SEALED_LINE:
            return bool(parties)
        is_pair = SERVER in parties and dealers[self.partner] in parties
        named = set(dealers.values()) == {dealers[self.suspect]}
        return self.partner not in parties and (named or not is_pair)

    def view(self, adversary: Adversary) -> SealedView:
        if adversary not in self._views:
            self._views[adversary] = self.sealed.view(adversary.name, adversary.parties)
        return self._views[adversary]

    def bare_view(self, adversary: Adversary) -> SealedView:
        """The positive control: the same adversary, told the suspect's words without masks."""
        seen_by = Adversary(
            adversary.name,
            adversary.tests,
            adversary.of_batches,
            lambda dealers: adversary.parties(dealers) | {SERVER if adversary.of_batches else self.suspect},
        )
        view = self.view(seen_by)
        return replace(view, steps=tuple(self._bare(one) if one.client == self.suspect else one for one in view.steps))

    def _bare(self, seen: SeenStep) -> SeenStep:
        batch = self.sealed.batch_of(self.suspect, seen.round_index)
        layers = self.sealed.layers_of(self.sealed.recording.server_round(seen.round_index).parameters)
        inputs, _ = encode_batch(seen.terms, batch.inputs, batch.targets)
        return replace(
            seen,
            weights=tuple(layer.weight for layer in layers),
            told_by_client=(inputs.reshape(seen.told_by_client[0].shape), *seen.told_by_client[1:]),
        )


def play_sealed(
    context: Context, table: Table, seed: int, num_trials: int, on_round: Callable[[int, int], None]
) -> SealedMatch:
    """A run with a seed, and so keys and coins, of its own; the models and the batches are those of the table."""
    draws = context.randomness("sealed worlds", seed)
    batches, models = (_coins(draws.child(what), num_trials) for what in ("batches", "models"))
    problem = table.federation.problem
    states = [initial_model(table.plan, problem, table.plan.seed + which).state_dict() for which in (0, 1)]
    states[1] = {name: value * LARGER if value.is_floating_point() else value for name, value in states[1].items()}

    def choose(index: int, model: nn.Module) -> None:
        model.load_state_dict(states[models[index] if index < num_trials else 0])

    plan = table.plan.with_settings({"seed": (table.plan.seed + 1 + seed) % 2**63})
    match = play(plan, table, batches, on_round, swap=True, before_round=choose)
    sealed = SealedRecording(match.recording)
    return SealedMatch(
        sealed,
        {index: models[index] for index in match.worlds},
        dict(match.worlds),
        _worlds(sealed, match, states),
        table.names[0],
        table.names[1],
    )


def _worlds(sealed: SealedRecording, match: Match, states: Sequence[dict[str, torch.Tensor]]) -> Worlds:
    model = initial_model(match.recording.plan, match.recording.problem)
    layers = {}
    for which, state in enumerate(states):
        model.load_state_dict(state)
        layers[which] = sealed.network.trainable.encode(model)
    size = len(match.recording.batches[match.table.names[0], next(iter(match.worlds))])
    batches = {which: _first(sealed, one, size) for which, one in enumerate((match.table.x, match.table.y))}
    return Worlds(layers, batches)


def _first(sealed: SealedRecording, split: Split, size: int) -> Split:
    state = sealed.network.front_state(sealed.recording.initial)
    return Split(sealed.network.through_front(state, split.inputs[:size]), split.targets[:size])


def _coins(randomness: Randomness, count: int) -> list[int]:
    return [int(value) for value in randomness.uniform(count) < 0.5]
