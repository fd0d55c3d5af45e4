"""The server's membership game on small plans: masks close single uploads, and nothing else."""

from __future__ import annotations

import pytest
import torch
from tests.audit.chance import each_holds

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.scores import AUC, TPR_AT_1
from bilateral.audit.topics.membership.membership_by_server import EXPERIMENT
from bilateral.audit.topics.membership.upload_scene import make_scene
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError

SMALL = {"model.name": "mlp-3", "federation.clients": 4, "training.batch_size": 16}


def context_of(**settings):
    return Context(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"])


def played(**settings):
    context = context_of(**settings)
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    return {(e.tests, e.attack, e.adaptive): e for e in EXPERIMENT.run(context)}


@pytest.fixture(scope="module")
def masked():
    return played()


def test_under_ring_masks_the_server_cannot_tell_whose_a_sample_is(masked):
    def on_uploads(seed):
        rows = played(seed=seed) if seed else masked
        return {key: judge(e) for key, e in rows.items() if key[0] == "single uploads"}

    each_holds(on_uploads)
    assert len(on_uploads(0)) == 6
    for (tests, _, adaptive), evidence in masked.items():
        if tests == "single uploads" and adaptive:
            assert evidence.target.of(AUC).mean == pytest.approx(0.5, abs=0.005)  # rounding orders equal scores
            assert evidence.target.of(TPR_AT_1).mean <= 0.02


def test_the_positive_control_of_each_attack_on_uploads_passes_its_gates(masked):
    for (tests, attack, _), evidence in masked.items():
        if tests == "single uploads":
            assert all(gate.passed_by(evidence.positive.of(gate.metric)) for gate in evidence.gates), attack


def test_the_sum_itself_tells_who_is_in_it(masked):
    assert judge(masked[12, "membership in the sum by decomposition", True]).verdict == "broken"
    assert masked[12, "membership in the sum by decomposition", True].target.of(AUC).mean > 0.99


def test_the_weights_in_the_sum_tell_clients_of_different_sizes_apart():
    found = played(**{"federation.proportions": [0.1, 0.2, 0.3, 0.4], "training.loss": "mse"})
    evidence = found[12, "source of a sample by its weight in the sum", True]
    assert judge(evidence).verdict == "broken"
    assert evidence.target.of(AUC).mean > 0.95
    uploads = [e for (tests, attack, _), e in found.items() if tests == "single uploads" and "from the sum" in attack]
    assert len(uploads) == 3  # who does not know the sizes cannot say whose weight is whose
    assert not any(e.adaptive or judge(e).verdict == "broken" for e in uploads)


def test_without_the_exchange_there_is_no_question_that_names_samples(masked):
    assert {tests for tests, _, _ in masked} == {"single uploads", 12}


def test_the_question_of_published_cross_entropy_names_the_samples_of_a_batch():
    found = played(**{"perturbation.softmax": "blinded"})
    assert judge(found[8, "source of a sample by the softmax in the question", True]).verdict == "broken"
    assert judge(found[8, "source of a sample by the softmax in the question", False]).verdict != "broken"
    assert judge(found[10, "source of a sample by the sum of head inputs in the question", True]).verdict == "broken"


@pytest.mark.parametrize(
    ("settings", "line"),
    [({"protection": "fedavg"}, 0), ({"aggregation.masks": "none", "training.loss": "mse"}, 3)],
)
def test_bare_uploads_are_broken(settings, line):
    found = played(**settings)
    assert {tests for tests, _, _ in found} == {line}
    for attack in ("likelihood ratio", "pairwise likelihood ratio", "decomposition"):
        assert judge(found[line, f"source of a sample by {attack}", True]).verdict == "broken"


def test_candidates_are_where_the_scene_says():
    context = context_of(protection="fedavg")
    plan = context.plan.with_settings({"training.rounds": 2})
    scene, recording = make_scene(context, plan, 0), context.record(plan)
    for number, name in enumerate(scene.clients):
        batch = recording.batches[name, 1]
        assert torch.equal(scene.candidates.inputs[scene.owner == number], batch.inputs)
    used = {row.numpy().tobytes() for share in recording.shares.values() for row in share.inputs}
    strangers = scene.candidates.inputs[~scene.used]
    assert len(strangers) >= 50
    assert not any(row.numpy().tobytes() in used for row in strangers)


def test_too_small_a_test_set_is_refused():
    context = context_of(**{"data.name": "tests.audit.topics.membership.test_membership_by_server:few"})
    with pytest.raises(DataError, match="20 test samples"):
        EXPERIMENT.run(context)


def few():
    from bilateral.data import Dataset, load_dataset

    digits = load_dataset("digits")
    return Dataset("few", "classification", digits.train, digits.test.subset(torch.arange(12)), 10)
