"""`bench growth` and `bench large-uploads` run real rounds; here small ones, beside what counting says of them."""

import pytest

from bilateral.bench import growth, large_uploads
from bilateral.bench.masked_rounds import Shape


@pytest.mark.parametrize("num_clients", [10, 40])
def test_counting_gives_the_bytes_that_were_sent(num_clients):
    row = growth.measure(num_clients, 2000)
    assert row["dropped"] == round(0.05 * num_clients)
    for way in ("up", "down"):
        assert row[f"client_megabytes_{way}"] == pytest.approx(row[f"counted_client_megabytes_{way}"], rel=0.05)
    assert row["relative_error"] < 3e-7
    assert row["client_milliseconds"] > 0 < row["server_seconds"]
    assert row["peak_megabytes"] >= row["peak_megabytes_parties"] >= row["peak_megabytes_before"] > 0


def test_a_masked_upload_costs_as_many_bytes_as_its_width_says_and_the_rest_grows_with_the_neighbours():
    few, many = (growth.counted(1000, chosen, 50, Shape(1, 10**6), 40) for chosen in (10, 20))
    assert few.client_bytes_up == pytest.approx(5e6, rel=0.01)
    assert many.client_streams - few.client_streams == pytest.approx(20, rel=0.05)
    assert many.client_bytes_up > few.client_bytes_up
    assert few.client_verifications == 950


def test_rows_for_every_number_of_clients(monkeypatch):
    monkeypatch.setattr(growth, "QUICK_CLIENTS", (3, 5))
    monkeypatch.setattr(growth, "NUM_PARAMETERS", 5000)
    seen = []
    rows = growth.measure_growth(True, lambda done, total, note: seen.append((done, total, note)))
    assert [row["clients"] for row in rows] == [3, 5]
    assert seen[-1] == (2, 2, "done")


def test_a_round_of_a_network_in_every_width_is_right_and_as_long_as_it_says():
    rows = [large_uploads.measure("resnet-8", 3, width) for width in (64, "auto", 48)]
    assert [row["width"] for row in rows] == [64, 40, 48]
    for row in rows:
        assert row["upload_to_float32"] == pytest.approx(row["width"] / 32, rel=0.01)
        assert row["error_to_uploads"] < 1e-7
        assert row["largest_error_to_largest"] < 2.5e-7  # two steps of a float32, which clients draw


def test_widths_are_measured_in_processes_of_their_own(monkeypatch):
    monkeypatch.setattr(large_uploads, "SETTINGS", ("auto",))
    rows = large_uploads.measure_large_uploads(True, lambda *_: None)
    assert [(row["model"], row["clients"], row["width"]) for row in rows] == [("resnet-8", 5, 40)]
