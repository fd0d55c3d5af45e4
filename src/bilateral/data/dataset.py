"""What a dataset is to the rest of the package, and the one place where its promises are checked.

Every loader's result, a user's own included, passes `validate`: whatever trains on a `Dataset` may rely on
finite float32 inputs, targets that fit the task, and labels inside the range of the outputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from bilateral.arguments import explained
from bilateral.data.conversion import described, holds_text, tensor_if_array, tuple_if_list
from bilateral.data.mapped import MappedSamples, is_mapped
from bilateral.data.several import InputForm, is_several, laid_together
from bilateral.data.task import Task
from bilateral.errors import DataError

TASKS_IN_WORDS: Final = " or ".join(f'"{task}"' for task in get_args(Task))
_ENCODE_TEXT: Final = (
    "Encode texts as numbers, over both splits at once: `names, numbers = numpy.unique(texts, return_inverse=True)`."
)


@explained("A Split is made of inputs and targets, the sample index first: `Split(inputs, targets)`.")
@dataclass(frozen=True, eq=False)
class Split:
    """Samples with their targets, the sample index first; images are NCHW.

    `targets` are int64 `[N]` for classification, int64 `[N, ...]` for segmentation, and float32 `[N, outputs]` for
    regression and, all 0 or 1, for several labels a sample. `sites` names, for every sample, the place it came from,
    where the data are a natural federation. Arrays of numpy become tensors. Several inputs, as a tuple or a dict of
    tensors, are laid together in rows (`several`), and `form` says how.
    """

    inputs: Tensor
    targets: Tensor
    sites: tuple[str, ...] | None = None
    form: InputForm | None = None

    def __post_init__(self) -> None:
        if is_several(self.inputs):
            given: Any = self.inputs
            whole = laid_together(given, "a split")
            object.__setattr__(self, "inputs", whole.rows)
            object.__setattr__(self, "form", whole.form)
        for name, convert in (("inputs", tensor_if_array), ("targets", tensor_if_array), ("sites", tuple_if_list)):
            object.__setattr__(self, name, convert(getattr(self, name)))

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def subset(self, indices: Tensor) -> Split:
        """The samples at `indices`, in that order."""
        sites = None if self.sites is None else tuple(self.sites[index] for index in indices.tolist())
        return Split(self.inputs[indices], self.targets[indices], sites, self.form)

    def part(self, indices: Tensor) -> Split:
        """The samples at `indices`, which need not be loaded yet."""
        return self.subset(indices)

    def drawn(self, indices: Tensor, seed: Callable[[], int]) -> Split:  # noqa: ARG002
        """The samples of a batch. `seed`: of whatever is drawn anew each time (a dataset's random transforms)."""
        return self.subset(indices)

    def chunks(self, size: int) -> Iterator[Split]:
        """All samples in order, in parts of like size, `size` at most."""
        for indices in torch.tensor_split(torch.arange(len(self)), -(-len(self) // size)):
            yield self.subset(indices)

    def cast(self, dtype: torch.dtype) -> Split:
        """With real inputs in this precision; whole numbers (tokens) stay what they are."""
        inputs = self.inputs.to(dtype) if self.inputs.is_floating_point() else self.inputs
        return Split(inputs, self.targets, self.sites, self.form)

    def examples(self, count: int) -> Tensor:
        """The first inputs."""
        return self.inputs[:count]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def input_dtype(self) -> torch.dtype:
        return self.inputs.dtype

    @property
    def known_targets(self) -> Tensor | None:
        """All targets, if they can be had without loading the samples."""
        return self.targets


class LazySplit(Split):
    """A split whose samples are loaded when they are asked for: batches by `subset` and `drawn`, all by `inputs`."""

    def __init__(
        self, samples: MappedSamples, dtype: torch.dtype = torch.float32, sites: tuple[str, ...] | None = None
    ) -> None:
        object.__setattr__(self, "samples", samples)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "sites", sites)
        object.__setattr__(self, "_whole", None)
        object.__setattr__(self, "_first", None)

    def __repr__(self) -> str:
        return f"LazySplit({len(self)} samples, {len(self.samples.source)} in the dataset)"

    samples: MappedSamples
    dtype: torch.dtype
    _whole: Split | None
    _first: tuple[Tensor, Tensor] | None

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def inputs(self) -> Tensor:
        """All of them, loaded now and kept: for whoever needs them at once."""
        return self._all().inputs

    @property
    def targets(self) -> Tensor:
        known = self.known_targets
        return self._all().targets if known is None else known

    def subset(self, indices: Tensor) -> Split:
        return self.drawn(indices, lambda: 0)

    def part(self, indices: Tensor) -> Split:
        sites = None if self.sites is None else tuple(self.sites[index] for index in indices.tolist())
        return LazySplit(self.samples.part(indices), self.dtype, sites)

    def drawn(self, indices: Tensor, seed: Callable[[], int]) -> Split:
        inputs, targets = self.samples.load(indices, seed())
        sites = None if self.sites is None else tuple(self.sites[index] for index in indices.tolist())
        return Split(inputs.to(self.dtype) if inputs.is_floating_point() else inputs, targets, sites, self.form)

    def cast(self, dtype: torch.dtype) -> Split:
        return LazySplit(self.samples, dtype, self.sites)

    def with_workers(self, workers: int) -> LazySplit:
        return LazySplit(self.samples.with_workers(workers), self.dtype, self.sites)

    def examples(self, count: int) -> Tensor:
        return self.subset(torch.arange(min(count, len(self)))).inputs

    @property
    def form(self) -> InputForm | None:
        return self.samples.form

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.first[0].shape)

    @property
    def input_dtype(self) -> torch.dtype:
        found = self.first[0].dtype
        return self.dtype if found.is_floating_point else found

    @property
    def known_targets(self) -> Tensor | None:
        return self._whole.targets if self._whole is not None else self.samples.known_targets()

    @property
    def first(self) -> tuple[Tensor, Tensor]:
        """The first sample: what all others are like."""
        if self._first is None:
            inputs, targets = self.samples.load(torch.zeros(1, dtype=torch.int64))
            object.__setattr__(self, "_first", (inputs[0], targets[0]))
        assert self._first is not None
        return self._first

    def _all(self) -> Split:
        if self._whole is None:
            object.__setattr__(self, "_whole", self.subset(torch.arange(len(self))))
        assert self._whole is not None
        return self._whole


@explained(
    'A Dataset needs a name, the task ("classification" or "regression"), train and test data, and the number of '
    'outputs: `Dataset("mine", "classification", train, test, num_outputs=2)`.'
)
@dataclass(frozen=True, eq=False)
class Dataset:
    """A train and a test split of one task.

    A `TensorDataset` or a pair of tensors is taken for a split; any other map-style `torch.utils.data.Dataset` for one
    whose samples are loaded when they are needed. `columns`: what the features are called, so that sites can compare.
    """

    name: str
    task: Task
    train: Split
    test: Split
    num_outputs: int
    class_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            object.__setattr__(
                self, part, _as_split(getattr(self, part), self.task, f'{part} of dataset "{self.name}"')
            )
        object.__setattr__(self, "num_outputs", _integer_if_one(self.num_outputs))
        object.__setattr__(self, "class_names", tuple_if_list(self.class_names))
        object.__setattr__(self, "columns", tuple_if_list(self.columns))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, without the batch dimension."""
        return self.train.sample_shape


def validate(dataset: Dataset) -> Dataset:
    """Return `dataset` if it keeps every promise of `Split` and `Dataset`, else raise a DataError.

    The checks run from the outside in (types, shapes, values), so that the first message is the cause and not
    one of its consequences.
    """
    _check_name(dataset.name)
    if dataset.task not in get_args(Task):
        raise DataError(
            f'Expected the task of dataset "{dataset.name}" to be {TASKS_IN_WORDS}, got "{dataset.task}".',
            remedy="Set `task` to one of them in the loader.",
        )
    if type(dataset.num_outputs) is not int or dataset.num_outputs < 1:
        raise DataError(
            f'Expected num_outputs of dataset "{dataset.name}" to be an integer of at least 1, '
            f"got {dataset.num_outputs!r}.",
            remedy="Set it to the number of classes, or of regression targets.",
        )
    for part, split in (("train", dataset.train), ("test", dataset.test)):
        where = f'the {part} split of dataset "{dataset.name}"'
        if isinstance(split, LazySplit):
            _check_first(split, where, dataset.task, dataset.num_outputs)
            continue
        _check_inputs(split, where)
        _check_lengths(split, where)
        _check_targets(split, where, dataset.task, dataset.num_outputs)
        _check_finite(split.inputs, "inputs", where)
        _check_finite(split.targets, "targets", where)
    _check_agreement(dataset)
    return dataset


def _check_first(split: LazySplit, where: str, task: Task, num_outputs: int) -> None:
    """What can be known without loading more than a sample; each batch is checked when it is trained on."""
    if len(split) == 0:
        raise DataError(
            f"Expected at least one sample in {where}, got an empty split.", remedy="Check where it reads from."
        )
    first = Split(split.first[0].unsqueeze(0), split.first[1].unsqueeze(0))
    _check_inputs(first, where)
    _check_targets(first, where, task, num_outputs)
    known = split.known_targets
    if known is not None:
        _check_class_range(known, where, num_outputs)


def _as_split(given: Any, task: Task, what: str) -> Split:
    """The split that `given` plainly is, or an error that says how to make one."""
    came = described(given)
    if isinstance(given, Split):
        return given
    if isinstance(given, TensorDataset):
        count = len(given.tensors)
        came, given = f"a TensorDataset of {count} tensor{'' if count == 1 else 's'}", given.tensors
    if isinstance(given, tuple | list) and len(given) == 2:
        return Split(*given)
    if is_mapped(given):
        return LazySplit(MappedSamples(given, task, what))
    raise DataError(
        f"Expected {what} to be a Split, a TensorDataset of inputs and targets, or a pair of them, got {came}.",
        remedy="A torch Dataset needs `__len__` and `__getitem__` (map-style). From samples one by one: "
        "`inputs, targets = zip(*samples)`, then "
        "`Split(torch.stack(inputs), torch.tensor(targets))`.",
    )


def _integer_if_one(value: Any) -> Any:
    """An `int` for an integer of numpy or torch, as `labels.max() + 1` is."""
    if isinstance(value, bool):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise DataError(f"Expected the name of a dataset to be a text, got {name!r}.", remedy="Give it a short name.")


def _check_inputs(split: Split, where: str) -> None:
    for name in ("inputs", "targets"):
        value = getattr(split, name)
        if not isinstance(value, Tensor):
            raise DataError(
                f"Expected {name} in {where} to be a torch tensor, got {described(value)}.",
                remedy=_ENCODE_TEXT if holds_text(value) else "Convert them with `torch.as_tensor(...)` in the loader.",
            )
        if value.layout != torch.strided or value.device.type == "meta":
            kind = "a meta tensor, which holds no numbers" if value.device.type == "meta" else f"{value.layout}"
            raise DataError(
                f"Expected {name} in {where} to be a dense torch tensor, got {kind.removeprefix('torch.')}.",
                remedy="Convert sparse ones with `.to_dense()`, and load data onto the CPU.",
            )
    if split.inputs.dtype not in (torch.float32, torch.int64):
        raise DataError(
            f"Expected float32 inputs in {where}, got {_dtype(split.inputs)}.",
            remedy="Convert them with `torch.as_tensor(inputs).float()` in the loader; int64 is for tokens.",
        )
    if split.inputs.ndim < 2:
        raise DataError(
            f"Expected inputs of shape [samples, features...] in {where}, got {list(split.inputs.shape)}.",
            remedy="Put the sample index first and add a feature dimension, e.g. `inputs.unsqueeze(1)`.",
        )


def _check_lengths(split: Split, where: str) -> None:
    if len(split) == 0:
        raise DataError(
            f"Expected at least one sample in {where}, got an empty split.",
            remedy="Check the file it came from, and num_train or num_test if given.",
        )
    num_targets = split.targets.shape[0] if split.targets.ndim else 0
    if num_targets != len(split):
        raise DataError(
            f"Expected one target per sample in {where}, got {len(split)} inputs and {num_targets} targets.",
            remedy="Check that inputs and targets come from the same file.",
        )
    if split.sites is None:
        return
    if not isinstance(split.sites, tuple) or not all(isinstance(site, str) for site in split.sites):
        raise DataError(
            f"Expected sites in {where} to be a tuple of names (texts), got {_kinds(split.sites)}.",
            remedy="Name the site of every sample, e.g. `tuple(str(site) for site in sites)`, or set it to None.",
        )
    if len(split.sites) != len(split):
        raise DataError(
            f"Expected one site per sample in {where}, got {len(split)} inputs and {len(split.sites)} sites.",
            remedy="Give every sample a site, or set `sites` to None.",
        )


def _kinds(sites: object) -> str:
    """`tuple of int` for a tuple with an integer in it."""
    if not isinstance(sites, tuple):
        return described(sites)
    return f"tuple of {', '.join(sorted({type(site).__name__ for site in sites}))}"


def _check_targets(split: Split, where: str, task: Task, num_outputs: int) -> None:
    targets = split.targets
    got = f"got {_dtype(targets)} of shape {list(targets.shape)}"
    if task == "regression":
        if targets.dtype != torch.float32 or targets.shape[1:] != (num_outputs,):
            raise DataError(
                f"Expected float32 targets of shape [{len(split)}, {num_outputs}] in {where}, {got}.",
                remedy="For regression, use `targets.float().reshape(len(targets), -1)` and set num_outputs.",
            )
        return
    if task == "multi-label":
        _check_labels(targets, where, num_outputs, got)
        return
    if task == "segmentation" and targets.dtype == torch.int64 and targets.ndim > 1:
        _check_class_range(targets, where, num_outputs)
        return
    if targets.dtype != torch.int64 or targets.ndim != 1:
        raise DataError(
            f"Expected int64 targets of shape [{len(split)}] in {where}, {got}.",
            remedy="For classification, give the class index of every sample: "
            f"{_to_class_index(targets, num_outputs)}.",
        )
    _check_class_range(targets, where, num_outputs)


def _check_labels(targets: Tensor, where: str, num_outputs: int, got: str) -> None:
    if targets.dtype != torch.float32 or targets.shape[1:] != (num_outputs,):
        raise DataError(
            f"Expected float32 targets of shape [samples, {num_outputs}] in {where}, {got}.",
            remedy="For several labels a sample, mark each that applies with 1, all others with 0: a column a label.",
        )
    wrong = torch.nonzero(((targets != 0) & (targets != 1)).any(1)).flatten()
    if len(wrong):
        raise DataError(
            f"Expected 0 or 1 for each label in {where}, got other values in {len(wrong)} rows, the first at row "
            f"{int(wrong[0])}.",
            remedy="Mark each label that applies with 1, all others with 0.",
        )


def _check_class_range(targets: Tensor, where: str, num_outputs: int) -> None:
    wrong = torch.nonzero((targets < 0) | (targets >= num_outputs))
    if len(wrong):
        first = wrong[0].tolist()
        raise DataError(
            f"Expected labels between 0 and {num_outputs - 1} in {where}, got {len(wrong)} outside, "
            f"the first ({int(targets[tuple(first)])}) at row {first[0]}.",
            remedy="Number the classes from 0, or raise num_outputs.",
        )


def _to_class_index(targets: Tensor, num_outputs: int) -> str:
    """What makes class indices of such targets; `targets` may have been an array of numpy."""
    if targets.ndim == 2 and num_outputs > 1 and targets.shape[1] == num_outputs:
        return "these look one-hot, so `targets.argmax(1)`"
    if targets[0].numel() > 1:
        return 'one number each. For a class at each place (a pixel), say the task is "segmentation"'
    flat = "" if targets.ndim == 1 else ".flatten()"
    return f'`targets.long(){flat}` of a tensor, `targets.astype("int64"){flat}` of a numpy array'


def _check_finite(values: Tensor, what: str, where: str) -> None:
    if not values.is_floating_point():
        return
    bad = torch.nonzero(~torch.isfinite(values).flatten(1).all(dim=1)).flatten()
    if len(bad):
        raise DataError(
            f"Expected finite {what} in {where}, got NaN or Inf in {len(bad)} of {len(values)} rows, "
            f"the first at row {int(bad[0])}.",
            remedy="Remove or impute these rows before training.",
        )


def _check_agreement(dataset: Dataset) -> None:
    if dataset.train.form != dataset.test.form:
        raise DataError(
            f'Expected the same inputs in both splits of dataset "{dataset.name}", got '
            f"{dataset.train.form or 'one tensor'} and {dataset.test.form or 'one tensor'}.",
            remedy="Prepare both splits in the same way.",
        )
    test_shape = dataset.test.sample_shape
    if test_shape != dataset.input_shape:
        raise DataError(
            f'Expected samples of one shape in dataset "{dataset.name}", got {list(dataset.input_shape)} in '
            f"the train split and {list(test_shape)} in the test split.",
            remedy="Prepare both splits in the same way.",
        )
    names = dataset.class_names
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise DataError(
            f'Expected the class names of dataset "{dataset.name}" to be a tuple of texts, got {names!r}.',
            remedy="Name every class, or leave them out.",
        )
    if dataset.class_names and len(dataset.class_names) != dataset.num_outputs:
        raise DataError(
            f'Expected {dataset.num_outputs} class names in dataset "{dataset.name}" (as many as outputs), '
            f"got {len(dataset.class_names)}.",
            remedy="Name every class, or none.",
        )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
