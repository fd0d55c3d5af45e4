"""One question, party by party, over whatever carries messages; and in the clear, in the same fixed point.

Every seed is used for one question, but for that of the weights' masks, which is of a session: one asking party, one
model. Whoever makes seeds never makes one twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from bilateral.errors import DataError, NumericalRangeError
from bilateral.protocols.share.circuit.description import FRACTION_BITS, Circuit
from bilateral.protocols.share.circuit.plaintext import PrivateLayer, linear_map
from bilateral.protocols.share.gates.expected import expect_count, expect_tensor
from bilateral.protocols.share.gates.talk import Work
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.serving.roles import (
    Answering,
    Asking,
    DealingAnswers,
    PlainAnswers,
    session_weight_masks,
)
from bilateral.protocols.share.serving.script import answer_all, question
from bilateral.protocols.share.serving.terms import QuestionTerms
from bilateral.protocols.share.training.bounds import limits_for
from bilateral.protocols.share.training.parties import expect_dealt
from bilateral.protocols.share.training.roles import FirstModel

LEAST_MARGIN: Final = 6.0
"""Limits are at least this many times the norms of examples: random sums go up to five times a norm."""


def model_of(terms: QuestionTerms, layers: Sequence[PrivateLayer]) -> FirstModel:
    """What the answering party has in the clear, for any number of questions; limits follow by `with_limits`."""
    steps = zip(terms.linear_steps, layers, strict=True)
    return FirstModel(layers, [linear_map(step, layer.weight, layer.weight_bits) for step, layer in steps], [], {})


def with_limits(terms: QuestionTerms, model: FirstModel, examples: Tensor) -> FirstModel:
    """Limits for questions of these terms. Refused where `examples`, inputs of the answering party's own, come near.

    Nothing of the examples leaves it, nor of the limits: they are as large as comparisons allow.
    """
    limits = limits_for(terms, model.layers, {}, 1).encode(terms)
    wanted = examples[torch.arange(terms.batch_size) % len(examples)]
    largest = terms.circuit.largest_input
    _, norms = plain_answers(terms, model, wanted.double().clamp(-largest, largest))
    for label, norm in norms.items():
        if norm * LEAST_MARGIN > limits[label]:
            raise NumericalRangeError(
                f"On examples of the server's own, the numbers of {label} come within {limits[label] / norm:.1f} times "
                f"their size of the limit of sealed comparisons, and {LEAST_MARGIN:.0f} times are wanted for others.",
                remedy="Train with normalised inputs, weight decay, or a smaller learning rate.",
            )
    return replace(model, limits=limits)


def plain_answers(terms: QuestionTerms, model: FirstModel, inputs: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Answers in the clear, and the norms of what is watched."""
    role = PlainAnswers(terms, model)
    words = answer_all(question(role, terms, encode_inputs(terms, inputs)))
    return decode_answers(terms, words), role.group_norms


def deal(terms: QuestionTerms, masks: Sequence[Tensor], with_first: bytes, with_second: bytes) -> tuple[Tensor, ...]:
    """The dealer: all that the answering party is sent, uniform to it. `masks`: of the session (`weight_masks`)."""
    dealer = DealingAnswers(terms, (with_first, with_second), masks)
    answer_all(question(dealer, terms, None))
    return tuple(dealer.dealt)


def weight_masks(circuit: Circuit, seed: bytes) -> tuple[Tensor, ...]:
    """Of a session: known to the answering party and the dealer."""
    return session_weight_masks(QuestionTerms(circuit, 1), seed)


def masked_weights(model: FirstModel, masks: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """For the asking party, once a session: uniform to it."""
    return tuple(layer.weight + mask for layer, mask in zip(model.layers, masks, strict=True))


class AnsweringParty:
    """`own`: a seed that nobody else knows; `with_second` is unknown to the dealer, who is named in errors."""

    def __init__(
        self,
        terms: QuestionTerms,
        model: FirstModel,
        dealt: Sequence[Tensor],
        with_dealer: bytes,
        with_second: bytes,
        own: bytes,
        *,
        dealer: str,
    ) -> None:
        expect_dealt(terms, dealt, dealer)
        self._terms = terms
        self._role = Answering(terms, model, dealt, with_dealer, with_second, own, dealer)

    def work(self) -> Work[Tensor]:
        """It learns nothing; the result is zeros."""
        found: Tensor = yield from question(self._role, self._terms, None)
        self._role.expect_all_used()
        return found


class AskingParty:
    """`first` is named in errors; what it sent is checked here."""

    def __init__(
        self, terms: QuestionTerms, weights: Sequence[Tensor], with_dealer: bytes, with_first: bytes, *, first: str
    ) -> None:
        expect_weights(terms.circuit, weights, first)
        self._terms = terms
        self._role = Asking(terms, weights, with_dealer, with_first)

    def work(self, inputs: Tensor) -> Work[Tensor]:
        """The answers: float64 outputs, or classes (int64)."""
        words = yield from question(self._role, self._terms, encode_inputs(self._terms, inputs))
        return decode_answers(self._terms, words)


def expect_weights(circuit: Circuit, weights: Sequence[Tensor], sender: str) -> None:
    """Refuse masked weights of other shapes."""
    terms = QuestionTerms(circuit, 1)
    expect_count(sender, "masked weights", len(weights), len(terms.linear_steps))
    for layer, source, weight in zip(terms.linear_steps, terms.linear_sources, weights, strict=True):
        expect_tensor(sender, "masked weights", weight, layer.weight_shape(source), torch.int64)


def encode_inputs(terms: QuestionTerms, inputs: Tensor) -> Tensor:
    """The asking party's own numbers, as ring elements; refused where they are of another shape or too large."""
    shape = (terms.batch_size, *terms.circuit.input_shape)
    if tuple(inputs.shape) != shape:
        raise DataError(f"Expected inputs of shape {shape}, got {tuple(inputs.shape)}.")
    largest = float(inputs.abs().max())
    if not largest <= terms.circuit.largest_input:
        raise NumericalRangeError(
            f"An input is {largest:.3g}; this model takes inputs up to {terms.circuit.largest_input}.",
            remedy="Normalise the inputs as those of the training data were.",
        )
    return ring.encode(inputs, FRACTION_BITS)


def decode_answers(terms: QuestionTerms, words: Tensor) -> Tensor:
    """What the asking party makes of the words that it was told."""
    return words if terms.reveal == "class" else ring.decode(words, terms.answer_bits)
