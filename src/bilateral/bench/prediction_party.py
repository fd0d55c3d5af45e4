"""One client of `bench secure-prediction`, in a process of its own (`party`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from bilateral.bench.party import ORDERS, REPORTS, Heard, Party, Setup, run_party
from bilateral.engine.remote.loopback import Connection
from bilateral.errors import ProtocolError
from bilateral.models.zoo import build_model
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import KeyAnnouncement
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
from bilateral.randomness import SecureRandomness, SeededRandomness

QUERYING: Final = "querying"
ANSWERING: Final = "answering"
NUM_SAMPLES: Final = 4
"""Images that fix the shapes of a network."""


@dataclass(frozen=True)
class PredictionSetup(Setup):
    style: str
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


_ORDERS: Final = (*ORDERS, PredictionSetup)
_SPOKEN: Final = frozenset(TO_QUERIER + TO_ANSWERER)
MAY_HEAR: Final[Mapping[str, tuple[type[Message], ...]]] = {
    QUERYING: (*TO_QUERIER, *_ORDERS, Queries, QueriesToCome, AnswerRequest),
    ANSWERING: (*TO_ANSWERER, *_ORDERS, Network),
}
MAY_SAY: Final[Mapping[str, tuple[type[Message], ...]]] = {
    QUERYING: (*FROM_QUERIER, *REPORTS, Answer),
    ANSWERING: (*FROM_ANSWERER, *REPORTS),
}


def images(count: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Noise in the shape of normalised images."""
    return SeededRandomness(seed, "secure-prediction images").normal(count, *shape).to(torch.float32)


def fresh_store(folder: str, owner: str) -> CorrelationStore | None:
    """Under a key that ends with this process. None without a folder."""
    return CorrelationStore(Path(folder), SecureRandomness().random_bytes(KEY_BYTES), owner) if folder else None


class PredictionParty(Party):
    phases = PHASES

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection, name)
        self._client: PredictionClient | None = None
        self._style = self._store = ""

    def phase_of(self, message: Message) -> str | None:
        return phase_of(message) if type(message) in _SPOKEN else None

    def handle(self, message: Message) -> Message:
        return self._ready().handle(message)

    def obey(self, order: Message) -> Message:
        match order:
            case Network():
                self._ready().offer(order.compile())
            case Queries():
                self._ready().ask(order.values)
            case QueriesToCome():
                self._ready().expect(order.count)
            case AnswerRequest():
                return Answer(self._ready().take_answers())
            case _:
                raise self.refuse(order)
        return Heard()

    def set_up(self, message: Setup) -> KeyAnnouncement:
        assert isinstance(message, PredictionSetup)
        self._style, self._store = message.style, message.store
        return super().set_up(message)

    def joined(self, keys: KeyRing) -> None:
        self._client = PredictionClient(keys, STYLES[self._style], store=fresh_store(self._store, self._name))

    def _ready(self) -> PredictionClient:
        if self._client is None:
            raise ProtocolError(f"{self._name} was asked to work before keys were agreed on.")
        return self._client


def main() -> None:
    """The process."""
    run_party(MAY_HEAR.__getitem__, PredictionParty)
