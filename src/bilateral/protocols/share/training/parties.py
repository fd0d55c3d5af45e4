"""One step of one client, party by party: what a caller needs to carry out `script` over whatever carries messages.

`deal` is the dealer's; `FirstParty` and `SecondParty` give the work that a `talk.Speaker` runs. Every seed is used for
one step: whoever makes them never makes one twice, and a second party takes one step for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from torch import Tensor

from bilateral.errors import DataError, NumericalRangeError, ProtocolError
from bilateral.protocols.mask.injective import injective
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.gates.expected import expect_count, expect_tensor
from bilateral.protocols.share.gates.talk import Work
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring.streams import SEED_BYTES
from bilateral.protocols.share.training.loss import SOFTMAX_BITS
from bilateral.protocols.share.training.planning import follow
from bilateral.protocols.share.training.roles import Dealing, First, FirstModel, Second, weight_masks
from bilateral.protocols.share.training.script import step
from bilateral.protocols.share.training.terms import INPUT_ROOT_MEAN_SQUARE, StepTerms


def seed_of_step(terms: StepTerms, seed: bytes) -> bytes:
    """What streams are drawn from. Who was told other terms has other masks: noise, and never one mask for two values.

    Else somebody who is told of another network would read its streams at other places than the others do, and send
    masks of one gate as messages of another.
    """
    label = injective("bilateral sealed training step v2", terms.digest)
    return HKDFExpand(SHA256(), SEED_BYTES, label).derive(seed)


def _seeds_of_step(terms: StepTerms, *seeds: bytes) -> list[bytes]:
    """One seed for two pairs is known to all three parties."""
    if len(set(seeds)) < len(seeds) or any(len(seed) != SEED_BYTES for seed in seeds):
        raise ProtocolError(f"Expected two different seeds of {SEED_BYTES} bytes, one for each pair of parties.")
    return [seed_of_step(terms, seed) for seed in seeds]


def deal(terms: StepTerms, with_first: bytes, with_second: bytes) -> tuple[Tensor, ...]:
    """The dealer: all that the first party is sent, uniform to it. Seeds: what it has in common with each of them."""
    first, second = _seeds_of_step(terms, with_first, with_second)
    dealer = Dealing(terms, (first, second))
    follow(dealer, terms.shape_of_step.orders)
    return tuple(dealer.dealt)


class FirstParty:
    """The server's half of one client's step. `with_second` is unknown to the dealer, who is named in errors."""

    def __init__(
        self,
        terms: StepTerms,
        model: FirstModel,
        dealt: Sequence[Tensor],
        with_dealer: bytes,
        with_second: bytes,
        *,
        dealer: str,
    ) -> None:
        expect_dealt(terms, dealt, dealer)
        self._terms, self._model, self._dealt, self._dealer = terms, model, dealt, dealer
        dealer_seed, second_seed = _seeds_of_step(terms, with_dealer, with_second)
        self._seeds = dealer_seed, second_seed

    def masked_weights(self) -> tuple[Tensor, ...]:
        """For the second party: uniform to it."""
        return tuple(
            layer.weight + weight_masks(self._terms, self._seeds[0], number)
            for number, layer in enumerate(self._model.layers)
        )

    def work(self) -> Work[Tensor]:
        """The step; its part of the gradient."""
        role = First(self._terms, self._model, self._dealt, *self._seeds, self._dealer)
        found: Tensor = yield from step(role, None, None)
        role.expect_all_used()
        return found


def expect_dealt(terms: StepTerms, dealt: Sequence[Tensor], dealer: str) -> None:
    """Refuse what was not dealt for a step of these terms."""
    expected = terms.shape_of_step.dealt
    expect_count(dealer, "dealt parts", len(dealt), len(expected))
    for part, (shape, dtype) in zip(dealt, expected, strict=True):
        expect_tensor(dealer, "dealt parts", part, shape, dtype)


def as_words(dealt: Sequence[Tensor]) -> Tensor:
    """All that is dealt for a step as one list of words, which is how it travels among those of other steps."""
    return torch.cat([_whole_words(part) for part in dealt])


def _whole_words(part: Tensor) -> Tensor:
    flat = part.reshape(-1)
    return flat if flat.dtype == torch.int64 else F.pad(flat, (0, flat.numel() % 2)).view(torch.int64)


def from_words(terms: StepTerms, words: Tensor, dealer: str) -> tuple[Tensor, ...]:
    """The inverse; refused where it is not of a step of these terms. The parts share the memory of `words`."""
    shapes = terms.shape_of_step.dealt
    sizes = [-(-torch.Size(shape).numel() * dtype.itemsize // 8) for shape, dtype in shapes]
    expect_tensor(dealer, "dealt words", words, (sum(sizes),), torch.int64)
    parts = torch.split(words, sizes)
    return tuple(
        part.view(dtype)[: torch.Size(shape).numel()].reshape(shape)
        for part, (shape, dtype) in zip(parts, shapes, strict=True)
    )


class SecondParty:
    """The client's half of one step. `first` is named in errors; what it sent is checked here."""

    def __init__(
        self,
        terms: StepTerms,
        masked_weights: Sequence[Tensor],
        with_dealer: bytes,
        with_first: bytes,
        *,
        first: str,
    ) -> None:
        expect_count(first, "masked weights", len(masked_weights), len(terms.linear_steps))
        for layer, source, weight in zip(terms.linear_steps, terms.linear_sources, masked_weights, strict=True):
            expect_tensor(first, "masked weights", weight, layer.weight_shape(source), torch.int64)
        self._terms = terms
        dealer_seed, first_seed = _seeds_of_step(terms, with_dealer, with_first)
        self._role = Second(terms, masked_weights, dealer_seed, first_seed)

    def prepare(self) -> None:
        """The longest part of its work, which needs no value: it can be done while others deal or compute."""
        self._role.prepare()

    def work(self, inputs: Tensor, targets: Tensor) -> Work[Tensor]:
        """The step on this batch; its part of the gradient. Targets: classes (int64), or numbers for MSE."""
        encoded, wanted = encode_batch(self._terms, inputs, targets)
        found: Tensor = yield from step(self._role, encoded, wanted)
        return found


