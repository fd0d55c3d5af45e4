"""Whole runs in narrow rings: the same training, fewer bytes; and what no narrow ring is for."""

import pytest
import torch
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.plan import RunPlan, parse_plan
from bilateral.errors import NumericalRangeError, PlanError
from bilateral.protocols.mask.messages import MaskedUpload, MaskOpening
from bilateral.runs.rounds.in_process import run


def widths_of(result):
    return [e.message.width for e in result.transcript.entries if isinstance(e.message, MaskOpening)]


def mask_bytes(result):
    return sum(e.message.num_bytes for e in result.transcript.entries if isinstance(e.message, MaskedUpload))


def weights_of(result):
    return torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])


@pytest.mark.parametrize("protection", ["masks", "perturbation"])
@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_a_training_in_a_narrow_ring_is_that_of_fedsgd(protection, loss):
    chosen = plan(
        protection=protection, training__loss=loss, training__rounds=8, federation__clients=5, federation__dropout=0.1
    )
    wide, narrow = (
        run(chosen.with_settings({"aggregation.width": width}), save=False, keep_messages=True)
        for width in (64, "auto")
    )
    assert set(widths_of(wide)) == {64}
    assert set(widths_of(narrow)) == {40, 64}
    assert {
        e.message.width for e in narrow.transcript.entries if isinstance(e.message, MaskOpening) and e.round_index
    } == {40}
    assert narrow.difference_to_fedavg < 2e-6
    assert not narrow.incidents
    assert mask_bytes(narrow) < 0.75 * mask_bytes(wide)


def test_a_narrow_run_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    chosen = plan(training__rounds=6, aggregation__width=40)
    whole = run(chosen, save=False)
    count = iter(range(100))
    run(chosen, output=tmp_path / "run", should_stop=lambda: next(count) >= 2)
    resumed = run(chosen, output=tmp_path / "run", resume=True)
    assert resumed.finished
    assert torch.equal(weights_of(whole), weights_of(resumed))


SOUND = {
    "protection": "masks",
    "noise.mechanism": "sound",
    "noise.epsilon": 8,
    "training.batch_size": 64,
    "training.rounds": 3,
    "model.name": "mlp-3",
}


def test_sound_noise_in_the_narrowest_ring_that_holds_it_is_the_same_to_the_last_bit():
    chosen = RunPlan().with_settings(SOUND)
    wide, narrow = (
        run(chosen.with_settings({"aggregation.width": width}), save=False, keep_messages=True)
        for width in (64, "auto")
    )
    assert set(widths_of(narrow)) == {40} or set(widths_of(narrow)) == {48}
    assert torch.equal(weights_of(wide), weights_of(narrow))
    assert wide.privacy.rows == narrow.privacy.rows


def test_a_ring_too_narrow_for_the_grid_of_the_noise_is_refused_before_the_run():
    with pytest.raises(NumericalRangeError, match=r"finer than the masks' range allows.*aggregation\.width"):
        run(RunPlan().with_settings({**SOUND, "aggregation.width": 32}), save=False)


def test_norms_that_adapt_keep_the_wide_ring():
    chosen = RunPlan().with_settings({**SOUND, "noise.adaptive_clip": True, "aggregation.width": "auto"})
    assert set(widths_of(run(chosen, save=False, keep_messages=True))) == {64}


def test_sealed_training_keeps_its_words_and_refuses_fewer_bits():
    chosen = {"protection": "sealed", "model.name": "mlp-3", "training.rounds": 1, "federation.clients": 3}
    sealed = RunPlan().with_settings({**chosen, "data.name": "breast-cancer", "training.batch_size": 4})
    found = run(sealed.with_settings({"aggregation.width": "auto"}), save=False, keep_messages=True)
    assert set(widths_of(found)) == {64}
    with pytest.raises(PlanError, match=r"aggregation\.width is 40, and clients upload words of 64 bits"):
        run(sealed.with_settings({"aggregation.width": 40}), save=False)


def test_plans_from_before_keep_their_fingerprint_and_others_have_their_own():
    plans = [RunPlan().with_settings({"aggregation.width": width}) for width in (64, "auto", 32, 40, 43, 48)]
    plans.append(RunPlan().with_settings({"aggregation.resolution": 1e-6}))
    assert plans[0].fingerprint() == RunPlan().fingerprint()
    assert len({one.fingerprint() for one in plans}) == len(plans)
    values = RunPlan().model_dump(mode="json")
    del values["aggregation"]["width"], values["aggregation"]["resolution"]
    assert parse_plan(values, "an old plan").fingerprint() == RunPlan().fingerprint()


@pytest.mark.parametrize("setting", [{"width": 33}, {"width": "40"}, {"resolution": 0}, {"resolution": 1}])
def test_widths_and_resolutions_that_mean_nothing_are_refused(setting):
    (name, value), *_ = setting.items()
    with pytest.raises(PlanError, match=f"aggregation.{name}"):
        RunPlan().with_settings({f"aggregation.{name}": value})
