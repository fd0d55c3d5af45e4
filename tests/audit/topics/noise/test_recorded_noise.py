"""The noise of the real parties: every way to spoil it that the games cannot see is found, and honest noise holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.audit.chance import each_holds, none_is_broken

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.noise.recorded_noise import EXPERIMENT
from bilateral.audit.topics.registry import experiments_for
from bilateral.audit.verdict import judge, judge_claims
from bilateral.engine.plan import RunPlan
from bilateral.learning.client import BatchSchedule
from bilateral.learning.uploading import PrivateUploader
from bilateral.protections.sound import sides as sound_sides
from bilateral.protocols.messages import Upload
from bilateral.protocols.noise import sound
from bilateral.protocols.noise.sound import DistributedGaussian
from bilateral.randomness import SeededRandomness

SMALL = {
    "model.name": "mlp-3",
    "model.options": {"width": 24},
    "training.loss": "mse",
    "training.batch_size": 32,
    "training.rounds": 6,
    "noise.mechanism": "sound",
    "noise.noise_multiplier": 1.5,
}
SUMS, SINGLES = "size of the noise in the sums", "size of the noise of single clients"
AGAIN, AGAIN_SINGLES = "noise in the sums that is used again", "noise of single clients that is used again"
SHAPE, COUNT, SAMPLING = "shape of the noise, one round", "size of the noise on the count", "sampling of the batches"


def context(**settings):
    return Context(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"])


def verdicts(found):
    return {one.attack: judge(one) for one in EXPERIMENT.run(found)}


def scaled(monkeypatch, factor):
    drawn = sound.standard_normal
    monkeypatch.setattr(sound, "standard_normal", lambda count, stream: factor * drawn(count, stream))


def no_noise(monkeypatch):
    """The engine forgets the noise: what the review of the games did."""
    made = sound_sides._make_client

    def bare(upload):
        return Upload(upload.round_index, upload.weight, upload.terms.double(), upload.statistics.double())

    monkeypatch.setattr(sound_sides, "_make_client", lambda *given: replace(made(*given), privatise=bare))


def forgotten_on_the_way_out(monkeypatch):
    """The clients have noise, and what they send has none."""

    def without(self, upload):
        self._privatise(upload)
        return self._inner.finish(replace(upload, terms=upload.terms.double()))

    monkeypatch.setattr(PrivateUploader, "finish", without)


def shared_seed(monkeypatch):
    class Shared(DistributedGaussian):
        def __init__(self, name, settings, randomness=None, **others):
            super().__init__(name, settings, SeededRandomness(7, "shared noise"), **others)

    monkeypatch.setattr(sound_sides, "DistributedGaussian", Shared)


def same_noise_every_round(monkeypatch):
    class Same:
        def __init__(self, stream):
            self.stream = stream

        def child(self, *_labels):
            return self.stream.child("noise", 0)

    add_noise = DistributedGaussian.add_noise

    def again(self, upload, round_index):
        if not isinstance(self._randomness, Same):
            self._randomness = Same(self._randomness)
        return add_noise(self, upload, round_index)

    monkeypatch.setattr(DistributedGaussian, "add_noise", again)


def one_noise_for_all_terms(monkeypatch):
    noisy, streams = DistributedGaussian._noisy, {}

    def same(self, values, deviation, stream):
        seed = streams.setdefault(id(stream), (int.from_bytes(stream.random_bytes(7), "big"), stream))[0]
        return noisy(self, values, deviation, SeededRandomness(seed, "terms"))

    monkeypatch.setattr(DistributedGaussian, "_noisy", same)


def bare_where(monkeypatch, places):
    noisy = DistributedGaussian._noisy

    def holes(self, values, deviation, stream):
        found = noisy(self, values, deviation, stream)
        chosen = places(values.numel(), stream)
        found.view(-1)[chosen] = values.double().view(-1)[chosen]
        return found

    monkeypatch.setattr(DistributedGaussian, "_noisy", holes)


def without_a_tenth(monkeypatch):
    bare_where(monkeypatch, lambda count, _: torch.arange(count) >= int(0.9 * count))


def without_one_coordinate(monkeypatch):
    bare_where(monkeypatch, lambda count, _: torch.arange(count) == count // 3)


def twice_as_often(monkeypatch):
    made = sound_sides.PoissonSchedule
    monkeypatch.setattr(sound_sides, "PoissonSchedule", lambda count, rate, stream: made(count, 2 * rate, stream))


def shuffled_batches(monkeypatch):
    monkeypatch.setattr(sound_sides, "PoissonSchedule", lambda count, _rate, stream: BatchSchedule(count, 32, stream))


@pytest.mark.parametrize(
    ("spoil", "found_by"),
    [
        (no_noise, (SUMS, SINGLES, SHAPE)),
        (forgotten_on_the_way_out, (SUMS,)),
        # Other draws would miss them with a chance of 2e-16 (43,380 numbers in the sums) and 7e-20 (216,900).
        (lambda monkeypatch: scaled(monkeypatch, 0.96), (SUMS, SINGLES)),
        (lambda monkeypatch: scaled(monkeypatch, 0.98), (SINGLES,)),
        (shared_seed, (AGAIN_SINGLES,)),
        (same_noise_every_round, (AGAIN, AGAIN_SINGLES)),
        (one_noise_for_all_terms, (AGAIN, AGAIN_SINGLES)),
        (without_a_tenth, (SUMS, SINGLES)),
        (without_one_coordinate, (SINGLES,)),
        (twice_as_often, (SAMPLING,)),
        (shuffled_batches, (SAMPLING,)),
    ],
)
def test_noise_that_is_not_as_claimed_is_found(monkeypatch, spoil, found_by):
    spoil(monkeypatch)
    found = context()
    evidence = EXPERIMENT.run(found)
    judged = {one.attack: judge(one).verdict for one in evidence}
    assert {judged[attack] for attack in found_by} == {"broken"}
    claims = {claim.tests: claim.verdict for claim in judge_claims(found.guarantee(), evidence)}
    assert claims["differential privacy"] == "broken"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"noise.unit": "client"},
        {"noise.adaptive_clip": True},
        {"protection": "fedavg", "training.loss": "ce", "federation.participation": 0.6, "federation.clients": 8},
    ],
)
def test_honest_noise_holds_and_every_reading_could_have_failed(settings):
    def of(seed):
        found = verdicts(context(**settings, seed=seed))
        assert (SAMPLING in found) == ("noise.unit" not in settings)
        assert (COUNT in found) == ("noise.adaptive_clip" in settings)
        return found

    each_holds(of)


def test_a_count_of_adaptive_clipping_without_noise_is_found(monkeypatch):
    noisy = DistributedGaussian._noisy
    spoilt = lambda self, values, *rest: noisy(self, values, *rest) if values.numel() > 1 else values.double()  # noqa: E731
    monkeypatch.setattr(DistributedGaussian, "_noisy", spoilt)

    def of(seed):
        return verdicts(context(**{"noise.adaptive_clip": True}, seed=seed))

    assert of(0)[COUNT].verdict == "broken"
    each_holds(lambda seed: {SUMS: of(seed)[SUMS]})


def test_more_noise_than_claimed_is_no_break(monkeypatch):
    scaled(monkeypatch, 1.5)
    none_is_broken(lambda seed: verdicts(context(seed=seed)))


def test_plans_without_sound_noise_are_left_alone():
    plain = Context(RunPlan(), EFFORTS["smoke"])
    assert EXPERIMENT.applies(plain.plan, plain.guarantee())
    assert EXPERIMENT in experiments_for(plain.plan)
