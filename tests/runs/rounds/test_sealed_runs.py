"""Whole sealed runs in one process: resumed, with dropouts, by a named dealer, of some networks; what is refused."""

import json

import pytest
import torch
from tests.protections.sealed.harness import plan_of

from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan, dump_plan, load_plan, parse_plan
from bilateral.engine.setup import make_blueprint
from bilateral.errors import DataError, PlanError, UnsoundPlanError, UnsupportedLayerError
from bilateral.runs.rounds.compare import compare
from bilateral.runs.rounds.in_process import run


def weights(result):
    return torch.cat([parameter.detach().reshape(-1) for parameter in result.model.parameters()])


def digests(path):
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    return [line["gradient_digest"] for line in lines if line["event"] == "round_done"]


def test_a_run_ends_with_the_model_of_fedsgd_up_to_rounding(tmp_path):
    result = run(plan_of(**{"training.rounds": 6}), output=tmp_path / "run")
    assert result.difference_to_fedavg < 1e-5
    assert result.metrics == pytest.approx(result.metrics_of_fedavg, abs=1e-4)
    assert result.recovery.error < 1e-3
    assert result.view is None
    assert result.guarantee.protection == "sealed training + ring masks"
    assert not result.incidents
    told = json.loads((tmp_path / "run" / "result.json").read_text())
    assert told["dealer"] == "rotating"
    assert told["client_view"] is None


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    plan = plan_of(**{"training.rounds": 4, "training.checkpoint_every": 1, "training.optimiser": "adam"})
    whole = run(plan, output=tmp_path / "whole")
    rounds = []

    def stop():
        return len(rounds) >= 2

    run(plan, output=tmp_path / "cut", on_round=rounds.append, should_stop=stop)
    resumed = run(plan, output=tmp_path / "cut", resume=True)
    assert torch.equal(weights(resumed), weights(whole))
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


def test_who_deals_changes_nothing_of_a_simulation(tmp_path):
    for dealer in ("rotating", "auditor"):
        run(plan_of(**{"federation.dealer": dealer}), output=tmp_path / dealer, reference=False)
    assert digests(tmp_path / "rotating") == digests(tmp_path / "auditor")


def test_clients_that_die_and_clients_that_are_not_invited_do_not_end_a_run():
    plan = plan_of(**{"federation.clients": 8, "federation.dropout": 0.08, "training.rounds": 5})
    result = run(plan, save=False)
    assert result.finished
    assert result.difference_to_fedavg < 1e-5
    sampled = run(plan_of(**{"federation.clients": 6, "federation.participation": 0.5}), save=False)
    assert sampled.difference_to_fedavg < 1e-5


@pytest.mark.parametrize(
    "settings",
    [
        {"data.name": "digits", "model.name": "lenet", "model.options": {}, "training.loss": "ce"},
        {"data.name": "digits", "model.name": "mlp-5", "training.loss": "ce", "training.augment": True},
        {"data.name": "diabetes", "model.name": "mlp-3", "training.loss": "mse"},
    ],
    ids=lambda settings: f"{settings['data.name']} {settings['model.name']}",
)
def test_it_trains_what_there_is(settings):
    result = run(plan_of(**{**settings, "training.rounds": 2, "training.batch_size": 8}), save=False)
    assert result.difference_to_fedavg < 1e-5


def test_it_is_compared_like_everything_else():
    plan = plan_of(**{"training.rounds": 2})
    bare, sealed = compare(plan, ["sealed"], num_controls=0)
    assert sealed["protection"] == "sealed"
    assert sealed["weights_relative_difference"] < 1e-5
    assert sealed["bytes_ratio"] > 10
    assert bare["weights_relative_difference"] == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"aggregation.masks": "none"}, "sealed training without ring masks"),
        ({"aggregation.masks": "float"}, "sealed training without ring masks"),
        ({"federation.clients": 1}, "sealed training of a single client"),
        ({"noise.mechanism": "sound", "noise.epsilon": 8.0}, "sound noise|sealed training with noise"),
        ({"noise.mechanism": "published", "noise.epsilon": 8.0}, "published noise|sealed training with noise"),
        ({"noise.mechanism": "mp-cdp", "noise.epsilon": 8.0}, "noise"),
        (
            {"data.name": "digits", "model.name": "resnet-8", "model.options": {}, "training.loss": "ce"},
            "sealed training of BatchNorm",
        ),
    ],
)
def test_mixes_that_would_not_hold_are_refused_by_name(settings, said):
    plan = plan_of(**settings)
    with pytest.raises(UnsoundPlanError, match=said):
        make_blueprint(plan, load_federation(plan))


