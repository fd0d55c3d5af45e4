"""Games against real noise: P2's is broken, sound noise is not, and the draws are those of the real clients."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from scipy.stats import kstest
from tests.audit.chance import each_holds, none_is_broken

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.noise import neighbouring_worlds as worlds
from bilateral.audit.topics.noise.distinguishing_game import EXPERIMENT
from bilateral.audit.verdict import judge, judge_claims
from bilateral.engine.plan import RunPlan
from bilateral.protections.published.sides import published_sides
from bilateral.protections.sound.sides import num_terms, sound_noise, sound_sides
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.messages import Upload
from bilateral.protocols.noise.published_model import PublishedModel
from bilateral.randomness import SeededRandomness

SMALL = {"model.name": "mlp-3", "training.loss": "mse", "training.batch_size": 16, "training.rounds": 5}


def context(mechanism, **settings):
    return Context(RunPlan().with_settings({**SMALL, "noise.mechanism": mechanism, **settings}), EFFORTS["smoke"])


def verdicts(found):
    return {one.attack: judge(one) for one in EXPERIMENT.run(found)}


def test_published_noise_is_broken_also_where_the_gradient_keeps_to_the_assumed_norm():
    found = context("published", **{"noise.epsilon": 2.0})
    evidence = EXPERIMENT.run(found)
    judged = {(one.tests, one.attack): judge(one).verdict for one in evidence}
    as_published = "published differential privacy", "projection"  # as P2 analyses it

    def of(seed):
        rows = EXPERIMENT.run(context("published", **{"noise.epsilon": 2.0, "seed": seed})) if seed else evidence
        return {one.tests: judge(one) for one in rows if (one.tests, one.attack) == as_published}

    none_is_broken(of)
    for attack in ("values outside the noise's support", "exact likelihood ratio, a weight chosen beforehand"):
        assert judged["published differential privacy", attack] == judged[4, attack] == "broken"
    claims = {verdict.tests: verdict.verdict for verdict in judge_claims(found.guarantee(), evidence)}
    assert claims["published differential privacy"] == claims[4] == "broken"


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_sound_noise_is_not_broken_and_a_quarter_of_it_would_be(unit):
    settings = {"noise.noise_multiplier": 2.0, "noise.unit": unit}
    found, name = verdicts(context("sound", **settings)), "likelihood ratio of all terms, one round"

    def of(seed):
        return verdicts(context("sound", **settings, seed=seed)) if seed else found

    none_is_broken(of)
    each_holds(lambda seed: {name: of(seed)[name]})
    worst = found[name]
    assert worst.evidence.positive.scores[0].mean > worst.evidence.bound > worst.evidence.target.scores[0].mean


def test_noise_that_is_too_small_for_its_claim_is_found(monkeypatch):
    """A deliberately broken protection: clients draw a fifth of the noise that was accounted for."""
    honest = worlds.sound_noise_of
    monkeypatch.setattr(worlds, "sound_noise_of", lambda *given: 0.2 * honest(*given))
    judged = verdicts(context("sound", **{"noise.noise_multiplier": 2.0}))
    assert judged["likelihood ratio of all terms, one round"].verdict == "broken"


def likelihood_ratio(mechanism, seed):
    name = "likelihood ratio"
    return {name: verdicts(context(mechanism, **{"noise.epsilon": 2.0, "seed": seed}))[name]}


def test_local_noise_is_broken_by_who_knows_the_factors_and_central_noise_is_not():
    local = verdicts(context("mp-dp-naive", **{"noise.epsilon": 2.0}))
    assert local["likelihood ratio, known factors"].verdict == "broken"
    for mechanism in ("mp-dp-naive", "mp-cdp"):
        each_holds(partial(likelihood_ratio, mechanism))


def test_a_plan_without_noise_is_left_alone():
    plain = context("none")
    assert "no noise" in EXPERIMENT.applies(plain.plan, plain.guarantee())


def test_a_canary_moves_a_clipped_upload_by_the_sensitivity_and_no_further():
    for unit in ("sample", "client"):
        found = context("sound", **{"noise.noise_multiplier": 1.0, "noise.unit": unit})
        around = worlds.groundwork_of(found)
        layer, clip = sound_sides(around), sound_noise(around).settings.clip
        half, server = layer.make_client(worlds.first_seat(around)).half, layer.make_server(around.model)
        moved = worlds.clipped_difference(around, found.federation(), half, server, clip)
        assert 0.99 * clip.sensitivity < moved <= clip.sensitivity


def test_sound_noise_of_some_clients_has_the_deviations_of_the_settings():
    around = worlds.groundwork_of(context("sound", **{"noise.noise_multiplier": 1.3}))
    settings, terms = sound_noise(around).settings, num_terms(around)
    noise = worlds.sound_noise_of(settings, terms, 3, 5000, 0, SeededRandomness(1, "test"))
    for row, deviation in zip(noise, settings.term_deviations(terms), strict=True):
        assert kstest((row / (math.sqrt(3) * deviation)).numpy(), "norm").pvalue > 1e-4


def test_the_game_draws_the_noise_that_real_clients_of_p2s_scheme_leave_in_the_sum():
    found = context("published", **{"noise.epsilon": 2.0})
    around = worlds.groundwork_of(found)
    layer, names = published_sides(around), around.names
    model = PublishedModel.of(around.model, around.graph, around.problem.examples[:2])
    rings = {name: around.secrets.key_ring(name) for name in names}
    directory = KeyDirectory(around.secrets.run_id, names, around.secrets.pinned())
    for name, ring in rings.items():
        directory.register(name, ring.announce())
    for ring in rings.values():
        ring.accept(directory.roster())
    nothing = Upload(0, 1, torch.zeros(3, model.graph.num_parameters).double(), torch.zeros(0))
    uploads = [layer.pairwise(rings[name])(nothing, 0, names) for name in names]
    real = sum(upload.terms[0] for upload in uploads)[worlds.whole_weights(model)]
    sigma = layer.privacy.deviations["independent"]
    drawn = worlds.uniform_sum(sigma, len(names), len(real), SeededRandomness(2, "test"))
    assert kstest(real.numpy(), drawn.numpy()).pvalue > 1e-4
    assert float(real.abs().max()) <= math.sqrt(2) * len(names) * sigma * (1 + 1e-6)


def test_weights_that_were_chosen_beforehand_have_no_factor_in_common():
    around = worlds.groundwork_of(context("published", **{"noise.epsilon": 2.0}))
    model = PublishedModel.of(around.model, around.graph, around.problem.examples[:2])
    separate = worlds.separate_weights(model)
    ratios = torch.stack([worlds.ratio_of_round(model, SeededRandomness(n))[separate] for n in range(300)]).log()
    correlation = torch.corrcoef(ratios.T) - torch.eye(len(separate))
    assert len(separate) > 5
    assert float(correlation.abs().max()) < 0.35
