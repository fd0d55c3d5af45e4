"""Recovery is exact against *plain* training with normalisation layers too: their eps is nobody's secret."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.reference.gradients import plain_gradient
from tests.reference.harness import relative_error, run_round
from torch import nn

from bilateral.errors import PlanError
from bilateral.models.coverage import inspect
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.perturb.export import perturbed_state
from bilateral.protocols.perturb.server import PerturbServer, guarantee
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
SHAPE = (3, 16, 16)


class SqueezeExcite(nn.Module):
    """A MobileNetV3 block: pointwise, depthwise, squeeze-and-excite, hardswish, pointwise, residual."""

    def __init__(self, channels, wide):
        super().__init__()
        self.expand = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide, eps=1e-3), nn.Hardswish()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide, eps=1e-3)
        )
        self.squeeze, self.excite = nn.Conv2d(wide, 4, 1), nn.Conv2d(4, wide, 1)
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels, eps=1e-3))

    def forward(self, x):
        y = self.depthwise(self.expand(x))
        y = F.hardswish(y * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))))
        return x + self.project(y)


def mobile_net(outputs=4):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8, eps=1e-3), nn.Hardswish(),
        SqueezeExcite(8, 16), SqueezeExcite(8, 12),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16), nn.Hardswish(), nn.Linear(16, outputs),
    )  # fmt: skip


def group_norm_net(outputs=4, groups=2):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(groups, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, groups=2),
        nn.GroupNorm(groups, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, outputs),
    )  # fmt: skip


def layer_norm_net(outputs=4):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(),
        nn.LayerNorm(9, elementwise_affine=False), nn.Linear(9, outputs),
    )  # fmt: skip


def zoo(name, **options):
    return lambda: build_model(name, input_shape=SHAPE, num_outputs=4, **options)


NETWORKS = {
    "resnet-20": zoo("resnet-20", width=6),
    "densenet": zoo("densenet", growth=4, layers=[2, 2]),
    "mobilenet": mobile_net,
    "group norm": group_norm_net,
    "one group": lambda: group_norm_net(groups=1),
    "a group a channel": lambda: group_norm_net(groups=8),
    "layer norm": layer_norm_net,
}


def network(name):
    torch.manual_seed(0)
    return NETWORKS[name]().double().train()


def small_inputs(count=6, size=1.0, seed=0):
    """Inputs of size 0.01 make variances of the size of eps, where a scaled eps is another network."""
    return size * torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def targets_of(loss, count=6):
    wanted = torch.randn(count, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return wanted.argmax(1) if loss == "ce" else wanted


@pytest.mark.parametrize("size", [1.0, 0.01])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "settings", [PerturbationSettings("mse", num_partitions=2), PerturbationSettings("ce", "offset")]
)
def test_the_recovered_gradient_is_that_of_plain_autograd_with_normalisation_layers(name, settings, size):
    model = network(name)
    data = small_inputs(size=size), targets_of(settings.loss)
    graph = ScaleGraph.of(model, data[0])
    plain = plain_gradient(copy.deepcopy(model), graph, *data, settings.loss)
    for seed in range(3):
        update, _ = run_round(model, settings, [data], SHAPE, seed)
        assert float((update.gradient - plain).norm() / plain.norm()) < 1e-12


@pytest.mark.parametrize("name", ["resnet-20", "group norm", "layer norm"])
def test_scaled_inputs_of_a_normalisation_are_a_setting_that_costs_exactness(name):
    model = network(name)
    data = small_inputs(size=0.01), targets_of("ce")
    graph = ScaleGraph.of(model, data[0], norm_inputs="scaled")
    plain = plain_gradient(copy.deepcopy(model), graph, *data, "ce")
    update, _ = run_round(model, PerturbationSettings("ce", norm_inputs="scaled"), [data], SHAPE)
    assert float((update.gradient - plain).norm() / plain.norm()) > 1e-4


def test_channels_before_a_normalisation_still_change_places():
    for name in ("resnet-20", "group norm", "layer norm", "mobilenet"):
        model = network(name)
        exact, scaled = (inspect(model, small_inputs(), norm_inputs=n) for n in ("exact", "scaled"))
        assert exact.num_movable_channels == scaled.num_movable_channels > 0
        assert exact.num_scale_factors < scaled.num_scale_factors
        assert exact.fraction_clear > scaled.fraction_clear


def test_inspect_says_what_exact_normalisation_leaves_in_the_clear():
    rows = {row.name: row for row in inspect(network("group norm"), small_inputs()).rows}
    assert rows["0.weight"].num_clear == rows["0.weight"].num_elements
    assert "whose eps must act as in the plain model" in rows["0.weight"].remark
    assert rows["0.weight"].num_moved == rows["0.weight"].num_elements
    assert rows["1.weight"].num_clear == 0
    assert rows["3.weight"].num_clear == 0  # by the factors of its inputs
    assert rows["3.bias"].num_clear == rows["3.bias"].num_elements


def test_settings_and_graph_must_agree_about_normalisation():
    model = network("group norm")
    graph = ScaleGraph.of(model, small_inputs())
    with pytest.raises(PlanError, match=r"'scaled'.*'exact'.*ScaleGraph.of"):
        PerturbServer(model, graph, PerturbationSettings(norm_inputs="scaled"))


def test_the_guarantee_names_values_in_the_clear_with_exact_normalisation():
    texts = [[leak.what for leak in guarantee(PerturbationSettings(norm_inputs=n)).leaks] for n in ("exact", "scaled")]
    assert [any("normalisation" in text for text in found) for found in texts] == [True, False]


@pytest.mark.parametrize("norm_inputs", ["exact", "scaled"])
@pytest.mark.parametrize("name", NETWORKS)
def test_exports_predict_exactly_with_either_setting(name, norm_inputs):
    model = network(name)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics of a trained network, one dead channel among them
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var)
            module.running_var[0] = 0.0
    graph = ScaleGraph.of(model, small_inputs(), norm_inputs=norm_inputs)
    exported = copy.deepcopy(model).eval()
    exported.load_state_dict(perturbed_state(model, graph, SeededRandomness(4)))
    assert relative_error(exported(small_inputs()), model.eval()(small_inputs())) < 1e-9
