import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from tests.models.test_scale_graph_adversarial import Net
from tests.reference.gradients import plain_gradient
from tests.reference.harness import randomised, relative_error, run_round
from torch import nn

from bilateral.errors import PlanError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.local_model import LocalModel, channels_last_is_safe, prefers_channels_last
from bilateral.protocols.perturb.settings import PerturbationSettings


@pytest.mark.parametrize(("name", "options"), [("lenet", {}), ("vgg-7", {}), ("resnet-20", {"batch_norm": False})])
def test_plain_convolutional_networks_run_in_channels_last(name, options):
    assert prefers_channels_last(build_model(name, input_shape=(3, 32, 32), num_outputs=10, **options))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 16, 3, groups=16),
        nn.Conv2d(4, 8, 1, stride=2),  # corrupts memory in torch's CPU library: oneDNN issue 6035
        nn.ConvTranspose2d(16, 16, 3),
        nn.BatchNorm2d(16),  # its channels-last kernel is less accurate
    ],
)
def test_everything_else_keeps_torchs_default_format(layer):
    assert not prefers_channels_last(nn.Sequential(nn.Conv2d(3, 16, 3), layer))
    assert not prefers_channels_last(nn.Sequential(nn.Conv1d(3, 16, 3), nn.Linear(4, 4)))


def test_an_unsafe_format_is_refused_even_if_asked_for():
    model = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    graph = ScaleGraph.of(model, torch.zeros(2, 4, 2, 2))
    with pytest.raises(PlanError, match="not safe"):
        LocalModel(model, graph, channels_last=True)


def test_a_client_does_not_start_with_the_servers_weights():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    local = LocalModel(model, ScaleGraph.of(model, torch.zeros(2, 3)))
    assert all(not p.any() for p in local.parameters)


@pytest.mark.parametrize("name", ["lenet", "resnet-8", "densenet"])
def test_both_formats_compute_the_same_up_to_rounding(name):
    model = build_model(name, input_shape=(3, 16, 16), num_outputs=10).double()
    graph = ScaleGraph.of(model, torch.zeros(2, 3, 16, 16))
    inputs = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    outputs = [LocalModel(model, graph, channels_last=flag).run("x", 0, inputs) for flag in (False, True)]
    assert torch.allclose(*outputs, rtol=1e-10, atol=1e-12)


GROUP_NORM_FIRST = """
import torch
from torch import nn
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings

layers = {layers}
model = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
graph, settings = ScaleGraph.of(model, torch.zeros(1, 4, 8, 8)), PerturbationSettings("mse", "offset")
message = PerturbServer(model, graph, settings).start_round(0)
PerturbClient("client", model, graph, settings).train(message, torch.randn(5, 4, 8, 8), torch.randn(5, 3), 5)
"""


@pytest.mark.parametrize(
    "layers",
    [
        "[nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3)]",
        "[nn.Conv2d(4, 4, 3).requires_grad_(False), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3)]",
    ],
)
def test_group_norm_on_a_value_without_gradient_does_not_end_the_process(layers):
    """In a process of its own, because torch's fault is a segmentation fault (exit code 139)."""
    code = GROUP_NORM_FIRST.format(layers=layers)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_group_norm_called_as_a_function_keeps_torchs_default_format():
    model = Net(lambda m, x: m.head(F.group_norm(m.c(x), 2).flatten(1)), c=nn.Conv2d(3, 4, 3), head=nn.Linear(64, 2))
    assert not channels_last_is_safe(model)
    assert not channels_last_is_safe(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)))


def error_of_a_round(model, shape):
    model = randomised(model.double(), 0)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(4, *shape, generator=generator).double(), torch.tensor([0, 1, 2, 1])
    update, _ = run_round(model, PerturbationSettings(), [batch], shape)
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    return relative_error(update.gradient, plain_gradient(model, graph, *batch, "ce"))


class Tutorial(nn.Module):
    """The network of a well-known tutorial, with its `view`."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2 = nn.Linear(16 * 5 * 5, 12), nn.Linear(12, 3)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        return self.fc2(F.relu(self.fc1(x)))


def test_view_after_a_convolution_works():
    assert error_of_a_round(Tutorial(), (3, 32, 32)) < 1e-9


def test_view_as_after_a_convolution_works():
    model = Net(
        lambda m, x: m.head(m.c(x).view_as(m.c(x).flatten(1)).relu()), c=nn.Conv2d(3, 4, 3), head=nn.Linear(64, 3)
    )
    assert error_of_a_round(model, (3, 6, 6)) < 1e-9


def test_convolutions_of_two_and_of_three_dimensions_go_together():
    model = Net(
        lambda m, x: m.head(m.b(m.a(x).relu().unsqueeze(2)).relu().flatten(1)),
        a=nn.Conv2d(3, 4, 3),
        b=nn.Conv3d(4, 5, (1, 3, 3)),
        head=nn.Linear(20, 3),
    )
    assert error_of_a_round(model, (3, 6, 6)) < 1e-9


def test_asking_for_channels_last_where_it_fails_names_the_reason():
    model = Tutorial()
    with pytest.raises(PlanError, match="view"):
        LocalModel(model, ScaleGraph.of(model, torch.zeros(2, 3, 32, 32)), channels_last=True)
