"""Samples that stay where they are until they are needed: a map-style `torch.utils.data.Dataset` as a split.

A sample is `(input, target)`: a tensor, an array or numbers each; the input may also be a tuple or a dict of such, for
a model of several arguments (`several`). Batches are loaded by a `DataLoader`'s workers where
a plan asks for them (`data.workers`).

Formal guarantee (tests/data/test_mapped.py): what a dataset draws for a sample (a random transform, say) comes from a
seed of that sample and that batch, so that a run is the same with any number of workers, and when it is resumed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from bilateral.data.conversion import described
from bilateral.data.several import InputForm, Several, is_several, laid_together
from bilateral.data.task import Task
from bilateral.errors import BilateralError, DataError

_SAMPLE_REMEDY: Final = (
    "`dataset[0]` must be a pair: the input as a tensor (or array), and its target as a number or a tensor. Several "
    "inputs go into a tuple, `((image, age), target)`, or a dict by the names of the model's arguments."
)
_TRANSFORM_REMEDY: Final = (
    "Make a tensor of it in the dataset's transform: `torch.from_numpy(numpy.array(picture)).permute(2, 0, 1) / 255`, "
    "or torchvision's `ToTensor()`."
)


def is_mapped(value: object) -> bool:
    """Whether it is a dataset that can be asked for a sample by its number."""
    return isinstance(value, TorchDataset) and not isinstance(value, IterableDataset) and hasattr(value, "__len__")


_Sample = tuple[Tensor | Several, Tensor]


class MappedSamples:
    """Samples of a dataset, by number; nothing is loaded that is not asked for. `chosen`: which, all by default."""

    def __init__(
        self,
        source: Any,
        task: Task,
        where: str,
        *,
        chosen: Tensor | None = None,
        workers: int = 0,
        forms: tuple[InputForm | None, ...] = (),
    ) -> None:
        self.source = source
        self.task = task
        self.where = where
        self.chosen = torch.arange(len(source)) if chosen is None else chosen
        self.workers = workers
        self._loader: DataLoader[Any] | None = None
        self._chunks = _Chunks()
        self._forms = forms
        """What the first sample that was read said of the form of the inputs (None: one tensor); empty before."""

    def __len__(self) -> int:
        return len(self.chosen)

    def part(self, indices: Tensor) -> MappedSamples:
        """Some of them, still not loaded."""
        return self._like(self.chosen[indices], self.workers)

    def with_workers(self, workers: int) -> MappedSamples:
        return self._like(self.chosen, workers)

    @property
    def form(self) -> InputForm | None:
        """Of the inputs, where they are several."""
        if not self._forms:
            self.load(torch.zeros(1, dtype=torch.int64))
        return self._forms[0]

    def _like(self, chosen: Tensor, workers: int) -> MappedSamples:
        return MappedSamples(self.source, self.task, self.where, chosen=chosen, workers=workers, forms=self._forms)

    def load(self, indices: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these. `seed`: of whatever the dataset draws for them."""
        wanted = [(int(index), _mixed(seed, place)) for place, index in enumerate(self.chosen[indices].tolist())]
        reader = _Reader(self.source, self.task, self.where)
        if not wanted:
            given, targets = reader.read((int(self.chosen[0]), 0))
            inputs = given.rows if isinstance(given, Several) else given
            return inputs.new_empty(0, *inputs.shape), targets.new_empty(0, *targets.shape)
        samples = self._by_workers(reader, wanted) if self.workers else [reader[place] for place in wanted]
        return self._inputs([x for x, _ in samples]), _stacked([y for _, y in samples], "targets", self.where)

    def _inputs(self, values: Sequence[Tensor | Several]) -> Tensor:
        """One tensor of all, whose samples must be of one form."""
        forms = dict.fromkeys([*self._forms, *(v.form if isinstance(v, Several) else None for v in values)])
        if len(forms) > 1:
            some = " and ".join("one tensor" if form is None else str(form) for form in list(forms)[:2])
            raise DataError(
                f"Expected the same inputs in every sample of {self.where}, got {some}.",
                remedy="Resize, crop or pad them in the dataset, and give each part the same type.",
            )
        self._forms = tuple(forms)
        return _stacked([v.rows if isinstance(v, Several) else v for v in values], "inputs", self.where)

    def known_targets(self) -> Tensor | None:
        """What the dataset says of all its targets (`targets` or `labels`, as those of torchvision do), if it does."""
        if self.task != "classification":
            return None
        found = getattr(self.source, "targets", getattr(self.source, "labels", None))
        if not isinstance(found, Sequence | np.ndarray | Tensor) or len(found) != len(self.source):
            return None
        values = torch.as_tensor(found)
        return values.long()[self.chosen] if values.dim() == 1 and not values.is_floating_point() else None

    def _by_workers(self, reader: _Reader, wanted: list[tuple[int, int]]) -> list[_Sample]:
        if self._loader is None:
            self._loader = DataLoader(
                reader,
                batch_sampler=self._chunks,
                num_workers=self.workers,
                collate_fn=_as_they_are,
                persistent_workers=True,
            )
        size = -(-len(wanted) // self.workers)
        self._chunks.now = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        return [sample for chunk in self._loader for sample in _unwrapped(chunk)]


class _Chunks:
    """What the workers are to read next; they outlive a batch, so the list is changed and not the loader."""

    def __init__(self) -> None:
        self.now: list[list[tuple[int, int]]] = []

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)


