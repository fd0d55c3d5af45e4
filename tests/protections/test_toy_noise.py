"""Noise from outside of the package: one class and one call, and it is there under every kind of masks, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bilateral.audit.auditor import audit
from bilateral.engine.plan import RunPlan
from bilateral.errors import PlanError, UnsoundPlanError
from bilateral.protections.base import NoiseProtection, Rule
from bilateral.protections.registry import mechanism_names, register, unregister
from bilateral.protections.sections import Section
from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.runs.rounds.in_process import run


class Spread(Section):
    deviation: float = 0.05


class Jitter(NoiseProtection):
    """Every client adds normal noise to what it uploads, and counts its rounds."""

    name = "jitter"
    settings = Spread
    refused = (Rule("jitter alone", lambda mix: mix.num_participants < 2, "one is no sum", "Use two clients or more."),)
    paid: list[tuple[str, int]] = []  # noqa: RUF012 (of the test, not of the class)

    def check(self, settings):
        if settings.epsilon is not None:
            raise ValueError("jitter has no `epsilon`")

    def traits(self, plan, below):
        return replace(below, adds_noise=True)

    def sides(self, around):
        below = around.plan.chosen.model.sides(around)
        deviation = around.plan.own_settings(self.name).deviation

        def make_client(seat):
            noise = around.secrets.stream("noise", seat.name)

            def privatise(upload):
                drawn = noise.child("round", upload.round_index).normal(upload.terms.numel())
                return replace(upload, terms=upload.terms + (deviation * drawn).view_as(upload.terms))

            def pay(round_index):
                self.paid.append((seat.name, round_index))

            return replace(below.make_client(seat), privatise=privatise, pay=pay)

        claim = Claim("published differential privacy", "hardly anything", "server", "none")
        own = Guarantee("Jitter", (claim,), (Leak("the gradient, blurred", "server", 0),))
        return replace(below, make_client=make_client, guarantees=(*below.guarantees, own))


@pytest.fixture(autouse=True)
def jitter():
    one = Jitter()
    one.paid.clear()
    register(one)
    yield one
    unregister("jitter")


def plan(**settings):
    small = {
        "data.name": "breast-cancer",
        "model.name": "mlp-3",
        "model.options": {"width": 8},
        "federation.clients": 3,
        "training.rounds": 2,
        "training.batch_size": 16,
        "training.loss": "mse",
        "protection": "fedsgd",
        "noise.mechanism": "jitter",
    }
    return RunPlan().with_settings({**small, **settings})


def trained(chosen):
    return torch.cat([value.flatten() for value in run(chosen, save=False).model.state_dict().values()])


def test_a_plan_names_it_and_has_a_section_of_its_settings():
    assert mechanism_names()[-1] == "jitter"
    assert plan(**{"jitter.deviation": 0.5}).own_settings("jitter") == Spread(deviation=0.5)
    with pytest.raises(PlanError, match="jitter has no `epsilon`"):
        plan(**{"noise.epsilon": 1.0})
    with pytest.raises(UnsoundPlanError, match="jitter alone: one is no sum"):
        run(plan(**{"federation.clients": 1}), save=False)


@pytest.mark.parametrize("protection", ["fedsgd", "perturbation"])
def test_its_noise_is_in_the_sum_whatever_masks_go_on_top(protection):
    """The same seed draws the same noise, so that the models differ by no more than what masks round."""
    bare = trained(plan(protection=protection, **{"noise.mechanism": "none", "aggregation.masks": "none"}))
    models = [
        trained(plan(protection=protection, **{"aggregation.masks": masks})) for masks in ("none", "float", "ring")
    ]
    for model in models:
        assert float((model - bare).norm() / bare.norm()) > 1e-3
        assert float((model - models[0]).norm() / bare.norm()) < 1e-4


@pytest.mark.parametrize("masks", ["none", "float", "ring"])
def test_every_client_pays_for_every_round_when_its_model_has_come(jitter, masks):
    result = run(plan(**{"aggregation.masks": masks}), save=False)
    assert sorted(jitter.paid) == [(f"client-{number}", index) for number in (1, 2, 3) for index in (0, 1)]
    assert result.guarantee.protection == "FedSGD + jitter noise" + ("" if masks == "none" else f" + {masks} masks")


@pytest.mark.parametrize(
    ("part", "masks", "reason"),
    [
        ("pairwise", "ring", "would have the noise and no masks"),
        ("pairwise", "float", "would have the noise and no masks"),
        ("make_adaptive", "none", "nobody would tell clients"),
        ("make_adaptive", "float", "nobody would tell clients"),
    ],
)
def test_a_part_that_would_not_be_built_is_refused(monkeypatch, part, masks, reason):
    sides = Jitter.sides

    def never(*given):
        raise AssertionError("nothing is built")

    monkeypatch.setattr(Jitter, "sides", lambda self, around: replace(sides(self, around), **{part: never}))
    with pytest.raises(UnsoundPlanError, match=reason):
        run(plan(**{"aggregation.masks": masks}), save=False)


def test_an_audit_attacks_it_and_says_that_nobody_wrote_a_game_for_its_claim():
    result = audit(
        plan(), effort="smoke", only=("gradient-inversion", "distinguishing-game"), save=False, num_workers=1
    )
    assert not result.failed
    assert result.protection == "FedSGD + jitter noise"
    assert {one.tests for one in result.evidence} == {0}
    (verdict,) = (one for one in result.verdicts if one.tests == "published differential privacy")
    assert verdict.verdict == "not tested"
    assert "there is no game for noise of this kind" in verdict.reason
