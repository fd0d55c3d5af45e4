"""How good a model is on a test split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.data import Split
from bilateral.learning.metrics import MetricName, class_metrics, only_prediction, summary
from bilateral.protocols.objective import Objective, as_objective

Predict = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Measures:
    """What is measured besides accuracy and loss. `threshold`: from which score on a class is said to be there."""

    names: tuple[MetricName, ...] = ()
    threshold: float = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class Measured:
    """A model's outputs on a split, and everything that is read off them."""

    objective: Objective
    outputs: Tensor
    targets: Tensor
    sites: tuple[str, ...] | None = None
    measures: Measures = field(default_factory=Measures)

    def metrics(self, part: str = "test") -> dict[str, float]:
        """One number each, named `test_accuracy` and so on."""
        found = _basic(self.objective, self.outputs, self.targets)
        found |= summary(self.objective, self.outputs, self.targets, self.measures.names, self.measures.threshold)
        return {f"{part}_{name}": value for name, value in found.items()}

    def per_class(self, class_names: Sequence[str] = ()) -> dict[str, dict[str, float]]:
        """The measures of each class or label, with how often it is there."""
        chosen = self.measures
        if self.objective.task == "regression" or not chosen.names:
            return {}
        each = class_metrics(self.objective, self.outputs, self.targets, chosen.names, chosen.threshold)
        names = class_names or [str(number) for number in range(len(each))]
        return dict(zip(names, each, strict=True))

    def per_site(self) -> dict[str, dict[str, float]]:
        """The metrics of each site's samples, where the split says whose they are."""
        found: dict[str, dict[str, float]] = {}
        for site in sorted(set(self.sites or ())):
            own = torch.tensor([number for number, name in enumerate(self.sites or ()) if name == site])
            part = Measured(self.objective, self.outputs[own], self.targets[own], None, self.measures)
            found[site] = {"count": float(len(own)), **part.metrics()}
        return found

    def only_prediction(self) -> int | None:
        """The one class that is predicted for every sample, where there are several."""
        return only_prediction(self.objective, self.outputs, self.targets)


def measure(
    predict: Predict,
    split: Split,
    loss: str | Objective,
    measures: Measures | None = None,
    *,
    batch_size: int = 512,
) -> Measured:
    """Run a model over a split, in chunks."""
    with torch.no_grad():
        # Chunks of like size: a rest of one sample would be too few for BatchNorm in training mode.
        parts = [(predict(part.inputs), part.targets) for part in split.chunks(batch_size)]
    found = torch.cat([part for _, part in parts])
    targets = found.double() if found.is_floating_point() else found
    return Measured(
        as_objective(loss),
        torch.cat([part for part, _ in parts]).double(),
        targets,
        split.sites,
        measures or Measures(),
    )


def evaluate(predict: Predict, split: Split, loss: str | Objective, *, batch_size: int = 512) -> dict[str, float]:
    """Metrics of `predict` (inputs -> outputs): accuracy, balanced accuracy and loss; or mean squared error and R^2."""
    return measure(predict, split, loss, batch_size=batch_size).metrics()


def main_metric(metrics: dict[str, Any]) -> tuple[str, float]:
    """The metric that reports lead with; of what is no training of ours, the first that there is."""
    name = next((one for one in ("test_accuracy", "test_mse") if one in metrics), next(iter(metrics)))
    return name, metrics[name]


def _basic(objective: Objective, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    if objective.task == "multi-label":
        right = objective.predictions(outputs) == targets
        return {
            "accuracy": float(right.double().mean()),
            "exact_match": float(right.all(1).double().mean()),
            "loss": _loss(objective, outputs, targets),
        }
    if targets.is_floating_point():
        mse = float(F.mse_loss(outputs, targets))
        variance = float((targets - targets.mean(0)).square().mean())
        found = {"mse": mse, "r2": 1.0 - mse / variance if variance > 0 else 0.0}
        return found if objective.name == "mse" else {**found, "loss": _loss(objective, outputs, targets)}
    predicted = outputs.argmax(1)
    recalls = [float((predicted[targets == c] == c).double().mean()) for c in torch.unique(targets)]
    return {
        "accuracy": float((predicted == targets).double().mean()),
        "balanced_accuracy": sum(recalls) / len(recalls),
        "loss": _loss(objective, outputs, targets),
    }


def _loss(objective: Objective, outputs: Tensor, targets: Tensor) -> float:
    return float(objective.of_batch(outputs, objective.prepared(targets, outputs.shape[1], outputs.dtype)))
