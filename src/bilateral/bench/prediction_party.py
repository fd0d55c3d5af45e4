"""One client of `bench secure-prediction`, in a process of its own: it answers the server's messages, and keeps books.

The bench starts it with one line of JSON on standard input (`Introduction`). What the bench itself has to say (keys,
the network to answer with, the queries, "what did it cost you?") goes over the same connection as the protocol, as the
messages below; these are not counted. The process ends when the connection does.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from bilateral.engine.remote.loopback import Connection, LostConnectionError, connect
from bilateral.errors import ProtocolError
from bilateral.models.zoo import build_model
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.mask.messages import KeyAnnouncement, Roster
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.gates.styles import STYLES
from bilateral.protocols.share.prediction.messages import (
    FROM_ANSWERER,
    FROM_QUERIER,
    PHASES,
    TO_ANSWERER,
    TO_QUERIER,
    phase_of,
)
from bilateral.protocols.share.prediction.parties import PredictionClient
from bilateral.protocols.share.prediction.store import KEY_BYTES, CorrelationStore
from bilateral.protocols.transport import SERVER
from bilateral.randomness import SecureRandomness, SeededRandomness

QUERYING: Final = "querying"
ANSWERING: Final = "answering"
NUM_SAMPLES: Final = 4
"""Images that fix the shapes of a network."""


@dataclass(frozen=True)
class IdentityRequest(Message):
    pass


@dataclass(frozen=True)
class IdentityKey(Message):
    identity_key: bytes


@dataclass(frozen=True)
class Setup(Message):
    """Whom to trust, and how to work. A real deployment pins identity keys that it got by another way."""

    run_id: bytes
    parties: tuple[str, ...]
    identity_keys: tuple[bytes, ...]
    style: str
    threads: int
    store: str
    """A folder of this party alone for what is dealt ahead; empty if nothing is."""


@dataclass(frozen=True)
class Network(Message):
    """The network to answer with: one of the zoo, its weights drawn from `seed`."""

    name: str
    input_shape: tuple[int, ...]
    num_outputs: int
    options: str
    seed: int

    def compile(self) -> FixedPointModel:
        model = build_model(
            self.name,
            input_shape=self.input_shape,
            num_outputs=self.num_outputs,
            seed=self.seed,
            **json.loads(self.options),
        )
        return compile_model(model.eval(), images(NUM_SAMPLES, self.input_shape, self.seed))


@dataclass(frozen=True)
class Queries(Message):
    values: Tensor


@dataclass(frozen=True)
class QueriesToCome(Message):
    """So many: deal for them."""

    count: int


@dataclass(frozen=True)
class AnswerRequest(Message):
    pass


@dataclass(frozen=True)
class Answer(Message):
    logits: Tensor


@dataclass(frozen=True)
class CostRequest(Message):
    """What did it cost since the last such request?"""


@dataclass(frozen=True)
class Costs(Message):
    """Seconds on a core and seconds at work by the clock, a row a phase in the order of `PHASES`."""

    seconds: Tensor
    peak_memory_bytes: int


@dataclass(frozen=True)
class Heard(Message):
    pass


_ORDERS: Final = (IdentityRequest, Setup, Roster, CostRequest)
_REPORTS: Final = (IdentityKey, KeyAnnouncement, Costs, Heard)
MAY_HEAR: Final[Mapping[str, tuple[type[Message], ...]]] = {
    QUERYING: (*TO_QUERIER, *_ORDERS, Queries, QueriesToCome, AnswerRequest),
    ANSWERING: (*TO_ANSWERER, *_ORDERS, Network),
}
MAY_SAY: Final[Mapping[str, tuple[type[Message], ...]]] = {
    QUERYING: (*FROM_QUERIER, *_REPORTS, Answer),
    ANSWERING: (*FROM_ANSWERER, *_REPORTS),
}


def images(count: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Noise in the shape of normalised images."""
    return SeededRandomness(seed, "secure-prediction images").normal(count, *shape).to(torch.float32)