def encode_batch(terms: StepTerms, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The second party's own numbers, as ring elements; refused where they are of another shape or too large."""
    shape = (terms.batch_size, *terms.circuit.input_shape)
    if tuple(inputs.shape) != shape:
        raise DataError(f"Expected inputs of shape {shape}, got {tuple(inputs.shape)}.")
    largest = float(inputs.abs().max())
    if not largest <= terms.circuit.largest_input:
        raise NumericalRangeError(
            f"An input is {largest:.3g}; sealed training takes inputs up to {terms.circuit.largest_input}.",
            remedy="Normalise the inputs.",
        )
    channels = inputs.double().transpose(0, 1).flatten(1)
    if float(channels.square().mean(1).max()) > INPUT_ROOT_MEAN_SQUARE**2:
        raise NumericalRangeError(
            f"A channel of the inputs has a root mean square above {INPUT_ROOT_MEAN_SQUARE:.0f}.",
            remedy="Normalise the inputs.",
        )
    return ring.encode(inputs, FRACTION_BITS), _encode_targets(terms, targets)


def _encode_targets(terms: StepTerms, targets: Tensor) -> Tensor:
    num_outputs = terms.circuit.output.size
    if terms.loss == "ce":
        if targets.shape != (terms.batch_size,) or targets.dtype != torch.int64:
            raise DataError(f"Expected {terms.batch_size} class numbers, got {tuple(targets.shape)}.")
        if int(targets.min()) < 0 or int(targets.max()) >= num_outputs:
            raise DataError(f"Expected classes from 0 to {num_outputs - 1}.")
        return F.one_hot(targets, num_outputs) << SOFTMAX_BITS
    if targets.shape != (terms.batch_size, num_outputs):
        raise DataError(f"Expected targets of shape {(terms.batch_size, num_outputs)}, got {tuple(targets.shape)}.")
    largest = float(targets.abs().max())
    if not largest <= terms.circuit.largest_input:
        raise NumericalRangeError(
            f"A target is {largest:.3g}; sealed training takes targets up to {terms.circuit.largest_input}.",
            remedy="Normalise the targets.",
        )
    return ring.encode(targets, FRACTION_BITS)
