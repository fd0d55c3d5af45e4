"""Line 3, term by term: what P2 leaves bare inverts to the sample, exactly."""

from __future__ import annotations

import pytest
import torch
from tests.audit.chance import each_holds

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.scores import PSNR
from bilateral.audit.topics.inversion.upload_terms import EXPERIMENT
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

torch.set_num_threads(1)
PUBLISHED = {"training.loss": "mse", "noise.mechanism": "published", "noise.epsilon": 3.0}


def context(settings: dict[str, object]) -> Context:
    return Context(RunPlan().with_settings(settings), EFFORTS["smoke"])


@pytest.mark.parametrize("model", ["mlp-3", "lenet"])
def test_published_noise_covers_the_first_term_and_leaves_the_others_bare(model):
    """A LeNet does not begin with a Linear: then an MLP stands in, and the row says so."""
    first, *others = EXPERIMENT.run(context({**PUBLISHED, "model.name": model}))
    assert not first.adaptive
    each_holds(lambda seed: {0: judge(EXPERIMENT.run(context({**PUBLISHED, "model.name": model, "seed": seed}))[0])})
    assert len(others) == 2
    for row in others:
        assert row.adaptive
        assert judge(row).verdict == "broken"
        assert row.target.of(PSNR).median > 60
    assert bool(first.remark) == (model == "lenet")


@pytest.mark.parametrize(("softmax", "num_terms"), [("local", 1), ("blinded", 7)])
def test_without_masks_every_term_of_a_perturbed_upload_inverts(softmax, num_terms):
    bare = {"model.name": "mlp-3", "aggregation.masks": "none", "perturbation.partitions": 2}
    found = EXPERIMENT.run(context({**bare, "perturbation.softmax": softmax}))
    assert len(found) == num_terms
    assert {judge(row).verdict for row in found} == {"broken"}


def test_masked_and_undefended_uploads_are_said_to_be_out_of_its_scope():
    for settings in ({}, {"protection": "fedavg"}):
        given = context(settings)
        assert EXPERIMENT.applies(given.plan, given.guarantee())
