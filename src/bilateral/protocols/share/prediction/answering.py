"""The answering party's half of a session: it has a network, and must not see the query.

It sees, for each linear layer's input x, the value x - b with b uniform and unknown to it, and bits under uniform
masks. Its own shares never depend on anything else, so it runs from one `MaskedValue` to the next without waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bilateral.errors import ProtocolError
from bilateral.protocols.share.circuit.description import Linear
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.circuit.walk import Walk, walk
from bilateral.protocols.share.gates import truncation
from bilateral.protocols.share.gates.comparison import Blinding, ComparisonStyle
from bilateral.protocols.share.prediction.messages import (
    AnswererTurn,
    Carries,
    MaskedModel,
    MaskedValue,
    expect_count,
    expect_tensor,
)
from bilateral.protocols.share.ring.packing import expect_packed, from_bytes, to_bytes
from bilateral.protocols.share.ring.streams import Stream

_MAX_VALUES = 1 << 30
_NO_OUTPUT = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, repr=False)
class AnsweringSeeds:
    session_id: bytes
    with_querier: bytes
    with_server: bytes


class AnsweringSession:
    """One model (on `device`), one querying party, many batches, several at a time. `sender` is named in errors."""

    def __init__(
        self,
        seeds: AnsweringSeeds,
        model: FixedPointModel,
        style: ComparisonStyle,
        sender: str,
        device: torch.device | None = None,
    ) -> None:
        self._seeds, self._model, self._style, self._sender = seeds, model, style, sender
        self._device = device
        self._last_batch = -1
        self._open: dict[int, tuple[_AnsweringBatch, Walk]] = {}

    def masked_model(self) -> MaskedModel:
        """Session: the weights under masks that the querying party knows and the server does not."""
        masks = Stream(self._seeds.with_querier, "weights", 0, 0, self._device)
        weights = tuple((layer.weight + masks.words(*layer.weight.shape)).cpu() for layer in self._model.layers)
        return MaskedModel(self._seeds.session_id, self._model.circuit.to_json(), weights)

    def begin(self, message: Carries) -> AnswererTurn:
        """Offline: the server's bits of all truncations. Masks are used once, so the batch's index must be new."""
        if message.batch_index <= self._last_batch:
            raise ProtocolError(
                f"{self._sender} began batch {message.batch_index} of a session after batch {self._last_batch}.",
                remedy="Masks are used once: every batch needs a new index.",
            )
        circuit = self._model.circuit
        if not 1 <= message.batch_size * max(value.size for value in circuit.values) <= _MAX_VALUES:
            raise ProtocolError(f"{self._sender} began a batch of {message.batch_size} queries.")
        expect_count(self._sender, "bits", len(message.bits), len(circuit.linear_steps))
        for packed, value in zip(message.bits, circuit.linear_values, strict=True):
            expect_packed(self._sender, packed, message.batch_size * value.size)
        self._last_batch = message.batch_index
        batch = _AnsweringBatch(self._model, self._style, self._sender, self._streams(message), message)
        inputs = Stream(self._seeds.with_querier, "input", message.batch_index, message.batch_size, self._device)
        share = inputs.words(message.batch_size, *circuit.input_shape)
        self._open[message.batch_index] = batch, walk(circuit, share, batch)
        return self._advance(message.batch_index, None)

    def _streams(self, opening: Carries) -> _AnsweringStreams:
        of_batch = opening.batch_index, opening.batch_size, self._device
        return _AnsweringStreams(
            linear=Stream(self._seeds.with_querier, "linear", *of_batch),
            judged=Stream(self._seeds.with_querier, "comparison", *of_batch),
            output=Stream(self._seeds.with_querier, "output", *of_batch),
            rounding=Stream(self._seeds.with_server, "rounding", *of_batch),
            blindings=Stream(self._seeds.with_server, "comparison", *of_batch),
        )

    def proceed(self, message: MaskedValue) -> AnswererTurn:
        """Online: from one linear layer's input to the next."""
        if message.batch_index not in self._open:
            raise ProtocolError(f"{self._sender} sent a value of batch {message.batch_index}, which is not open.")
        return self._advance(message.batch_index, message)

    def _advance(self, index: int, message: MaskedValue | None) -> AnswererTurn:
        batch, steps = self._open[index]
        output = _NO_OUTPUT
        try:
            steps.send(message)
        except StopIteration as end:
            output = batch.masked_output(end.value)
            del self._open[index]
        except ProtocolError:
            del self._open[index]  # a generator that raised is over
            raise
        return AnswererTurn(self._seeds.session_id, index, *batch.take_turn(), output)


@dataclass(frozen=True, repr=False)
class _AnsweringStreams:
    linear: Stream
    judged: Stream
    output: Stream
    rounding: Stream
    blindings: Stream


class _AnsweringBatch:
    """The answering party's `Arithmetic`: it yields when it needs the next `MaskedValue`."""

    def __init__(
        self,
        model: FixedPointModel,
        style: ComparisonStyle,
        sender: str,
        streams: _AnsweringStreams,
        opening: Carries,
    ) -> None:
        self._model, self._style, self._sender = model, style, sender
        self._streams, self._carries = streams, opening.bits
        self._masked: dict[int, Tensor] = {}
        self._bits: list[bytes] = []
        self._blinded: list[Tensor] = []

    def take_turn(self) -> tuple[tuple[bytes, ...], tuple[Tensor, ...]]:
        """What was gathered since the last turn."""
        found = tuple(self._bits), tuple(self._blinded)
        self._bits, self._blinded = [], []
        return found

    def masked_output(self, share: Tensor) -> Tensor:
        """The mask comes from the seed with the querying party, so the server can add this up but not read it."""
        return (share + self._streams.output.words(*share.shape)).cpu()

    def linear(self, index: int, step: Linear, source: int, x: Tensor) -> Walk:
        del step
        if source not in self._masked:
            message: MaskedValue = yield
            expect_tensor(self._sender, "value", message.value, tuple(x.shape), torch.int64)
            self._masked[source] = x + message.value.to(x.device)
        y, stream = self._model.maps[index](self._masked[source]), self._streams.linear
        mask, alpha, product = stream.words(*y.shape), stream.packed_bits(y.numel()), stream.half_words(*y.shape)
        mask -= self._streams.rounding.words(*y.shape)
        epsilon = from_bytes(self._carries[index], y.device)
        bias, shift = self._model.layers[index].bias, self._model.circuit.values[source].fraction_bits
        share, delta = truncation.finish_answering(y, mask, bias, shift, alpha, product, epsilon)
        self._bits.append(to_bytes(delta))
        return share

    def positive_part(self, x: Tensor, fraction_bits: int) -> Walk:
        flat = x.reshape(len(x), -1)
        blinding = Blinding.draw(self._streams.blindings, (flat.shape[0], flat.shape[1]), fraction_bits, self._style)
        self._blinded.append(blinding.blind_first(flat, self._streams.judged.words(*flat.shape)).cpu())
        product, bit = self._streams.judged.words(*flat.shape), self._streams.judged.words(*flat.shape)
        return blinding.select(flat, product, bit).reshape(x.shape)
        yield