def fresh_store(folder: str, owner: str) -> CorrelationStore | None:
    """Under a key that ends with this process. None without a folder."""
    return CorrelationStore(Path(folder), SecureRandomness().random_bytes(KEY_BYTES), owner) if folder else None


def peak_memory_bytes() -> int:
    """The most memory that this process has held so far; Linux counts it in kilobytes, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass(frozen=True, repr=False)
class Introduction:
    """What a party is told before it can be spoken to. Not in its arguments, which all users of a machine can see."""

    party: str
    port: int
    token: str

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


class Party:
    """The client's side of the connection."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name
        self._identity = Identity.generate(SecureRandomness())
        self._keys: KeyRing | None = None
        self._client: PredictionClient | None = None
        self._style = self._store = ""
        self._seconds = torch.zeros(len(PHASES), 2, dtype=torch.float64)

    def serve(self) -> None:
        """Answer until the connection ends. Waiting costs no time on a core, so all CPU time is of some message.

        At work by the clock is from a message's arrival until its reply is ready to leave: once it has left, the server
        goes on, and on a shared core this process may be looked at again only much later.
        """
        spoken = frozenset(TO_QUERIER + TO_ANSWERER)
        while True:
            self._connection.wait()
            busy, cpu = time.perf_counter(), time.process_time()
            message = self._connection.receive()
            if type(message) not in spoken:
                self._connection.send(self._obeyed(message))
                continue
            self._connection.queue(self._ready().handle(message))
            busy = time.perf_counter() - busy
            self._connection.flush()
            spent = torch.tensor([time.process_time() - cpu, busy], dtype=torch.float64)
            self._seconds[PHASES.index(phase_of(message))] += spent

    def _obeyed(self, order: Message) -> Message:
        """Do what the bench says, and the report of it."""
        report: Message = Heard()
        match order:
            case IdentityRequest():
                report = IdentityKey(self._identity.public_bytes)
            case Setup():
                report = self._set_up(order)
            case Roster():
                self._join(order)
            case Network():
                self._ready().offer(order.compile())
            case Queries():
                self._ready().ask(order.values)
            case QueriesToCome():
                self._ready().expect(order.count)
            case AnswerRequest():
                report = Answer(self._ready().take_answers())
            case CostRequest():
                report = self._costs()
            case _:
                raise ProtocolError(f"{self._name} does not know what to do about {type(order).__name__}.")
        return report

    def _set_up(self, message: Setup) -> KeyAnnouncement:
        torch.set_num_threads(message.threads)
        pinned = dict(zip(message.parties, message.identity_keys, strict=True))
        self._style, self._store = message.style, message.store
        self._keys = KeyRing(self._name, message.run_id, self._identity, pinned, SecureRandomness())
        return self._keys.announce()

    def _join(self, roster: Roster) -> None:
        if self._keys is None:
            raise ProtocolError(f"{self._name} got a roster before it was set up.")
        self._keys.accept(roster)
        self._client = PredictionClient(self._keys, STYLES[self._style], store=fresh_store(self._store, self._name))

    def _costs(self) -> Costs:
        found = Costs(self._seconds, peak_memory_bytes())
        self._seconds = torch.zeros_like(self._seconds)
        return found

    def _ready(self) -> PredictionClient:
        if self._client is None:
            raise ProtocolError(f"{self._name} was asked to work before keys were agreed on.")
        return self._client


def main() -> None:
    """The process. Ctrl-C is for the bench, whose end closes the connection and so ends this process too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = Introduction(**json.loads(sys.stdin.readline()))
    connection = connect(told.port, bytes.fromhex(told.token), told.party, SERVER, MAY_HEAR[told.party])
    try:
        Party(connection, told.party).serve()
    except LostConnectionError:
        sys.exit(0)
