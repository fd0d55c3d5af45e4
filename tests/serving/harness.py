"""A small served model, and its three parties with every message in the hands of the test."""

import torch
from torch import nn

from bilateral.protocols.mask.keys import Identity
from bilateral.protocols.noise.round_counter import MemoryCounter
from bilateral.protocols.share.circuit.served import compile_served
from bilateral.protocols.share.serving.parties import model_of
from bilateral.protocols.share.serving.terms import QuestionTerms
from bilateral.randomness import SeededRandomness
from bilateral.serving.asking import AskingSession
from bilateral.serving.dealer import AnswerDealer
from bilateral.serving.messages import Refused
from bilateral.serving.model import ServedModel
from bilateral.serving.server import AnswerServer, Conditions

NET = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def inputs(count, seed=0, scale=1.0):
    return scale * torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def served(net=NET, batch_size=8):
    examples = inputs(16)
    compiled = compile_served(net, examples)
    first = model_of(QuestionTerms(compiled.circuit, 1), compiled.layers)
    return ServedModel(
        compiled.circuit, first, examples, batch_size, "fedavg", "mlp", "toy", "classification", ("a", "b", "c")
    )


class Parties:
    """`between`: what becomes of a message on its way (who sends, message) -> message; `said` has all of them."""

    def __init__(self, limit=20, reveal="logits", counters=None, model=None, between=lambda _sender, message: message):
        draws = SeededRandomness(0, "parties")
        self.identities = {
            name: Identity.generate(draws.child("identity", name)) for name in ("anna", "carol", "dealer")
        }
        self.pinned = {name: identity.public_bytes for name, identity in self.identities.items()}
        self.counters = counters or {"anna": MemoryCounter(), "carol": MemoryCounter()}
        self.between, self.said, self.notes, self.draws = between, [], [], draws
        self.dealer = AnswerDealer("dealer", self.identities["dealer"], self.pinned, draws.child("dealer"))
        self.server = AnswerServer(
            model or served(),
            Conditions(limit, reveal),
            "dealer",
            lambda message: self.carry("dealer", self.dealer.handle(self.carry("server", message))),
            self.counters,
            self.pinned,
            draws.child("server"),
            self.notes.append,
        )

    def carry(self, sender, message):
        message = self.between(sender, message)
        self.said.append((sender, message))
        return message

    def session(self, name="anna", identity=None):
        own = self.server.session(name)
        return AskingSession(
            name,
            identity or self.identities[name],
            "dealer",
            self.pinned,
            self.draws.child("client", name, len(self.said)),
            lambda message: self.carry("server", own.handle(self.carry(name, message))),
        )

    def opened(self, name="anna"):
        session = self.session(name)
        session.open()
        return session

    def raw(self, name="anna"):
        """The server's session, opened by a client that is left behind; and that client."""
        own = self.server.session(name)
        client = AskingSession(
            name,
            self.identities[name],
            "dealer",
            self.pinned,
            self.draws.child("raw"),
            own.handle,
        )
        client.open()
        return own, client


def is_refused(reply, words, why=None):
    return isinstance(reply, Refused) and words in reply.reason and (why is None or reply.why == why)
