"""The cross-entropy exchange: read to 1e-6, and nothing to read where there is none."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.scores import SOFTMAX_ERROR
from bilateral.audit.topics.model.softmax_recovery import EXPERIMENT, SUM_ERROR
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

torch.set_num_threads(1)
SMALL = {"model.name": "mlp-3", "model.options": {"width": 16}}
CONVNET = {"model.name": "convnet", "model.options": {"width": 4, "batch_norm": True}}


def audited(**settings):
    return _audited(json.dumps(settings))


@cache
def _audited(settings):
    context = Context(RunPlan().with_settings({**SMALL, **json.loads(settings)}), EFFORTS["smoke"])
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    return EXPERIMENT.run(context)


PUBLISHED = {"perturbation.softmax": "blinded"}


def test_client_server_and_eavesdropper_read_the_softmax_to_1e_6():
    rows = [one for one in audited(**PUBLISHED) if one.tests in (2, 8)]
    adaptive = [one for one in rows if one.adaptive]
    assert {(one.tests, one.adversary) for one in adaptive} == {
        (2, "curious client"),
        (2, "eavesdropper"),
        (8, "curious server"),
    }
    for one in adaptive:
        assert one.target.of(SOFTMAX_ERROR).mean < 1e-6
        assert judge(one).verdict == "broken"


@pytest.mark.parametrize("settings", [{}, {"perturbation.noise": "offset"}, CONVNET])
def test_without_an_exchange_the_client_computes_its_softmax_and_nobody_else_is_shown_any(settings):
    naive, adaptive = audited(**settings)
    assert {(one.tests, one.adversary) for one in (naive, adaptive)} == {(2, "curious client")}
    assert not any(gate.passed_by(naive.target.of(gate.metric)) for gate in naive.gates)  # as far off as noise is large
    assert naive.target.of(SOFTMAX_ERROR).mean > 1e-2
    assert judge(adaptive).verdict == "broken"
    assert adaptive.target.of(SOFTMAX_ERROR).mean < 1e-6


def test_the_server_reads_the_activation_sum_and_offset_noise_does_not_send_it():
    (row,) = [one for one in audited(**PUBLISHED) if one.tests == 10]
    assert row.target.of(SUM_ERROR).mean < 1e-5 < row.negative.of(SUM_ERROR).mean
    assert judge(row).verdict == "broken"
    assert not [one for one in audited(**PUBLISHED, **{"perturbation.noise": "offset"}) if one.tests == 10]


def test_clients_that_are_absent_in_some_rounds_are_no_obstacle():
    rows = audited(**PUBLISHED, **{"federation.participation": 0.5})
    assert {judge(one).verdict for one in rows if one.adaptive} == {"broken"}


def test_a_batch_of_one_is_compared_with_the_sample_of_another_round():
    rows = [one for one in audited(**PUBLISHED, **{"training.batch_size": 1}) if one.adaptive]
    assert {one.tests for one in rows} == {2, 8, 10}
    assert {judge(one).verdict for one in rows} == {"broken"}


def test_a_plan_without_the_exchange_is_not_attacked():
    plan = RunPlan().with_settings({"training.loss": "mse"})
    assert "not cross entropy" in EXPERIMENT.applies(plan, Context(plan, EFFORTS["smoke"]).guarantee())


def test_reading_another_samples_softmax_is_not_called_a_break():
    row = next(one for one in audited(**PUBLISHED) if one.adaptive)
    assert judge(type(row)(**{**row.__dict__, "target": row.negative})).verdict == "holds"
