"""The peers' file of a training step says the same network and the gradients of torch's own loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import step_task
from bilateral.errors import UnsupportedLayerError
from prediction_task import evaluate
from step_export import export_step
from step_networks import NETWORKS, make_batch
from step_task import StepObservation, StepTask, load_step, relative_error, step_answer


def by_hand(task):
    """Forward through the exported layers, then the gradients at the outputs that the peers start from."""
    parameters = {name: torch.tensor(value, dtype=torch.double) for name, value in task.parameters.items()}
    for parameter in parameters.values():
        parameter.requires_grad_()
    rules = {
        "conv": lambda a, x: F.conv2d(x, parameters[a.weight], parameters[a.bias], a.stride, a.padding),
        "linear": lambda a, x: F.linear(x, parameters[a.weight], parameters[a.bias]),
        "relu": lambda a, x: x.clamp(min=0),
        "max_pool": lambda a, x: F.max_pool2d(x, a.size),
        "average_pool": lambda a, x: x.mean((2, 3), keepdim=True),
        "flatten": lambda a, x: x.reshape(len(x), -1),
        "add": lambda a, x, y: x + y,
    }
    outputs = evaluate(task.layers, torch.from_numpy(task.inputs).double(), rules)
    targets = torch.from_numpy(task.targets).double()
    delta = outputs.softmax(1) - targets if task.loss == "ce" else 2 * (outputs - targets)
    outputs.backward(delta.detach() / task.mean_over)
    return {name: parameter.grad.numpy() for name, parameter in parameters.items()}


@pytest.mark.parametrize(
    ("name", "loss"), [("mlp-tab", "mse"), ("mlp-a", "mse"), ("mlp-a", "ce"), ("lenet", "ce"), ("resnet-8", "mse")]
)
@settings(deadline=None, max_examples=3)
@given(batch_size=st.integers(1, 3))
def test_the_exported_gradients_are_those_of_torchs_mean_loss_in_float64(tmp_path_factory, name, loss, batch_size):
    path = tmp_path_factory.mktemp("export") / "step.npz"
    network = NETWORKS[name]
    model = network.build()
    inputs, targets = make_batch(network, batch_size)
    export_step(model, inputs, targets, loss, path)
    task = load_step(path)
    model.double()
    outputs = model(inputs.double())
    loss_value = F.mse_loss(outputs, targets.double())
    if loss == "ce":
        loss_value = F.cross_entropy(outputs, targets.argmax(1))
    loss_value.backward()
    for parameter, gradient in model.named_parameters():
        np.testing.assert_allclose(task.gradients[parameter], gradient.grad.numpy(), rtol=1e-9, atol=1e-12)
    assert relative_error(by_hand(task), task.gradients) < 1e-9


def test_what_the_format_cannot_say_is_refused_by_name(tmp_path):
    with pytest.raises(UnsupportedLayerError, match="BatchNorm1d"):
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        export_step(model, torch.zeros(2, 3), torch.zeros(2, 2), "mse", tmp_path / "step.npz")


def stored(path, **changes):
    arrays = {"architecture": "[]", "inputs": np.zeros((2, 1)), "targets": np.zeros((2, 1)), "loss": "mse"}
    arrays |= {"mean_over": 2, "weight": np.zeros(3), "gradient:weight": np.zeros(3), **changes}
    np.savez(path, **{name: np.array(value) for name, value in arrays.items() if value is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": None, "targets": None}, "Expected targets, loss in"),
        ({"loss": "l1"}, "Expected a loss among mse, ce; got l1"),
        ({"gradient:weight": None}, "Expected a gradient of every parameter"),
        ({"gradient:bias": np.zeros(3)}, "Expected a gradient of every parameter"),
        ({"architecture": '[{"name": "a", "kind": "tanh", "inputs": ["input"]}]'}, "got tanh"),
    ],
)
def test_a_file_that_is_no_step_is_refused_with_what_is_wrong(tmp_path, changes, said):
    assert load_step(stored(tmp_path / "good.npz")).mean_over == 2
    with pytest.raises(ValueError, match=said):
        load_step(stored(tmp_path / "step.npz", **changes))


def test_the_error_is_of_the_worst_tensor_relative_to_its_largest_entry():
    expected = {"a": np.array([4.0, -8.0]), "b": np.array([0.5])}
    assert relative_error({"a": np.array([4.0, -6.0]), "b": np.array([0.5])}, expected) == 0.25
    assert relative_error({"a": np.array([4.0, -6.0]), "b": np.array([0.0])}, expected) == 1.0


def test_a_gradient_that_is_no_number_or_not_there_is_not_a_small_error():
    expected = {"a": np.ones(2), "b": np.ones(2)}
    assert np.isnan(relative_error({"a": np.array([1.0, np.nan]), "b": np.ones(2)}, expected))
    assert np.isnan(relative_error({"b": np.array([1.0, np.nan]), "a": np.ones(2)}, expected))
    with pytest.raises(ValueError, match="Expected gradients of a, b; got a"):
        relative_error({"a": np.ones(2)}, expected)
    with pytest.raises(ValueError, match="shape"):
        relative_error({"a": np.ones(2), "b": np.ones((2, 1))}, expected)


def test_a_step_takes_as_long_as_its_slowest_party_and_the_traffic_is_of_all():
    gradients = {"w": np.array([1.0, 2.0])}
    task = StepTask((), {}, gradients, np.zeros((4, 1), np.float32), np.zeros((4, 2), np.float32), "mse", 8)
    parties = [
        StepObservation((1.0, 6.0, 3.0), 8_000_000, 10**9, 7),
        StepObservation((2.0, 4.0, 9.0), 4_000_000, 10**9, 7),
    ]
    found = step_answer("some", "mlp-a", task, parties, {"w": np.array([1.0, 1.5])}, {"w": np.array([8.0, 15.0])})
    assert (found["seconds"], found["seconds_per_step"], found["megabytes_per_step"]) == ([2.0, 6.0, 9.0], 6.0, 12.0)
    assert (found["parties"], found["batch_size"], found["loss"], found["rounds"]) == (2, 4, "mse", 7)
    assert (found["relative_error"], found["relative_error_summed"]) == (0.25, 1 / 16)


def test_fewer_than_one_step_is_refused():
    options = step_task.step_arguments("some").parse_args(["--model", "m", "--task", "none.npz", "--steps", "0"])
    with pytest.raises(SystemExit, match="at least one step"):
        step_task.chosen_step(options)
