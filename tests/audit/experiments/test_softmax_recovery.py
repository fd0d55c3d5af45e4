"""The cross-entropy exchange: read to 1e-6, and nothing to read where there is none."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from bilateral.audit.experiment import EFFORTS, Context
from bilateral.audit.experiments.softmax_recovery import EXPERIMENT, SUM_ERROR
from bilateral.audit.scores import SOFTMAX_ERROR
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

torch.set_num_threads(1)
SMALL = {"model.name": "mlp-3", "model.options": {"width": 16}}


def audited(**settings):
    return _audited(tuple(settings.items()))


@cache
def _audited(settings):
    context = Context(RunPlan().with_settings({**SMALL, **dict(settings)}), EFFORTS["smoke"])
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    return EXPERIMENT.run(context)


@pytest.mark.parametrize("softmax", ["checked", "blinded"])
def test_client_server_and_eavesdropper_read_the_softmax_to_1e_6(softmax):
    rows = [one for one in audited(**{"perturbation.softmax": softmax}) if one.tests in (2, 8)]
    adaptive = [one for one in rows if one.adaptive]
    assert {(one.tests, one.adversary) for one in adaptive} == {
        (2, "curious client"),
        (2, "eavesdropper"),
        (8, "curious server"),
    }
    for one in adaptive:
        assert one.target.of(SOFTMAX_ERROR).mean < 1e-6
        assert judge(one).verdict == "broken"


def test_blinded_answers_mislead_who_takes_them_as_they_come_and_checked_ones_are_the_softmax():
    for softmax, verdict in (("checked", "broken"), ("blinded", "holds")):
        (naive,) = [e for e in audited(**{"perturbation.softmax": softmax}) if e.tests == 2 and not e.adaptive]
        assert judge(naive).verdict == verdict


def test_the_server_reads_the_activation_sum_and_offset_noise_does_not_send_it():
    (row,) = [one for one in audited() if one.tests == 10]
    assert row.target.of(SUM_ERROR).mean < 1e-5 < row.negative.of(SUM_ERROR).mean
    assert judge(row).verdict == "broken"
    assert not [one for one in audited(**{"perturbation.noise": "offset"}) if one.tests == 10]


def test_clients_that_are_absent_in_some_rounds_are_no_obstacle():
    rows = audited(**{"federation.participation": 0.5})
    assert {judge(one).verdict for one in rows if one.adaptive} == {"broken"}


def test_a_batch_of_one_is_compared_with_the_sample_of_another_round():
    rows = [one for one in audited(**{"training.batch_size": 1}) if one.adaptive]
    assert {one.tests for one in rows} == {2, 8, 10}
    assert {judge(one).verdict for one in rows} == {"broken"}


def test_a_plan_without_the_exchange_is_not_attacked():
    plan = RunPlan().with_settings({"training.loss": "mse"})
    assert "no cross-entropy exchange" in EXPERIMENT.applies(plan, Context(plan, EFFORTS["smoke"]).guarantee())


def test_reading_another_samples_softmax_is_not_called_a_break():
    row = next(one for one in audited() if one.adaptive)
    assert judge(type(row)(**{**row.__dict__, "target": row.negative})).verdict == "holds"
