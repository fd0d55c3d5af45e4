"""Every perturbed run tries recovery before its first round, in every term, and is otherwise what it was."""

import pytest
import torch
from tests.engine.test_stacks import SOUND
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.events import read_events
from bilateral.engine.federation import load_federation
from bilateral.engine.setup import make_blueprint
from bilateral.errors import RecoveryError
from bilateral.learning.training import Training
from bilateral.protocols.perturb.recovery_check import RecoveryCheck
from bilateral.runs.rounds.in_process import run

P2 = {"training__loss": "mse", "noise__epsilon": 3.0}
CONVNET = {"data__name": "digits", "model__name": "convnet", "model__options": {"batch_norm": True}}
STACKS = {
    "perturbation": {},
    "mse": {"training__loss": "mse"},
    "blinded softmax": {"perturbation__softmax": "blinded"},
    "batch norm": CONVNET,
    "scaled batch norm": {**CONVNET, "perturbation__norm_inputs": "scaled"},
    "sound": SOUND,
    "published": {**P2, "noise__mechanism": "published"},
    "published with batch norm": {**P2, **CONVNET, "noise__mechanism": "published"},
    "mp-cdp": {**P2, "noise__mechanism": "mp-cdp"},
    "mp-dp-naive": {**P2, "noise__mechanism": "mp-dp-naive"},
}


def training_of(chosen):
    return make_blueprint(chosen, load_federation(chosen)).server()


@pytest.mark.parametrize("stack", STACKS)
def test_every_perturbed_stack_is_checked_and_passes(stack):
    report = training_of(plan(**STACKS[stack])).check_recovery()
    assert report.error < (1e-4 if "scaled" in stack else 1e-10)


@pytest.mark.parametrize("stack", STACKS)
def test_a_hook_on_the_servers_model_is_found_under_every_stack(stack):
    training = training_of(plan(**STACKS[stack]))
    next(iter(training.model.parameters())).register_hook(lambda g: 0.5 * g)
    with pytest.raises(RecoveryError):
        training.check_recovery()


def test_a_run_without_perturbation_has_nothing_to_check():
    chosen = plan(protection="fedavg")
    assert training_of(chosen).check_recovery() is None
    assert run(chosen, save=False).recovery is None


def test_a_run_says_how_exact_recovery_is_in_every_term(tmp_path):
    stops = iter([False, True])
    run(plan(training__rounds=4), output=tmp_path / "run", should_stop=lambda: next(stops))
    result = run(plan(training__rounds=4), output=tmp_path / "run", resume=True)
    events = [e["event"] for e in read_events(tmp_path / "run" / "events.jsonl")]
    assert events.count("recovery_checked") == 2
    assert events.index("recovery_checked") < events.index("round_done")
    assert 0 <= result.recovery.error < 1e-10
    assert result.as_dict()["recovery_error"] == result.recovery.error


def test_a_run_whose_recovery_is_wrong_ends_before_its_first_round(tmp_path, monkeypatch):
    def fails(self, model):
        raise RecoveryError("off", remedy="mend it")

    monkeypatch.setattr(RecoveryCheck, "run", fails)
    with pytest.raises(RecoveryError, match="off mend it"):
        run(plan(), output=tmp_path / "run")
    events = [e["event"] for e in read_events(tmp_path / "run" / "events.jsonl")]
    assert events == ["run_started", "run_ended"]


@pytest.mark.parametrize("stack", ["perturbation", "batch norm", "published"])
def test_the_check_changes_no_bit_of_a_run(stack, monkeypatch):
    chosen = plan(**{**STACKS[stack], "training__rounds": 3})
    checked = run(chosen, save=False)
    monkeypatch.setattr(Training, "check_recovery", lambda self: None)
    unchecked = run(chosen, save=False)
    for ours, theirs in zip(checked.model.state_dict().values(), unchecked.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_batch_norm_network_trains_as_fedavg_does():
    result = run(plan(**CONVNET, training__rounds=20, training__dtype="float64"), save=False)
    assert result.difference_to_fedavg < 1e-11
