"""The audit of secret-shared prediction: each comparison comes out as it claims, the published one broken."""

from __future__ import annotations

from functools import cache

import pytest
from tests.audit.chance import each_holds

from bilateral.audit.effort import EFFORTS
from bilateral.audit.evidence import evidence_from
from bilateral.audit.experiment import context_of
from bilateral.audit.topics.shared.shared_first_layer import first_layer_experiment
from bilateral.audit.topics.shared.shared_prediction import EXPERIMENTS
from bilateral.audit.topics.shared.shared_setting import prepare
from bilateral.audit.topics.shared.shared_signs import signs_experiment
from bilateral.audit.verdict import judge, judge_claims
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED, SEALED
from bilateral.randomness import SeededRandomness
from bilateral.runs.hetero.plan import HeteroPlan

PLAN = HeteroPlan().with_settings(
    {
        "clients.number": 3,
        "clients.architectures": [{"name": "mlp-3"}, {"name": "lenet"}, {"name": "mlp-3"}],
        "training.epochs": 10,
        "queries.number": 60,
    }
)


@cache
def audited(style, seed=0):
    plan = PLAN.with_settings({"seed": seed})
    progress = {one.name: [] for one in EXPERIMENTS}
    evidence = []
    for one in EXPERIMENTS:
        tell = lambda fraction, note, told=progress[one.name]: told.append((fraction, note))  # noqa: E731
        evidence += one.run(context_of(plan, "smoke", None, tell, style=style))
    return evidence, progress


@pytest.fixture(scope="module")
def hardened():
    return audited(HARDENED)


@pytest.fixture(scope="module")
def sealed():
    return audited(SEALED)


@pytest.fixture(scope="module")
def published():
    """The experiments that depend on the comparison."""
    quiet = lambda _fraction, _note: None  # noqa: E731
    setting = prepare(PLAN, PUBLISHED, EFFORTS["smoke"].shared, SeededRandomness(1, "tests of the audit"), quiet)
    return [*signs_experiment(setting, quiet), *first_layer_experiment(setting, quiet)]


def verdicts(evidence, style):
    return {
        verdict.tests: verdict
        for verdict in judge_claims(context_of(PLAN, "smoke", None, style=style).guarantee(), evidence)
    }


def of_claims(style, subjects):
    """The verdicts on these claims, by seed."""

    def of(seed):
        found = verdicts(audited(style, seed)[0], style)
        return {subject: found[subject] for subject in subjects}

    return of


def test_the_sealed_comparison_hides_all_that_it_claims(sealed):
    claims = {one.subject for one in context_of(PLAN, "smoke", None, style=SEALED).guarantee().claims}
    assert claims == {
        "shared prediction, server",
        "shared prediction, answering party",
        "activations",
        "single answers",
    }
    each_holds(of_claims(SEALED, claims))
    assert 5 not in verdicts(sealed[0], SEALED)


def test_activations_are_attacked_in_every_way_with_controls_that_work():
    ways = {
        "votes on signs over repeated queries",
        "greatest common divisors of blinded numbers",
        "learning from everything it has, the plan's queries",
        "learning from everything it has, flat and dotted images",
        "deconvolution of sizes over repeated queries",
        "classifier on every bit of the view, hidden layers of two worlds",
    }

    def of(seed):
        of_it = [one for one in audited(SEALED, seed)[0] if one.tests == "activations" and one.adaptive]
        return {
            attack: max((judge(one) for one in of_it if one.attack == attack), key=lambda one: one.verdict == "holds")
            for attack in ways
        }

    each_holds(of)


def test_the_hardened_comparison_hides_signs_and_views_hide_secrets():
    subjects = ("signs of activations", "shared prediction, server", "shared prediction, answering party")
    each_holds(of_claims(HARDENED, subjects))


def test_nobody_is_told_apart_under_one_sum():
    def of(seed):
        evidence, _ = audited(HARDENED, seed)
        games = [one for one in evidence if one.target.scores[0].metric.name == "answers told apart under one sum"]
        assert len(games) == 2
        return dict(enumerate(map(judge, games)))

    each_holds(of)


def test_what_is_open_by_nature_is_reported_as_open(hardened, sealed):
    found = verdicts(hardened[0], HARDENED)
    assert found[5].verdict == found[13].verdict == "broken"
    assert verdicts(sealed[0], SEALED)[13].verdict == "broken"
    for evidence, _ in (hardened, sealed):
        assert 14 in {one.tests for one in evidence}


def test_the_published_comparison_is_broken_by_signs_factors_and_weights(published):
    found = verdicts(published, PUBLISHED)
    assert found[5].verdict == "broken"
    broken = {one.evidence.attack for one in found[5].findings if one.verdict == "broken"}
    assert {
        "signs as they are seen",
        "votes on signs over repeated queries",
        "greatest common divisors of blinded numbers",
        "first layer from dotted images, by factoring",
    } <= broken


def test_every_claim_and_leak_is_tested(hardened, sealed):
    for (evidence, _), style in ((hardened, HARDENED), (sealed, SEALED)):
        for verdict in verdicts(evidence, style).values():
            assert verdict.findings, verdict.what


def test_progress_only_rises_and_ends(hardened, sealed):
    for told in (*hardened[1].values(), *sealed[1].values()):
        fractions = [fraction for fraction, _ in told]
        assert fractions == sorted(fractions)
        assert fractions[-1] > 0.9


def test_evidence_goes_to_plain_data_and_back(hardened, sealed):
    for one in (*hardened[0], *sealed[0]):
        assert evidence_from(one.as_dict()).as_dict() == one.as_dict()


def test_answers_in_the_clear_claim_nothing_and_are_not_audited():
    plain = PLAN.with_settings({"answers": "plain"})
    guarantee = context_of(plain, "smoke", None).guarantee()
    assert not guarantee.claims
    assert all("claim nothing" in one.applies(plain, guarantee) for one in EXPERIMENTS)
