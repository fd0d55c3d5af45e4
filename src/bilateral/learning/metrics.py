"""Metrics that clinics ask for, from scores and targets, by scikit-learn: per class, and one number for all of them.

For two classes the number is that of class 1 (the disease, say); for more, and for several labels, the mean over the
classes for which it is defined (each against all others). Where a metric is defined for no class (a class that is never
there has no AUROC), it is left out: there is no number to report.

    auroc         area under the ROC curve: how often a positive scores above a negative
    auprc         area under the precision-recall curve, by average precision
    f1            of the predicted classes
    sensitivity   of those that are of a class, how many score at the threshold or above
    specificity   of those that are not, how many score below
    ece           expected calibration error: mean distance of confidence and accuracy, over 15 bins of equal width
    brier         mean squared distance of the probabilities to what was there
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bilateral.protocols.objective import Objective

MetricName = Literal["auroc", "auprc", "f1", "sensitivity", "specificity", "ece", "brier"]
METRICS: Final[tuple[MetricName, ...]] = get_args(MetricName)
LOWER_IS_BETTER: Final = ("loss", "mse", "ece", "brier")
OF_PROBABILITIES: Final = ("ece", "brier")
NUM_BINS: Final = 15

Array = NDArray[Any]


def is_better(name: str, value: float, than: float | None) -> bool:
    """Whether a value of this metric is better than another; than none, always."""
    if than is None:
        return True
    return value < than if name in LOWER_IS_BETTER else value > than


def class_metrics(
    objective: Objective, outputs: Tensor, targets: Tensor, names: Sequence[MetricName], threshold: float
) -> list[dict[str, float]]:
    """For each class (or label): how often it is there, and its metrics; the undefined ones are left out."""
    scores, truth = _columns(objective, outputs, targets)
    found: list[dict[str, float]] = []
    predicted = _predicted(objective, outputs)
    for number in range(scores.shape[1]):
        there, score = truth[:, number].astype(bool), scores[:, number]
        of_class: dict[str, float] = {"count": float(there.sum())}
        for name in names:
            if name in OF_PROBABILITIES and not objective.gives_probabilities():
                continue
            value = _of_class(name, there, score, predicted[:, number].astype(bool), threshold)
            if value is not None:
                of_class[name] = value
        found.append(of_class)
    return found


def summary(
    objective: Objective, outputs: Tensor, targets: Tensor, names: Sequence[MetricName], threshold: float
) -> dict[str, float]:
    """One number a metric, where there is one. Nothing for regression, whose metrics are others."""
    if objective.task == "regression" or not names:
        return {}
    each = class_metrics(objective, outputs, targets, names, threshold)
    counted: list[Mapping[str, float]] = [each[1]] if objective.task != "multi-label" and len(each) == 2 else [*each]
    found: dict[str, float] = {}
    for name in names:
        if name == "ece" and objective.gives_probabilities() and objective.task != "multi-label":
            found[name] = _top_label_error(*_columns(objective, outputs, targets))
        elif defined := [of_class[name] for of_class in counted if name in of_class]:
            found[name] = sum(defined) / len(defined)
    return found


def only_prediction(objective: Objective, outputs: Tensor, targets: Tensor) -> int | None:
    """The one class that is predicted for everybody, where the targets hold several; None if there is none such."""
    if objective.task not in ("classification", "segmentation"):
        return None
    predicted = torch.unique(objective.predictions(outputs))
    return int(predicted[0]) if len(predicted) == 1 and len(torch.unique(targets)) > 1 else None


def _columns(objective: Objective, outputs: Tensor, targets: Tensor) -> tuple[Array, Array]:
    """Scores and what was there, a column a class; the places of a segmentation are samples."""
    scores = objective.scores(outputs.double())
    if objective.task == "multi-label":
        return scores.numpy(), targets.numpy()
    num_classes = scores.shape[1]
    flat = scores.movedim(1, -1).reshape(-1, num_classes).numpy()
    return flat, np.eye(num_classes, dtype=bool)[targets.reshape(-1).numpy()]


def _predicted(objective: Objective, outputs: Tensor) -> Array:
    predicted = objective.predictions(outputs)
    if objective.task == "multi-label":
        return predicted.numpy()
    one_hot: Array = np.eye(outputs.shape[1], dtype=bool)[predicted.reshape(-1).numpy()]
    return one_hot


def _of_class(name: str, there: Array, score: Array, predicted: Array, threshold: float) -> float | None:
    positives, negatives = int(there.sum()), int((~there).sum())
    if name in _NEEDS_POSITIVES and not positives:
        return None
    if name in _NEEDS_NEGATIVES and not negatives:
        return None
    return float(_MEASURES[name](there, score, predicted, threshold))


def _scikit_learn() -> Any:
    """Imported when it is asked for: it takes a second."""
    return importlib.import_module("sklearn.metrics")


def _auroc(there: Array, score: Array, predicted: Array, threshold: float) -> float:  # noqa: ARG001
    return float(_scikit_learn().roc_auc_score(there, score))


def _auprc(there: Array, score: Array, predicted: Array, threshold: float) -> float:  # noqa: ARG001
    return float(_scikit_learn().average_precision_score(there, score))


def _f1(there: Array, score: Array, predicted: Array, threshold: float) -> float:  # noqa: ARG001
    return float(_scikit_learn().f1_score(there, predicted, zero_division=0.0))


def _sensitivity(there: Array, score: Array, predicted: Array, threshold: float) -> float:  # noqa: ARG001
    return float((score[there] >= threshold).mean())


def _specificity(there: Array, score: Array, predicted: Array, threshold: float) -> float:  # noqa: ARG001
    return float((score[~there] < threshold).mean())


def _error(there: Array, score: Array, predicted: Array, threshold: float) -> float:  # noqa: ARG001
    return _calibration_error(score, there)


def _brier(there: Array, score: Array, predicted: Array, threshold: float) -> float:  # noqa: ARG001
    return float(np.square(score - there).mean())


_MEASURES: Final[dict[str, Callable[[Array, Array, Array, float], float]]] = {
    "auroc": _auroc,
    "auprc": _auprc,
    "f1": _f1,
    "sensitivity": _sensitivity,
    "specificity": _specificity,
    "ece": _error,
    "brier": _brier,
}
_NEEDS_POSITIVES: Final = ("auroc", "auprc", "f1", "sensitivity")
_NEEDS_NEGATIVES: Final = ("auroc", "specificity")


def _top_label_error(scores: Array, truth: Array) -> float:
    """Of the class that is said, as calibration of classifiers is usually reported."""
    said = scores.argmax(1)
    return _calibration_error(scores.max(1), truth[np.arange(len(said)), said])


def _calibration_error(confidence: Array, right: Array) -> float:
    bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    sums = np.bincount(bins, weights=confidence - right.astype(float), minlength=NUM_BINS)
    return float(np.abs(sums).sum() / len(confidence))
