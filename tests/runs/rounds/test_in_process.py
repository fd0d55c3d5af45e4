"""Whole runs, small. The plan of these tests takes about a second."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import bilateral.runs.rounds.in_process as engine
from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.plan import RunPlan
from bilateral.errors import CheckpointError, DataError, ModelError, NumericalRangeError, PlanError
from bilateral.runs.rounds.in_process import run


def plan(**settings) -> RunPlan:
    quick = {
        "data.name": "breast-cancer",
        "model.name": "mlp-3",
        "model.options": {"width": 12},
        "federation.clients": 3,
        "training.rounds": 8,
        "training.evaluate_every": 4,
        "training.checkpoint_every": 3,
        "training.learning_rate": 0.05,
    }
    return RunPlan().with_settings({**quick, **{k.replace("__", "."): v for k, v in settings.items()}})


@pytest.mark.parametrize(("loss", "softmax"), [("mse", "local"), ("ce", "local"), ("ce", "blinded")])
@pytest.mark.parametrize("noise", ["activation", "offset"])
def test_a_protected_run_ends_where_fedavg_ends(loss, softmax, noise):
    chosen = plan(training__loss=loss, perturbation__softmax=softmax, perturbation__noise=noise)
    result = run(chosen, save=False)
    assert result.difference_to_fedavg < 2e-6
    assert result.metrics["test_accuracy"] == result.metrics_of_fedavg["test_accuracy"]
    assert result.finished


def test_in_float64_the_difference_to_fedavg_is_at_rounding_level():
    assert run(plan(training__dtype="float64"), save=False).difference_to_fedavg < 1e-13


def test_the_same_seed_gives_the_same_model_bit_for_bit():
    one, other = (run(plan(), save=False, reference=False).model.state_dict() for _ in range(2))
    assert all(torch.equal(one[k], other[k]) for k in one)


def test_another_seed_gives_another_model():
    one, other = (run(plan(seed=s), save=False, reference=False).model.state_dict() for s in (0, 1))
    assert any(not torch.equal(one[k], other[k]) for k in one)


def test_training_learns():
    result = run(plan(training__rounds=60, training__learning_rate=0.2), save=False, reference=False)
    assert result.metrics["test_accuracy"] > 0.93


def test_batch_norm_runs_and_evaluates_with_the_clients_statistics():
    result = run(
        plan(
            data__name="digits",
            model__name="convnet",
            model__options={"batch_norm": True},
            training__rounds=40,
            training__learning_rate=0.2,
        ),
        save=False,
    )
    assert result.metrics["test_accuracy"] > 0.5
    assert result.difference_to_fedavg < 1e-3  # eps acts as eps / scale^2: docs/decisions/0003


def test_regression_with_one_output():
    result = run(plan(data__name="diabetes", training__rounds=30), save=False)
    assert result.metrics["test_r2"] > 0.2
    assert result.difference_to_fedavg < 2e-6


@pytest.mark.parametrize("stop_after", [2, 3, 5])
def test_an_interrupted_run_resumes_to_the_same_model_bit_for_bit(tmp_path, stop_after):
    whole = run(plan(), output=tmp_path / "whole")
    rounds = []
    stopped = run(
        plan(),
        output=tmp_path / "part",
        on_round=lambda r: rounds.append(r.round_index),
        should_stop=lambda: len(rounds) >= stop_after - 1,
    )
    assert not stopped.finished
    assert stopped.rounds == stop_after
    resumed = run(plan(), output=tmp_path / "part", resume=True)
    assert resumed.finished
    a, b = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert (tmp_path / "part" / "metrics.csv").read_text() == (tmp_path / "whole" / "metrics.csv").read_text()
    announcements = 3 * (32 + len("client-1") + 32 + 32 + 64)  # a process that starts again agrees on keys again
    assert resumed.transcript.bytes_up == whole.transcript.bytes_up + announcements


def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path):
    class Killed(BaseException):
        pass

    def kill(report):
        if report.round_index == 5:
            raise Killed

    with pytest.raises(Killed):
        run(plan(), output=tmp_path / "run", on_round=kill)
    assert load_checkpoint(tmp_path / "run" / "checkpoint.safetensors").next_round == 3
    resumed = run(plan(), output=tmp_path / "run", resume=True).model.state_dict()
    whole = run(plan(), save=False).model.state_dict()
    assert all(torch.equal(whole[k], resumed[k]) for k in whole)


def test_adam_resumes_bit_for_bit(tmp_path):
    chosen = plan(training__optimiser="adam", training__learning_rate=0.01)
    count = []
    run(chosen, output=tmp_path / "r", on_round=count.append, should_stop=lambda: len(count) >= 3)
    resumed = run(chosen, output=tmp_path / "r", resume=True).model.state_dict()
    whole = run(chosen, save=False).model.state_dict()
    assert all(torch.equal(whole[k], resumed[k]) for k in whole)


def _saved_run(path: Path) -> Path:
    run(plan(training__rounds=3), output=path)
    return path / "checkpoint.safetensors"


@pytest.mark.parametrize("damage", ["truncate", "flip", "garbage", "empty"])
def test_a_corrupt_checkpoint_is_named_and_left_alone(tmp_path, damage):
    checkpoint = _saved_run(tmp_path / "run")
    content = bytearray(checkpoint.read_bytes())
    if damage == "truncate":
        content = content[: len(content) // 2]
    elif damage == "flip":
        content[-5] ^= 0x40
    elif damage == "garbage":
        content = bytearray(b"not a checkpoint at all")
    else:
        content = bytearray()
    checkpoint.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors"):
        run(plan(training__rounds=3), output=tmp_path / "run", resume=True)
    assert checkpoint.read_bytes() == bytes(content)


def test_a_checkpoint_of_another_plan_is_refused(tmp_path):
    _saved_run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="another plan"):
        run(plan(training__rounds=4), output=tmp_path / "run", resume=True)


def test_a_directory_with_something_in_it_is_never_written_to(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(PlanError, match="not empty"):
        run(plan(), output=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_the_run_directory_holds_plan_metrics_events_privacy_result_and_checkpoint(tmp_path):
    result = run(plan(), output=tmp_path / "run")
    names = {p.name for p in (tmp_path / "run").iterdir() if not p.name.startswith(".")}
    assert names == {
        "plan.toml",
        "metrics.csv",
        "events.jsonl",
        "privacy.json",
        "result.json",
        "checkpoint.safetensors",
    }
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rounds"] == result.rounds


def test_client_sampling_takes_the_asked_share_every_round():
    result = run(
        plan(federation__clients=4, federation__participation=0.5, training__loss="mse"),
        save=False,
        reference=False,
        keep_messages=True,
    )
    senders = {}
    for entry in result.transcript.entries:
        if entry.receiver == "server" and entry.round_index >= 0:
            senders.setdefault(entry.round_index, set()).add(entry.sender)
    assert all(len(s) == 2 for s in senders.values())
    assert len(set.union(*senders.values())) > 2


def test_weights_follow_the_clients_sample_counts():
    result = run(
        plan(
            federation__proportions=[0.6, 0.3, 0.1],
            training__loss="mse",
            training__rounds=1,
            aggregation__masks="none",
        ),
        save=False,
        keep_messages=True,
    )
    weights = [e.message.weight for e in result.transcript.entries if e.receiver == "server"]
    assert len(set(weights)) == 3
    assert sum(weights) == 455
    assert result.difference_to_fedavg < 2e-6


def test_a_party_sees_only_its_own_messages():
    plain = plan(training__rounds=2, aggregation__masks="none", perturbation__softmax="blinded")
    result = run(plain, save=False, reference=False, keep_messages=True)
    # two rounds of model, query, reply and upload
    assert [e.receiver for e in result.transcript.seen_by("client-1")] == ["client-1", "server"] * 4
    assert len(list(result.transcript.seen_by("server"))) == result.transcript.num_messages == 24


def test_a_diverging_run_stops_with_the_model_untouched(tmp_path):
    chosen = plan(training__learning_rate=1e30, training__loss="mse", training__rounds=6)
    with pytest.raises(NumericalRangeError, match="learning rate"):
        run(chosen, output=tmp_path / "run")
    assert not (tmp_path / "run" / "result.json").exists()
    kept = load_checkpoint(tmp_path / "run" / "checkpoint.safetensors")
    assert all(bool(torch.isfinite(t).all()) for t in kept.tensors.values() if t.is_floating_point())


def test_a_step_that_ruins_the_weights_is_not_saved(tmp_path):
    with pytest.raises(NumericalRangeError):
        run(plan(training__learning_rate=1e38, training__rounds=1), output=tmp_path / "run")
    assert load_checkpoint(tmp_path / "run" / "checkpoint.safetensors").next_round == 0
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_client_with_a_single_class_is_refused_by_name_unless_allowed():
    skewed = {"federation__partition": "dirichlet", "federation__alpha": 0.02, "federation__clients": 6, "seed": 3}
    with pytest.raises(DataError, match=r"client-\d has samples of class \d only"):
        run(plan(**skewed), save=False)
    assert run(plan(**skewed, federation__allow_single_class=True, training__rounds=2), save=False).finished


def test_one_sample_with_batch_norm_is_refused():
    with pytest.raises(DataError, match="batch of one sample"):
        run(
            plan(
                data__name="digits",
                model__name="convnet",
                model__options={"batch_norm": True},
                training__batch_size=1,
            ),
            save=False,
        )


def test_more_partitions_than_outputs_are_refused():
    with pytest.raises(PlanError, match="between 1 and 2"):
        run(plan(perturbation__partitions=3), save=False)


def own_model(input_shape, num_outputs, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, num_outputs))


def test_a_users_own_model_and_data_are_first_class():
    result = run(
        plan(
            model__name="tests.runs.rounds.test_in_process:own_model",
            model__options={"width": 5},
            data__name="tests.runs.rounds.test_in_process:own_data",
            data__options={},
        ),
        save=False,
    )
    assert result.difference_to_fedavg < 2e-6


def own_data():
    from bilateral.data import Dataset, Split

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=generator)
    labels = (inputs[:, 0] > 0).long()
    return Dataset("mine", "classification", Split(inputs[:40], labels[:40]), Split(inputs[40:], labels[40:]), 2)


def test_what_a_client_saw_is_far_from_the_true_model():
    view = run(plan(), save=False).view
    assert view.weights_relative_difference > 0.3
    assert view.fraction_clear < 0.05


def test_the_guarantee_admits_what_leaks():
    def admitted(**settings):
        return {leak.ledger_line for leak in run(plan(training__rounds=1, **settings), save=False).guarantee.leaks}

    assert admitted() == {1, 2, 7, 9, 11, 12, 15}
    assert admitted(aggregation__masks="none") == {1, 2, 3, 7, 9, 15}
    assert admitted(perturbation__softmax="blinded") == {1, 2, 7, 8, 9, 10, 11, 12, 15, 16}
    assert admitted(training__loss="mse") == {1, 7, 9, 11, 12, 15}


def test_the_engine_never_touches_torchs_global_generator():
    before = torch.get_rng_state()
    engine.run(plan(training__rounds=1), save=False)
    assert torch.equal(before, torch.get_rng_state())


def test_a_run_without_reference_resumes_without_one(tmp_path):
    count = []
    run(plan(), output=tmp_path / "r", reference=False, on_round=count.append, should_stop=lambda: len(count) >= 2)
    resumed = run(plan(), output=tmp_path / "r", resume=True)
    assert resumed.finished
    assert resumed.difference_to_fedavg is None


def test_a_run_killed_before_its_first_round_can_be_resumed(tmp_path):
    def kill(report):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan(training__checkpoint_every=100), output=tmp_path / "r", on_round=kill)
    assert run(plan(training__checkpoint_every=100), output=tmp_path / "r", resume=True).finished


def test_resuming_without_a_directory_is_refused():
    with pytest.raises(PlanError, match="directory"):
        run(plan(), resume=True)


def test_paths_may_be_strings(tmp_path):
    assert run(plan(training__rounds=1), output=str(tmp_path / "r")).output == tmp_path / "r"


def test_a_report_has_metrics_only_where_something_was_measured():
    told = []
    result = run(plan(training__rounds=5, training__evaluate_every=2), save=False, on_round=told.append)
    measured = {report.round_index: report.metrics for report in told if report.metrics}
    assert list(measured) == [2, 4, 5]
    assert measured[5] == result.metrics
    assert {report.round_index: report.latest for report in told}[3] == measured[2]
    assert all("accuracy" in str(report) for report in told)


def test_the_reported_difference_is_the_largest_over_all_rounds():
    seen = []
    result = run(plan(), save=False, on_round=lambda r: seen.append(r.difference_to_fedavg))
    assert result.difference_to_fedavg == max(seen)
    assert result.final_difference_to_fedavg == seen[-1]


def odd_test_split():
    from bilateral.data import Dataset, Split

    inputs = torch.randn(553, 4, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long()
    return Dataset("odd", "classification", Split(inputs[:40], labels[:40]), Split(inputs[40:], labels[40:]), 2)


def normalised_model(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, num_outputs))


def test_a_test_split_of_513_samples_with_batch_norm_is_no_problem():
    names = {"data__name": "tests.runs.rounds.test_in_process:odd_test_split", "data__options": {}}
    model = {"model__name": "tests.runs.rounds.test_in_process:normalised_model", "model__options": {}}
    assert run(plan(**names, **model), save=False).finished


def single_test_sample():
    from bilateral.data import Dataset

    odd = odd_test_split()
    return Dataset("one", "classification", odd.train, odd.test.subset(torch.arange(1)), 2)


def test_a_single_test_sample_with_batch_norm_ends_without_a_view():
    names = {"data__name": "tests.runs.rounds.test_in_process:single_test_sample", "data__options": {}}
    model = {"model__name": "tests.runs.rounds.test_in_process:normalised_model", "model__options": {}}
    result = run(plan(**names, **model), save=False)
    assert result.finished
    assert result.view is None


def narrow_model(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(input_shape[0], 6), nn.ReLU(), nn.Linear(6, 1))


def frozen_model(input_shape, num_outputs):
    return narrow_model(input_shape, num_outputs).requires_grad_(False)


def test_a_model_with_too_few_outputs_is_refused():
    with pytest.raises(ModelError, match="has 1 outputs, breast-cancer needs 2"):
        run(plan(model__name="tests.runs.rounds.test_in_process:narrow_model", model__options={}), save=False)


def test_a_model_that_cannot_learn_is_refused():
    settings = {"model__name": "tests.runs.rounds.test_in_process:frozen_model", "model__options": {}}
    with pytest.raises(ModelError, match="frozen"):
        run(plan(data__name="diabetes", **settings), save=False)


def test_every_clients_batch_is_checked_before_the_first_round(tmp_path):
    settings = {
        "data__name": "digits",
        "model__name": "convnet",
        "model__options": {"batch_norm": True},
        "federation__proportions": [0.6, 0.3992, 0.0008],
        "federation__allow_single_class": True,
        "federation__participation": 0.34,
    }
    with pytest.raises(DataError, match="client-3: a batch of one sample"):
        run(plan(**settings), output=tmp_path / "r")
    assert not (tmp_path / "r").exists()
