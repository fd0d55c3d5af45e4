"""Rows do what they say: each kind of work on something tiny, with the names under which its figures are found."""

from __future__ import annotations

import pytest

from bilateral.errors import NumericalRangeError
from bilateral.reproduce.store import Store
from bilateral.reproduce.tables import Around, Measured, Picture, Row
from bilateral.reproduce.tasks import training
from bilateral.reproduce.tasks.attacks import Attacks
from bilateral.reproduce.tasks.costs import Costs
from bilateral.reproduce.tasks.steps import Steps
from bilateral.reproduce.tasks.teaching import CONTROL, STAND_ALONE, Teaching
from bilateral.reproduce.tasks.training import BASE, Training

TINY = {
    "data.name": "wine",
    "model.name": "mlp-3",
    "model.options": {"width": 4},
    "federation.clients": 2,
    "training.rounds": 2,
    "training.evaluate_every": 1,
}


@pytest.fixture
def around(tmp_path):
    return Around(None, tmp_path)


def test_a_training_has_every_lane_on_every_seed_beside_fedsgd(around):
    stacks = {"wide": {"protection": "masks", "aggregation.width": 32}}
    found = Training(TINY, ("perturbation+masks",), (1, 2), stacks).run(around)
    for lane in (BASE, training.CONTROL, "perturbation+masks", "wide"):
        assert len(found.values[f"{lane}/test_accuracy"]) == 2
        assert [rounds for rounds, _ in found.curves[lane]] == [1, 2]
    assert found.values[f"{BASE}/seconds_ratio"] == [1.0, 1.0]


def test_a_lane_that_diverges_costs_no_other_lane_its_figures(around, monkeypatch):
    real = training.compare

    def breaking(plan, lanes, **options):
        if "ppdl" in lanes:
            raise NumericalRangeError("not finite")
        return real(plan, lanes, **options)

    monkeypatch.setattr(training, "compare", breaking)
    found = Training(TINY, ("ppdl", "spn"), (1,)).run(around)
    assert found.values["ppdl/test_accuracy"] == [None]
    assert found.words["ppdl/test_accuracy"] == "diverged"
    assert found.values["spn/test_accuracy"][0] is not None


def test_an_experiment_that_nobody_has_registered_is_left_out_and_said(around):
    found = Attacks(TINY, ("comes-later",)).run(around)
    assert found.words == {"comes-later": "not among the experiments here"}
    assert found.values == {}


def test_an_audit_is_kept_naive_and_adaptive_apart_with_controls_and_its_word(around):
    settings = {**TINY, "data.name": "digits", "protection": "fedavg", "aggregation.masks": "none"}
    found = Attacks(settings, ("gradient-inversion",)).run(around)
    key = "gradient-inversion/adaptive/PSNR dB"
    assert found.values[f"{key}/positive"] == found.values[key]  # FedSGD is its own control
    assert found.values[f"{key}/negative"][0] < found.values[key][0]
    assert found.words[key].endswith(": broken")


def test_a_step_is_taken_to_pieces_that_add_up(around):
    values = Steps("resnet-8", 8, 2, 1).run(around).values
    for lane in ("fedavg", "perturbation"):
        parts = [values[f"{lane}/client {part}"][0] for part in ("forward", "backward", "total")]
        assert parts[0] + parts[1] == pytest.approx(parts[2])
    assert values["perturbation/up"][0] > 2 * values["fedavg/up"][0]


def test_an_epoch_is_relative_to_fedsgds_and_plain_fedsgd_is_one(around):
    values = Costs("resnet-8", 5, 4, 8, 1, baselines=False).run(around).values
    assert values["fedavg/epoch_ratio"] == [pytest.approx(1.0)]
    total = values["perturbation+masks/client_seconds"][0] + values["perturbation+masks/server_seconds"][0]
    assert values["perturbation+masks/seconds_per_epoch"] == [pytest.approx(total)]


def test_cases_of_teaching_start_from_the_same_models(around):
    settings = {
        "data.samples_per_client": 16,
        "clients.number": 3,
        "clients.architectures": [{"name": "mlp-3", "options": {"width": 8}}],
        "training.epochs": 1,
        "queries.number": 12,
        "retraining.epochs": 1,
        "retraining.max_steps": 2,
    }
    cases = {CONTROL: {"retraining.from_answers": False}, "mixup": {}}
    values = Teaching(settings, cases, (1, 2)).run(around).values
    assert {name: len(each) for name, each in values.items() if name.endswith("average")} == {
        f"{name}/average": 2 for name in (STAND_ALONE, CONTROL, "mixup")
    }


def test_a_row_is_recognised_by_all_that_decides_it_and_reads_as_it_was_written(tmp_path):
    row = Row("a row", Training(TINY, ("masks",)))
    assert row.digest == Row("another name", Training(dict(TINY), ("masks",))).digest
    assert row.digest != Row("a row", Training({**TINY, "training.rounds": 3}, ("masks",))).digest
    assert row.digest != Row("a row", Attacks(TINY, ("masks",))).digest
    measured = Measured({"a/b": [1.5, None]}, {"a": [(1.0, 2.0)]}, {"a/b": "diverged"}, (Picture("one", b"\x89PNG"),))
    store = Store(tmp_path)
    store.put(row, measured, 3.0)
    done = store.get(row)
    assert done is not None
    assert (done.measured, done.seconds) == (measured, 3.0)
    assert done.measured.pictures[0].png == b"\x89PNG"
