"""What sites find of the models that they are sent, on samples that they keep back: it stays with them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
import torch

from bilateral.engine.federation import load_federation
from bilateral.engine.plan import parse_plan
from bilateral.engine.setup import initial_model, make_blueprint
from bilateral.errors import BilateralError, PlanError, ProtocolError
from bilateral.learning.evaluation import evaluate
from bilateral.learning.training import predict_with
from bilateral.protocols.site_reports import MetricsReport, MetricsRequest, metrics_in
from bilateral.runs.rounds.in_process import run


def plan(protection="masks", holdout=0.25, **training):
    return parse_plan(
        {
            "protection": protection,
            "data": {"name": "breast-cancer"},
            "model": {"name": "mlp-3"},
            "federation": {"clients": 3},
            "training": {"rounds": 5, "evaluate_every": 2, **training},
            "evaluation": {"site_holdout": holdout, "metrics": ["auroc"]},
        },
        "of a test",
    )


def test_what_is_kept_back_is_not_trained_on():
    whole, kept = load_federation(plan(holdout=0.0)), load_federation(plan())
    for name, share in kept.shares.items():
        assert len(share) + len(share.held) == len(whole.shares[name])
        rows = {tuple(row.tolist()) for row in share.inputs}
        assert not rows & {tuple(row.tolist()) for row in share.held.inputs}


@pytest.mark.parametrize("local", [{}, {"local_steps": 2}])
def test_each_site_measures_the_models_that_it_is_sent_and_tells_nobody(tmp_path, local):
    chosen = plan(**local)
    run(chosen, output=tmp_path / "out", reference=False)
    for name, share in load_federation(chosen).shares.items():
        rows = list(csv.DictReader((tmp_path / "out" / "sites" / f"{name}.csv").open()))
        assert [int(row["round"]) for row in rows] == [0, 2, 4]
        first = evaluate(predict_with(initial(chosen)), share.held, chosen_objective(chosen))
        assert float(rows[0]["site_accuracy"]) == pytest.approx(first["test_accuracy"])
        assert float(rows[0]["site_loss"]) == pytest.approx(first["test_loss"], rel=1e-5)
        assert 0 <= float(rows[-1]["site_auroc"]) <= 1
    for name in ("result.json", "events.jsonl", "metrics.csv"):
        assert "site_a" not in (tmp_path / "out" / name).read_text()


def initial(chosen):
    return initial_model(chosen, load_federation(chosen).problem)


def chosen_objective(chosen):
    return load_federation(chosen).problem.objective


def test_it_changes_no_message(tmp_path):
    """The same samples trained on without measuring give the same rounds: nothing of it is sent."""
    measured = run(plan(), output=tmp_path / "a", reference=False)
    unseen = run(plan(), save=False, reference=False)
    assert measured.transcript.bytes_up == unseen.transcript.bytes_up
    assert measured.metrics == unseen.metrics
    assert json.loads((tmp_path / "a" / "result.json").read_text())["per_site"] == {}


@pytest.mark.parametrize("protection", ["perturbation", "sealed"])
def test_sites_that_are_not_sent_the_model_cannot_measure_it(protection):
    with pytest.raises(PlanError, match="not sent the model as it is") as caught:
        run(plan(protection, loss="mse"), save=False)
    assert "masks" in caught.value.remedy


def shared(protection="masks", **training):
    return plan(protection, **training).with_settings({"evaluation.site_metrics": "share"})


@pytest.mark.parametrize("local", [{}, {"local_steps": 2, "class_weights": "balanced"}])
def test_sites_tell_the_server_what_they_found_where_the_plan_says_so(tmp_path, local):
    chosen = shared(**local)
    result = run(chosen, output=tmp_path / "out", reference=False)
    assert set(result.told_by_sites) == {"client-1", "client-2", "client-3"}
    for name, told in result.told_by_sites.items():
        own = list(csv.DictReader((tmp_path / "out" / "sites" / f"{name}.csv").open()))
        assert told["round"] == int(own[-1]["round"]) == 4
        assert told["samples"] == int(own[-1]["samples"])
        assert {key: told[key] for key in own[-1] if key.startswith("site_")} == {
            key: float(value) for key, value in own[-1].items() if key.startswith("site_")
        }
    told = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    rounds = [line["round"] for line in told if line["event"] == "site_told"]
    assert sorted(rounds) == sorted(3 * ([2, 4] if "class_weights" in local else [0, 2, 4]))
    said = "each site's metrics of the model on the samples that it keeps back"
    leaks = [leak for leak in result.guarantee.leaks if leak.what.startswith(said)]
    assert [(leak.whom, leak.ledger_line) for leak in leaks] == [("server", 20)]
    assert not [leak for leak in run(plan(), save=False).guarantee.leaks if leak.what.startswith(said)]


def test_telling_changes_no_model(tmp_path):
    told, kept = run(shared(), save=False, reference=False), run(plan(), save=False, reference=False)
    assert told.metrics == kept.metrics
    assert told.transcript.bytes_up > kept.transcript.bytes_up


def test_a_site_whose_plan_says_stay_tells_nothing_whoever_asks():

    chosen = plan()
    client = make_blueprint(chosen, load_federation(chosen)).client("client-1", note=lambda _: None)
    with pytest.raises(ProtocolError, match="metrics, which stay here"):
        client.handle([MetricsRequest(0)])


def test_telling_needs_samples_and_goes_with_no_noise():
    with pytest.raises(PlanError, match="site_holdout"):
        plan().with_settings({"evaluation.site_metrics": "share", "evaluation.site_holdout": 0.0})
    noisy = shared("fedavg").with_settings({"noise.mechanism": "sound", "noise.epsilon": 8.0})
    with pytest.raises(PlanError, match="no epsilon covers"):
        run(noisy, save=False)


def test_a_resumed_run_still_has_what_was_told(tmp_path):
    stops = iter([False, False, True])
    path = tmp_path / "out"
    run(shared(checkpoint_every=1), output=path, reference=False, should_stop=lambda: next(stops))
    resumed = run(shared(checkpoint_every=1), output=path, resume=True)
    whole = run(shared(checkpoint_every=1), save=False, reference=False)
    assert resumed.told_by_sites == whole.told_by_sites
    assert [row for row in resumed.rows if row["round"] == 0] == [row for row in whole.rows if row["round"] == 0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round_index": 1}, "where metrics of round 0"),
        ({"num_samples": 0}, "metrics of 0 samples"),
        ({"names": ("site_loss", "site_loss")}, "twice"),
        ({"names": ("site_loss", "address")}, "does not have"),
        ({"names": ("site_loss",)}, "expected `values` of shape"),
        ({"values": torch.tensor([1.0, float("nan")], dtype=torch.float64)}, "NaN"),
        ({"values": torch.ones(2)}, "float32"),
        ({"values": torch.ones(2, 1, dtype=torch.float64)}, "expected `values` of shape"),
    ],
)
def test_a_report_that_is_none_is_refused(change, words):

    good = MetricsReport(0, 5, ("site_loss", "site_accuracy"), torch.tensor([0.5, 1.0], dtype=torch.float64))
    known = ("site_loss", "site_accuracy", "site_auroc")
    assert metrics_in(good, "a", 0, known) == {"samples": 5.0, "site_loss": 0.5, "site_accuracy": 1.0}
    with pytest.raises(BilateralError, match=words):
        metrics_in(replace(good, **change), "a", 0, known)
