import pytest
from tests.runs.rounds.test_in_process import plan

from bilateral.errors import UnsoundPlanError
from bilateral.runs.rounds.compare import PROTECTIONS, compare


def test_protections_reach_fedavgs_metric_and_reordering_shows_what_rounding_does():
    rows = compare(plan(training__rounds=5))
    assert [row["protection"] for row in rows] == ["fedavg", "fedavg-reordered-1", *PROTECTIONS]
    assert rows[0]["weights_relative_difference"] == 0.0
    for row in rows[1:]:
        assert row["weights_relative_difference"] < 2e-6
        assert row["metric_value"] == rows[0]["metric_value"]


def test_bytes_follow_the_number_of_terms():
    rows = {
        row["protection"]: row
        for row in compare(plan(training__rounds=3, training__loss="mse", model__options={"width": 200}))
    }
    # one model down; up: 1 gradient (FedSGD), 3 terms (activation), 2 terms (offset)
    assert abs(rows["perturbation-activation"]["bytes_ratio"] - 4 / 2) < 0.05
    assert abs(rows["perturbation-offset"]["bytes_ratio"] - 3 / 2) < 0.05
    # ring elements and masked floats have 8 bytes; shares of seeds and signatures are small beside a model
    assert abs(rows["masks"]["bytes_ratio"] - 3 / 2) < 0.2
    assert abs(rows["float-masks"]["bytes_ratio"] - 3 / 2) < 0.2


def test_masks_alone_change_a_training_less_than_rounding_does():
    rows = {row["protection"]: row for row in compare(plan(training__rounds=5), ["masks"])}
    assert rows["masks"]["weights_relative_difference"] < rows["fedavg-reordered-1"]["weights_relative_difference"]


def test_with_one_client_masks_are_left_out_and_refused_by_name():
    alone = plan(training__rounds=1, federation__clients=1)
    assert [row["protection"] for row in compare(alone, num_controls=0)][1:] == [
        "perturbation-activation",
        "perturbation-offset",
    ]
    with pytest.raises(UnsoundPlanError, match="masks over a single client"):
        compare(alone, ["masks"])


def test_one_protection_can_be_picked_and_fedavg_is_always_there():
    rows = compare(plan(training__rounds=1), ["perturbation-offset"], num_controls=0)
    assert [row["protection"] for row in rows] == ["fedavg", "perturbation-offset"]
