"""The public facts of a question: a batch of inputs, and what is revealed of each answer."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, cast, get_args

from bilateral.errors import ModelError, ProtocolError
from bilateral.protocols.share.circuit.description import FRACTION_BITS, ChannelDropout, Circuit, Conv, Dense, Dropout
from bilateral.protocols.share.training.terms import Loss, StepShape, StepTerms

Reveal = Literal["logits", "class"]
REVEALS: Final = get_args(Reveal)
MOST_CLASSES: Final = 1 << 20
_OVERHEAD_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class QuestionTerms(StepTerms):
    """A step in which nothing trains: forward, then one look at the answers, by the second party alone.

    `reveal`: the outputs of every sample, or only which of them is the largest (of equal ones, the first).
    """

    loss: Loss = field(default="mse", init=False)  # of a step that trains
    trains: tuple[tuple[bool, bool], ...] = field(default=(), init=False)
    factor: int = field(default=1, init=False)
    reveal: Reveal = "logits"

    def __post_init__(self) -> None:
        object.__setattr__(self, "trains", ((False, False),) * len(self.circuit.linear_steps))
        _require(1 <= self.batch_size <= self.circuit.largest_batch, f"{self.batch_size} questions at once")
        _require(self.reveal in REVEALS, f"there is no {self.reveal!r} to reveal")
        _require(len(self.circuit.output.shape) == 1, "the outputs of a sample are a vector")
        _require(self.reveal == "logits" or self.num_outputs > 1, "a single output has no class: ask for logits")
        _require(self.num_outputs <= MOST_CLASSES, f"at most {MOST_CLASSES} outputs")
        _require(not any(isinstance(s, Dropout | ChannelDropout) for s in self.circuit.steps), "answers drop nothing")

    @property
    def num_outputs(self) -> int:
        return self.circuit.output.size

    @property
    def num_parameters(self) -> int:
        """Weights and biases of the linear layers, frozen ones too."""
        shapes = [
            layer.weight_shape(source) for layer, source in zip(self.linear_steps, self.linear_sources, strict=True)
        ]
        return sum(math.prod(shape) + shape[0] for shape in shapes)

    @property
    def answers_with_product(self) -> bool:
        """The answer is told as the last layer's product, with all its fraction bits and noise in the lower ones."""
        return self.reveal == "logits" and isinstance(self.circuit.steps[-1], Dense | Conv)

    @property
    def answer_bits(self) -> int:
        """Fraction bits of what is told."""
        if self.reveal == "class":
            return 0
        if self.answers_with_product:
            return FRACTION_BITS + self.linear_sources[-1].fraction_bits
        return self.circuit.output.fraction_bits

    @property
    def noise_bits(self) -> int:
        """Under uniform noise in so many of the lowest bits: what is left are numbers of 20 fraction bits."""
        return max(0, self.answer_bits - FRACTION_BITS)

    @cached_property
    def digest(self) -> bytes:
        """Names these terms and no others."""
        facts = ["bilateral question v1", self.circuit.to_json(), self.batch_size, self.reveal]
        return hashlib.sha256(json.dumps(facts).encode()).digest()

    @property
    def most_bytes(self) -> int:
        """No message of a question is larger, from any party to another, its circuit and other facts aside.

        A dealt word goes with every word that is opened, but for values that go under a mask of a seed.
        """
        words = self.batch_size * sum(math.prod(value.shape) for value in self.circuit.values)
        return 2 * self.shape_of_step.dealt_bytes + 16 * words + _OVERHEAD_BYTES

    @cached_property
    def shape_of_step(self) -> StepShape:
        """What a question deals and watches, found by walking it with shapes alone."""
        from bilateral.protocols.share.serving.script import shape_of  # noqa: PLC0415 (which walks these terms)

        return shape_of(self)


def checked_circuit(text: str, sender: str) -> Circuit:
    """A circuit that another party wrote."""
    return Circuit.from_json(text, sender, is_trained=True)


def question_terms(circuit: Circuit, count: int, reveal: str, sender: str) -> QuestionTerms:
    """Terms that another party asked for."""
    try:
        return QuestionTerms(circuit, count, cast("Reveal", reveal))
    except ModelError as error:
        raise ProtocolError(f"{sender} asks for what cannot be answered. {error}") from error


def _require(is_so: bool, what: str) -> None:
    if not is_so:
        raise ModelError(f"No question: {what}.")
