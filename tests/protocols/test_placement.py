"""Clients on another device, in bfloat16, in micro-batches. No accelerator is needed: see `pretend_device`."""

from __future__ import annotations

import pytest
import torch
from tests.protocols.pretend_device import DEVICE, PretendDevice, There
from tests.runs.rounds.test_in_process import plan
from torch import nn

from bilateral.engine.plan import RunPlan
from bilateral.errors import PlanError
from bilateral.learning.local_steps import LocalSettings
from bilateral.learning.optimiser import OptimiserSettings
from bilateral.learning.training import predict_with
from bilateral.models.layout import ModelLayout
from bilateral.protections.fedavg.halves import FedAvgClient, PlainModel
from bilateral.protections.fedavg.local_steps import LocalRound, LocalStepsClient
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.objective import make_objective
from bilateral.protocols.placement import Placement, device_named
from bilateral.runs.rounds.in_process import run

torch.set_num_threads(1)
THERE = Placement(DEVICE)


def convolutions():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


def normalised():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def large():
    """Its first weight is computed in place (`flat_gradients`)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1 << 15), nn.Tanh(), nn.Linear(1 << 15, 3))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        state = inputs.new_zeros(len(inputs), 6)
        for row in inputs[:, 0].unbind(1):
            state = self.cell(row, state)
        return self.head(state)


NETWORKS = {"convolutions": convolutions, "normalised": normalised, "large": large, "recurrent": Recurrent}


@pytest.fixture
def swapped():
    """Parameters that move become other tensors, as the pretended device needs it."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def network(name, dtype=torch.float32):
    torch.manual_seed(0)
    return NETWORKS[name]().to(dtype)


def batch(count=6, dtype=torch.float32):
    draws = torch.Generator().manual_seed(1)
    return (
        torch.randn(count, 1, 8, 8, generator=draws, dtype=dtype),
        torch.randint(0, 3, (count,), generator=draws),
    )


def layout_of(model):
    return ModelLayout.of_module(model, batch(2, next(model.parameters()).dtype)[0])


def gradient(model, *, placement=None, objective="ce", clip=None, samples=6):
    layout, dtype = layout_of(model), next(model.parameters()).dtype
    client = FedAvgClient("anna", model, layout, objective, placement=placement, clip=clip)
    return client, client.train(
        PlainModel(0, layout.flatten(dict(model.named_parameters()), dtype)), *batch(samples, dtype), 6
    )


def local_steps(model, *, placement=None, optimiser="sgd", proximal=0.0):
    layout = layout_of(model)
    settings = LocalSettings(OptimiserSettings(optimiser, 0.1, 0.9, 0.01), 5, steps=3, proximal=proximal)
    objective = make_objective("ce", "classification")
    client = LocalStepsClient("anna", model, layout, objective, settings, placement=placement)
    statistics = torch.rand(layout.num_statistics, generator=torch.Generator().manual_seed(2))
    message = LocalRound(0, layout.flatten(dict(model.named_parameters()), torch.float32), statistics)
    return client, client.train_locally(message, [batch(6)] * 3, 6)


def assert_same(here, there):
    assert not isinstance(there.terms, There)
    assert not isinstance(there.statistics, There)
    assert torch.equal(here.terms, there.terms)
    assert torch.equal(here.statistics, there.statistics)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", ["ce", "weights", "clipped"])
def test_a_gradient_on_another_device_has_every_tensor_there_and_comes_back(swapped, name, kind):
    objective = make_objective("ce", "classification", class_weights=(1.0, 2.0, 3.0)) if kind == "weights" else "ce"
    clip = ClipSettings(0.1, "client") if kind == "clipped" else None
    if clip is not None and name == "normalised":
        pytest.skip("BatchNorm is refused with clipping")
    _, here = gradient(network(name), objective=objective, clip=clip)
    with PretendDevice() as there:
        client, found = gradient(network(name), placement=THERE, objective=objective, clip=clip)
        assert all(isinstance(p, There) for p in client._model.module.parameters())
    assert there.operations > 10
    assert_same(here, found)


@pytest.mark.parametrize("name", ["convolutions", "normalised", "recurrent"])
@pytest.mark.parametrize("settings", [{}, {"optimiser": "adam"}, {"proximal": 0.1}])
def test_local_steps_on_another_device_have_every_tensor_there_and_come_back(swapped, name, settings):
    _, here = local_steps(network(name), **settings)
    with PretendDevice() as there:
        client, found = local_steps(network(name), placement=THERE, **settings)
        assert all(isinstance(p, There) for p in client._model.module.parameters())
    assert there.operations > 30
    assert_same(here, found)


def test_the_server_measures_a_copy_of_its_model_on_another_device(swapped):
    model, (inputs, _) = network("normalised"), batch()
    here = predict_with(model)(inputs)
    with PretendDevice() as there:
        found = predict_with(model, DEVICE)(inputs)
    assert there.operations
    assert not isinstance(found, There)
    assert torch.equal(here, found)
    assert not any(isinstance(p, There) for p in model.parameters())


