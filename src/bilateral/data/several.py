"""Several inputs a sample, as `((image, age), target)` or `({"words": …, "mask": …}, target)`.

All that lies between a dataset and a model (batches, shares, checks, recordings) knows the inputs as one tensor. Parts
are therefore laid side by side in one row of real numbers, and the model takes them apart again before it is called: a
tuple becomes its arguments in order, a dict its arguments by name. A whole number takes two places, so that it comes
back as it was in any precision.

Formal guarantee (tests/data/test_several.py): what is taken apart is what was laid together, to the bit, in float32 and
in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, nn

from bilateral.data.conversion import tensor_if_array
from bilateral.errors import DataError

_HALF: Final = 1 << 24
"""Whole numbers up to here are float32's own."""
_LARGEST: Final = _HALF * _HALF
_PLACES: Final = {"float32": 1, "bool": 1, "int64": 2}
PART_TYPES: Final = tuple(_PLACES)

Shapes = tuple[tuple[int, ...], ...] | dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Part:
    """One input of several: its name (empty in a tuple), the shape of one sample, and its kind of numbers."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def places(self) -> int:
        """How many places of a row it takes."""
        return prod(self.shape) * _PLACES[self.dtype]

    def laid_out(self, values: Tensor) -> Tensor:
        """Samples first -> one row a sample."""
        flat = values.reshape(len(values), -1)
        if self.dtype == "int64":
            low = flat % _HALF
            flat = torch.stack([(flat - low) // _HALF, low], 2).reshape(len(values), -1)
        return flat.float()

    def taken(self, places: Tensor) -> Tensor:
        """The inverse of `laid_out`; real numbers in the precision of the row."""
        count = len(places)
        if self.dtype == "int64":
            high, low = places.reshape(count, -1, 2).round().long().unbind(2)
            return (high * _HALF + low).reshape(count, *self.shape)
        found = places.reshape(count, *self.shape)
        return found != 0 if self.dtype == "bool" else found.contiguous()

    def __str__(self) -> str:
        return f"{f'{self.name}: ' if self.name else ''}{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class InputForm:
    """What the inputs of a sample are, where they are several."""

    parts: tuple[Part, ...]

    @property
    def width(self) -> int:
        """The length of a row."""
        return sum(part.places for part in self.parts)

    @property
    def by_name(self) -> bool:
        return bool(self.parts[0].name)

    @property
    def shapes(self) -> Shapes:
        """Of one sample, as a function that makes a model is told them."""
        if self.by_name:
            return {part.name: part.shape for part in self.parts}
        return tuple(part.shape for part in self.parts)

    def taken_apart(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The parts of these samples, in order."""
        found = torch.split(rows, [part.places for part in self.parts], 1)
        return tuple(part.taken(places) for part, places in zip(self.parts, found, strict=True))

    def attach(self, model: nn.Module) -> None:
        """Let `model` take rows. What it is called with otherwise goes in as it is."""
        model.register_forward_pre_hook(_TakesApart(self), with_kwargs=True)

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.parts))
        return f"{{{listed}}}" if self.by_name else f"({listed})"


@dataclass(frozen=True, eq=False)
class Several:
    """The inputs of samples, laid together; of one sample, `rows` is its row."""

    form: InputForm
    rows: Tensor


class _TakesApart:
    """A hook before a model's forward pass."""

    def __init__(self, form: InputForm) -> None:
        self._form = form

    def __call__(
        self,
        module: nn.Module,  # noqa: ARG002
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        form = self._form
        given = arguments[0] if len(arguments) == 1 and not named else None
        if not isinstance(given, Tensor) or given.dim() != 2 or not given.is_floating_point():
            return arguments, named
        if given.shape[1] != form.width:
            return arguments, named
        parts = form.taken_apart(given)
        if not form.by_name:
            return parts, {}
        return (), {part.name: values for part, values in zip(form.parts, parts, strict=True)}


def is_several(value: object) -> bool:
    """Whether this is how several inputs are given. A list is one array, as everywhere."""
    return isinstance(value, tuple | Mapping)


def laid_together(values: tuple[Any, ...] | Mapping[str, Any], where: str) -> Several:
    """Parts of many samples, the sample index first; `where` they came from, for errors."""
    names, tensors = _named(values, where)
    lengths = {len(tensor) if tensor.dim() else 0 for tensor in tensors}
    if len(lengths) > 1:
        raise DataError(
            f"Expected as many samples in every input of {where}, got {' and '.join(map(str, sorted(lengths)))}.",
            remedy="Each input has the sample index first.",
        )
    parts = tuple(
        Part(name, tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in zip(names, tensors, strict=True)
    )
    rows = [part.laid_out(tensor) for part, tensor in zip(parts, tensors, strict=True)]
    return Several(InputForm(parts), torch.cat(rows, 1))


def _named(values: tuple[Any, ...] | Mapping[str, Any], where: str) -> tuple[Sequence[str], list[Tensor]]:
    names = [""] * len(values) if isinstance(values, tuple) else list(values)
    given = [tensor_if_array(value) for value in (values if isinstance(values, tuple) else values.values())]
    if not given:
        raise DataError(f"Expected inputs in {where}, got an empty {type(values).__name__}.")
    if not isinstance(values, tuple) and not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise DataError(
            f"Expected the names of the inputs of {where} to be those of the model's arguments, got {names}.",
            remedy="A dict of inputs is given to the model by name: use names of its `forward`.",
        )
    for name, value in zip(names, given, strict=True):
        called = f"input {name!r}" if name else "an input"
        if not isinstance(value, Tensor) or str(value.dtype).removeprefix("torch.") not in _PLACES:
            came = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
            raise DataError(
                f"Expected {called} of {where} to be a tensor of float32, int64 or bool, got {came}.",
                remedy="Convert it in the dataset; texts become numbers of tokens, pictures tensors.",
            )
        if value.dtype == torch.int64 and bool((value.abs() >= _LARGEST).any()):
            raise DataError(
                f"Expected whole numbers below 2^48 in {called} of {where}.",
                remedy="Number the tokens from 0, or give real numbers.",
            )
    return names, given
