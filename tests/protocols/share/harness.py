"""A server and clients in one process. Every message goes through the wire format, and everything is recorded."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import nn

from bilateral.protocols import wire
from bilateral.protocols.mask.keys import Identity, KeyDirectory, KeyRing
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.gates.judged import Blinding, judge
from bilateral.protocols.share.gates.styles import DEFAULT_STYLE, HARDENED
from bilateral.protocols.share.prediction.messages import FROM_ANSWERER, FROM_QUERIER, TO_ANSWERER, TO_QUERIER
from bilateral.protocols.share.prediction.parties import PredictionClient, PredictionServer
from bilateral.protocols.share.ring.streams import SessionAgreement, Stream
from bilateral.randomness import SeededRandomness

RUN = b"run 5"
QUERIER = "quentin"
NAMES = (QUERIER, "anna", "bela")
TO_CLIENT = tuple(dict.fromkeys((*TO_ANSWERER, *TO_QUERIER)))
FROM_CLIENT = tuple(dict.fromkeys((*FROM_ANSWERER, *FROM_QUERIER)))


def key_rings(names=NAMES, seed=0):
    """A key ring for each name and for the server, all of which have accepted one roster."""
    everyone = ("server", *names)
    identities = {name: Identity.generate(SeededRandomness(seed, "identity", name)) for name in everyone}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    rings = {
        name: KeyRing(name, RUN, identities[name], pinned, SeededRandomness(seed, "keys", name)) for name in everyone
    }
    directory = KeyDirectory(RUN, everyone)
    for name, ring in rings.items():
        directory.register(name, ring.announce())
    for ring in rings.values():
        ring.accept(directory.roster())
    return rings


def session_seed(secret, session_id, querier, answerer, circuit, style=DEFAULT_STYLE):
    """The seed of a pair, as whoever knows its secret derives it."""
    return SessionAgreement(session_id, querier, answerer, circuit.to_json(), style.name).seed(secret)


def sent(message, types):
    """What the other side gets, and how many bytes travelled."""
    data = wire.encode(message)
    return wire.decode(data, types, "the test"), len(data)


@dataclass
class Exchange:
    """One request of the server and the reply to it, with the bytes that both took on the wire."""

    party: str
    request: object
    reply: object
    request_bytes: int
    reply_bytes: int


@dataclass
class Group:
    """Parties with agreed keys. `seed` fixes all of their secrets; `tamper` may change what a client replies."""

    seed: int = 0
    style: object = DEFAULT_STYLE
    device: torch.device | None = None
    names: tuple[str, ...] = NAMES
    log: list[Exchange] = field(default_factory=list)
    tamper: object = None
    """(exchange) -> reply; for tests of the server."""
    _waiting: deque = field(default_factory=deque)

    def __post_init__(self):
        self.rings = key_rings(self.names, self.seed)
        self.clients = {
            name: PredictionClient(self.rings[name], style=self.style, device=self.device) for name in self.names
        }
        self.server = PredictionServer(
            self.rings["server"],
            self,
            style=self.style,
            randomness=SeededRandomness(self.seed, "server"),
            device=self.device,
        )

    def submit(self, ticket, party, message):
        """The transport's half: what the server sends is delivered when it waits for replies."""
        self._waiting.append((ticket, party, message))

    def next_reply(self):
        ticket, party, message = self._waiting.popleft()
        request, request_bytes = sent(message, TO_CLIENT)
        reply, reply_bytes = sent(self.clients[party].handle(request), FROM_CLIENT)
        exchange = Exchange(party, request, reply, request_bytes, reply_bytes)
        self.log.append(exchange)
        return ticket, self.tamper(exchange) if self.tamper else reply

    def forget(self):
        self._waiting.clear()

    def predict(self, queries, *models, sessions=None):
        """The answer to `queries`, in new sessions with `models` unless there are open ones."""
        if sessions is None:
            sessions = self.open(*models)
        self.clients[QUERIER].ask(queries)
        self.server.predict(sessions, len(queries))
        return self.clients[QUERIER].take_answers()

    def open(self, *models):
        answerers = [name for name in self.names if name != QUERIER][: len(models)]
        for name, model in zip(answerers, models, strict=True):
            self.clients[name].offer(model)
        return self.server.open_sessions(QUERIER, answerers)

    def received(self, party, kind):
        """The messages of one kind that a client got, in order."""
        return [e.request for e in self.log if e.party == party and type(e.request) is kind]

    def replied(self, party, kind):
        """The messages of one kind that a client sent, in order."""
        return [e.reply for e in self.log if e.party == party and type(e.reply) is kind]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def queries_like(shape, count=3, seed=0, size=1.0):
    return size * torch.randn(count, *shape, generator=generator(seed))


def secret_and_plain(model, queries, *, samples=None, group=None):
    """(secret-shared logits, plaintext fixed-point logits, float logits) of an nn.Module."""
    model = copy.deepcopy(model).eval()
    compiled = compile_model(model, queries if samples is None else samples)
    group = group or Group()
    with torch.no_grad():
        expected = model.double()(queries.double())
    return group.predict(queries, compiled), predict(compiled, queries), expected


def fill(model, seed=0, size=0.3):
    """All parameters and running statistics drawn from `seed`, so that nothing is trivially zero or one."""
    source = generator(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(size * torch.randn(parameter.shape, generator=source))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.copy_(0.2 * torch.randn(module.running_mean.shape, generator=source))
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=source))
                module.weight.copy_(0.5 + torch.rand(module.weight.shape, generator=source))
    return model.eval()


def uniform_words(shape, seed):
    """Uniform ring elements that come from no stream of the protocol."""
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=generator(seed))


def compared(t, fraction_bits, style=HARDENED, seed=0):
    """One judged comparison of `t` (batch, size) by three parties: (u as the querying party sees it, positive part)."""
    secret = seed.to_bytes(8, "little") * 4
    first = uniform_words(t.shape, seed)
    second = t - first
    mask, product, bit = (uniform_words(t.shape, 1000 * seed + i) for i in (1, 2, 3))
    answering, helping = (
        Blinding.draw(Stream.of(secret, "comparison", 0, 0), tuple(t.shape), fraction_bits, style) for _ in range(2)
    )
    masked = helping.blind_second(second, answering.blind_first(first, mask))
    judged = judge(masked, mask, product, bit)
    shares = answering.select(first, product, bit), helping.select(second, judged.product, judged.bit)
    return masked - mask, shares[0] + shares[1]