def test_a_layer_that_has_no_sealed_step_is_refused_by_name():
    plan = plan_of(**{"data.name": "digits", "model.name": f"{__name__}:with_sigmoid", "model.options": {}})
    with pytest.raises(UnsupportedLayerError, match=r"(?i)sigmoid"):
        make_blueprint(plan, load_federation(plan))


def with_sigmoid(input_shape, num_outputs):
    size = torch.Size(input_shape).numel()
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(size, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, num_outputs)
    )


def with_front(input_shape, num_outputs):
    """A frozen convolution, which clients compute in the clear, and a head that trains."""
    front = torch.nn.Conv2d(input_shape[0], 4, 3, padding=1)
    front.requires_grad_(False)
    size = 4 * input_shape[1] * input_shape[2]
    return torch.nn.Sequential(
        front,
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(size, 8),
        torch.nn.ReLU(),
        torch.nn.Linear(8, num_outputs),
    )


def with_frozen_norm(input_shape, num_outputs):
    """BatchNorm in evaluation mode is linear, and folded."""
    norm = torch.nn.BatchNorm2d(4).eval()
    norm.requires_grad_(False)
    return torch.nn.Sequential(
        torch.nn.Conv2d(input_shape[0], 4, 3, padding=1),
        norm,
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * input_shape[1] * input_shape[2], num_outputs),
    )


@pytest.mark.parametrize("network", ["with_front", "with_frozen_norm"])
def test_what_is_frozen_is_public_or_folded_and_the_rest_trains(network, tmp_path):
    settings = {"data.name": "digits", "model.name": f"{__name__}:{network}", "model.options": {}}
    result = run(plan_of(**{**settings, "training.loss": "ce", "training.rounds": 2}), save=False)
    assert result.difference_to_fedavg < 1e-5
    frozen = [name for name, p in result.model.named_parameters() if not p.requires_grad]
    assert frozen


def with_dropout(input_shape, num_outputs):
    size = torch.Size(input_shape).numel()
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(size, 32),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.25),
        torch.nn.Linear(32, num_outputs),
    )


def test_dropout_is_drawn_by_the_two_parties_and_the_network_learns():
    settings = {"data.name": "digits", "model.name": f"{__name__}:with_dropout", "model.options": {}}
    plan = plan_of(**{**settings, "training.loss": "ce", "training.rounds": 25, "training.learning_rate": 0.1})
    result = run(plan, save=False, reference=False)
    assert result.recovery.error < 1e-2
    assert result.metrics["test_accuracy"] > 0.6


@pytest.mark.parametrize("name", ["client-1", "server"])
def test_a_dealer_that_has_something_else_to_do_is_refused(name):
    plan = plan_of(**{"federation.dealer": name})
    with pytest.raises(PlanError, match="takes part in this run otherwise"):
        make_blueprint(plan, load_federation(plan))


def test_a_batch_beyond_what_fits_is_refused_before_anything_starts(monkeypatch):
    from bilateral.protocols.share.circuit.description import Circuit

    monkeypatch.setattr(Circuit, "largest_batch", 10)
    plan = plan_of()
    with pytest.raises(DataError, match="too large for sealed training"):
        make_blueprint(plan, load_federation(plan))


def test_plans_from_before_there_was_a_dealer_are_what_they_were(tmp_path):
    """The fingerprint of the default plan is the one that it had then."""
    assert RunPlan().fingerprint() == parse_plan({}, "here").fingerprint()
    values = RunPlan().model_dump(mode="json")
    del values["federation"]["dealer"]
    from bilateral.engine.plan import fingerprint_of

    assert fingerprint_of(values) == RunPlan().fingerprint()
    named = RunPlan().with_settings({"federation.dealer": "auditor"})
    assert named.fingerprint() != RunPlan().fingerprint()
    assert named.named_dealer is None  # nobody deals without sealed training
    (tmp_path / "plan.toml").write_text(dump_plan(plan_of(**{"federation.dealer": "auditor"})))
    assert load_plan(tmp_path / "plan.toml").named_dealer == "auditor"
