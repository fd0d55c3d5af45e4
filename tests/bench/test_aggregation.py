"""`bench aggregation` measures real rounds; here with short vectors."""

import pytest

import bilateral.bench.aggregation as aggregation_module


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(aggregation_module, "NUM_PARAMETERS", 200)


def test_rows_have_the_documented_keys_and_means_are_right_to_their_last_bits(short):
    seen = []
    rows = aggregation_module.measure_aggregation(True, lambda done, total, note: seen.append((done, total, note)))
    keys = {
        "clients", "graph", "parameters", "terms", "client_seconds", "server_seconds", "client_megabytes_up",
        "width", "upload_to_float32", "relative_error", "largest_error_to_largest", "ratio_to_raw_prg",
    }  # fmt: skip
    assert all(keys <= set(row) for row in rows)
    assert {(row["clients"], row["graph"]) for row in rows} == {(k, g) for k in (5, 20) for g in ("complete", "n-out")}
    assert all(row["relative_error"] < 2.0**-21 for row in rows)
    assert all(row["largest_error_to_largest"] < 2e-7 for row in rows)
    assert {row["width"] for row in rows} == {40, 64}
    assert any(row["dropped"] for row in rows)
    assert seen[-1][0] == seen[-1][1]


def test_a_wrong_sum_would_be_seen(short, monkeypatch):
    right = aggregation_module._uploads

    def other(names):
        uploads = right(names)
        first = names[0]
        return {**uploads, first: type(uploads[first])(0, 1, uploads[first].terms, uploads[first].statistics)}

    parties = aggregation_module.make_parties(5, aggregation_module.MaskSettings("complete"))
    names = sorted(parties.clients)
    shape = aggregation_module.Shape(aggregation_module.NUM_TERMS, 200)
    done = aggregation_module.one_round(0, parties, other(names).__getitem__, shape)
    errors = aggregation_module.errors_of_the_mean(done.total, aggregation_module.aggregate(right(names), 0))
    assert min(errors.values()) > 1e-3
