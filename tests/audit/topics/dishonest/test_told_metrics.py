"""Ledger line 20 as an experiment: broken where sites tell their metrics, and not there where these stay."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.recording import record
from bilateral.audit.threat import client_view, server_view
from bilateral.audit.topics.dishonest import told_metrics
from bilateral.audit.topics.dishonest.attacks.told_metrics import answering
from bilateral.audit.topics.dishonest.told_metrics import EXPERIMENT
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import analyse, initial_model
from bilateral.protocols.site_reports import MetricsReport

torch.set_num_threads(1)
SHARED = {
    "protection": "masks",
    "data.name": "wine",
    "model.name": "mlp-3",
    "model.options": {"width": 16},
    "federation.clients": 3,
    "federation.partition": "dirichlet",
    "training.batch_size": 8,
    "training.rounds": 2,
    "training.evaluate_every": 1,
    "evaluation.site_holdout": 0.3,
    "evaluation.site_metrics": "share",
}


def context_of(**settings):
    return Context(RunPlan().with_settings({**SHARED, **settings}), EFFORTS["smoke"])


def test_a_server_counts_the_classes_that_sites_keep_back():
    context = context_of()
    assert not EXPERIMENT.applies(context.plan, context.guarantee())
    (found,) = EXPERIMENT.run(context)
    assert judge(found).verdict == "broken"
    counted, presence, errors = found.target.scores
    assert counted.mean == presence.mean == 1.0
    assert max(errors.values) < 1e-12
    assert found.positive.scores[0].mean == 1.0
    assert found.negative.scores[0].mean < 0.5
    assert found.negative.scores[2].mean > 0.05


def test_where_metrics_stay_it_only_guesses():
    """The target is the plan without the line: the same models are sent, and nothing comes back of them."""
    context = context_of(**{"evaluation.site_metrics": "stay"})
    assert "stays there" in EXPERIMENT.applies(context.plan, context.guarantee())
    (found,) = EXPERIMENT.run(context)
    assert judge(found).verdict != "broken"
    assert found.target.scores == found.negative.scores


def test_another_sites_report_does_not_tell_it(monkeypatch):
    """What is read is that site's own: with the reports dealt out one further, counts are wrong."""
    names = ["client-1", "client-2", "client-3"]
    own = told_metrics.read_share

    def of_the_next(view, site, round_index, guess):
        return own(view, names[(names.index(site) + 1) % 3], round_index, guess)

    monkeypatch.setattr(told_metrics, "read_share", of_the_next)
    (found,) = EXPERIMENT.run(context_of())
    assert judge(found).verdict != "broken"
    assert found.target.scores[0].mean < 0.5


@pytest.mark.parametrize("told", ["share", "stay"])
def test_recordings_have_what_sites_tell_and_nobody_but_the_server_and_that_site_sees_it(told):
    context = context_of(**{"evaluation.site_metrics": told})
    recording = record(context.plan, context.federation())
    seen = [entry.sender for entry, _ in server_view(recording).messages(MetricsReport)]
    assert sorted(seen) == (2 * ["client-1"] + 2 * ["client-2"] + 2 * ["client-3"] if told == "share" else [])
    assert {entry.sender for entry, _ in client_view(recording, "client-1").messages(MetricsReport)} <= {"client-1"}


def test_the_model_answers_its_class_whatever_it_sees():
    context = context_of()
    problem = context.federation().problem
    network = initial_model(context.plan, problem)
    head = analyse(network, problem).head
    for answer in range(3):
        crafted = answering(network, head, answer)
        assert crafted(torch.randn(20, *problem.input_shape)).argmax(1).unique().tolist() == [answer]