class _Reader(TorchDataset[Any]):
    """Reads (number, seed), in this process or in a worker's."""

    def __init__(self, source: Any, task: Task, where: str) -> None:
        self.source, self.task, self.where = source, task, where

    def __getitem__(self, place: tuple[int, int]) -> Any:
        try:
            return self.read(place)
        except BilateralError as error:
            if torch.utils.data.get_worker_info() is None:
                raise
            return error  # workers would wrap it in a traceback

    def read(self, place: tuple[int, int]) -> _Sample:
        number, seed = place
        with _seeded(seed):
            try:
                sample = self.source[number]
            except BilateralError:
                raise
            except Exception as error:  # a user's dataset may raise anything
                raise DataError(
                    f"Sample {number} of {self.where} could not be read: {type(error).__name__}: {error}.",
                    remedy=f"Try `dataset[{number}]` in Python to see where.",
                ) from error
        return _pair(sample, self.task, f"sample {number} of {self.where}")


def _unwrapped(chunk: list[Any]) -> list[_Sample]:
    for sample in chunk:
        if isinstance(sample, BilateralError):
            raise sample
    return chunk


def _as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def _pair(sample: Any, task: Task, where: str) -> _Sample:
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        what = f"{len(sample)} values" if isinstance(sample, tuple | list) else described(sample)
        raise DataError(f"Expected {where} to be an input and a target, got {what}.", remedy=_SAMPLE_REMEDY)
    return _inputs(sample[0], where), _target(sample[1], task, where)


def _inputs(value: Any, where: str) -> Tensor | Several:
    """One tensor, or several laid together."""
    if not is_several(value):
        return _input(value, where)
    named = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
    found: dict[Any, Tensor] = {
        name: torch.as_tensor(one)[None] if _is_truth(one) else _input(one, where)[None] for name, one in named.items()
    }
    parts: tuple[Any, ...] | Mapping[str, Any] = tuple(found.values()) if isinstance(value, tuple) else found
    whole = laid_together(parts, where)
    return Several(whole.form, whole.rows[0])


def _is_truth(value: Any) -> bool:
    """Whether it is, or holds, True and False: a mask, which stays one."""
    return isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) in (torch.bool, np.dtype(bool))


def _input(value: Any, where: str) -> Tensor:
    if isinstance(value, np.ndarray | np.generic | list | int | float):
        with suppress(TypeError):
            value = torch.as_tensor(np.asarray(value))
    if not isinstance(value, Tensor):
        remedy = _TRANSFORM_REMEDY if hasattr(value, "convert") else _SAMPLE_REMEDY
        raise DataError(f"Expected the input of {where} to be a tensor, got {described(value)}.", remedy=remedy)
    if value.dtype == torch.float64 or value.dtype in (torch.float16, torch.bfloat16):
        value = value.float()
    if value.dtype in (torch.int32, torch.int16):
        value = value.long()
    if value.dtype not in (torch.float32, torch.int64):
        raise DataError(
            f"Expected the input of {where} in floating point, or as numbers of tokens (int64), got {value.dtype}.",
            remedy="Convert it in the dataset's transform, pixels for example with `picture.float() / 255`.",
        )
    found: Tensor = value
    return found.reshape(1) if found.dim() == 0 else found


def _target(value: Any, task: Task, where: str) -> Tensor:
    try:
        target = torch.as_tensor(np.asarray(value) if not isinstance(value, Tensor) else value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Expected the target of {where} to be a number or numbers, got {described(value)}.",
            remedy="Number the classes from 0: `classes.index(label)`.",
        ) from error
    if task in ("regression", "multi-label"):
        return target.float().reshape(-1)
    whole = not target.is_floating_point() and target.dtype != torch.bool
    if task == "segmentation" and whole and target.dim() >= 1:
        return target.long()
    if task == "classification" and target.numel() == 1 and (whole or target.dtype == torch.bool):
        return target.long().reshape(())
    wanted = "a class number for each place" if task == "segmentation" else "one class number"
    raise DataError(
        f"Expected the target of {where} to be {wanted}, got {target.dtype} of shape {list(target.shape)}.",
        remedy="Number the classes from 0 (`int(label)`); real values are for task = 'regression', 0 or 1 for each of "
        "several labels for task = 'multi-label', a map of classes for task = 'segmentation'.",
    )


def _stacked(values: list[Tensor], what: str, where: str) -> Tensor:
    shapes = {tuple(value.shape) for value in values}
    if len(shapes) > 1:
        some = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
        raise DataError(
            f"Expected {what} of one shape in {where}, got {some}.",
            remedy="Resize, crop or pad them in the dataset's transform; texts to one length of tokens.",
        )
    return torch.stack(values)


def _mixed(seed: int, place: int) -> int:
    return (seed * 0x9E3779B97F4A7C15 + place * 0xBF58476D1CE4E5B9 + 1) & ((1 << 63) - 1)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The generators that datasets draw from, for one sample; as they were, afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
