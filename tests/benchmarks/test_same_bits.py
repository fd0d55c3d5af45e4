"""The script that says whether two versions compute the same, on few plans."""

from __future__ import annotations

import json

import pytest
import torch

import same_bits
from same_bits_plans import NOISES, SMALL, TEACHING, Case, all_cases, flare_cases


def test_a_plan_run_twice_differs_in_nothing(tmp_path):
    case = Case("small", "run", SMALL)
    first, second = (same_bits.record_case(case, tmp_path / name) for name in ("first", "second"))
    assert same_bits.differences(first, second) == {}
    assert len(first["states"]) == SMALL["training.rounds"]
    digests = [line["gradient_digest"] for line in first["files"]["events.jsonl"] if line["event"] == "round_done"]
    assert len(set(digests)) == SMALL["training.rounds"]
    assert "seconds" not in dict(same_bits.flat(first))


def test_another_seed_changes_model_gradients_and_messages_but_not_the_number_of_messages(tmp_path):
    first, second = (
        same_bits.record_case(Case("small", "run", {**SMALL, "seed": seed}), tmp_path / str(seed)) for seed in (0, 1)
    )
    found = same_bits.differences(first, second)
    assert {"model.head.weight", "states[0].models", "messages.contents", "plan.fingerprint"} <= set(found)
    assert any(path.endswith(".gradient_digest") for path in found)
    assert "messages.number" not in found


def test_a_run_that_was_stopped_and_gone_on_with_ends_with_the_same_model(tmp_path):
    settings = {**SMALL, "training.rounds": 3}
    whole = same_bits.record_case(Case("whole", "run", settings), tmp_path / "whole")
    resumed = same_bits.record_case(Case("resumed", "run", settings, stop_after=1), tmp_path / "resumed")
    assert resumed["model"] == whole["model"]
    assert [one["event"] for one in resumed["files"]["events.jsonl"]].count("run_started") == 2


def test_a_heterogeneous_run_has_a_state_a_stage_and_is_the_same_after_a_stop(tmp_path):
    whole = same_bits.record_case(Case("whole", "hetero", TEACHING), tmp_path / "whole")
    resumed = same_bits.record_case(Case("resumed", "hetero", TEACHING, stop_after=4), tmp_path / "resumed")
    assert len(whole["states"]) == 1 + whole["result"]["stages"]
    assert resumed["states"][-1] == whole["states"][-1]


def test_a_refused_plan_is_recorded_by_its_refusal(tmp_path):
    settings = {**SMALL, **NOISES["sound"], "aggregation.masks": "none"}
    found = same_bits.record_case(Case("refused", "run", settings), tmp_path)
    assert set(found) == {"refused"}
    assert found["refused"].startswith("UnsoundPlanError: ")


def test_the_command_gives_the_model_of_the_library(tmp_path):
    case = next(one for one in all_cases() if one.name == "command/run")
    typed = same_bits.record_case(case, tmp_path / "typed")
    called = same_bits.record_case(Case("called", "run", SMALL), tmp_path / "called")
    assert typed["exit_code"] == 0
    assert typed["state"] == called["states"][-1]


def test_a_changed_bit_is_found_and_a_pattern_leaves_it_out(tmp_path, capsys):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps({"a": {"loss": 0.1, "rows": [1]}, "b": {"loss": 0.2}}))
    after.write_text(json.dumps({"a": {"loss": 0.10000000000000002, "rows": [1]}, "b": {"loss": 0.2}}))
    assert same_bits.main(["compare", str(before), str(after)]) == 1
    assert "a.loss: 0.1 -> 0.10000000000000002" in capsys.readouterr().out
    assert same_bits.main(["compare", str(before), str(after), "--leave-out", "*.loss"]) == 0
    assert same_bits.main(["compare", str(before), str(before)]) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), -torch.zeros(2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        ([b"a", b"b"], [b"ab"]),
        ({"a": 1}, {"a": 1.0}),
    ],
)
def test_values_that_differ_in_bits_shape_or_kind_have_different_digests(one, other):
    assert same_bits.digest(one) != same_bits.digest(other)


def test_every_plan_has_a_name_of_its_own():
    names = [case.name for case in [*all_cases(), *flare_cases()]]
    assert len(set(names)) == len(names)
