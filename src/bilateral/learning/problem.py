"""What is learned, and by whom: public facts that every process of a run has, and the data of one client."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from bilateral.data import Split
from bilateral.data.dataset import Task
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
    term_scales: tuple[float, ...] = ()
    """How sound noise is divided between the terms, if the server has said so; otherwise found from the examples."""

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

    def check_share(self, name: str, share: Share) -> None:
        """Refuse data of another problem than the server's."""
        mine = (self.task, self.input_shape, self.num_outputs)
        theirs = (share.task, tuple(share.inputs.shape[1:]), share.num_outputs)
        if mine != theirs:
            raise DataError(
                f"{name}: expected data for {_described(*mine)}, as the server has, got {_described(*theirs)}.",
                remedy="Prepare every site's data in the same way.",
            )


def _described(task: str, input_shape: tuple[int, ...], num_outputs: int) -> str:
    return f"{task} with samples of shape {list(input_shape)} and {num_outputs} outputs"
