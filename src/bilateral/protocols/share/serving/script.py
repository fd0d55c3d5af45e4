"""A question, gate by gate: the forward half of a training step (`training/script`), then what is revealed.

All that is compared or multiplied on the way is watched as in training, and the answers are told only when every number
was within its range: a network or an input that leads beyond gets an error, never a wrong answer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bilateral.errors import NumericalRangeError
from bilateral.protocols.share.serving.roles import DealingAnswers, Revealing
from bilateral.protocols.share.serving.terms import QuestionTerms
from bilateral.protocols.share.training.forward import forward, masked_value, watch_what_is_compared
from bilateral.protocols.share.training.roles import Gate
from bilateral.protocols.share.training.script import run
from bilateral.protocols.share.training.tape import VALUE_BITS, Tape, Walk
from bilateral.protocols.share.training.terms import StepShape


def question(role: Revealing, terms: QuestionTerms, inputs: Tensor | None) -> Walk:
    """The answers, at the second party: words with `terms.answer_bits` fraction bits. `inputs`: encoded, its own."""
    steps = terms.circuit.steps
    tape = Tape([role.secret_of_second(inputs, (terms.batch_size, *terms.circuit.input_shape))])
    for index in range(len(steps) - terms.answers_with_product):
        tape.values.append((yield from forward(role, tape, index)))
        tape.forget(terms, index)
    if terms.answers_with_product:
        masked = yield from masked_value(role, tape, steps[-1].sources[0])
        answers = yield from role.apply_whole(len(terms.linear_steps) - 1, masked)
    else:
        answers = tape.value(-1)
    if terms.reveal == "class":
        watch_what_is_compared(role, tape, len(steps), answers)
        answers = yield from _place_of_largest(role, answers, VALUE_BITS + terms.circuit.output.fraction_bits)
    if role.watches and (beyond := (yield from role.settle())):
        raise NumericalRangeError(
            f"Numbers of this question left their range: {beyond} of its random sums are beyond their limits. Nothing "
            "of the answers was told.",
            remedy="Normalise the inputs as those of the training data were; or ask for fewer answers at once.",
        )
    return (yield from role.tell_second(answers, terms.noise_bits))


def _place_of_largest(role: Revealing, outputs: Tensor, bits: int) -> Gate:
    """Of every row, by comparing neighbours: of equal ones the first stays."""
    zeros = torch.zeros_like(outputs[:, 0])
    places = torch.stack([role.constant(zeros, place) for place in range(outputs.shape[1])], dim=1)
    while outputs.shape[1] > 1:
        (first, second, odd), (place, other, odd_place) = _neighbours(outputs), _neighbours(places)
        bit = yield from role.compare(first - second, bits)
        chosen = yield from bit.times(place - other)
        outputs = torch.cat([second + bit.positive_part(), odd], dim=1)
        places = torch.cat([other + chosen, odd_place], dim=1)
    return places[:, 0]


def _neighbours(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first and the second of each pair, and what is left over."""
    paired = x.shape[1] // 2 * 2
    return x[:, 0:paired:2], x[:, 1:paired:2], x[:, paired:]


def shape_of(terms: QuestionTerms) -> StepShape:
    """By walking the question with shapes alone."""
    dealer = DealingAnswers(terms, None)
    answer_all(question(dealer, terms, None))
    return StepShape((), tuple(dealer.dealt_shapes), tuple(dealer.watched_shapes), ())


def answer_all(walk: Walk) -> Any:
    """A walk of whoever never waits: the dealer, or everything in one hand."""
    return run(walk)
