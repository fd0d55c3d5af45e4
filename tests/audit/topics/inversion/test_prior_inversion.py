"""Inversion with a generative prior, with the judge: FedSGD's uploads are read, masked ones are not."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.audit.chance import none_is_broken

from bilateral.audit.effort import EFFORTS, PriorEffort
from bilateral.audit.evidence import Condition
from bilateral.audit.experiment import Context
from bilateral.audit.scores import PERCEPTUAL, PSNR, TEST_MSE, Scores
from bilateral.audit.topics.inversion.prior_inversion import EXPERIMENT, best_of
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

torch.set_num_threads(1)
MLP = {"model.name": "mlp-3"}


BRIEF = replace(EFFORTS["smoke"], prior=PriorEffort(40, 2, first_steps=5, latent_steps=10, feature_steps=5, noises=()))


def rows(effort=EFFORTS["smoke"], **settings):
    plan = RunPlan().with_settings({**MLP, **{name.replace("__", "."): value for name, value in settings.items()}})
    context = Context(plan, effort)
    assert EXPERIMENT.applies(plan, context.guarantee()) == ""
    return {(one.tests, one.adaptive): one for one in EXPERIMENT.run(context)}


def test_fedavg_is_read_and_that_is_not_the_priors_own_doing():
    found = rows(protection="fedavg")
    row = found[0, True]
    assert judge(row).verdict == "broken"
    for metric, better in ((PSNR, 1), (TEST_MSE, -1), (PERCEPTUAL, -1)):
        ours, alone = row.target.of(metric).mean, row.negative.of(metric).mean
        assert better * ours > better * alone, metric.name
    assert row.target.of(PSNR).mean > row.negative.of(PSNR).mean + 4
    assert any(one.pictures for one in found.values())
    assert "the prior alone" in row.remark


def test_masked_uploads_are_not_read_where_the_same_attack_reads_something_of_fedavgs():
    def of(seed):
        found = rows(BRIEF, seed=seed)
        naive = found["single uploads", False]
        assert naive.positive.of(PSNR).mean > naive.negative.of(PSNR).mean + 2
        return {name: judge(one) for name, one in found.items() if name[0] == "single uploads" and one.adaptive}

    none_is_broken(of)


def test_the_prior_alone_is_the_best_that_it_has_in_each_metric():
    def tried(what, *values):
        return Condition(what, tuple(Scores(m, (v, v)) for m, v in zip((PSNR, TEST_MSE), values, strict=True)))

    found = best_of("alone", (tried("a", 10.0, 0.5), tried("b", 8.0, 0.2)))
    assert [scores.mean for scores in found.scores] == [10.0, 0.2]


def test_tables_have_no_images_to_know():
    plan = RunPlan().with_settings({"data.name": "breast-cancer", **MLP})
    assert EXPERIMENT.run(Context(plan, EFFORTS["smoke"])) == []
