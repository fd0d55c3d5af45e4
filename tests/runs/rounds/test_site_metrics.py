"""What sites find of the models that they are sent, on samples that they keep back: it stays with them."""

from __future__ import annotations

import csv
import json

import pytest

from bilateral.engine.federation import load_federation
from bilateral.engine.plan import parse_plan
from bilateral.errors import PlanError
from bilateral.learning.evaluation import evaluate
from bilateral.learning.training import predict_with
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
    from bilateral.engine.setup import initial_model

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
