"""An attack from outside of the package: one file and one call, and an audit runs it and judges what it found.

The attack reads how many samples a client has off its upload, which is there unless masks hide it.
"""

from __future__ import annotations

import pickle
from functools import partial

import pytest

from bilateral.audit.auditor import audit, run_experiment, stored_result
from bilateral.audit.evidence import Gate, with_controls
from bilateral.audit.experiment import ON_UPLOADS, Experiment, subject_of_uploads, undefended
from bilateral.audit.scores import Metric
from bilateral.audit.threat import server_view
from bilateral.audit.topics.registry import experiments_for, register, registered, unregister
from bilateral.audit.views import View
from bilateral.engine.plan import RunPlan
from bilateral.errors import PlanError
from bilateral.protocols.messages import Upload

READ = Metric("sample counts read", "high", is_rate=True)
BARE = RunPlan().with_settings(
    {"data.name": "breast-cancer", "model.name": "mlp-3", "training.rounds": 3, "aggregation.masks": "none"}
)
MASKED = BARE.with_settings({"aggregation.masks": "ring"})


def read_counts(view: View) -> dict[tuple[str, int], int]:
    """The attack: what it is given is a view, and nothing else."""
    return {(entry.sender, entry.round_index): upload.weight for entry, upload in view.messages(Upload)}


def hits(recording, guesses):
    """A trial is a client in a round."""
    return [float(guesses.get(key) == len(recording.shares[key[0]])) for key in recording.batches]


def run(context):
    target, control = context.record(context.plan), context.record(undefended(context.plan))
    return [
        with_controls(
            subject_of_uploads(context.guarantee()),
            "curious server",
            "reading sample counts",
            "the weights of uploads",
            Gate(READ, 0.9),
            target=("this plan", hits(target, read_counts(server_view(target)))),
            positive=("FedSGD", hits(control, read_counts(server_view(control)))),
            negative=("a count that nobody has", hits(target, dict.fromkeys(target.batches, 0))),
        )
    ]


def applies(plan, guarantee):
    return ""


TOY = Experiment("toy-attack", "Sample counts, off single uploads", ON_UPLOADS, applies, run)


@pytest.fixture
def toy():
    register(TOY)
    yield TOY
    unregister(TOY.name)


def verdict_of(result, tests):
    return next(one for one in result.verdicts if one.tests == tests)


@pytest.mark.parametrize(("plan", "tests", "word"), [(BARE, 3, "broken"), (MASKED, "single uploads", "holds")])
def test_an_audit_runs_an_attack_from_outside_and_gives_a_verdict(toy, tmp_path, plan, tests, word):
    result = audit(plan, effort="smoke", only=[toy.name], num_workers=1, output=tmp_path / "a")
    assert not result.failed
    judged = verdict_of(result, tests)
    assert judged.verdict == word
    assert [found.evidence.attack for found in judged.findings] == ["reading sample counts"]
    assert verdict_of(stored_result(tmp_path / "a" / "audit.json"), tests).verdict == word


def test_what_it_could_have_tested_is_said_where_it_was_not_done(toy):
    result = audit(MASKED, effort="smoke", only=["presence"], num_workers=1, save=False)
    assert "toy-attack: not asked for" in verdict_of(result, "single uploads").reason


def test_a_process_that_does_not_know_it_is_told(toy):
    job = partial(run_experiment, plan=BARE, effort="smoke", style="hardened", data_dir=None, others=registered())
    sent = pickle.dumps(job)
    unregister(toy.name)
    try:
        (found,) = pickle.loads(sent)(toy.name, lambda fraction, note: None)
    finally:
        register(toy)
    assert found.tests == 3


def test_without_the_call_there_is_no_such_experiment():
    assert TOY not in experiments_for(BARE)
    with pytest.raises(PlanError, match="no experiment 'toy-attack'"):
        audit(BARE, effort="smoke", only=[TOY.name], num_workers=1, save=False)
