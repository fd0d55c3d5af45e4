"""Adversaries, and what each of them has: its slice of a run's transcript, and what it knows by itself.

| adversary         | messages                           | knows besides                                     |
|-------------------|------------------------------------|---------------------------------------------------|
| curious client    | what it sent and received          | its own data and batches                          |
| colluding clients | what any of them sent and received | their data and batches                            |
| curious server    | all that passes it: everything     | its model, its secrets, the sums that it unmasked |
| server + clients  | everything                         | both of the above                                 |
| dishonest server  | everything, and what it provokes   | the same as the curious server                    |
| eavesdropper      | everything, where there is no TLS  | nothing                                           |

The querying and the answering party of secret-shared prediction are in `shared_views`.

All adversaries know what is public: the plan without its seed, the architecture, who takes part. Everything in a
simulation follows from the seed, so no view has it (test_no_view_has_the_seed_or_anothers_data).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from bilateral.audit.recording import Recording, ServerRound
from bilateral.data import Split
from bilateral.engine.plan import RunPlan
from bilateral.engine.transcript import Entry
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import Message
from bilateral.protocols.perturb.settings import Loss, PerturbationSettings
from bilateral.protocols.transport import SERVER

AdversaryName = Literal[
    "curious client",
    "colluding clients",
    "curious server",
    "server with colluding clients",
    "dishonest server",
    "eavesdropper",
    "querying party",
    "answering party",
]
M = TypeVar("M", bound=Message)
HIDDEN_SEED = 0


@dataclass(frozen=True)
class Facts:
    """What everybody knows of a run."""

    plan: RunPlan
    """Without its seed: `HIDDEN_SEED` stands in its place."""
    loss: Loss
    input_shape: tuple[int, ...]
    num_outputs: int
    clients: tuple[str, ...]
    graph: ScaleGraph
    _architecture: nn.Module = field(repr=False)

    @property
    def perturbation(self) -> PerturbationSettings:
        return self.plan.perturbation.settings(self.loss)

    def network(self, parameters: Tensor) -> nn.Module:
        """The architecture with these parameters (flat, in the graph's order), in their precision."""
        network = copy.deepcopy(self._architecture).to(parameters.dtype)
        values = self.graph.unflatten(parameters)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(values[name])
        return network


@dataclass(frozen=True)
class View:
    """All that one adversary has."""

    adversary: AdversaryName
    parties: tuple[str, ...]
    facts: Facts
    entries: tuple[Entry, ...] = field(repr=False)
    data: Mapping[str, Split] = field(default_factory=dict, repr=False)
    """The samples of the clients that it is."""
    batches: Mapping[tuple[str, int], Split] = field(default_factory=dict, repr=False)
    """What those clients trained on, by (client, round)."""
    server_rounds: tuple[ServerRound, ...] = field(default=(), repr=False)
    """What the server held, if it is the server."""

    def messages(
        self,
        kind: type[M],
        *,
        round_index: int | None = None,
        sender: str | None = None,
        receiver: str | None = None,
    ) -> Iterator[tuple[Entry, M]]:
        """The messages of a kind that it saw, oldest first."""
        for entry in self.entries:
            right_round = round_index is None or entry.round_index == round_index
            right_ends = sender in (None, entry.sender) and receiver in (None, entry.receiver)
            if isinstance(entry.message, kind) and right_round and right_ends:
                yield entry, entry.message

    def message(
        self, kind: type[M], *, round_index: int, sender: str | None = None, receiver: str | None = None
    ) -> M | None:
        """The last of them, or None: a repeated attempt overrides the first."""
        found = list(self.messages(kind, round_index=round_index, sender=sender, receiver=receiver))
        return found[-1][1] if found else None

    def server_round(self, round_index: int) -> ServerRound:
        return next(kept for kept in self.server_rounds if kept.round_index == round_index)


def client_view(recording: Recording, *clients: str) -> View:
    """One curious client, or several that pool what they have."""
    _expect_clients(recording, clients)
    entries = [e for e in recording.transcript.entries if e.sender in clients or e.receiver in clients]
    return View(
        "curious client" if len(clients) == 1 else "colluding clients",
        clients,
        facts_of(recording),
        tuple(entries),
        {name: recording.shares[name] for name in clients},
        _batches_of(recording, clients),
    )


def server_view(recording: Recording, colluding: Sequence[str] = ()) -> View:
    """The curious server, alone or with clients that tell it what they know."""
    _expect_clients(recording, colluding)
    return View(
        "server with colluding clients" if colluding else "curious server",
        (SERVER, *colluding),
        facts_of(recording),
        tuple(e for e in recording.transcript.entries if SERVER in (e.sender, e.receiver)),
        {name: recording.shares[name] for name in colluding},
        _batches_of(recording, colluding),
        recording.server_rounds,
    )


def eavesdropper_view(recording: Recording) -> View:
    """Somebody on the wire where transport is not encrypted."""
    return View("eavesdropper", (), facts_of(recording), tuple(recording.transcript.entries))


def facts_of(recording: Recording) -> Facts:
    """What is public; the architecture comes with zeros for weights."""
    blank = copy.deepcopy(recording.initial)
    with torch.no_grad():
        for parameter in blank.parameters():
            parameter.zero_()
    problem = recording.problem
    return Facts(
        recording.plan.with_settings({"seed": HIDDEN_SEED}),
        problem.loss,
        problem.input_shape,
        problem.num_outputs,
        tuple(recording.shares),
        recording.graph,
        blank,
    )


def _batches_of(recording: Recording, clients: Sequence[str]) -> dict[tuple[str, int], Split]:
    return {key: batch for key, batch in recording.batches.items() if key[0] in clients}


def _expect_clients(recording: Recording, clients: Sequence[str]) -> None:
    strangers = [name for name in clients if name not in recording.shares]
    if strangers:
        raise KeyError(f"{', '.join(strangers)}: no client of this run; they are {', '.join(recording.shares)}")
