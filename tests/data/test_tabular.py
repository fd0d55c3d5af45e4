"""Bank Marketing and heart disease, from small files in their published form."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from bilateral.data import load_dataset, partition
from bilateral.errors import DataError, MissingDataError
from bilateral.randomness import SeededRandomness

ADDITIONAL_HEADER = (
    '"age";"job";"marital";"education";"default";"housing";"loan";"contact";"month";"day_of_week";"duration";'
    '"campaign";"pdays";"previous";"poutcome";"emp.var.rate";"cons.price.idx";"cons.conf.idx";"euribor3m";'
    '"nr.employed";"y"'
)
FULL_HEADER = (
    '"age";"job";"marital";"education";"default";"balance";"housing";"loan";"contact";"day";"month";"duration";'
    '"campaign";"pdays";"previous";"poutcome";"y"'
)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def additional_row(age, duration, job="admin.", answer="no"):
    return (
        f'{age};"{job}";"single";"unknown";"no";"no";"no";"cellular";"may";"mon";{duration};1;999;0;'
        f'"nonexistent";1.1;93.994;-36.4;4.857;5191;"{answer}"'
    )


def full_row(age, balance, answer="no"):
    return (
        f'{age};"admin.";"single";"unknown";"no";{balance};"no";"no";"cellular";5;"may";90;1;-1;0;"unknown";"{answer}"'
    )


def write(path, *lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def twenty_customers():
    """Ages 30 to 49, two jobs by turns, durations 10 times the age; every fifth says yes."""
    return [
        additional_row(30 + i, 10 * (30 + i), job="admin." if i % 2 else "retired", answer="no" if i % 5 else "yes")
        for i in range(20)
    ]


@pytest.fixture
def bank(tmp_path):
    write(tmp_path / "bank-additional-full.csv", ADDITIONAL_HEADER, *twenty_customers())
    return tmp_path


def heart_row(age, chol="200", thal="3.0", num=0):
    return f"{age},1.0,1.0,145.0,{chol},1.0,2.0,150.0,0.0,2.3,3.0,0.0,{thal},{num}"


@pytest.fixture
def heart(tmp_path):
    """Ten patients a hospital; cholesterol unknown in va, a thallium test for none but cleveland."""
    for place, hospital in enumerate(HOSPITALS):
        rows = [
            heart_row(
                40 + 10 * place + i,
                chol="?" if hospital == "va" else str(200 + i),
                thal="3.0" if hospital == "cleveland" else "?",
                num=i % 4,
            )
            for i in range(10)
        ]
        write(tmp_path / "heart_disease_4sites" / f"processed.{hospital}.data", *rows)
    return tmp_path


def test_bank_columns_are_standardised_numbers_then_one_hot_categories(bank):
    dataset = load_dataset("bank-marketing", bank)
    assert (dataset.task, dataset.num_outputs) == ("regression", 1)
    assert (len(dataset.train), len(dataset.test)) == (16, 4)
    # 9 numbers without duration; 2 jobs and one category of each of the 9 other columns.
    assert dataset.input_shape == (9 + 2 + 9,)
    age = dataset.train.inputs[:, 0]
    assert age.mean().abs() < 1e-6
    assert abs(float(age.std(correction=0)) - 1) < 1e-5
    constant_numbers = dataset.train.inputs[:, 1:9]
    assert constant_numbers.abs().max() == 0
    jobs = dataset.train.inputs[:, 9:11]
    assert torch.equal(jobs.sum(1), torch.ones(16))
    assert torch.equal(dataset.train.inputs[:, 11:], torch.ones(16, 9))


def test_bank_rows_stay_with_their_answers(bank):
    dataset = load_dataset("bank-marketing", bank)
    inputs = torch.cat([dataset.train.inputs, dataset.test.inputs])
    targets = torch.cat([dataset.train.targets, dataset.test.targets])
    by_age = inputs[:, 0].argsort()
    assert targets[by_age].flatten().tolist() == [float(i % 5 == 0) for i in range(20)]
    assert inputs[by_age][:, 9].tolist() == [float(i % 2) for i in range(20)]


def test_bank_duration_is_left_out_unless_asked_for(bank):
    without = load_dataset("bank-marketing", bank)
    with_it = load_dataset("bank-marketing", bank, with_duration=True)
    assert with_it.input_shape[0] == without.input_shape[0] + 1
    age, duration = with_it.train.inputs[:, 0], with_it.train.inputs[:, 1]
    assert torch.allclose(age, duration, atol=1e-6)


def test_bank_as_classification_has_two_named_classes(bank):
    dataset = load_dataset("bank-marketing", bank, task="classification", num_train=5, num_test=2)
    assert (dataset.num_outputs, dataset.class_names) == (2, ("no", "yes"))
    assert (len(dataset.train), len(dataset.test)) == (5, 2)
    with pytest.raises(DataError, match='classification or regression, got "ranking"'):
        load_dataset("bank-marketing", bank, task="ranking")


@pytest.mark.parametrize("folder", ["", "bank"])
def test_the_older_bank_file_is_read_with_its_own_columns(tmp_path, folder):
    rows = [full_row(30 + i, 100 * i, "yes" if i % 2 else "no") for i in range(10)]
    write(tmp_path / folder / "bank-full.csv", FULL_HEADER, *rows)
    dataset = load_dataset("bank-marketing", tmp_path, with_duration=True)
    assert dataset.input_shape == (7 + 9,)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([ADDITIONAL_HEADER, additional_row(30, 1), additional_row(31, 1)[:40]], "line 3 has .* expected 21"),
        ([ADDITIONAL_HEADER, additional_row("old", 1)], "column age: .*'old'"),
        (
            [ADDITIONAL_HEADER, additional_row(30, 1), additional_row("nan", 1)],
            "age: 1 values are NaN.*row 1",
        ),
        ([ADDITIONAL_HEADER, additional_row(30, 1, answer="maybe")], r"\['maybe'\] instead of yes or no"),
        ([ADDITIONAL_HEADER], "no rows"),
        ([], "no rows|columns missing"),
        ([FULL_HEADER, full_row(30, 1)], r"columns missing: \['cons.conf.idx'.*unknown: \['balance'"),
    ],
)
def test_a_damaged_bank_file_is_named_with_the_remedy(tmp_path, lines, message):
    path = write(tmp_path / "bank-additional-full.csv", *lines)
    with pytest.raises(DataError, match=message) as refusal:
        load_dataset("bank-marketing", tmp_path)
    assert str(path) in str(refusal.value)
    assert "Get it again from the UCI" in refusal.value.remedy


def test_a_binary_file_with_the_banks_name_is_refused(tmp_path):
    (tmp_path / "bank-full.csv").write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="corrupt, truncated or of another format"):
        load_dataset("bank-marketing", tmp_path)


def test_heart_disease_is_a_federation_of_four_hospitals(heart):
    dataset = load_dataset("heart-disease", heart)
    assert (dataset.task, dataset.num_outputs) == ("classification", 2)
    assert (len(dataset.train), len(dataset.test)) == (32, 8)
    shares = partition(dataset.train, "site", None, SeededRandomness(0))
    assert [share.name for share in shares] == list(HOSPITALS)
    assert set(dataset.test.sites) == set(HOSPITALS)
    # The hospitals' ages do not overlap, so age tells whether rows stayed with their sites.
    ages = [dataset.train.inputs[share.indices, 0] for share in shares]
    assert all(young.max() < old.min() for young, old in pairwise(ages))


def test_heart_target_is_whether_the_grade_is_above_zero(heart):
    dataset = load_dataset("heart-disease", heart)
    age = torch.cat([dataset.train.inputs[:, 0], dataset.test.inputs[:, 0]])
    targets = torch.cat([dataset.train.targets, dataset.test.targets])
    assert targets[age.argsort()].tolist() == [int(i % 4 > 0) for _ in HOSPITALS for i in range(10)]


def test_missing_values_become_the_train_median_and_are_indicated(heart):
    dataset = load_dataset("heart-disease", heart)
    # 13 measurements, then an indicator for each of the two columns with gaps (chol, thal).
    assert dataset.input_shape == (15,)
    in_va = torch.tensor([site == "va" for site in dataset.train.sites])
    chol, no_chol, no_thal = (dataset.train.inputs[:, column] for column in (4, 13, 14))
    assert torch.equal(no_chol, in_va.float())
    assert no_thal.tolist() == [float(site != "cleveland") for site in dataset.train.sites]
    filled = chol[in_va].unique()
    assert len(filled) == 1
    assert np.isclose(float(filled), np.median(chol[~in_va].numpy()), atol=1e-5)


def test_heart_files_straight_in_the_directory_give_the_same(heart):
    nested = load_dataset("heart-disease", heart)
    for path in (heart / "heart_disease_4sites").iterdir():
        path.rename(heart / path.name)
    assert torch.equal(load_dataset("heart-disease", heart).train.inputs, nested.train.inputs)


def test_a_column_of_nothing_but_gaps_is_filled_with_zero(tmp_path):
    for hospital in HOSPITALS:
        rows = [heart_row(40 + i, chol="?", num=i % 2) for i in range(5)]
        write(tmp_path / f"processed.{hospital}.data", *rows)
    assert load_dataset("heart-disease", tmp_path).train.inputs[:, 4].abs().max() == 0


def test_a_missing_hospital_is_named(heart):
    (heart / "heart_disease_4sites" / "processed.va.data").unlink()
    with pytest.raises(MissingDataError, match=r"missing: processed\.va\.data.*UCI"):
        load_dataset("heart-disease", heart)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (heart_row(63, num="?"), "without a diagnosis"),
        (heart_row("inf"), "column age: 1 values are NaN or Inf"),
        (heart_row(63, chol="high"), "column chol"),
        (heart_row(63)[:30], "line 1 has .* expected 14"),
    ],
)
def test_a_damaged_hospital_file_is_named(heart, row, message):
    write(heart / "heart_disease_4sites" / "processed.va.data", row)
    with pytest.raises(DataError, match=message) as refusal:
        load_dataset("heart-disease", heart)
    assert "processed.va.data" in str(refusal.value)
