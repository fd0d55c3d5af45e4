"""Validation data, the best model, stopping early; and going on for longer."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan, load_plan, parse_plan
from bilateral.errors import PlanError
from bilateral.learning.evaluation import evaluate
from bilateral.learning.training import predict_with
from bilateral.runs.rounds.export import export_run, load_exported
from bilateral.runs.rounds.extend import extend_run
from bilateral.runs.rounds.in_process import run


def plan(rounds=12, evaluation=None, training=None, **more):
    return parse_plan(
        {
            "data": {"name": "breast-cancer"},
            "model": {"name": "mlp-3"},
            "federation": {"clients": 3},
            "training": {
                "rounds": rounds,
                "evaluate_every": 2,
                "checkpoint_every": 2,
                "learning_rate": 0.3,
                "schedule": "constant",
                **(training or {}),
            },
            "evaluation": evaluation or {},
            "protection": "fedavg",
            **more,
        },
        "of a test",
    )


CHOOSES = {"validation": 0.4, "monitor": "loss", "patience_rounds": 4, "metrics": ["auroc"]}
DIVERGES = {"learning_rate": 3.0}  # the loss gets worse soon


def parameters(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_validation_data_are_the_servers_and_not_among_the_tested():
    whole = load_federation(plan())
    held = load_federation(plan(evaluation={"validation": 0.4}))
    assert len(held.validation) + len(held.test) == len(whole.test)
    assert len(held.validation) == pytest.approx(0.4 * len(whole.test), abs=2)
    rows = {tuple(row.tolist()) for row in whole.test.inputs}
    assert {tuple(row.tolist()) for split in (held.test, held.validation) for row in split.inputs} == rows
    for number in range(2):  # of each class its part
        share = float((held.validation.targets == number).sum() / (whole.test.targets == number).sum())
        assert share == pytest.approx(0.4, abs=0.05)


def test_training_ends_when_patience_does_and_the_best_model_is_the_result(tmp_path):
    chosen = plan(60, CHOOSES, DIVERGES)
    result = run(chosen, output=tmp_path / "out", reference=False)
    rows = list(csv.DictReader((tmp_path / "out" / "metrics.csv").open()))
    losses = {int(row["round"]): float(row["validation_loss"]) for row in rows}
    best = min(losses, key=losses.get)
    assert result.finished
    assert result.best_round == best
    assert result.rounds == best + 4 < 60
    federation = load_federation(chosen)
    again = evaluate(predict_with(result.model), federation.test, federation.problem.objective)
    assert {name: result.metrics[name] for name in again} == again
    assert again["test_loss"] == pytest.approx(float(rows[best // 2]["test_loss"]))
    assert any("best" in warning for warning in result.warnings)
    stored = json.loads((tmp_path / "out" / "result.json").read_text())
    assert stored["finished"]
    assert stored["best_round"] == best


def test_a_stopped_run_stops_early_in_the_same_round_with_the_same_model(tmp_path):
    chosen = plan(60, CHOOSES, DIVERGES)
    whole = run(chosen, save=False, reference=False)
    run(chosen, output=tmp_path / "out", reference=False, should_stop=lambda: True)
    resumed = run(chosen, output=tmp_path / "out", resume=True)
    assert (resumed.rounds, resumed.best_round) == (whole.rounds, whole.best_round)
    assert torch.equal(parameters(resumed.model), parameters(whole.model))
    over = run(chosen, output=tmp_path / "out", resume=True)
    assert over.rounds == whole.rounds
    assert torch.equal(parameters(over.model), parameters(whole.model))


def test_the_best_model_is_exported(tmp_path):
    chosen = plan(60, CHOOSES, DIVERGES)
    result = run(chosen, output=tmp_path / "out", reference=False)
    export_run(tmp_path / "out", tmp_path / "model.safetensors")
    exported = load_exported(tmp_path / "model.safetensors").model
    inputs = load_federation(chosen).test.inputs
    torch.testing.assert_close(exported(inputs), predict_with(result.model)(inputs), rtol=1e-4, atol=1e-4)


def test_choosing_changes_no_round(tmp_path):
    """Bits of the training are those of a run without validation."""
    bare = run(plan(8), output=tmp_path / "bare", reference=False)
    chosen = run(plan(8, {"validation": 0.4}), output=tmp_path / "chosen", reference=False)
    digests = [
        [json.loads(line).get("gradient_digest") for line in (tmp_path / name / "events.jsonl").open()]
        for name in ("bare", "chosen")
    ]
    assert digests[0] == digests[1]
    assert len([digest for digest in digests[0] if digest]) == 8
    assert bare.rounds == chosen.rounds


def test_figures_of_classes_are_in_the_result():
    result = run(plan(4, {"metrics": ["auroc", "sensitivity", "ece"]}), save=False, reference=False)
    assert {"test_auroc", "test_sensitivity", "test_ece"} <= set(result.metrics)
    assert set(result.per_class) == set(load_federation(plan()).problem.class_names)
    assert result.as_dict()["per_class"] == result.per_class


def test_a_model_that_says_one_class_only_is_warned_of():
    result = run(plan(1, training={"learning_rate": 1e-9}, seed=3), save=False, reference=False)
    if result.metrics["test_balanced_accuracy"] == 0.5:
        assert any("for every test sample" in warning for warning in result.warnings)
    else:
        assert not result.warnings


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ({"patience_rounds": 3}, "patience_rounds.*needs data"),
        ({"monitor": "auroc"}, "'auroc', expected one of"),
        ({"metrics": ["roc"]}, "auroc"),
        ({"validation": 1.0}, "less than 1"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(evaluation, said):
    with pytest.raises(PlanError, match=said):
        plan(evaluation=evaluation)


def test_a_monitor_that_the_data_do_not_have_is_refused():
    with pytest.raises(PlanError, match="'mse', which these data do not have"):
        run(plan(evaluation={"validation": 0.4, "monitor": "mse"}), save=False)


def test_plans_without_it_keep_their_fingerprints():
    assert RunPlan().fingerprint() == parse_plan({"evaluation": {}}, "").fingerprint()
    assert RunPlan().fingerprint() != parse_plan({"evaluation": {"validation": 0.1}}, "").fingerprint()


def test_fedsgd_that_is_stopped_goes_on_as_if_it_had_not_been(tmp_path):
    """The yardstick beside FedSGD has its name: what a checkpoint keeps of one must not be shared by both."""
    whole, rounds = run(plan(8), save=False, reference=False), iter(range(3, -1, -1))
    run(plan(8), output=tmp_path / "out", reference=False, should_stop=lambda: next(rounds) == 0)
    resumed = run(plan(8), output=tmp_path / "out", resume=True)
    assert torch.equal(parameters(resumed.model), parameters(whole.model))


class TestExtended:
    def test_with_a_constant_rate_it_is_the_longer_run_bit_for_bit(self, tmp_path):
        longer = run(plan(10), save=False, reference=False)
        run(plan(6), output=tmp_path / "out", reference=False)
        chosen = extend_run(tmp_path / "out", 10)
        assert chosen == plan(10)
        assert load_plan(tmp_path / "out" / "plan.toml") == chosen
        result = run(chosen, output=tmp_path / "out", resume=True)
        assert result.rounds == 10
        assert torch.equal(parameters(result.model), parameters(longer.model))

    def test_with_another_schedule_the_rounds_that_come_have_the_rates_of_the_longer_run(self, tmp_path):
        cosine = {"schedule": "cosine"}
        run(plan(6, training=cosine), output=tmp_path / "out", reference=False)
        result = run(extend_run(tmp_path / "out", 10), output=tmp_path / "out", resume=True)
        longer = run(plan(10, training=cosine), save=False, reference=False)
        assert result.rounds == 10
        assert not torch.equal(parameters(result.model), parameters(longer.model))

    def test_done_twice_it_is_done_once(self, tmp_path):
        run(plan(4), output=tmp_path / "out", reference=False)
        short = (tmp_path / "out" / "plan.toml").read_text()
        extend_run(tmp_path / "out", 6)
        (tmp_path / "out" / "plan.toml").write_text(short)  # as if killed in between
        assert run(extend_run(tmp_path / "out", 6), output=tmp_path / "out", resume=True).rounds == 6

    def test_fewer_rounds_than_are_done_are_refused(self, tmp_path):
        run(plan(4), output=tmp_path / "out", reference=False)
        with pytest.raises(PlanError, match="at least the 4 rounds"):
            extend_run(tmp_path / "out", 3)

    def test_a_budget_is_not_extended(self, tmp_path):
        noisy = plan(4, protection="masks", noise={"mechanism": "sound", "epsilon": 8.0})
        run(noisy, output=tmp_path / "out")
        with pytest.raises(PlanError, match="more of them spend more"):
            extend_run(tmp_path / "out", 6)
