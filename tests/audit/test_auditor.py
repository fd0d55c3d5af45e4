"""The auditor with experiments made for the purpose: what is tried, kept, resumed and told. No protocol is imitated."""

from __future__ import annotations

import json

import pytest

from bilateral.audit import auditor
from bilateral.audit.audit_directory import AuditDirectory
from bilateral.audit.auditor import NOTHING_THERE, audit, stored_plan, stored_result
from bilateral.audit.evidence import Condition, Evidence, Gate
from bilateral.audit.experiment import Experiment, context_of
from bilateral.audit.scores import AGREEMENT, AUC, Scores
from bilateral.audit.workers import TaskDone
from bilateral.engine.plan import RunPlan
from bilateral.errors import CheckpointError, DataError, PlanError
from bilateral.runs.hetero.plan import HeteroPlan


def evidence(tests, target, positive=0.99, negative=0.5):
    def condition(what, middle):
        return Condition(what, (Scores(AUC, tuple(middle + 0.01 * k for k in range(10))),))

    return Evidence(
        tests=tests,
        adversary="curious server" if tests == "single uploads" else "curious client",
        attack="guessing",
        adaptive=True,
        seen="nothing",
        target=condition("this plan", target),
        positive=condition("FedSGD", positive),
        negative=condition("null model", negative),
        gates=(Gate(AUC, 0.85),),
    )


class Counted:
    """Experiments that say how often they ran."""

    def __init__(self):
        self.ran = []

    def make(self, name, found, reason="", about=()):
        def run(context):
            context.on_progress(0.5, "half way")
            self.ran.append(name)
            if isinstance(found, Exception):
                raise found
            return found

        return Experiment(name, f"title of {name}", about, lambda plan, guarantee: reason, run)


def know(monkeypatch, *experiments):
    """Let the auditor know these experiments, and no others."""
    about = {one.name: one.about for one in experiments}
    monkeypatch.setattr(auditor, "experiments_for", lambda plan: experiments)
    monkeypatch.setattr(auditor, "about_of", lambda name: about.get(name, ()))


@pytest.fixture
def counted(monkeypatch):
    made = Counted()
    experiments = (
        made.make("uploads", [evidence("single uploads", 0.5)], about=("single uploads",)),
        made.make("function", [evidence(1, 0.97)]),
        made.make("elsewhere", [], reason="does not apply to this plan", about=("overlapping sums", 1)),
    )
    know(monkeypatch, *experiments)
    made.experiments = experiments
    return made


def verdicts(result):
    return {one.tests: one.verdict for one in result.verdicts}


def test_every_claim_and_leak_of_the_plan_has_a_verdict(counted, tmp_path):
    result = audit(RunPlan(), num_workers=1, output=tmp_path / "a")
    assert counted.ran == ["uploads", "function"]
    found = verdicts(result)
    assert found["single uploads"] == "holds"
    assert found[1] == "broken"
    claims = {claim.subject for claim in result.guarantee.claims}
    assert set(found) == claims | {leak.ledger_line for leak in result.guarantee.leaks}
    assert all(word == "not tested" for tests, word in found.items() if tests not in ("single uploads", 1))
    assert [(one.name, one.reason) for one in result.skipped] == [("elsewhere", "does not apply to this plan")]


def test_a_stored_audit_is_judged_again_to_the_same_verdicts(counted, tmp_path):
    result = audit(RunPlan(), num_workers=1, output=tmp_path / "a")
    stored = stored_result(tmp_path / "a" / "audit.json")
    assert verdicts(stored) == verdicts(result)
    assert stored.as_dict()["verdicts"] == result.as_dict()["verdicts"]


@pytest.mark.parametrize("seconds", [0.46, 0.54, 1.4999, 12.05])
def test_the_work_done_reads_the_same_before_and_after_it_was_stored(counted, monkeypatch, tmp_path, seconds):
    def jobs(job, names, *_):
        yield from (TaskDone(name, [], "", seconds) for name in names[:1])

    monkeypatch.setattr(auditor, "run_jobs", jobs)
    result = audit(RunPlan(), num_workers=1, output=tmp_path / "a")
    assert stored_result(tmp_path / "a" / "audit.json").seconds == result.seconds
    assert result.seconds == pytest.approx(seconds, abs=0.051)


def test_a_forged_verdict_in_a_stored_audit_is_not_believed(counted, tmp_path):
    audit(RunPlan(), num_workers=1, output=tmp_path / "a")
    path = tmp_path / "a" / "audit.json"
    values = json.loads(path.read_text())
    for row in values["verdicts"]:
        row["verdict"] = row["claim_verdict"] = "holds"
    path.write_text(json.dumps(values))
    assert verdicts(stored_result(path))[1] == "broken"


def test_an_interrupted_audit_keeps_what_is_done_and_goes_on(counted, tmp_path):
    stop = []
    result = audit(
        RunPlan(),
        num_workers=1,
        output=tmp_path / "a",
        on_evidence=lambda directory, found: stop.append(1),
        should_stop=lambda: bool(stop),
    )
    assert not result.finished
    assert counted.ran == ["uploads"]
    assert verdicts(result)[1] == "not tested"
    assert "stopped" in {one.name: one.reason for one in result.skipped}["function"]
    again = audit(RunPlan(), num_workers=1, output=tmp_path / "a", resume=True)
    assert again.finished
    assert counted.ran == ["uploads", "function"]
    assert verdicts(again)[1] == "broken"


