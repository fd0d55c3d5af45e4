"""What plans' protections are like, and that it is what they do."""

from __future__ import annotations

import pytest

from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.setup import analyse, initial_model
from bilateral.protections.groundwork import Groundwork
from bilateral.protections.registry import everyone, mechanism_names, protection_names
from bilateral.protections.traits import Traits

P2 = {"hides_model": True, "model_line": 1, "upload_line": 3, "adds_noise": True, "needs_sample_counts": True}
CIPHERS = {"sums_ciphertexts": True, "replies_in_a_round": 2}
EXPECTED = {
    ("fedavg", "none"): Traits(needs_trace=False),
    ("perturbation", "none"): Traits(hides_model=True, model_line=1, upload_line=3, default_masks="ring"),
    ("masks", "none"): Traits(needs_trace=False, default_masks="ring"),
    ("sealed", "none"): Traits(
        computes_on_shares=True,
        model_line=17,
        upload_line=17,
        default_masks="ring",
        needs_sample_counts=True,
        replies_in_a_round=24,
    ),
    ("gaussian", "none"): Traits(needs_trace=False),
    ("ppdl", "none"): Traits(needs_trace=False),
    ("spn", "none"): Traits(),
    ("dbcl", "none"): Traits(needs_trace=False),
    ("ckks", "none"): Traits(needs_trace=False, **CIPHERS, needs_sample_counts=True),
    ("tp-smc", "none"): Traits(needs_trace=False, **CIPHERS, equal_weights=True),
    ("hybrid-alpha", "none"): Traits(needs_trace=False, **CIPHERS, equal_weights=True),
    ("pile", "none"): Traits(hides_model=True, model_line=1, upload_line=19, **CIPHERS, needs_sample_counts=True),
    ("fedavg", "sound"): Traits(
        needs_trace=False,
        default_masks="ring",
        adds_noise=True,
        spends_budget=True,
        samples_by_chance=True,
        needs_sample_counts=True,
        equal_weights=True,
    ),
    ("perturbation", "sound"): Traits(
        **P2, default_masks="ring", spends_budget=True, samples_by_chance=True, equal_weights=True
    ),
    ("perturbation", "published"): Traits(
        **P2, needs_full_sum=True, equal_weights=True, expands_network=True, noise_line=4
    ),
    ("perturbation", "mp-cdp"): Traits(**P2, equal_weights=True),
    ("perturbation", "mp-dp-naive"): Traits(**P2, equal_weights=True),
}


def plan(protection, mechanism, **noise):
    budget = {} if mechanism == "none" else {"noise.epsilon": 5.0, **noise}
    small = {"data.name": "breast-cancer", "model.name": "mlp-3", "model.options": {"width": 8}}
    chosen = {"protection": protection, "noise.mechanism": mechanism, "training.loss": "mse", "training.rounds": 2}
    return RunPlan().with_settings({**small, **chosen, **budget})


def groundwork(chosen):
    federation = load_federation(chosen)
    model = initial_model(chosen, federation.problem)
    graph, secrets = analyse(model, federation.problem), SimulatedSecrets(0, federation.names)
    return Groundwork(chosen, federation.problem, federation.members, model, graph, secrets)


@pytest.mark.parametrize("names", EXPECTED, ids=" + ".join)
def test_a_plans_protections_together_are_like_this(names):
    assert plan(*names).traits == EXPECTED[names]


def test_no_protection_is_missing_here():
    assert {name for names in EXPECTED for name in names} == {*protection_names(), *mechanism_names()}
    assert len(everyone()) == 16


@pytest.mark.parametrize("mechanism", mechanism_names()[1:])
def test_only_a_budget_of_samples_makes_clients_tell_how_many_they_have(mechanism):
    traits = plan("perturbation", mechanism, **{"noise.unit": "client"}).traits
    assert not traits.needs_sample_counts
    assert not traits.samples_by_chance


@pytest.mark.parametrize("names", EXPECTED, ids=" + ".join)
def test_traits_say_what_is_built(names):
    chosen = plan(*names)
    around, traits = groundwork(chosen), chosen.traits
    sides = chosen.chosen.sides(around)
    assert (sides.weight == 1) == traits.equal_weights
    assert (sides.privacy is not None) == traits.adds_noise
    assert (sides.fixed_bounds is not None) == traits.spends_budget
    assert (sides.pairwise is not None) == traits.needs_full_sum
    assert (sides.shape.num_parameters != around.graph.num_parameters) == traits.expands_network
    assert sides.shape.num_terms == len(chosen.chosen.term_names("mse"))
    lines = {leak.ledger_line for stated in sides.guarantees for leak in stated.leaks}
    assert {traits.model_line, traits.upload_line} <= lines
