"""The peers' file says the same network: an obvious interpreter of its layers gives torch's logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import prediction_task
from bilateral.errors import UnsupportedLayerError
from bilateral.models.zoo import build_model
from network_export import export_network


def interpret(task):
    parameters = {name: torch.from_numpy(value) for name, value in task.parameters.items()}
    rules = {
        "conv": lambda a, x: F.conv2d(x, parameters[a.weight], parameters[a.bias], a.stride, a.padding),
        "linear": lambda a, x: F.linear(x, parameters[a.weight], parameters[a.bias]),
        "relu": lambda a, x: x.clamp(min=0),
        "max_pool": lambda a, x: F.max_pool2d(x, a.size),
        "average_pool": lambda a, x: x.mean((2, 3), keepdim=True),
        "flatten": lambda a, x: x.reshape(len(x), -1),
        "add": lambda a, x, y: x + y,
    }
    return prediction_task.evaluate(task.layers, torch.from_numpy(task.inputs), rules).numpy()


@pytest.mark.parametrize("name", ["vgg-7", "resnet-8", "resnet-10"])
@settings(deadline=None, max_examples=4)
@given(width=st.sampled_from([2, 4, 6]), size=st.sampled_from([8, 16]), seed=st.integers(0, 100))
def test_the_exported_layers_compute_the_networks_logits(tmp_path_factory, name, width, size, seed):
    path = tmp_path_factory.mktemp("export") / "network.npz"
    model = build_model(name, input_shape=(3, size, size), num_outputs=5, seed=seed, width=width, batch_norm=False)
    with torch.no_grad():  # initial biases are zero, and would hide a lost one
        for parameter in model.parameters():
            parameter.add_(0.1)
    inputs = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(seed))
    export_network(model, inputs, path)
    task = prediction_task.load_task(path)
    expected = model(inputs).detach().numpy()
    np.testing.assert_array_equal(task.logits, expected)
    np.testing.assert_allclose(interpret(task), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_the_benchmarks_resnet_8_has_the_relus_that_were_compared(tmp_path):
    model = build_model("resnet-8", input_shape=(3, 32, 32), num_outputs=10, batch_norm=False)
    export_network(model, torch.zeros(1, 3, 32, 32), tmp_path / "network.npz")
    task = prediction_task.load_task(tmp_path / "network.npz")
    kinds = [layer.kind for layer in task.layers]
    assert (kinds.count("conv"), kinds.count("relu"), kinds.count("add")) == (9, 7, 3)


def test_batch_norm_is_refused_by_name(tmp_path):
    model = build_model("resnet-8", input_shape=(3, 8, 8), num_outputs=2, batch_norm=True)
    with pytest.raises(UnsupportedLayerError, match=r"stem.*batch_norm=False"):
        export_network(model, torch.zeros(1, 3, 8, 8), tmp_path / "network.npz")


def test_a_convolution_that_the_format_cannot_say_is_refused(tmp_path):
    for layer in (nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2), nn.Conv2d(4, 4, 3, stride=(1, 2))):
        with pytest.raises(UnsupportedLayerError, match="Conv2d"):
            export_network(nn.Sequential(layer), torch.zeros(1, 4, 8, 8), tmp_path / "network.npz")


def test_a_file_without_layers_is_refused_with_what_is_missing(tmp_path):
    np.savez(tmp_path / "network.npz", inputs=np.zeros(1), logits=np.zeros(1))
    with pytest.raises(ValueError, match="Expected architecture in"):
        prediction_task.load_task(tmp_path / "network.npz")
