"""What a training minimises: one object that says a batch's loss, each sample's, and which targets they take.

    objective = make_objective("ce", "classification", class_weights=(1.0, 3.0))
    objective.of_batch(outputs, targets)      # a scalar: the mean over the batch's samples
    objective.of_samples(outputs, targets)    # one number a sample
    objective.cotangents(outputs, targets)    # the gradient of a batch's loss at the outputs

Formal guarantee (tests/protocols/test_objective.py): a batch's loss is the mean of its samples' losses, whatever the
class weights (torch's own weighted cross entropy divides by the weights of the batch, and is not). So the mean over
clients, weighted by their numbers of samples, is the loss over all samples, and a sample has a loss of its own, which
sound noise can clip. Without weights and smoothing `mse` and `ce` are torch's, to the last bit.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.data.task import Task
from bilateral.errors import DataError, PlanError

LossName = Literal["mse", "ce", "bce", "huber"]
"""What this package has; any other is a user's own function, `package.module:function`."""
TargetKind = Literal["classes", "labels", "values"]
"""classes: int64, one number a sample (or a pixel); labels: 0 or 1 for each output; values: a real for each output."""
PLAIN: Final = ("mse", "ce")
PLAIN_REMEDY: Final = (
    "Use protection = 'masks' (or 'fedsgd'), with or without sound noise: there clients compute any loss as it is. Or "
    "use training.loss = 'ce' or 'mse' without class weights and smoothing."
)
_AUTO: Final[dict[Task, LossName]] = {
    "classification": "ce",
    "segmentation": "ce",
    "multi-label": "bce",
    "regression": "mse",
}
_FITS: Final[dict[LossName, tuple[Task, ...]]] = {
    "ce": ("classification", "segmentation"),
    "bce": ("multi-label",),
    "mse": ("regression", "classification", "multi-label"),
    "huber": ("regression", "classification", "multi-label"),
}
_KIND_OF_TASK: Final[dict[Task, TargetKind]] = {
    "classification": "classes",
    "segmentation": "classes",
    "multi-label": "labels",
    "regression": "values",
}


