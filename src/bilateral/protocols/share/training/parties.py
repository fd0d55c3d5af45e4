"""One step of one client, party by party: what a caller needs to carry out `script` over whatever carries messages.

`deal` is the dealer's; `FirstParty` and `SecondParty` give the work that a `talk.Speaker` runs. Every seed is used for
one step: whoever makes them never makes one twice, and a second party takes one step for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.errors import DataError, NumericalRangeError
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.gates.expected import expect_count, expect_tensor
from bilateral.protocols.share.gates.talk import Work
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.training.loss import SOFTMAX_BITS
from bilateral.protocols.share.training.roles import Dealing, First, FirstModel, Second, weight_masks
from bilateral.protocols.share.training.script import run, step
from bilateral.protocols.share.training.terms import INPUT_ROOT_MEAN_SQUARE, StepTerms


def deal(terms: StepTerms, with_first: bytes, with_second: bytes) -> tuple[Tensor, ...]:
    """The dealer: all that the second party is sent, uniform to it. Seeds: what it has in common with each of them."""
    dealer = Dealing(terms, (with_first, with_second))
    run(step(dealer, None, None))
    return tuple(dealer.dealt)


class FirstParty:
    """The server's half of one client's step. `with_second` is unknown to the dealer."""

    def __init__(self, terms: StepTerms, model: FirstModel, with_dealer: bytes, with_second: bytes) -> None:
        self._terms, self._model = terms, model
        self._seeds = with_dealer, with_second

    def masked_weights(self) -> tuple[Tensor, ...]:
        """For the second party: uniform to it."""
        return tuple(
            layer.weight + weight_masks(self._terms, self._seeds[0], number)
            for number, layer in enumerate(self._model.layers)
        )

    def work(self) -> Work[Tensor]:
        """The step; its part of the gradient."""
        found: Tensor = yield from step(First(self._terms, self._model, *self._seeds), None, None)
        return found


class SecondParty:
    """The client's half of one step. `first` and `dealer` are named in errors; what they sent is checked here."""

    def __init__(
        self,
        terms: StepTerms,
        masked_weights: Sequence[Tensor],
        dealt: Sequence[Tensor],
        with_dealer: bytes,
        with_first: bytes,
        *,
        first: str,
        dealer: str,
    ) -> None:
        expect_count(first, "masked weights", len(masked_weights), len(terms.linear_steps))
        for layer, source, weight in zip(terms.linear_steps, terms.linear_sources, masked_weights, strict=True):
            expect_tensor(first, "masked weights", weight, layer.weight_shape(source), torch.int64)
        expected = terms.shape_of_step.dealt
        expect_count(dealer, "dealt parts", len(dealt), len(expected))
        for part, (shape, dtype) in zip(dealt, expected, strict=True):
            expect_tensor(dealer, "dealt parts", part, shape, dtype)
        self._terms = terms
        self._role = Second(terms, masked_weights, dealt, with_dealer, with_first, dealer)

    def prepare(self) -> None:
        """The longest part of its work, which needs no value: it can be done while others deal or compute."""
        self._role.prepare()

    def work(self, inputs: Tensor, targets: Tensor) -> Work[Tensor]:
        """The step on this batch; its part of the gradient. Targets: classes (int64), or numbers for MSE."""
        encoded, wanted = encode_batch(self._terms, inputs, targets)
        found: Tensor = yield from step(self._role, encoded, wanted)
        self._role.expect_all_used()
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
