"""A step in the clear, as an attacker walks it under what it takes to be possible: its signs, and what comes back."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bilateral.data import Split
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.parties import encode_batch
from bilateral.protocols.share.training.plain import Plain
from bilateral.protocols.share.training.roles import Bit, Blinded, FirstModel, Gate
from bilateral.protocols.share.training.script import run, step
from bilateral.protocols.share.training.terms import StepTerms


@dataclass(frozen=True, repr=False)
class Walked:
    """`signs`: [x >= 0] of every comparison in order, flat. `deltas`: of every layer that trains, in the ring."""

    inputs: Tensor
    signs: tuple[Tensor, ...]
    deltas: dict[int, Tensor]


class _Noting(Plain):
    def __init__(self, terms: StepTerms, model: FirstModel) -> None:
        super().__init__(terms, model)
        self.signs: list[Tensor] = []
        self.deltas: dict[int, Tensor] = {}

    def compare(self, x: Tensor, bits: int) -> Generator[Any, Any, Bit]:
        self.signs.append((x >= 0).long().reshape(-1))
        return (yield from super().compare(x, bits))

    def gradient(self, layer: int, value: Blinded, delta: Blinded) -> Gate:
        self.deltas[layer] = delta.masked.part
        return (yield from super().gradient(layer, value, delta))


def walk(terms: StepTerms, layers: tuple[PrivateLayer, ...], batch: Split) -> Walked:
    """The step of this batch under these weights."""
    role = _Noting(terms, FirstModel.of(terms, layers, {}))
    inputs, targets = encode_batch(terms, batch.inputs, batch.targets)
    run(step(role, inputs, targets))
    return Walked(inputs, tuple(role.signs), role.deltas)
