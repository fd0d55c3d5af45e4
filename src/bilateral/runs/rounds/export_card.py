"""The card of an exported model: what a reader needs to know, as the file says it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from bilateral.data.several import PART_TYPES, InputForm, Part
from bilateral.documents import parse_json

FORMAT: Final = 1
DTYPES: Final = ("float32", "float64")
MAX_SIZE: Final = 1 << 31
"""Of every number in a shape: what a dimension of a tensor may have here."""
MAX_INPUTS: Final = 1000


@dataclass(frozen=True)
class ExportCard:
    """What a reader of an exported model needs to know."""

    format: int
    model: str
    model_options: dict[str, Any]
    input_shape: tuple[int, ...]
    num_outputs: int
    dtype: str
    dataset: str
    dataset_options: dict[str, Any]
    task: str
    loss: str
    class_names: tuple[str, ...]
    metrics: dict[str, float]
    inputs: tuple[Part, ...] = ()
    """Where a sample has several; `input_shape` is that of a row of them then."""

    @property
    def form(self) -> InputForm | None:
        return InputForm(self.inputs) if self.inputs else None


def parse_card(text: str) -> ExportCard:
    """The card that a file holds as JSON; `ValueError` if it is none of this version."""
    values = parse_json(text)
    expected = {one.name for one in fields(ExportCard)}
    if not isinstance(values, dict) or {*values, "inputs"} != expected:  # cards from before several inputs lack them
        raise ValueError(f"expected a card with {', '.join(sorted(expected))}")
    if values["format"] != FORMAT or type(values["format"]) is not int:
        raise ValueError(f"it has format {str(values['format'])[:40]}, this version reads {FORMAT}")
    for name in ("model", "dataset", "task", "loss"):
        _require(isinstance(values[name], str), name, "a text")
    for name in ("model_options", "dataset_options", "metrics"):
        _require(isinstance(values[name], dict), name, "an object")
    shape, names = values["input_shape"], values["class_names"]
    _require(
        isinstance(shape, list) and len(shape) in range(1, 9) and all(map(_is_size, shape)), "input_shape", "sizes"
    )
    _require(_is_size(values["num_outputs"]), "num_outputs", "a number of outputs")
    _require(values["dtype"] in DTYPES, "dtype", f"one of {', '.join(DTYPES)}")
    _require(isinstance(names, list) and all(isinstance(name, str) for name in names), "class_names", "a list of texts")
    _require(len(names) in (0, values["num_outputs"]), "class_names", "a name for every output, or none")
    _require(all(_is_number(value) for value in values["metrics"].values()), "metrics", "numbers")
    inputs = _parts(values.get("inputs", []))
    width = InputForm(inputs).width if inputs else shape[0]
    _require(not inputs or shape == [width], "input_shape", "the length of a row of its inputs")
    tuples = {"input_shape": tuple(shape), "class_names": tuple(names), "inputs": inputs}
    return ExportCard(**{**values, **tuples})


def _parts(values: object) -> tuple[Part, ...]:
    found: list[Part] = []
    _require(isinstance(values, list) and len(values) <= MAX_INPUTS, "inputs", "a list")
    for one in values if isinstance(values, list) else ():
        is_part = isinstance(one, dict) and set(one) == {"name", "shape", "dtype"}
        _require(is_part and isinstance(one["name"], str) and isinstance(one["shape"], list), "inputs", "parts")
        _require(one["dtype"] in PART_TYPES and len(one["shape"]) <= 8, "inputs", "parts of known types")
        _require(all(map(_is_size, one["shape"])), "inputs", "parts with sizes")
        found.append(Part(one["name"], tuple(one["shape"]), one["dtype"]))
    named = sum(bool(part.name) for part in found)
    _require(named in (0, len(found)), "inputs", "parts that have names all, or none")
    return tuple(found)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value < MAX_SIZE


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(is_so: bool, name: str, what: str) -> None:
    if not is_so:
        raise ValueError(f"expected `{name}` of its card to be {what}")
