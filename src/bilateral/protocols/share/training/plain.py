"""The step in the clear, in the same fixed point: the parties' oracle, and how the first party sizes its limits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bilateral.protocols.share.circuit.gradient_maps import weight_gradient
from bilateral.protocols.share.circuit.plaintext import spread_bias
from bilateral.protocols.share.ring.streams import Purpose, Stream
from bilateral.protocols.share.training.parties import seed_of_step
from bilateral.protocols.share.training.roles import Bit, Blinded, FirstModel, Gate, Masked, Role
from bilateral.protocols.share.training.script import run, step
from bilateral.protocols.share.training.terms import Norm, StepTerms
from bilateral.protocols.share.training.watching import in_groups


class Plain(Role):
    """Everything in one hand. Truncation rounds to the nearest; the parties' is off by less than one more."""

    def __init__(self, terms: StepTerms, model: FirstModel, dropout: bytes | None = None) -> None:
        super().__init__(terms)
        self._model, self._dropout = model, dropout
        self.norms: dict[str, float] = {}
        """Of values and deltas that make a gradient, the largest Euclidean norm of a channel."""
        self.group_norms: dict[str, float] = {}
        """Of what is watched, the largest norm of a group, in units of the last place."""

    def constant(self, x: Tensor, value: int) -> Tensor:
        return x + value

    def secret_of_second(self, values: Tensor | None, shape: Sequence[int]) -> Tensor:
        del shape
        assert values is not None, "a step in the clear has inputs and targets"
        return values

    def kept(self, number: int, shape: Sequence[int], threshold: int) -> Tensor:
        if self._dropout is None:
            return torch.ones(tuple(shape), dtype=torch.int64)
        stream = Stream.of(self._dropout, "dropout", number, self.terms.batch_size)
        return ((stream.words(*shape) & ((1 << 20) - 1)) >= threshold).long()

    def mask(self, purpose: Purpose, number: int, x: Tensor) -> Generator[Any, Any, Masked]:
        del purpose, number
        return Masked(x)
        yield

    def apply(self, layer: int, masked: Masked, shift: int) -> Gate:
        bias = spread_bias(self._model.layers[layer].bias, self.terms.linear_steps[layer])
        return _nearest(self._model.maps[layer](masked.part) + bias, shift)
        yield

    def apply_transposed(self, layer: int, masked: Masked, shift: int) -> Gate:
        return _nearest(self._model.transposed[layer](masked.part), shift)
        yield

    def truncate(self, x: Tensor, shift: int) -> Gate:
        return _nearest(x, shift)
        yield

    def multiply(self, x: Tensor, y: Tensor) -> Gate:
        return x * y
        yield

    def compare(self, x: Tensor, bits: int) -> Generator[Any, Any, Bit]:
        del bits
        return _PlainBit(x)
        yield

    def blind(self, purpose: Purpose, number: int, masked: Masked, norm: Norm) -> Generator[Any, Any, Blinded]:
        del purpose, number
        channels = masked.part.transpose(0, 1).flatten(1).double() * 2.0**-norm.fraction_bits
        self.norms[norm.label] = float(channels.norm(dim=1).max())
        return Blinded(masked, masked.part)
        yield

    def expect_gradient(self, layer: int, value: Blinded, delta: Blinded) -> Generator[Any, Any, None]:
        del layer, value, delta
        return
        yield

    def gradient(self, layer: int, value: Blinded, delta: Blinded) -> Gate:
        return weight_gradient(self.terms.linear_steps[layer], delta.masked.part, value.masked.part)
        yield

    def watch(self, label: str, x: Tensor) -> None:
        """No sums: here one can look."""
        self.group_norms[label] = float(in_groups(x).double().norm(dim=1).max())

    def _sums(self, x: Tensor, number: int) -> Tensor:
        del x, number
        raise AssertionError("nothing is summed in the clear")

    def _limits(self, labelled: Sequence[tuple[str, Tensor]]) -> int:
        del labelled
        raise AssertionError("nothing is limited in the clear")

    def open_count(self, share: Tensor) -> Generator[Any, Any, int]:
        del share
        raise AssertionError("nothing is opened in the clear")

    def settle(self) -> Generator[Any, Any, int]:
        return 0
        yield


@dataclass(frozen=True, repr=False)
class _PlainBit(Bit):
    x: Tensor

    def positive_part(self) -> Tensor:
        return self.x.clamp_min(0)

    def share(self) -> Tensor:
        return (self.x >= 0).long()

    def times(self, value: Tensor) -> Gate:
        return value * (self.x >= 0)
        yield


def plain_step(
    terms: StepTerms, model: FirstModel, inputs: Tensor, targets: Tensor, dropout: bytes | None = None
) -> tuple[Tensor, dict[str, float]]:
    """The gradient's words (`StepTerms.decode`) of an encoded batch, and the largest norms of channels.

    `dropout`: the seed that the second party and the dealer have in common; without it nothing is dropped.
    """
    role = Plain(terms, model, None if dropout is None else seed_of_step(terms, dropout))
    words = run(step(role, inputs, targets))
    return words, role.norms


def _nearest(x: Tensor, shift: int) -> Tensor:
    return (x + (1 << (shift - 1))) >> shift
