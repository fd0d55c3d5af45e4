"""What a client saw: how far the model it was sent is from the true one, by value and by prediction."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from bilateral.data import Split
from bilateral.learning.evaluation import evaluate, main_metric
from bilateral.learning.training import Training, relative_difference
from bilateral.models.coverage import coverage
from bilateral.models.modes import set_training
from bilateral.models.scale_graph import traced
from bilateral.protocols.objective import Objective
from bilateral.protocols.statistics import collect_batch_statistics


@dataclass(frozen=True)
class SeenByClients:
    """A *naive* client's view. A client that fits the group secrets does better: ledger line 1."""

    weights_relative_difference: float
    fraction_clear: float
    metric: str
    metric_as_seen: float
    metric_of_true_model: float
    noise_is_told: bool
    """The noise on the outputs came with the model: then a client need not try to have the true ones."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def seen_by_clients(training: Training, round_index: int, split: Split, loss: str | Objective) -> SeenByClients | None:
    """Compare what a client would be sent with the model it is made from; predictions are read off as they come.

    None where there is nothing to compare: clients are sent the model itself, BatchNorm cannot normalise a single test
    sample by itself, and P2's clients have another network (with transitional layers).
    """
    message = training.disguised(round_index)
    if message is None:
        return None
    graph = traced(training.layout)
    if message.parameters.numel() != graph.num_parameters or (graph.statistics and len(split) < 2):
        return None
    seen = copy.deepcopy(training.model)
    values = graph.unflatten(message.parameters)
    with torch.no_grad():
        for name, parameter in seen.named_parameters():
            parameter.copy_(values[name])
    set_training(seen, graph.kept_in_evaluation)
    collect_batch_statistics(seen)  # a client has no running statistics and uses the batch's own
    for module in seen.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    with torch.random.fork_rng(devices=[]):  # a functional dropout draws even here
        metric, as_seen = main_metric(evaluate(seen, split, loss))
    _, true = main_metric(evaluate(training.predict, split, loss))
    return SeenByClients(
        relative_difference(message.parameters.double(), training.weights()),
        coverage(graph).fraction_clear,
        metric,
        as_seen,
        true,
        bool(len(message.group_secrets)),
    )
