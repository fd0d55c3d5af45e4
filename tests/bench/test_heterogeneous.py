"""The tables hold the promised cases, share what they train, and go on where they stopped; here on digits."""

import pytest

import bilateral.bench.heterogeneous as bench
from bilateral.bench import BENCHMARKS
from bilateral.errors import PlanError
from bilateral.runs.hetero.plan import HeteroPlan

SMALL = {
    **bench.WORKLOADS["cifar10"],
    "data.name": "digits",
    "data.shrink": 1,
    "data.samples_per_client": 16,
    "clients.number": 3,
    "clients.architectures": [{"name": "mlp-3", "options": {"width": 8}}],
    "training.epochs": 1,
    "retraining.epochs": 1,
    "queries.number": 20,
}


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "WORKLOADS", {"digits": SMALL})
    monkeypatch.setitem(bench.TABLES, "queries", ({"queries.pool": "private"}, {}, {"queries.number": 40}))
    return bench.HeteroTable("queries", "digits", None, tmp_path / "kept", (3,))


def _silent(done, total, note):
    assert 0 <= done <= total


def test_the_table_is_a_benchmark():
    assert BENCHMARKS["heterogeneous"] is bench.measure_heterogeneous


def test_every_table_on_every_workload_is_made_of_valid_plans():
    for data in bench.WORKLOADS:
        for table in bench.TABLES:
            plans = list(bench.HeteroTable(table, data, seeds=(1, 2)).plans())
            assert len({plan.digest() for plan in plans}) == len(plans) == 2 * len(bench.TABLES[table])
            assert all(isinstance(plan, HeteroPlan) and plan.answers == "plain" for plan in plans)
            assert all(plan.clients.number == 9 and len(plan.clients.architectures) == 3 for plan in plans)


def test_the_queries_table_is_that_of_the_paper_in_small():
    asked = [(p.queries.pool, p.queries.number) for p in bench.HeteroTable().plans()]
    assert [pool for pool, _ in asked] == ["private", "mixup", "mixup", "mixup"]
    assert [number for pool, number in asked if pool == "mixup"] == [2500, 5000, 10000]
    assert [p.queries.fraction for p in bench.HeteroTable("fraction").plans()] == [0.6, 0.8, 1.0]


def test_rows_start_with_the_models_that_trained_alone_and_state_the_gain(small):
    rows = bench.measure_heterogeneous(False, _silent, small)
    averages = [row for row in rows if row["architecture"] == "average"]
    assert [row["method"] for row in averages] == ["stand-alone", "private", "mixup", "mixup"]
    assert [row["queries"] for row in averages] == [0, 16, 20, 40]
    alone = averages[0]["accuracy_after"]
    for row in averages:
        assert row["accuracy_before"] == alone
        assert row["gain_points"] == pytest.approx(100 * (row["accuracy_after"] - alone))


def test_a_second_call_trains_nothing_again(small, monkeypatch):
    first = bench.measure_heterogeneous(False, _silent, small)

    def refuse(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr("bilateral.learning.hetero.client.fit", refuse)
    assert bench.measure_heterogeneous(False, _silent, small) == first


def test_a_table_that_was_stopped_goes_on_to_the_same_rows(small, monkeypatch, tmp_path):
    import bilateral.learning.hetero.client as client_module
    from bilateral.learning.hetero.fitting import fit

    calls = []

    def die_at_the_eighth(*arguments):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        fit(*arguments)

    monkeypatch.setattr(client_module, "fit", die_at_the_eighth)
    with pytest.raises(KeyboardInterrupt):
        bench.measure_heterogeneous(False, _silent, small)
    rows = bench.measure_heterogeneous(False, _silent, small)
    # 3 trainings and 3 x 3 retrainings; only the one that was interrupted is done again.
    assert len(calls) == 12 + 1
    whole = bench.HeteroTable("queries", "digits", None, tmp_path / "other", (3,))
    assert rows == bench.measure_heterogeneous(False, _silent, whole)


def test_unknown_tables_and_workloads_are_named():
    with pytest.raises(PlanError, match="no table 'x'"):
        list(bench.HeteroTable("x").plans())
    with pytest.raises(PlanError, match="no workload 'x'"):
        list(bench.HeteroTable("queries", "x").plans())


def test_what_a_kill_left_before_the_first_checkpoint_is_no_hindrance(small):
    plan = next(small.plans())
    for name in (f"alone-digits-{plan.training_digest()}", f"case-digits-{plan.digest()}"):
        (small.output / name).mkdir(parents=True)
        (small.output / name / "plan.toml").write_text("half a pl", encoding="utf-8")
    rows = bench.rows_of_case(plan, small, lambda _: None)
    assert [row["architecture"] for row in rows] == ["mlp-3", "average"]
