import pytest
import torch
from torch import nn

from bilateral.errors import PlanError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.local_model import LocalModel, prefers_channels_last


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
