import pytest
import torch

from bilateral.data import Split
from bilateral.learning.evaluation import evaluate, main_metric


def test_accuracy_and_balanced_accuracy_count_what_their_names_say():
    outputs = torch.tensor([[2.0, 0], [2, 0], [2, 0], [2, 0]])
    split = Split(torch.arange(4.0)[:, None], torch.tensor([0, 0, 0, 1]))
    metrics = evaluate(lambda x: outputs[x[:, 0].long()], split, "ce", batch_size=3)
    assert metrics["test_accuracy"] == 0.75
    assert metrics["test_balanced_accuracy"] == 0.5
    assert main_metric(metrics) == ("test_accuracy", 0.75)


def test_a_constant_prediction_has_r2_of_zero():
    split = Split(torch.zeros(4, 1), torch.tensor([[1.0], [2], [3], [4]]))
    metrics = evaluate(lambda x: torch.full((len(x), 1), 2.5), split, "mse")
    assert metrics["test_mse"] == pytest.approx(1.25)
    assert metrics["test_r2"] == pytest.approx(0.0)
    assert main_metric(metrics)[0] == "test_mse"
