"""The server's half of a session: it carries all messages, holds one share of every value, and learns nothing.

It sees weights, products, bits and blinded numbers under masks that it does not know. A session here is a set of
*programs*: generators that yield a request (which party, what message) and are sent its reply, so that sessions with
several answering parties go on side by side (`conversation.run_together`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from bilateral.errors import MalformedMessageError
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.description import Circuit, Linear
from bilateral.protocols.share.circuit.plaintext import linear_map
from bilateral.protocols.share.circuit.walk import Walk, walk
from bilateral.protocols.share.gates import truncation
from bilateral.protocols.share.gates.comparison import Blinding, ComparisonStyle
from bilateral.protocols.share.prediction.messages import (
    Acknowledged,
    AnswererTurn,
    BatchRequest,
    BlindedValues,
    Carries,
    Correlations,
    MaskedModel,
    MaskedValue,
    QueryRequest,
    QueryShare,
    SelectedValues,
    SessionEnd,
    SessionNotice,
    SessionRequest,
    expect_count,
    expect_tensor,
)
from bilateral.protocols.share.ring.arithmetic import LinearMap
from bilateral.protocols.share.ring.packing import expect_packed, from_bytes, to_bytes
from bilateral.protocols.share.ring.streams import SessionAgreement, Stream

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)


class Request(NamedTuple):
    """A message to a party. `meanwhile` is work to do after it is sent and before its reply is looked at."""

    party: str
    message: Message
    meanwhile: Callable[[], None] | None = None


Program = Generator[Request, Message, _T]
"""Yields requests, is sent their replies, and returns its result."""


@dataclass(frozen=True, repr=False)
class HelpingSecrets:
    """What the server has in common with each client: pair secrets, or the seeds of a session made of them."""

    with_querier: bytes
    with_answerer: bytes


class HelpingSession:
    """Between one querying and one answering party."""

    def __init__(
        self,
        secrets: HelpingSecrets,
        session_id: bytes,
        querier: str,
        answerer: str,
        style: ComparisonStyle,
        device: torch.device | None = None,
    ) -> None:
        self.querier, self.answerer = querier, answerer
        self.session_id = session_id
        self._secrets, self._style, self._device = secrets, style, device
        self._circuit: Circuit | None = None
        self._seeds: HelpingSecrets | None = None
        self._weights: tuple[Tensor, ...] = ()
        self._maps: list[LinearMap] = []
        self._num_batches = 0

    @property
    def circuit(self) -> Circuit:
        assert self._circuit is not None, "the session is not open"
        return self._circuit

    @property
    def seeds(self) -> HelpingSecrets:
        assert self._seeds is not None, "the session is not open"
        return self._seeds

    def open(self) -> Program[Circuit]:
        """Session: fetch the masked weights, tell the querying party the circuit."""
        reply = expect(MaskedModel, (yield Request(self.answerer, SessionRequest(self.session_id, self.querier))), self)
        circuit = Circuit.from_json(reply.circuit, self.answerer)
        expect_count(self.answerer, "weights", len(reply.weights), len(circuit.linear_steps))
        for step, weight in zip(circuit.linear_steps, reply.weights, strict=True):
            shape = step.weight_shape(circuit.values[step.sources[0]])
            expect_tensor(self.answerer, "weights", weight, shape, torch.int64)
        self._circuit, self._weights = circuit, reply.weights
        terms = SessionAgreement(self.session_id, self.querier, self.answerer, reply.circuit, self._style.name)
        self._seeds = HelpingSecrets(terms.seed(self._secrets.with_querier), terms.seed(self._secrets.with_answerer))
        notice = SessionNotice(self.session_id, self.answerer, reply.circuit)
        expect(Acknowledged, (yield Request(self.querier, notice, self._prepare_maps)), self)
        return circuit

    def _prepare_maps(self) -> None:
        steps = zip(self.circuit.linear_steps, self._weights, strict=True)
        self._maps = [linear_map(step, weight.to(self._device)) for step, weight in steps]
        self._weights = ()

    def close(self) -> Program[None]:
        """Session: both clients may forget it."""
        for party in (self.answerer, self.querier):
            expect(Acknowledged, (yield Request(party, SessionEnd(self.session_id))), self)

    def prepare(self, batch_size: int) -> Program[HelpingBatch]:
        """Offline: everything that does not depend on the queries."""
        index = self._num_batches
        self._num_batches += 1
        batch = HelpingBatch(self, index, batch_size)
        request = BatchRequest(self.session_id, index, batch_size)
        dealt = expect(Correlations, (yield Request(self.querier, request, batch.multiply)), self, index)
        carries = Carries(self.session_id, index, batch_size, batch.combine(dealt))
        batch.take_turn(expect(AnswererTurn, (yield Request(self.answerer, carries)), self, index))
        return batch


def expect(kind: type[_M], reply: Message, session: HelpingSession, index: int | None = None) -> _M:
    """The reply, if it is of this kind and of this session."""
    if (
        not isinstance(reply, kind)
        or getattr(reply, "session_id", b"") != session.session_id
        or getattr(reply, "batch_index", index) != index
    ):
        raise MalformedMessageError(
            f"Expected {kind.__name__} in the session of {session.querier} with {session.answerer}, got "
            f"{type(reply).__name__}.",
            remedy="Both sides must run the same version of the protocol.",
        )
    return reply


@dataclass(repr=False)
class _Layer:
    """What the server knows of a linear layer's output before the queries come; the last two are dealt to it."""

    share: Tensor
    beta: Tensor
    product: Tensor | None = None
    epsilon: Tensor | None = None


