from tests.engine.test_in_process import plan

from bilateral.engine.compare import compare


def test_protections_reach_fedavgs_metric_and_reordering_shows_what_rounding_does():
    rows = compare(plan(training__rounds=5))
    names = ["fedavg", "fedavg-reordered-1", "perturbation-activation", "perturbation-offset"]
    assert [row["protection"] for row in rows] == names
    assert rows[0]["weights_relative_difference"] == 0.0
    for row in rows[1:]:
        assert 0 < row["weights_relative_difference"] < 2e-6
        assert row["metric_value"] == rows[0]["metric_value"]


def test_bytes_follow_the_number_of_terms():
    rows = {row["protection"]: row for row in compare(plan(training__rounds=2, training__loss="mse"))}
    # one model down; up: 1 gradient (FedAvg), 3 terms (activation), 2 terms (offset)
    assert abs(rows["perturbation-activation"]["bytes_ratio"] - 4 / 2) < 0.05
    assert abs(rows["perturbation-offset"]["bytes_ratio"] - 3 / 2) < 0.05


def test_one_protection_can_be_picked_and_fedavg_is_always_there():
    rows = compare(plan(training__rounds=1), ["perturbation-offset"], num_controls=0)
    assert [row["protection"] for row in rows] == ["fedavg", "perturbation-offset"]
