"""Real-valued masks, judged."""

from __future__ import annotations

from tests.audit.chance import each_holds

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.masks.mask_leaks import EXPERIMENT
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan

SMALL = {"model.name": "mlp-3", "training.loss": "mse", "training.batch_size": 8}
SMALL_MASKS = {"aggregation.masks": "float", "aggregation.float_scale": 100.0}


def judged(**settings):
    found = Context(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"])
    return {one.attack: judge(one) for one in EXPERIMENT.run(found)}


def test_small_real_valued_masks_are_broken_by_who_knows_their_size_and_not_by_reading():
    found = judged(**SMALL_MASKS)
    assert found["matched filter between two suspected uploads"].verdict == "broken"
    assert found["differences of terms under one mask"].verdict == "broken"
    reading = "reading uploads as they are"
    each_holds(lambda seed: {reading: judged(**SMALL_MASKS, seed=seed)[reading]})


def test_masks_that_dwarf_the_uploads_hold_against_the_filter_and_their_cost_is_stated():
    large = {"aggregation.masks": "float", "aggregation.float_scale": 1e9}
    matching = "matched filter between two suspected uploads"
    each_holds(lambda seed: {matching: judged(**large, seed=seed)[matching]})
    filtered = judged(**large)[matching]
    assert "relative error" in filtered.evidence.remark
    curve = {point[0]: point[1] for point in filtered.evidence.curves[0].lines["matched filter"]}
    assert curve[1.0] == 1.0


def test_one_term_has_no_differences():
    found = judged(**{"aggregation.masks": "float", "protection": "fedavg"})
    assert "differences of terms under one mask" not in found


def test_ring_masks_are_left_alone():
    plan = RunPlan()
    assert EXPERIMENT.applies(plan, Context(plan, EFFORTS["smoke"]).guarantee())