_SPENT = _Layer(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.uint8))
"""In place of a layer whose share was used: a batch frees its memory as it goes."""


@dataclass(repr=False)
class HelpingBatch:
    """One batch: the server's `Arithmetic`. It yields requests to both parties."""

    session: HelpingSession
    index: int
    size: int
    _layers: list[_Layer] = field(default_factory=list)
    _input_masks: dict[int, Tensor] = field(default_factory=dict)
    _bits: deque[bytes] = field(default_factory=deque)
    _blinded: deque[Tensor] = field(default_factory=deque)
    _output: Tensor | None = None

    def __post_init__(self) -> None:
        session = self.session
        of_batch = self.index, self.size, session._device
        self._blindings = Stream(session.seeds.with_answerer, "comparison", *of_batch)
        self._rounding = Stream(session.seeds.with_answerer, "rounding", *of_batch)

    def multiply(self) -> None:
        """Masked weights times input masks: the longest work, done while the querying party does as much."""
        session, circuit = self.session, self.session.circuit
        stream = Stream(session.seeds.with_querier, "linear", self.index, self.size, session._device)
        for step, apply in zip(circuit.linear_steps, session._maps, strict=True):
            (source,) = step.sources
            if source not in self._input_masks:
                self._input_masks[source] = stream.words(self.size, *circuit.values[source].shape)
            product = apply(self._input_masks[source])
            self._layers.append(_Layer(product, stream.packed_bits(product.numel())))

    def combine(self, dealt: Correlations) -> tuple[bytes, ...]:
        """The server's share of every linear layer's output, and its bits for the truncations."""
        session, count = self.session, len(self._layers)
        expect_count(session.querier, "products", len(dealt.products), count)
        expect_count(session.querier, "carries", len(dealt.carries), count)
        packed = []
        for layer, product, carries in zip(self._layers, dealt.products, dealt.carries, strict=True):
            shape, device = tuple(layer.share.shape), layer.share.device
            expect_tensor(session.querier, "products", product, shape, torch.int64)
            expect_tensor(session.querier, "carries", carries, shape, torch.int32)
            # Shared anew: else the querying party could tell from its own masks how this share was rounded.
            dealt_anew = self._rounding.words(*shape) + product.to(device)
            layer.share, layer.epsilon = truncation.start_helping(layer.share, dealt_anew, layer.beta)
            layer.product = carries.to(device)
            packed.append(to_bytes(layer.epsilon))
        return tuple(packed)

    def answer(self) -> Program[Tensor]:
        """Online: the answering party's masked output plus the server's share of it."""
        session = self.session
        request = QueryRequest(session.session_id, self.index)
        reply = expect(QueryShare, (yield Request(session.querier, request)), session, self.index)
        shape = (self.size, *session.circuit.input_shape)
        expect_tensor(session.querier, "share", reply.share, shape, torch.int64)
        share = yield from walk(session.circuit, reply.share.to(session._device), self)
        if self._output is None or self._bits or self._blinded:
            raise MalformedMessageError(f"{session.answerer} did not give the output of its last layer, or too much.")
        expect_tensor(session.answerer, "output", self._output, tuple(share.shape), torch.int64)
        return share + self._output.to(share.device)

    def take_turn(self, turn: AnswererTurn) -> None:
        """Keep what the answering party sent until the walk comes to it."""
        if turn.batch_index != self.index:
            raise MalformedMessageError(f"{self.session.answerer} answered for another batch.")
        self._bits.extend(turn.bits)
        self._blinded.extend(turn.blinded)
        if turn.output.numel():
            self._output = turn.output

    def linear(self, index: int, step: Linear, source: int, x: Tensor) -> Walk:
        del step
        session, layer = self.session, self._layers[index]
        if source in self._input_masks:
            value = (x - self._input_masks.pop(source)).cpu()
            reply = yield Request(session.answerer, MaskedValue(session.session_id, self.index, value))
            self.take_turn(expect(AnswererTurn, reply, session, self.index))
        assert layer.product is not None and layer.epsilon is not None
        packed = self._next(self._bits, "bits")
        expect_packed(session.answerer, packed, layer.share.numel())
        delta, shift = from_bytes(packed, x.device), session.circuit.values[source].fraction_bits
        share = truncation.finish_helping(layer.share, shift, layer.beta, layer.product, delta, layer.epsilon)
        self._layers[index] = _SPENT
        return share

    def positive_part(self, x: Tensor, fraction_bits: int) -> Walk:
        session, flat = self.session, x.reshape(len(x), -1)
        received = self._next(self._blinded, "blinded")
        expect_tensor(session.answerer, "blinded", received, tuple(flat.shape), torch.int64)
        blinding = Blinding.draw(self._blindings, (flat.shape[0], flat.shape[1]), fraction_bits, session._style)
        values = blinding.blind_second(flat, received.to(x.device)).cpu()
        reply = yield Request(session.querier, BlindedValues(session.session_id, self.index, values))
        judged = expect(SelectedValues, reply, session, self.index)
        for name in ("products", "bits"):
            expect_tensor(session.querier, name, getattr(judged, name), tuple(flat.shape), torch.int64)
        return blinding.select(flat, judged.products.to(x.device), judged.bits.to(x.device)).reshape(x.shape)

    def _next(self, queue: deque[Any], name: str) -> Any:
        if not queue:
            raise MalformedMessageError(f"{self.session.answerer} sent too few `{name}` for its circuit.")
        return queue.popleft()
