"""What a client says about a batch that does not fit, instead of a traceback out of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bilateral.errors import DataError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings

FEATURES = 5


def train(inputs, targets, loss="ce", protection="perturbation", dtype=torch.float32):
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, 3)).to(dtype)
    graph = ScaleGraph.of(model, torch.zeros(1, FEATURES))
    if protection == "fedavg":
        message = FedAvgServer(model, graph).start_round(0)
        return FedAvgClient("site-1", model, graph, loss).train(message, inputs, targets, len(inputs))
    settings = PerturbationSettings(loss)
    message = PerturbServer(model, graph, settings).start_round(0)
    return PerturbClient("site-1", model, graph, settings).train(message, inputs, targets, len(inputs))


@pytest.mark.parametrize("protection", ["perturbation", "fedavg"])
@pytest.mark.parametrize(
    ("inputs", "targets", "loss", "said"),
    [
        (torch.ones(4, FEATURES, dtype=torch.uint8), torch.zeros(4).long(), "ce", "floating point, got torch.uint8"),
        (torch.ones(4, FEATURES, dtype=torch.int64), torch.zeros(4).long(), "ce", "floating point"),
        (torch.ones(4, FEATURES), torch.zeros(4).int(), "ce", "torch.int64.*got torch.int32"),
        (torch.ones(4, FEATURES), torch.zeros(4).bool(), "ce", "torch.int64.*got torch.bool"),
        (torch.ones(4, FEATURES), torch.zeros(4, dtype=torch.uint8), "ce", "torch.int64"),
        (torch.ones(4, FEATURES), torch.zeros(4, 1).long(), "ce", "one class number"),
        (torch.ones(4, FEATURES), torch.zeros(4, 3).long(), "mse", "targets in floating point"),
        (torch.ones(4, FEATURES + 1), torch.zeros(4).long(), "ce", r"shape \(5,\) a sample, got \(6,\)"),
        (torch.ones(4, 1, FEATURES), torch.zeros(4).long(), "ce", r"shape \(5,\) a sample, got \(1, 5\)"),
        (torch.ones(4), torch.zeros(4).long(), "ce", r"shape \(5,\) a sample, got \(\)"),
    ],
)
def test_a_batch_of_the_wrong_type_or_shape_is_a_typed_error(inputs, targets, loss, said, protection):
    with pytest.raises(DataError, match=said):
        train(inputs, targets, loss, protection)


@pytest.mark.parametrize("protection", ["perturbation", "fedavg"])
@pytest.mark.parametrize(("of_data", "of_model"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_inputs_of_another_precision_are_taken_in_the_models_own(of_data, of_model, protection):
    inputs = torch.randn(4, FEATURES, dtype=of_data)
    upload = train(inputs, torch.tensor([0, 1, 2, 0]), "ce", protection, of_model)
    assert upload.terms.dtype == of_model
    assert bool(upload.terms.any())
