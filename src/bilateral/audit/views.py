"""What an adversary has of a run: its slice of the transcript, and what it knows by itself. Attacks get nothing else.

`threat` says who the adversaries are, and cuts their views out of recordings.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from bilateral.audit.audited_half import AuditedServer
from bilateral.data import Split
from bilateral.engine.plan import RunPlan
from bilateral.engine.transcript import Entry
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import Aggregate, Message, Upload, aggregate
from bilateral.protocols.perturb.secrets import RoundSecrets
from bilateral.protocols.perturb.settings import Loss, PerturbationSettings

AdversaryName = Literal[
    "curious client",
    "colluding clients",
    "curious server",
    "server with colluding clients",
    "dishonest server",
    "eavesdropper",
    "querying party",
    "answering party",
    "dealer",
    "client with its dealer",
    "server with another client's dealer",
    "server with a client's dealer",
]
M = TypeVar("M", bound=Message)
HIDDEN_SEED = 0


@dataclass(frozen=True, repr=False)
class ServerRound:
    """What the server held in one round: the true parameters before it, its secrets, and the sum that it unmasked."""

    round_index: int
    parameters: Tensor
    half: AuditedServer
    total: Aggregate

    @property
    def secrets(self) -> RoundSecrets | None:
        """None without perturbation."""
        return self.half.secrets

    def recovered(self) -> Tensor:
        """The mean gradient in the true model's coordinates, as recovery makes it of the sum."""
        return self.half.recover_one(self.total).gradient

    def gradient_of(self, upload: Upload, client: str) -> Tensor:
        """What recovery makes of one upload of a client by itself: that client's gradient, if nothing hides it."""
        if upload.terms.is_floating_point():
            alone = aggregate({client: upload}, self.round_index)
        else:  # ring words, which are summed as they are
            alone = Aggregate(self.round_index, upload.weight, upload.terms, upload.statistics, (client,))
        return self.half.recover_one(alone).gradient


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
