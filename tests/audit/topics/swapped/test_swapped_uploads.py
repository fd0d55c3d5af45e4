"""The swapped-worlds game on small plans: ring masks hold, everything less is broken, and blindness would be seen."""

from __future__ import annotations

from functools import cache

import pytest
from tests.audit.chance import each_holds, none_is_broken

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.swapped.swapped_evidence import LEARNED, READ
from bilateral.audit.topics.swapped.swapped_uploads import EXPERIMENT
from bilateral.audit.verdict import judge, judge_claims
from bilateral.engine.plan import RunPlan
from bilateral.protocols.mask import client as mask_client

SMALL = {"model.name": "mlp-3", "federation.clients": 5, "training.batch_size": 8}


def context_of(**settings):
    return Context(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"])


def played(**settings):
    """By what it tests, who attacks, and how."""
    return _played(tuple(settings.items()))


@cache
def _played(settings):
    context = context_of(**dict(settings))
    assert EXPERIMENT.applies(context.plan, context.guarantee()) == ""
    return {(e.tests, e.adversary, "matched" if "ring" in e.attack else e.adaptive): e for e in EXPERIMENT.run(context)}


@pytest.fixture(scope="module")
def masked():
    return played(seed=0)


@pytest.fixture(scope="module")
def published():
    return played(**{"perturbation.softmax": "blinded"}, seed=0)


ATTACKS = {
    ("other clients' uploads", "curious client", False),
    ("other clients' uploads", "curious client", True),
    ("other clients' uploads", "colluding clients", True),
    ("other clients' uploads", "eavesdropper", False),
    ("other clients' uploads", "eavesdropper", True),
    ("other clients' uploads", "eavesdropper", "matched"),
    ("single uploads", "curious server", False),
    ("single uploads", "curious server", True),
    ("single uploads", "curious server", "matched"),
    ("single uploads", "server with colluding clients", "matched"),
    ("single uploads", "server with colluding clients", True),
}


def expect_coins(**settings):
    """Guesses that are coins: one of a dozen attacks with 20 of them is called suspicious now and then, never broken.

    18 of 20 right, which is what counts as success, comes of coins with a probability of 2e-4, and is called broken.
    """
    none_is_broken(lambda seed: {key: judge(one) for key, one in played(**settings, seed=seed).items()})


def test_under_ring_masks_nobody_tells_the_worlds_apart(masked):
    assert set(masked) == ATTACKS
    expect_coins()


def test_both_claims_of_ring_masks_are_tested_by_it():
    def of(seed):
        found = {v.tests: v for v in judge_claims(context_of().guarantee(), list(played(seed=seed).values()))}
        return {claim: found[claim] for claim in ("single uploads", "other clients' uploads")}

    each_holds(of)


def test_every_positive_control_passes_its_gates(masked):
    for key, evidence in masked.items():
        assert all(gate.passed_by(evidence.positive.of(gate.metric)) for gate in evidence.gates), key


def test_with_the_published_exchange_they_do_not_tell_them_apart_by_the_rest(published):
    expect_coins(**{"perturbation.softmax": "blinded"})
    assert ("other clients' uploads", "eavesdropper", "matched") not in published  # it cannot answer for the server


def test_what_is_left_out_is_said(masked, published):
    key = ("single uploads", "curious server", True)
    assert "line 8" in published[key].seen
    assert "line 8" not in masked[key].seen
    assert "line 11" in masked[key].seen


@pytest.mark.parametrize(
    ("tests", "settings"),
    [
        (3, {"aggregation.masks": "none", "training.loss": "mse"}),
        pytest.param(3, {"aggregation.masks": "none"}, marks=pytest.mark.long),
        (6, {"aggregation.masks": "float", "aggregation.float_scale": 1e-6, "training.loss": "mse"}),
        pytest.param(0, {"protection": "fedavg"}, marks=pytest.mark.long),  # the positive control of every row above
    ],
)
def test_a_protection_that_does_not_hide_uploads_is_judged_broken(tests, settings):
    found = played(**settings)
    assert set(found) == {(tests, "curious server", False), (tests, "curious server", True)}
    evidence = found[tests, "curious server", True]
    assert judge(evidence).verdict == "broken"
    assert evidence.target.of(READ).mean >= 0.9
    assert evidence.target.of(LEARNED).mean >= 0.9


def test_ring_masks_without_their_pairwise_part_are_judged_broken(monkeypatch):
    """A deliberately broken protocol, not figures: self masks alone, whose seeds the server learns."""
    whole = mask_client.add_masks
    monkeypatch.setattr(mask_client, "add_masks", lambda values, seeds, *form: whole(values, seeds[:1], *form))
    found = played(**{"training.loss": "mse"})
    assert judge(found["single uploads", "curious server", True]).verdict == "broken"


def test_with_two_clients_there_is_no_third_to_be_curious():
    two = {"federation.clients": 2, "protection": "fedavg", "aggregation.masks": "ring"}
    assert {adversary for _, adversary, _ in played(**two, seed=0)} == {"eavesdropper", "curious server"}
    expect_coins(**two)


def test_it_says_where_it_does_not_apply():
    published = context_of(**{"noise.mechanism": "published", "noise.epsilon": 3.0, "training.loss": "mse"})
    assert "lines 3 and 4" in EXPERIMENT.applies(published.plan, published.guarantee())
    alone = context_of(**{"federation.clients": 1})
    assert "single client" in EXPERIMENT.applies(alone.plan, alone.guarantee())


@pytest.mark.long
def test_sound_noise_under_ring_masks_holds():
    found = played(**{"noise.mechanism": "sound", "noise.noise_multiplier": 0.5, "training.loss": "mse"})
    expect_coins(found)
    assert len(found) == 8
