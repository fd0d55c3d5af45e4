"""The benchmarks measure what they say; here on networks small enough for a test."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import bilateral.bench.client_step as client_step_module
import bilateral.bench.recovery as recovery_module
from bilateral.bench.bed import make_batch, make_model
from bilateral.bench.clock import alternate, ratio_row
from bilateral.bench.gates import ImposeGates, RecordGates
from bilateral.bench.oracle import oracle_gradient, plain_gradient
from bilateral.bench.scaling import _slope
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.settings import PerturbationSettings


def _silent(done, total, note):
    assert 0 <= done <= total


@pytest.fixture
def small_networks(monkeypatch):
    monkeypatch.setattr(recovery_module, "NETWORKS", [("lenet", {}), ("resnet-8", {"width": 8, "batch_norm": True})])
    monkeypatch.setattr(recovery_module, "PARTITIONS", (1, 10))
    monkeypatch.setattr(recovery_module, "BATCH_SIZE", 4)


def test_recovery_is_within_its_limits_with_the_clients_gates(small_networks):
    rows = recovery_module.measure_recovery(False, _silent)
    assert len(rows) == 2 * 3 * 2 * 2 * 2
    keys = {"model", "batch_norm", "shortcut", "loss", "softmax", "noise", "partitions", "dtype", "relative_error"}
    assert all(keys <= set(row) for row in rows)
    assert all(row["within_limit_same_gates"] for row in rows)
    assert all(row["within_limit"] for row in rows if row["dtype"] == "float64")


def test_a_wrong_recovery_would_be_seen(small_networks, monkeypatch):
    from bilateral.protocols.perturb import scheme

    right = scheme.recovery_coefficients
    monkeypatch.setattr(scheme, "recovery_coefficients", lambda *a: right(*a) * (1 + 1e-4))
    rows = recovery_module.measure_recovery(True, _silent)
    assert not any(row["within_limit_same_gates"] for row in rows)


def test_imposed_gates_reproduce_the_recorded_network():
    model = make_model("lenet", torch.float64, {})
    batch = make_batch(3, torch.float64)
    graph = ScaleGraph.of(model, batch.inputs)
    with RecordGates() as recorded:
        plain = plain_gradient(model, graph, batch.inputs, batch.labels, "ce")
    with ImposeGates(recorded.gates) as imposed:
        again = plain_gradient(model, graph, batch.inputs, batch.labels, "ce")
    assert imposed.num_flipped == 0
    assert torch.allclose(plain, again, rtol=1e-12, atol=1e-15)


def test_imposed_gates_count_what_they_flip():
    x = torch.tensor([-1.0, 2.0, 3.0])
    with RecordGates() as recorded:
        F.relu(-x)
    with ImposeGates(recorded.gates) as imposed:
        assert F.relu(x).tolist() == [-1.0, 0.0, 0.0]
    assert imposed.num_flipped == 3


def test_the_oracle_is_plain_autograd_in_float64():
    model = make_model("resnet-8", torch.float32, {"width": 4})
    batch = make_batch(4, torch.float32)
    graph = ScaleGraph.of(model, batch.inputs)
    ours = oracle_gradient(model, graph, batch.inputs, batch.labels, "ce")
    wide = copy.deepcopy(model).double()
    F.cross_entropy(wide(batch.inputs.double()), batch.labels).backward()
    assert torch.equal(ours, torch.cat([p.grad.reshape(-1) for p in wide.parameters()]))


def test_another_eps_than_plain_trainings_would_be_seen(small_networks, monkeypatch):
    scaled = ScaleGraph.of
    monkeypatch.setattr(recovery_module, "PerturbationSettings", partial(PerturbationSettings, norm_inputs="scaled"))
    monkeypatch.setattr(ScaleGraph, "of", lambda *a, **k: scaled(*a, **{**k, "norm_inputs": "scaled"}))
    rows = [row for row in recovery_module.measure_recovery(True, _silent) if row["batch_norm"]]
    assert rows
    assert not any(row["within_limit"] for row in rows)


def test_client_step_rows_have_the_documented_keys(monkeypatch):
    monkeypatch.setattr(client_step_module, "NETWORKS", [("convnet", {})])
    rows = client_step_module.measure_client_step(True, _silent)
    keys = {
        "model", "loss", "noise", "partitions", "batch_size", "ratio_median", "ratio_p10", "ratio_p90",
    }  # fmt: skip
    assert all(keys <= set(row) for row in rows)
    assert all(0 < row["ratio_p10"] <= row["ratio_median"] <= row["ratio_p90"] for row in rows)


def test_things_are_timed_alternately():
    order = []
    alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3, warmup=1)
    assert order == ["a", "b"] * 4


def test_ratios_are_taken_repeat_by_repeat():
    row = ratio_row([2.0, 40.0, 6.0], [1.0, 10.0, 2.0])
    assert row["ratio_median"] == 3.0


def test_the_slope_of_a_linear_cost_is_one():
    assert _slope({1: 0.5, 2: 1.0, 8: 4.0}) == pytest.approx(1.0)
    assert _slope({1: 1.0, 10: 100.0}) == pytest.approx(2.0)
