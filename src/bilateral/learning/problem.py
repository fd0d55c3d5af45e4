"""What is learned, and by whom: public facts that every process of a run has, and the data of one client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bilateral.data import Split
from bilateral.data.dataset import LazySplit
from bilateral.data.several import InputForm, Shapes
from bilateral.data.task import Task
from bilateral.errors import DataError, PlanError
from bilateral.protocols.objective import PLAIN_REMEDY, Objective
from bilateral.protocols.perturb.settings import Loss


@dataclass(frozen=True)
class Member:
    """A client as all others know it. `num_samples` is told only where the accounting needs it; 0 is not told."""

    name: str
    num_samples: int = 0


@dataclass(frozen=True, eq=False)
class Share(Split):
    """What one client trains on, ready for the loss, and the kind of problem that its dataset says it is."""

    task: Task = field(kw_only=True)
    num_outputs: int = field(kw_only=True)
    class_names: tuple[str, ...] = field(kw_only=True, default=())
    columns: tuple[str, ...] = field(kw_only=True, default=())
    held: Split | None = field(kw_only=True, default=None, repr=False)
    """What the site keeps back to measure on; none of it is trained on."""

    @property
    def schema(self) -> Schema:
        dtype = str(self.input_dtype).removeprefix("torch.")
        return Schema(
            self.task,
            self.sample_shape,
            dtype,
            self.num_outputs,
            self.class_names,
            self.columns,
            str(self.form or ""),
        )


class LazyShare(Share):
    """A share whose samples are loaded when they are trained on, with targets as the loss wants them."""

    def __init__(
        self,
        own: LazySplit,
        objective: Objective,
        *,
        task: Task,
        num_outputs: int,
        class_names: tuple[str, ...] = (),
        columns: tuple[str, ...] = (),
        held: Split | None = None,
    ) -> None:
        names = {"class_names": class_names, "columns": columns}
        given = {"task": task, "num_outputs": num_outputs, "held": held, **names}
        for name, value in {"own": own, "objective": objective, **given}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "sites", own.sites)

    def __repr__(self) -> str:
        return f"LazyShare({self.own!r})"

    own: LazySplit
    objective: Objective

    def __len__(self) -> int:
        return len(self.own)

    @property
    def inputs(self) -> Tensor:
        return self.own.inputs

    @property
    def targets(self) -> Tensor:
        return self._prepared(self.own.targets)

    def subset(self, indices: Tensor) -> Split:
        return self.drawn(indices, lambda: 0)

    def part(self, indices: Tensor) -> Split:
        return self.own.part(indices)

    def drawn(self, indices: Tensor, seed: Callable[[], int]) -> Split:
        found = self.own.drawn(indices, seed)
        return Split(found.inputs, self._prepared(found.targets), found.sites, found.form)

    def cast(self, dtype: torch.dtype) -> Split:
        return self.own.cast(dtype)

    def examples(self, count: int) -> Tensor:
        return self.own.examples(count)

    @property
    def form(self) -> InputForm | None:
        return self.own.form

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self.own.sample_shape

    @property
    def input_dtype(self) -> torch.dtype:
        return self.own.input_dtype

    @property
    def known_targets(self) -> Tensor | None:
        known = self.own.known_targets
        return None if known is None else self._prepared(known)

    def _prepared(self, targets: Tensor) -> Tensor:
        return self.objective.prepared(targets, self.num_outputs, self.own.dtype)


@dataclass(frozen=True, eq=False)
class Problem:
    """What is learned: public, and the same in every process."""

    dataset: str
    task: Task
    input_shape: tuple[int, ...]
    num_outputs: int
    objective: Objective
    examples: Tensor = field(repr=False)
    """A few inputs for tracing and for sizing noise: of the server's own test data there, zeros at a site."""
    class_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    term_scales: tuple[float, ...] = ()
    """How sound noise is divided between the terms, if the server has said so; otherwise found from the examples."""
    form: InputForm | None = None
    """Of the inputs, where they are several: `input_shape` is that of a row then."""
    told_inputs: str | None = None
    """What the server says of them, at a site."""

    @property
    def shapes(self) -> tuple[int, ...] | Shapes:
        """Of one sample, as whoever makes the model is told."""
        return self.input_shape if self.form is None else self.form.shapes

    @property
    def input_dtype(self) -> str:
        return str(self.examples.dtype).removeprefix("torch.")

    @property
    def loss(self) -> str:
        """What is minimised, by its name."""
        return self.objective.name

    @property
    def plain_loss(self) -> Loss:
        """The squared error or cross entropy as it is, for what is written for these alone."""
        if not self.objective.is_plain:
            raise PlanError(
                f"Expected the loss mse or ce as it is, got {self.objective.described}.", remedy=PLAIN_REMEDY
            )
        return "ce" if self.objective.name == "ce" else "mse"

    @property
    def schema(self) -> Schema:
        """What every site's data must be like."""
        return Schema(
            self.task,
            self.input_shape,
            self.input_dtype,
            self.num_outputs,
            self.class_names,
            self.columns,
            str(self.form or "") if self.told_inputs is None else self.told_inputs,
        )

    def check_share(self, name: str, share: Share) -> None:
        """Refuse data of another problem than the server's."""
        if differences := list(share.schema.differences(self.schema)):
            raise unlike([(name, differences)])