def test_the_pretended_device_finds_a_tensor_that_stayed_behind():
    with PretendDevice(), pytest.raises(RuntimeError, match="tensors on two devices"):
        torch.ones(3).to(DEVICE) + torch.ones(3)


@pytest.mark.parametrize("size", [1, 2, 4, 5, 6, 100])
@pytest.mark.parametrize("name", ["convolutions", "large", "recurrent"])
def test_micro_batches_give_the_gradient_of_the_whole_batch(name, size):
    dtype = torch.float64
    _, whole = gradient(network(name, dtype))
    _, parts = gradient(network(name, dtype), placement=Placement(micro_batch=size))
    torch.testing.assert_close(parts.terms, whole.terms, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_local_steps_in_micro_batches_are_those_of_whole_batches(optimiser):
    _, whole = local_steps(network("convolutions"), optimiser=optimiser, proximal=0.1)
    _, parts = local_steps(
        network("convolutions"), optimiser=optimiser, proximal=0.1, placement=Placement(micro_batch=4)
    )
    torch.testing.assert_close(parts.terms, whole.terms, rtol=2e-4, atol=1e-6)


def test_in_bfloat16_passes_are_coarse_and_parameters_losses_and_uploads_are_not():
    seen = []
    model = network("convolutions")
    client, upload = gradient(model, placement=Placement(precision="bf16"))
    _, full = gradient(network("convolutions"))
    client._model.module[0].register_forward_hook(lambda module, inputs, outputs: seen.append(outputs.dtype))
    outputs = client._model.run("anna", 0, batch()[0])
    assert (seen, outputs.dtype, upload.terms.dtype) == ([torch.bfloat16], torch.float32, torch.float32)
    assert all(p.dtype == torch.float32 for p in client._model.parameters)
    off = float((upload.terms - full.terms).norm() / full.terms.norm())
    assert 1e-5 < off < 0.05


def test_a_run_in_bfloat16_and_micro_batches_learns_under_masks():
    chosen = {"protection": "masks", "training.rounds": 25, "federation.clients": 3, "model.name": "mlp-3"}
    plain = RunPlan().with_settings(chosen)
    coarse = plain.with_settings({"training.precision": "bf16", "training.micro_batch": 10})
    best, found = (run(one, save=False, reference=False).metrics["test_accuracy"] for one in (plain, coarse))
    assert found > best - 0.05


def test_devices_are_no_part_of_a_plans_fingerprint_and_what_changes_numbers_is():
    assert RunPlan().with_settings({"training.device": "auto"}).fingerprint() == RunPlan().fingerprint()
    for setting in ({"training.precision": "bf16"}, {"training.micro_batch": 4}):
        assert RunPlan().with_settings(setting).fingerprint() != RunPlan().fingerprint()


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "", "meta", "cpu:0", "CUDA"])
def test_names_that_are_no_device_are_refused(name):
    with pytest.raises(PlanError):
        device_named(name)
    with pytest.raises(PlanError, match=r"training\.device"):
        RunPlan().with_settings({"training.device": name})


def test_a_device_that_is_not_there_is_refused_before_the_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_named("auto") == torch.device("cuda")
    assert device_named("cuda:1") == torch.device("cuda:1")
    with pytest.raises(PlanError, match=r"'cuda:2', and torch .* finds no such device"):
        device_named("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device_named("auto") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device_named("auto") == torch.device("cpu")
    with pytest.raises(PlanError, match="finds no such device"):
        run(plan(protection="masks", training__device="cuda"), save=False)


@pytest.mark.parametrize("protection", ["perturbation", "sealed"])
@pytest.mark.parametrize("setting", [{"training.precision": "bf16"}, {"training.micro_batch": 8}])
def test_protections_whose_numbers_are_exact_refuse_what_would_change_them(protection, setting):
    chosen = RunPlan().with_settings(
        {"protection": protection, "model.name": "mlp-3", "training.loss": "mse", **setting}
    )
    with pytest.raises(PlanError, match="are for FedSGD and FedAvg"):
        run(chosen, save=False)


def test_noise_for_every_sample_refuses_them_and_noise_for_clients_does_not():
    noise = {"protection": "masks", "noise.mechanism": "sound", "noise.noise_multiplier": 1.0, "model.name": "mlp-3"}
    chosen = RunPlan().with_settings({**noise, "training.rounds": 1, "training.micro_batch": 8})
    with pytest.raises(PlanError, match="with noise for every sample"):
        run(chosen, save=False)
    assert run(chosen.with_settings({"noise.unit": "client"}), save=False).finished


def test_micro_batches_of_a_network_with_batch_norm_are_refused_with_the_reason():
    chosen = plan(protection="masks", model__name="resnet-8", training__micro_batch=4, data__name="digits")
    with pytest.raises(PlanError, match="BatchNorm normalises by the statistics of what it sees at once"):
        run(chosen, save=False)
