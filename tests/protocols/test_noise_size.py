"""The additive noise costs float32 no digits, however the head's inputs and its bias lie.

In float32 the recovered gradient may be off by 20 times what plain float32 is off by (both against plain float64, the
worst of some seeds): with the squared error every sample's share of the noise adds up, where plain rounding averages.
"""

from __future__ import annotations

import copy

import pytest
import torch
from tests.reference.gradients import plain_gradient
from tests.reference.harness import run_round
from torch import nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.calibration import Calibration, logit_spread
from bilateral.protocols.perturb.secrets import noise_size
from bilateral.protocols.perturb.settings import PerturbationSettings

torch.set_num_threads(1)
FACTOR, FLOOR = 20.0, 5e-7


class Net(nn.Module):
    def __init__(self, outputs=3, between=torch.relu):
        super().__init__()
        self.a, self.head = nn.Linear(6, 16), nn.Linear(16, outputs)
        self.between = between

    def forward(self, x):
        return self.head(self.between(self.a(x)))


def cancelled(y):
    """Zero up to rounding."""
    return (y * 0.1 + y * 0.2) - y * 0.3


def biased(offset, outputs=1):
    model = Net(outputs)
    nn.init.constant_(model.head.bias, offset)
    return model


def carried(offset):
    """The offset comes from a hidden unit that is always the same, not from the bias."""
    model = Net(1)
    with torch.no_grad():
        model.a.weight[0], model.a.bias[0], model.head.weight[0, 0] = 0.0, 100.0, offset / 100
    return model


def dead():
    model = Net()
    nn.init.constant_(model.a.bias, -100.0)
    return model


def silent_head():
    model = Net(between=lambda y: 1e-8 * torch.relu(y))
    nn.init.zeros_(model.head.weight)
    return model


CASES = {
    "head inputs that are zero up to rounding": (lambda: Net(between=cancelled), 0.0),
    "tiny head inputs": (lambda: Net(between=lambda y: 1e-9 * torch.relu(y)), 0.0),
    "head inputs that are zero": (dead, 0.0),
    "head inputs that sum to zero": (lambda: Net(between=nn.LayerNorm(16, elementwise_affine=False)), 0.0),
    "head weights that are zero": (silent_head, 0.0),
    "a bias of 2000": (lambda: biased(2000.0), 2000.0),
    "five biases of 2000": (lambda: biased(2000.0, 5), 2000.0),
    "a mean of 2000 without a bias": (lambda: carried(2000.0), 2000.0),
    "nothing special": (Net, 0.0),
}


def error(found, true):
    return float((found - true).norm() / true.norm())


@pytest.mark.parametrize("noise", ["activation", "offset"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("loss", "softmax"), [("mse", "local"), ("ce", "local"), ("ce", "blinded")])
def test_recovery_in_float32_is_about_as_good_as_plain_float32(case, loss, softmax, noise):
    make, offset = CASES[case]
    recovered, plain = [], []
    for seed in range(4):
        torch.manual_seed(seed)
        model = make()
        if loss == "ce" and model.head.out_features < 2:
            pytest.skip("cross entropy needs classes")
        inputs, targets = torch.randn(32, 6), torch.randn(32, model.head.out_features) + offset
        wide = targets.double()
        if loss == "ce":
            targets = wide = targets.argmax(1)
        graph = ScaleGraph.of(model, inputs[:2])
        true = plain_gradient(copy.deepcopy(model).double(), graph, inputs.double(), wide, loss)
        plain.append(error(plain_gradient(copy.deepcopy(model), graph, inputs, targets, loss), true))
        settings = PerturbationSettings(loss, noise, softmax=softmax)
        update, _ = run_round(model, settings, [(inputs, targets)], (6,), seed)
        recovered.append(error(update.gradient, true))
    assert max(recovered) <= FACTOR * max(plain) + FLOOR


def test_the_spread_of_logits_leaves_out_their_mean_but_not_all_of_their_size():
    logits = torch.tensor([[199.0, 10.0], [201.0, 12.0]], dtype=torch.float64)
    assert logit_spread(logits) == pytest.approx(2.0**0.5)
    assert logit_spread(torch.full((3, 2), 2000.0, dtype=torch.float64)) == pytest.approx(2.0)
    assert logit_spread(torch.zeros(3, 2, dtype=torch.float64)) == 1.0


def test_activation_noise_is_never_much_larger_than_the_heads_weights():
    settings = PerturbationSettings("mse", noise_ratio=3.0)
    scale = torch.full((2,), 2.0, dtype=torch.float64)
    sizes = torch.full((2,), 0.5, dtype=torch.float64)
    for inputs in ([[1e-9, 0.0]], [[1.0, -1.0]], [[0.0, 0.0]]):
        measured = Calibration(torch.tensor(inputs, dtype=torch.float64), sizes, logit_spread=1.0)
        assert noise_size(settings, measured, scale) == pytest.approx(3.0 * 2.0 * 0.25)
    measured = Calibration(torch.tensor([[10.0, 10.0]], dtype=torch.float64), sizes, logit_spread=1.0)
    assert noise_size(settings, measured, scale) == pytest.approx(3.0 * 1.0 / 40.0)
