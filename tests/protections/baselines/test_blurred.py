"""Baselines without cryptography: Gaussian noise, PPDL, SPN and DBCL, each against a slow version of what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protections.baselines.harness import digests, plan_of, weights

from bilateral.audit.auditor import audit
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint
from bilateral.errors import ProtocolError, UnsoundPlanError
from bilateral.protections.dbcl.protection import SketchedModel
from bilateral.protections.dbcl.sketch import draw_sketch, sketched
from bilateral.protections.ppdl.selection import laplace, largest, share_by_sparse_vectors, share_largest
from bilateral.protections.registry import protection_named
from bilateral.protocols.messages import Upload
from bilateral.randomness import SeededRandomness
from bilateral.runs.rounds.compare import compare
from bilateral.runs.rounds.in_process import run

BLURRED = ("gaussian", "ppdl", "spn", "dbcl")


def uploads_of(plan, num_rounds=1):
    """What the first client uploads in each round of a run, and what it was sent."""
    sent = []
    blueprint = make_blueprint(plan, load_federation(plan))
    training = blueprint.server()
    exchange = blueprint.local_exchange(lambda _round, _sender, _receiver, message: sent.append((_sender, message)))
    for round_index in range(num_rounds):
        training.advance(round_index, ("client-1", "client-2", "client-3"), exchange)
    uploads = [m for sender, m in sent if sender == "client-1" and isinstance(m, Upload)]
    return uploads, [m for sender, m in sent if sender == "server"], training


@pytest.mark.parametrize("name", BLURRED)
def test_it_is_a_baseline_and_says_of_whom(name):
    assert protection_named(name).baseline_of


@pytest.mark.parametrize("name", BLURRED)
def test_a_resumed_run_is_the_same_bit_for_bit(name, tmp_path):
    plan = plan_of(name, **{"training.rounds": 4, "training.checkpoint_every": 1})
    whole = run(plan, output=tmp_path / "whole", reference=False)
    rounds = []
    run(plan, output=tmp_path / "cut", on_round=rounds.append, should_stop=lambda: len(rounds) >= 2, reference=False)
    resumed = run(plan, output=tmp_path / "cut", resume=True, reference=False)
    assert torch.equal(weights(resumed), weights(whole))
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "own"), [("gaussian", {"gaussian.variance": 1e-6}), ("ppdl", {"ppdl.fraction": 0.3}), ("spn", {})]
)
def test_it_learns_digits_nearly_as_fedsgd(name, own):
    plan = RunPlan(protection=name).with_settings({"data.name": "digits", "model.name": "mlp-3", **own})
    plan = plan.with_settings({"training.rounds": 40, "federation.clients": 3})
    bare, blurred = compare(plan, [name], num_controls=0)
    assert bare["metric_value"] > 0.85
    assert bare["metric_value"] - 0.15 < blurred["metric_value"]
    assert 0 < blurred["weights_relative_difference"] < 1
    assert blurred["bytes_ratio"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", BLURRED)
def test_noise_with_an_epsilon_is_refused_on_top(name):
    with pytest.raises(UnsoundPlanError, match="not clipped"):
        run(plan_of(name, **{"noise.mechanism": "sound", "noise.epsilon": 5.0, "training.loss": "mse"}), save=False)


def test_gaussian_noise_has_its_variance_and_is_another_every_round_and_client():
    ours, _, _ = uploads_of(plan_of("gaussian", **{"gaussian.variance": 0.25, "model.options": {"width": 32}}))
    plain, _, _ = uploads_of(plan_of("fedavg", **{"model.options": {"width": 32}}))
    noise = ours[0].terms - plain[0].terms
    assert noise.numel() > 1000
    assert float(noise.square().mean()) == pytest.approx(0.25, rel=0.25)
    assert abs(float(noise.mean())) < 0.1
    later, _, _ = uploads_of(plan_of("gaussian", **{"gaussian.variance": 1e6}), 2)
    assert float(F.cosine_similarity(later[0].terms, later[1].terms)) < 0.5


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=60, unique_by=abs), st.floats(0.01, 1))
@settings(max_examples=60, deadline=None)
def test_the_largest_are_those_that_sorting_puts_first(values, fraction):
    found = largest(torch.tensor(values, dtype=torch.float64), fraction)
    count = max(1, round(fraction * len(values)))
    slow = sorted(values, key=abs, reverse=True)[:count]
    assert sorted(v for v, chosen in zip(values, found.tolist(), strict=True) if chosen) == sorted(slow)


def test_what_is_not_shared_is_zero_and_what_is_shared_is_bounded():
    values = torch.linspace(-3, 3, 101, dtype=torch.float64)
    shared = share_largest(values, 0.2, 1.0, 0.0, SeededRandomness(0))
    assert int((shared != 0).sum()) == 20
    assert float(shared.abs().max()) == 1.0


def test_sparse_vectors_with_a_huge_epsilon_share_what_is_above_the_threshold():
    values = torch.tensor([0.5, -0.001, -0.7, 0.0005, 0.9, 0.002])
    shared = share_by_sparse_vectors(values, 1.0, 1.0, 0.1, 1e9, SeededRandomness(1))
    assert shared.tolist() == pytest.approx([0.5, 0, -0.7, 0, 0.9, 0], abs=1e-4)
    few = share_by_sparse_vectors(values, 1 / 3, 1.0, 0.1, 1e9, SeededRandomness(1))
    assert int((few != 0).sum()) == 2


def test_sparse_vectors_with_a_small_epsilon_share_noise():
    values = torch.full((2000,), 1e-3)
    shared = share_by_sparse_vectors(values, 0.1, 1.0, 1e-4, 1.0, SeededRandomness(2))
    assert int((shared != 0).sum()) <= 200
    assert float(shared.abs().max()) == 1.0


def test_laplace_noise_has_its_scale():
    drawn = laplace(SeededRandomness(3), 2.0, 20000)
    assert float(drawn.abs().mean()) == pytest.approx(2.0, rel=0.05)
    assert abs(float(drawn.median())) < 0.1


def test_the_gradient_of_spn_is_that_of_both_losses_and_the_heads_is_fedsgds():
    plan = plan_of("spn")
    ours, _, training = uploads_of(plan)
    plain, _, _ = uploads_of(plan_of("fedavg"))
    graph = training.layout
    mine, bare = graph.unflatten(ours[0].terms[0]), graph.unflatten(plain[0].terms[0])
    for name in mine:
        if name.startswith("head"):
            assert torch.allclose(mine[name], bare[name], atol=1e-6)
        else:
            assert not torch.allclose(mine[name], bare[name], atol=1e-4)


def test_what_spn_adds_grows_with_its_strength():
    plain, _, _ = uploads_of(plan_of("fedavg"))
    first, _, _ = uploads_of(plan_of("spn", **{"spn.strength": 0.1}))
    second, _, _ = uploads_of(plan_of("spn", **{"spn.strength": 0.2}))
    added = first[0].terms - plain[0].terms
    assert torch.allclose(second[0].terms - plain[0].terms, 2 * added, atol=1e-5)


@given(st.integers(1, 20), st.floats(0.05, 1), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_sketch_there_and_back_is_the_product_with_its_matrices(size, ratio, seed):
    draws = SeededRandomness(seed)
    sketch, rows = draw_sketch(size, ratio, draws), draws.child("rows").normal(3, size)
    dense = sketch.matrix()
    assert torch.allclose(sketch.there_and_back(rows), rows @ dense @ dense.t(), atol=1e-9)
    assert set(dense.abs().sum(1).tolist()) == {1.0}


def test_sketches_average_out_so_a_client_that_keeps_them_has_the_model():
    """What DBCL hides from clients in one round, it does not over rounds (here the model stands still)."""
    _, sent, training = uploads_of(plan_of("dbcl"))
    model = next(m for m in sent if isinstance(m, SketchedModel))
    true = torch.randn(training.layout.num_parameters, dtype=torch.float64)

    def error(num_rounds):
        seen = [sketched(true, training.layout, 0.5, n.to_bytes(16, "little")) for n in range(num_rounds)]
        return float((torch.stack(seen).mean(0) - true).norm() / true.norm())

    assert error(1) > 1
    assert error(400) < 0.15
    assert len(model.seed) == 16


def test_what_dbcl_sends_up_and_down_is_sketched_by_the_seed_that_travels():
    ours, sent, training = uploads_of(plan_of("dbcl", **{"dbcl.ratio": 0.5}))
    model = next(m for m in sent if isinstance(m, SketchedModel))
    initial = make_blueprint(plan_of("dbcl"), load_federation(plan_of("dbcl"))).server().weights().float()
    assert torch.allclose(model.parameters, sketched(initial, training.layout, 0.5, model.seed))
    assert ours[0].terms.shape == (1, training.layout.num_parameters)


def test_a_sketched_model_without_a_proper_seed_is_refused():
    plan = plan_of("dbcl")
    federation = load_federation(plan)
    blueprint = make_blueprint(plan, federation)
    client, model = blueprint.client("client-1"), blueprint.server().server.start_round(0)
    with pytest.raises(ProtocolError, match="a seed of 16 bytes"):
        client.handle((replace(model, seed=b"short"),))
    with pytest.raises(ProtocolError, match="expected `parameters` of shape"):
        client.handle((replace(model, parameters=model.parameters[1:]),))


@pytest.mark.parametrize("name", BLURRED)
def test_the_audit_attacks_it_as_what_it_is(name):
    result = audit(plan_of(name), effort="smoke", only=("gradient-inversion",), save=False)
    assert not result.failed
    assert result.evidence
    assert {one.tests for one in result.evidence} == {0}