@dataclass(frozen=True)
class Objective:
    """A loss with its settings. Made by `make_objective`, which refuses what does not go together.

    `class_weights`    ce: a factor on the loss of a sample (or pixel) of each class; bce: on that of each output where
                       its target is 1. The mean is over samples all the same. Empty is 1 for all.
    `label_smoothing`  ce and bce: this part of each target is spread evenly over the classes
    `huber_delta`      where the Huber loss goes from squares to absolute values
    `function`         a user's own: `function(outputs, targets)` gives one number a sample, or their mean
    """

    name: str
    task: Task
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    huber_delta: float = 1.0
    function: Callable[[Any, Tensor], Tensor] | None = field(default=None, compare=False, repr=False)
    balanced: bool = False
    """The weights follow from how often each class is there (`class_balance`), which is counted before the first step;
    until they are set the loss is that without weights, as it is in every evaluation."""

    @property
    def is_plain(self) -> bool:
        """Whether it is the squared error or cross entropy as they are: all that some protections compute."""
        return self.name in PLAIN and not self.class_weights and not self.label_smoothing and not self.balanced

    @property
    def described(self) -> str:
        """`ce with class weights`"""
        extras = [
            word
            for word, is_set in (
                ("class weights", self.class_weights or self.balanced),
                ("label smoothing", self.label_smoothing),
            )
            if is_set
        ]
        return self.name + (f" with {' and '.join(extras)}" if extras else "")

    @property
    def targets(self) -> TargetKind:
        """What `of_batch` takes, which `prepared` makes of a dataset's targets."""
        if self.name == "ce":
            return "classes"
        if self.name == "bce":
            return "labels"
        return "values" if self.function is None else _KIND_OF_TASK[self.task]

    def prepared(self, targets: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        """A dataset's targets as `of_batch` takes them: class numbers are one-hot where values are wanted."""
        if self.targets == "classes":
            if targets.is_floating_point():
                raise DataError(
                    "Cross entropy needs class labels, but this is a regression set.",
                    remedy="Use loss = 'mse' for it.",
                )
            return targets
        if not targets.is_floating_point():
            targets = F.one_hot(targets, num_outputs)
        return targets.to(dtype)

    def of_batch(self, outputs: Any, targets: Tensor) -> Tensor:
        """The mean over the samples of a batch, with its graph."""
        if self.function is not None:
            return self._of_function(outputs, targets).mean()
        self._check_outputs(outputs, targets)
        if self.name == "mse":
            return F.mse_loss(outputs, targets)
        if self.name == "ce" and self.is_plain:
            return F.cross_entropy(outputs, targets)
        return self._elementwise(outputs, targets).mean()

    def of_samples(self, outputs: Any, targets: Tensor) -> Tensor:
        """One number a sample; their mean is `of_batch`."""
        if self.function is None:
            self._check_outputs(outputs, targets)
            return self._elementwise(outputs, targets).flatten(1).mean(1)
        lost = self._of_function(outputs, targets)
        if lost.dim() == 1:
            return lost
        return torch.stack([self._of_function(_row(outputs, i), targets[i : i + 1]) for i in range(len(targets))])

    def cotangents(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient of `of_batch` at the outputs."""
        if self.is_plain and self.name == "mse":
            return (outputs - targets) * (2.0 / outputs.numel())
        if self.is_plain and outputs.dim() == 2 and len(outputs) == 1:
            return outputs.softmax(1) - F.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.of_batch(leaf, targets), leaf)
        return found

    def scores(self, outputs: Tensor) -> Tensor:
        """What a prediction is ranked by: probabilities where the loss makes outputs logits, else the outputs."""
        if self.task == "regression" or self.targets == "values":
            return outputs
        return outputs.sigmoid() if self.task == "multi-label" else outputs.softmax(1)

    def gives_probabilities(self) -> bool:
        """Whether `scores` are probabilities, which can be calibrated or not."""
        return self.task != "regression" and self.targets != "values"

    def predictions(self, outputs: Tensor) -> Tensor:
        """Class numbers; 0 or 1 for each output of a multi-label task; or the values themselves."""
        if self.task == "regression":
            return outputs
        if self.task == "multi-label":
            return (self.scores(outputs) > 0.5).long()
        return outputs.argmax(1)

    def check_targets(self, client: str, targets: Tensor, num_samples: int, num_outputs: int) -> None:
        """Refuse targets that would give a wrong gradient, or none."""
        if self.targets == "classes":
            _check_classes(client, targets, num_outputs, dense=self.task == "segmentation")
            return
        if targets.shape != (num_samples, num_outputs):
            raise DataError(
                f"{client}: expected targets of shape ({num_samples}, {num_outputs}), got {tuple(targets.shape)}."
            )
        if not targets.is_floating_point():
            raise DataError(
                f"{client}: expected targets in floating point, got {targets.dtype}.", remedy="Use `targets.float()`."
            )
        if not bool(torch.isfinite(targets).all()):
            raise DataError(f"{client}: the targets hold NaN or infinite values.", remedy="Clean or impute them.")
        if self.targets == "labels" and not bool(((targets == 0) | (targets == 1)).all()):
            raise DataError(
                f"{client}: expected 0 or 1 for each label, got values from {float(targets.min()):g} to "
                f"{float(targets.max()):g}.",
                remedy="Mark each label that applies with 1, all others with 0; real values are for loss = 'mse'.",
            )

    def _elementwise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Before the mean: a row a sample."""
        weights = (
            torch.tensor(self.class_weights, dtype=outputs.dtype).to(outputs.device) if self.class_weights else None
        )
        match self.name:
            case "mse":
                return F.mse_loss(outputs, targets, reduction="none")
            case "huber":
                return F.huber_loss(outputs, targets, reduction="none", delta=self.huber_delta)
            case "bce":
                smoothed = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
                return F.binary_cross_entropy_with_logits(outputs, smoothed, reduction="none", pos_weight=weights)
            case _:
                lost = F.cross_entropy(
                    outputs, targets, weight=weights, reduction="none", label_smoothing=self.label_smoothing
                )
                return lost.unsqueeze(1)

    def _of_function(self, outputs: Any, targets: Tensor) -> Tensor:
        assert self.function is not None
        lost = self.function(outputs, targets)
        if not isinstance(lost, Tensor) or not lost.is_floating_point() or lost.shape not in ((), (len(targets),)):
            got = f"{lost.dtype} of shape {list(lost.shape)}" if isinstance(lost, Tensor) else type(lost).__name__
            raise DataError(
                f"Expected {self.name} to return one number a sample ([{len(targets)}]) or their mean, got {got}.",
                remedy="Take the mean over all but the first dimension in it.",
            )
        return lost

    def _check_outputs(self, outputs: Any, targets: Tensor) -> None:
        if not isinstance(outputs, Tensor):
            raise DataError(
                f"The model returns {type(outputs).__name__}, and loss = '{self.name}' takes one tensor.",
                remedy="Return one tensor, or name a loss of your own, `package.module:function`: it takes what comes.",
            )
        wanted = outputs.shape if self.targets != "classes" else (*outputs.shape[:1], *outputs.shape[2:])
        if tuple(targets.shape) != tuple(wanted):
            raise DataError(
                f"The model's outputs of shape {list(outputs.shape)} need targets of shape {list(wanted)} for loss = "
                f"'{self.name}', got {list(targets.shape)}.",
                remedy="Give the model one output a class (or a value), and the data a target for each.",
            )


def make_objective(
    loss: str,
    task: Task,
    *,
    class_weights: Sequence[float] | Literal["balanced"] = (),
    label_smoothing: float = 0.0,
    huber_delta: float = 1.0,
) -> Objective:
    """The loss that a plan names, for data of this task; `auto` is the usual one.

    A name with a colon is imported, here and now: whoever calls this has seen to it that a user named it
    (docs/decisions/0018-what-a-job-may-name.md).
    """
    name = auto_loss(task) if loss == "auto" else loss
    balanced = class_weights == "balanced"
    weights = () if balanced else tuple(float(weight) for weight in class_weights)
    function = import_loss(name) if ":" in name else None
    if function is None and name not in get_args(LossName):
        raise PlanError(
            f"There is no loss {name!r}.",
            remedy=f"Choose among auto, {', '.join(get_args(LossName))}, or name one as `package.module:function`.",
        )
    if function is None and task not in _FITS[name]:  # type: ignore[index]
        raise DataError(
            f"The loss {name!r} is not for data of the task {task!r}.",
            remedy=f"Use training.loss = '{auto_loss(task)}' (or auto) for them.",
        )
    if (weights or balanced) and name not in ("ce", "bce"):
        raise PlanError(
            f"Class weights are for the losses ce and bce, not for {name!r}.",
            remedy="Leave training.class_weights out, or weigh the classes in the function.",
        )
    if label_smoothing and name not in ("ce", "bce"):
        raise PlanError(f"Label smoothing is for the losses ce and bce, not for {name!r}.", remedy="Leave it out.")
    return Objective(name, task, weights, label_smoothing, huber_delta, function, balanced)


def plain_objective(loss: str) -> Objective:
    """The squared error or cross entropy as it is."""
    return Objective(loss, "classification" if loss == "ce" else "regression")


def as_objective(loss: str | Objective) -> Objective:
    """The plain one, where only a name is given."""
    return loss if isinstance(loss, Objective) else plain_objective(loss)


def auto_loss(task: Task) -> LossName:
    """What `auto` means for this task."""
    return _AUTO[task]


def import_loss(path: str) -> Callable[[Any, Tensor], Tensor]:
    """A user's own loss by its name."""
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise PlanError(
            f"Expected a loss as 'package.module:function', got {path!r}.",
            remedy="Write the module with dots, then a colon, then the function.",
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything when it is imported
        raise PlanError(
            f"Could not import {module_name!r} for the loss {path!r}: {type(error).__name__}: {error}.",
            remedy="Install the package, or add the folder that holds it to PYTHONPATH.",
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise PlanError(
            f"Expected a function at {path!r}, found {'nothing' if found is None else type(found).__name__}.",
            remedy="Name a function of (outputs, targets) that returns one number a sample.",
        )
    function: Callable[[Any, Tensor], Tensor] = found
    return function


def _row(outputs: Any, index: int) -> Any:
    """The outputs of one sample, as a batch; a model may return several tensors."""
    if isinstance(outputs, Tensor):
        return outputs[index : index + 1]
    if isinstance(outputs, dict):
        return {name: _row(value, index) for name, value in outputs.items()}
    return type(outputs)(_row(value, index) for value in outputs)


def _check_classes(client: str, targets: Tensor, num_outputs: int, *, dense: bool) -> None:
    if (targets.dim() != 1 and not dense) or targets.dim() == 0 or targets.dtype != torch.int64:
        raise DataError(
            f"{client}: expected one class number (torch.int64) a sample, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}.",
            remedy="Use integer labels (`labels.long().flatten()`), or loss = 'mse'.",
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= num_outputs:
        raise DataError(
            f"{client}: expected labels between 0 and {num_outputs - 1}, got {low} to {high}.",
            remedy="Number the classes from 0, or give the model more outputs.",
        )
