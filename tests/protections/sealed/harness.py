"""A small sealed federation in one process: keys, halves, and a round whose messages a test may change on their way."""

from __future__ import annotations

from dataclasses import dataclass, field

from bilateral.data import Split
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint
from bilateral.learning.exchange import Dropouts
from bilateral.protections.spoken_messages import to_client, to_server
from bilateral.protocols import wire
from bilateral.randomness import SeededRandomness


def plan_of(**settings):
    """Three clients with breast-cancer data, a small network."""
    return RunPlan().with_settings(
        {
            "protection": "sealed",
            "data.name": "breast-cancer",
            "model.name": "mlp-3",
            "model.options": {"width": 32},
            "federation.clients": 3,
            "training.loss": "mse",
            "training.rounds": 3,
            "training.batch_size": 16,
            "training.evaluate_every": 100,
            **settings,
        }
    )


@dataclass
class Sealed:
    """A plan's parties, and every message as it would travel. `change(round, sender, receiver, message)` may return
    another message, or None for one that is lost."""

    plan: RunPlan = field(default_factory=plan_of)
    change: object = None
    dropouts: Dropouts | None = None

    def __post_init__(self):
        self.federation = load_federation(self.plan)
        self.blueprint = make_blueprint(self.plan, self.federation)
        self.training = self.blueprint.server()
        self.seen = []
        self.local = self.blueprint.local_exchange(lambda *_: None, self.dropouts)
        self.names = self.federation.names

    def advance(self, round_index, participants=None):
        return self.training.advance(round_index, participants or self.names, self)

    def __call__(self, round_index, packets, respond=None):
        """An exchange: through the wire format, and through `change`."""
        replies = {}
        for name, packet in packets.items():
            reply = self._converse(round_index, name, packet, respond)
            if reply is not None:
                replies[name] = reply
        return replies

    def _converse(self, round_index, name, packet, respond):
        party = {**self.local.clients, **self.local.helpers}[name]
        while True:
            sent = [self._travel(round_index, "server", name, message, to_client()) for message in packet]
            if None in sent or (self.dropouts is not None and self.local._is_dead(round_index, name)):
                return None
            reply = self._travel(round_index, name, "server", party.handle(sent), to_server())
            if reply is None:
                return None
            packet = respond(name, reply) if respond is not None else ()
            if not packet:
                return getattr(packet, "kept", reply)

    def _travel(self, round_index, sender, receiver, message, kinds):
        if self.change is not None:
            message = self.change(round_index, sender, receiver, message)
        if message is None:
            return None
        self.seen.append((round_index, sender, receiver, message))
        return wire.decode(wire.encode(message), kinds, sender)

    def messages(self, kind, *, receiver=None, sender=None):
        return [
            message
            for _, who, whom, message in self.seen
            if isinstance(message, kind) and receiver in (None, whom) and sender in (None, who)
        ]

    def mean_gradient(self, round_index, names=None):
        """By plain autograd in float64 at the model as it is, weighted by samples."""
        import copy

        import torch
        import torch.nn.functional as F

        model = copy.deepcopy(self.training.model).double().train()
        total, weight = 0.0, 0
        for name in names or self.names:
            client = self.local.clients[name]
            batch: Split = client.batch(round_index)
            outputs = model(batch.inputs.double())
            loss = self.federation.problem.loss
            targets = batch.targets if loss == "ce" else batch.targets.double()
            lost = F.cross_entropy(outputs, targets) if loss == "ce" else F.mse_loss(outputs, targets)
            named = dict(model.named_parameters())
            found = dict(zip(named, torch.autograd.grad(lost, list(named.values())), strict=True))
            total = total + client.weight * self.training.layout.flatten(found, torch.float64)
            weight += client.weight
        return total / weight


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def dropouts(rate, seed=0, max_replies=12):
    return Dropouts(rate, SeededRandomness(seed, "dropouts"), max_replies)
