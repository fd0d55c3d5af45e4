"""A suspicious row is repeated, and fresh figures alone decide: one at chance holds, one that works is broken."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

from bilateral.audit.auditor import run_experiment
from bilateral.audit.evidence import Gate, evidence_from, with_controls
from bilateral.audit.experiment import Experiment
from bilateral.audit.fresh_trials import SEEDS_APART, with_fresh_trials
from bilateral.audit.scores import Metric
from bilateral.audit.topics import registry
from bilateral.audit.verdict import LEVEL, SUSPICION, is_suspicious, judge
from bilateral.engine.plan import RunPlan

GUESSES = Metric("models told apart", "high", is_rate=True, digits=2)
GATE = Gate(GUESSES, 0.9)
NUM_TRIALS, NUM_NULL = 20, 40


def row(gain, seed, attack="matching"):
    """Of an attack that guesses right in so many more of its trials than a coin."""
    draws = np.random.default_rng(seed)

    def right(chance, count):
        return tuple(float(value < chance) for value in draws.random(count))

    return with_controls(
        "sealed model",
        "curious client",
        attack,
        "words",
        GATE,
        target=("a model", right(0.5 + gain, NUM_TRIALS)),
        positive=("FedSGD", right(1.0, NUM_TRIALS)),
        negative=("coins", right(0.5, NUM_NULL)),
        paired=False,
    )


@functools.cache
def suspicious_seed(gain):
    """A seed whose first figures only look like something."""
    return next(seed for seed in range(10_000) if is_suspicious(row(gain, seed)))


def test_a_row_at_chance_that_looked_suspicious_holds_on_fresh_trials():
    first = row(0.0, suspicious_seed(0.0))
    assert judge(first).verdict == "proves nothing"
    (again,) = with_fresh_trials([first], lambda number: [row(0.0, 70_000 + number)], 3)
    found = judge(again)
    assert found.verdict == "holds"
    assert "on 3 fresh runs, because the first was suspicious" in found.reason
    assert len(again.fresh.target.scores[0].values) == 3 * NUM_TRIALS
    assert found.evidence.target == again.fresh.target, "what is shown is what decided"


def test_a_weak_attack_that_works_is_broken_on_fresh_trials():
    first = row(0.35, suspicious_seed(0.35))
    (again,) = with_fresh_trials([first], lambda number: [row(0.35, 80_000 + number)], 3)
    assert judge(again).verdict == "broken"


def test_fresh_trials_that_are_suspicious_too_prove_nothing():
    seed = suspicious_seed(0.0)
    (again,) = with_fresh_trials([row(0.0, seed)], lambda _number: [row(0.0, seed)], 1)
    assert judge(again).verdict == "proves nothing"


@pytest.mark.parametrize("gain", [-0.2, 0.4])
def test_only_suspicious_rows_are_repeated_and_no_other_can_be_judged_again(gain):
    first = row(gain, 1)
    assert not is_suspicious(first)

    def never(number):
        raise AssertionError(number)

    assert with_fresh_trials([first], never, 3) == [first]
    (other,) = with_fresh_trials([row(0.0, suspicious_seed(0.0))], lambda number: [row(-gain, number)], 3)
    smuggled = replace(first, fresh=other.fresh)
    assert judge(smuggled).verdict == judge(first).verdict


def test_without_a_way_to_repeat_a_row_stays_as_it_is():
    first = row(0.0, suspicious_seed(0.0))
    assert with_fresh_trials([first], lambda _number: [], 0) == [first]
    assert with_fresh_trials([first], lambda _number: [], 3) == [first]
    assert with_fresh_trials([first], lambda number: [row(0.0, number, "another")], 3) == [first]


def test_a_repetition_is_stored_and_judged_again_the_same():
    (again,) = with_fresh_trials([row(0.0, suspicious_seed(0.0))], lambda number: [row(0.0, 70_000 + number)], 3)
    stored = evidence_from(json.loads(json.dumps(again.as_dict())))
    assert stored == again and judge(stored).verdict == judge(again).verdict
    assert "fresh" not in row(0.0, 1).as_dict(), "audits from before read as they did"
    for wrong in ({"runs": 0}, {"runs": True}, {"target": None}, {"target": {"what": "", "scores": []}}):
        values = again.as_dict()
        with pytest.raises((ValueError, TypeError, LookupError)):
            evidence_from({**values, "fresh": {**values["fresh"], **wrong}})


SEEN = []


def play(context):
    SEEN.append(context.plan.seed)
    return [row(0.0, suspicious_seed(0.0) if context.plan.seed == 4 else 70_000 + len(SEEN))]


def always(plan, guarantee):
    return ""


def test_an_audit_repeats_an_experiment_on_seeds_of_its_own():
    plan, experiment = RunPlan(seed=4), Experiment("toy", "Toy", ("sealed model",), always, play)
    registry.register(experiment)
    try:
        SEEN.clear()
        notes = []
        (one,) = run_experiment(
            "toy", lambda *told: notes.append(told), plan=plan, effort="standard", style="sealed", data_dir=None
        )
        assert [4, *(4 + SEEDS_APART * number for number in (1, 2, 3))] == SEEN
        assert one.fresh.runs == 3
        SEEN.clear()
        run_experiment("toy", lambda *_: None, plan=plan, effort="smoke", style="sealed", data_dir=None)
        assert SEEN == [4]
    finally:
        registry.unregister("toy")


def test_the_levels_are_those_that_the_rule_was_written_for():
    assert (LEVEL, SUSPICION) == (0.002, 0.02)