@dataclass(frozen=True)
class Schema:
    """What data are like, and nothing of what is in them. Names are compared where both sides have them."""

    task: Task
    input_shape: tuple[int, ...]
    input_dtype: str
    num_outputs: int
    class_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    inputs: str = ""
    """What they are, in words, where they are several."""

    def differences(self, wanted: Schema) -> Iterator[str]:
        """In words, one each: what is here, and what was wanted."""
        if self.task != wanted.task:
            yield f"the task is {self.task}, not {wanted.task}"
        if self.inputs != wanted.inputs:
            yield f"the inputs are {self.inputs or 'one tensor'}, not {wanted.inputs or 'one tensor'}"
        elif self.input_shape != wanted.input_shape:
            yield f"a sample has the shape {list(self.input_shape)}, not {list(wanted.input_shape)}"
        if self.input_dtype != wanted.input_dtype:
            yield f"inputs are {self.input_dtype}, not {wanted.input_dtype}"
        if self.num_outputs != wanted.num_outputs:
            yield f"there are {self.num_outputs} outputs, not {wanted.num_outputs}"
        yield from _unlike_names("column", self.columns, wanted.columns)
        yield from _unlike_names("class", self.class_names, wanted.class_names)


def unlike(found: Sequence[tuple[str, Sequence[str]]]) -> DataError:
    """An error with every difference of every site to the server's data."""
    lists = "; ".join(f"{name}: {', '.join(differences)}" for name, differences in found)
    return DataError(
        f"Expected every site's data to be like the server's, and they are not. {lists}.",
        remedy="Prepare every site's data in the same way: columns, classes and types in the same order.",
    )


def _unlike_names(what: str, here: Sequence[str], wanted: Sequence[str]) -> Iterator[str]:
    if not here or not wanted or here == wanted:
        return
    if missing := [name for name in wanted if name not in here]:
        yield f"missing {_plural(what, missing)} {', '.join(map(repr, missing[:10]))}"
    if extra := [name for name in here if name not in wanted]:
        yield f"{_plural(what, extra)} {', '.join(map(repr, extra[:10]))} too many"
    if set(here) == set(wanted) and len(here) != len(wanted):
        yield f"{len(here)} {_plural(what, here)}, not {len(wanted)}: a name stands there more than once"
    elif set(here) == set(wanted):
        place = next(number for number, pair in enumerate(zip(here, wanted, strict=False)) if pair[0] != pair[1])
        yield f"{_plural(what, here)} in another order: {here[place]!r} at place {place}, not {wanted[place]!r}"


def _plural(what: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return what
    return f"{what}es" if what.endswith("s") else f"{what}s"
