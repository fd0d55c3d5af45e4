"""How good a model is on a test split."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.data import Split
from bilateral.protocols.objective import Objective, as_objective

Predict = Callable[[Tensor], Tensor]


def evaluate(predict: Predict, split: Split, loss: str | Objective, *, batch_size: int = 512) -> dict[str, float]:
    """Metrics of `predict` (inputs -> outputs): accuracy, balanced accuracy and loss; or mean squared error and R^2."""
    with torch.no_grad():
        # Chunks of like size: a rest of one sample would be too few for BatchNorm in training mode.
        num_chunks = -(-len(split) // batch_size)
        chunks = [predict(part) for part in torch.tensor_split(split.inputs, num_chunks)]
    outputs, objective = torch.cat(chunks).double(), as_objective(loss)
    targets = split.targets.double() if split.targets.is_floating_point() else split.targets
    if objective.task == "multi-label":
        return {
            "test_accuracy": float((objective.predictions(outputs) == targets).double().mean()),
            "test_loss": float(objective.of_batch(outputs, targets)),
        }
    if split.targets.is_floating_point():
        mse = float(F.mse_loss(outputs, targets))
        variance = float((targets - targets.mean(0)).square().mean())
        return {"test_mse": mse, "test_r2": 1.0 - mse / variance if variance > 0 else 0.0}
    predicted, labels = outputs.argmax(1), split.targets
    recalls = [float((predicted[labels == c] == c).double().mean()) for c in torch.unique(labels)]
    lost = float(objective.of_batch(outputs, objective.prepared(labels, outputs.shape[1], outputs.dtype)))
    return {
        "test_accuracy": float((predicted == labels).double().mean()),
        "test_balanced_accuracy": sum(recalls) / len(recalls),
        "test_loss": lost,
    }


def main_metric(metrics: dict[str, float]) -> tuple[str, float]:
    """The metric that reports lead with."""
    name = "test_accuracy" if "test_accuracy" in metrics else "test_mse"
    return name, metrics[name]