def test_an_audit_is_not_resumed_under_another_plan(counted, tmp_path):
    audit(RunPlan(), num_workers=1, output=tmp_path / "a")
    with pytest.raises(CheckpointError, match="another plan"):
        audit(RunPlan(seed=1), num_workers=1, output=tmp_path / "a", resume=True)
    with pytest.raises(PlanError, match="not empty"):
        audit(RunPlan(), num_workers=1, output=tmp_path / "a")


def test_an_experiment_that_cannot_be_done_is_told_and_leaves_its_claim_untested(counted, monkeypatch, tmp_path):
    broken = counted.make("uploads", DataError("no images here.", remedy="Get some."))
    know(monkeypatch, broken, counted.experiments[1])
    result = audit(RunPlan(), num_workers=1, save=False)
    assert verdicts(result)["single uploads"] == "not tested"
    assert "no images here" in result.skipped[0].reason


def test_a_claim_that_nothing_was_tried_against_says_which_experiment_was_not_done_and_why(
    counted, monkeypatch, tmp_path
):
    told = DataError("no images here.", remedy="Get some.")
    know(monkeypatch, *counted.experiments, counted.make("other", told, about=("other clients' uploads",)))
    result = audit(RunPlan(), num_workers=1, output=tmp_path / "a")
    for judged in (result, stored_result(tmp_path / "a" / "audit.json")):
        reasons = {one.tests: one.reason for one in judged.verdicts}
        assert reasons["overlapping sums"] == "elsewhere: does not apply to this plan"
        assert reasons["other clients' uploads"] == "other: failed: no images here. Get some."
        assert reasons[7] == "no attack of this audit is about it"
        assert reasons[1].startswith("by guessing")  # tried, whatever else was not


def test_an_experiment_that_found_nothing_to_attack_says_so(counted, monkeypatch, tmp_path):
    """Of images, say, in a plan of tables: that is known once the data are there."""
    know(monkeypatch, counted.make("images", [], about=("single uploads",)), counted.experiments[1])
    first = audit(RunPlan(), num_workers=1, output=tmp_path / "a")
    for result in (first, audit(RunPlan(), num_workers=1, output=tmp_path / "a", resume=True)):
        assert [(one.name, one.reason) for one in result.skipped] == [("images", NOTHING_THERE)]
        assert {one.tests: one.reason for one in result.verdicts}["single uploads"] == f"images: {NOTHING_THERE}"
        assert not result.failed
    assert counted.ran == ["images", "function"]


def test_clients_that_die_in_a_simulation_cost_the_attacker_no_trial():
    plan = RunPlan().with_settings({"federation.dropout": 0.3, "data.name": "wine", "model.name": "mlp-3"})
    assert context_of(plan, "smoke", None).plan == plan.with_settings({"federation.dropout": 0.0})


def test_comparisons_are_audited_as_the_plan_says_unless_told_otherwise(monkeypatch):
    seen = []

    def run(context):
        seen.append(context.style.name)
        return [evidence("activations", 0.5)]

    know(monkeypatch, Experiment("one", "one", ("activations",), lambda plan, guarantee: "", run))
    cases = [("sealed", None, "sealed"), ("hardened", None, "hardened"), ("hardened", "sealed", "sealed")]
    for style, told, expected in cases:
        result = audit(HeteroPlan(style=style), style=told, save=False, num_workers=1)
        assert result.style == expected
        assert seen.pop() == expected
        assert ("activations" in {claim.subject for claim in result.guarantee.claims}) == (expected == "sealed")


def test_only_the_experiments_asked_for_are_done(counted):
    result = audit(RunPlan(), num_workers=1, save=False, only=["function"])
    assert counted.ran == ["function"]
    assert verdicts(result)["single uploads"] == "not tested"
    with pytest.raises(PlanError, match="no experiment 'nonsense'"):
        audit(RunPlan(), num_workers=1, save=False, only=["nonsense"])


def test_progress_grows_to_the_end(counted):
    told = []
    audit(RunPlan(), num_workers=1, save=False, on_progress=lambda progress: told.append(progress.fraction))
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.parametrize("plan", [RunPlan(seed=3), HeteroPlan(seed=3)])
def test_a_directory_knows_its_plan(counted, tmp_path, plan):
    audit(plan, num_workers=1, output=tmp_path / "a")
    assert stored_plan(AuditDirectory.open(tmp_path / "a").task()) == plan


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"verdicts": []}'])
def test_a_file_that_is_no_audit_is_refused_by_name(tmp_path, text):
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(CheckpointError, match="no stored audit"):
        stored_result(tmp_path / "audit.json")


def test_rates_and_infinities_survive_the_file(counted, monkeypatch, tmp_path):
    found = evidence("single uploads", 0.5)
    scores = Scores(AGREEMENT, (0.0, 1.0), given_interval=(float("-inf"), float("inf")))
    odd = Evidence(**{**vars(found), "target": Condition("this plan", (scores,))})
    know(monkeypatch, counted.make("odd", [odd]))
    audit(RunPlan(), num_workers=1, output=tmp_path / "a")
    again = stored_result(tmp_path / "a" / "audit.json").evidence[0]
    assert again == odd
