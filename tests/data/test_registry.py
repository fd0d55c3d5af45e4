"""Loading by name: embedded sets, a user's own function, and every way to get the name or options wrong."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from bilateral.data import Dataset, Split, dataset_names, load_dataset
from bilateral.errors import DataError, MissingDataError

FILE_BASED = [
    "bank-marketing",
    "heart-disease",
    "cifar10",
    "cifar100",
    "svhn",
    "mnist",
    "ham10000",
    "breakhis",
    "aptos",
]


def toy(name="toy", **changes) -> Dataset:
    split = Split(torch.zeros(2, 3), torch.tensor([0, 1]))
    return Dataset(name, "classification", split, split, num_outputs=2, **changes)


@pytest.fixture
def user_module(monkeypatch):
    module = types.ModuleType("users_own_data")
    monkeypatch.setitem(sys.modules, "users_own_data", module)
    return module


@pytest.mark.parametrize(
    ("name", "kind", "num_samples"),
    [
        ("digits", ("classification", (1, 8, 8), 10), 1797),
        ("breast-cancer", ("classification", (30,), 2), 569),
        ("wine", ("classification", (13,), 3), 178),
        ("diabetes", ("regression", (10,), 1), 442),
    ],
)
def test_embedded_sets_load_without_any_directory(no_data_variable, name, kind, num_samples):
    dataset = load_dataset(name)
    assert dataset.name == name
    assert (dataset.task, dataset.input_shape, dataset.num_outputs) == kind
    assert len(dataset.train) + len(dataset.test) == num_samples
    assert len(dataset.test) == round(0.2 * num_samples)
    assert dataset.train.inputs.mean().abs() < 1e-4
    again = load_dataset(name)
    assert torch.equal(again.train.inputs, dataset.train.inputs)
    assert not torch.equal(load_dataset(name, seed=1).train.inputs, dataset.train.inputs)


def test_flat_digits_are_the_same_pixels_as_vectors():
    assert torch.equal(load_dataset("digits", flat=True).train.inputs, load_dataset("digits").train.inputs.flatten(1))


def test_diabetes_target_is_standardised_by_the_train_split():
    targets = load_dataset("diabetes").train.targets
    assert targets.mean().abs() < 1e-6
    assert abs(float(targets.std(correction=0)) - 1) < 1e-5


OWN_FILES = ("npz", "csv", "parquet", "image-folder", "hugging-face")


def test_all_names_are_listed():
    in_scikit_learn = {"digits", "digit-pairs", "breast-cancer", "diabetes", "wine"}
    assert set(dataset_names()) == {*in_scikit_learn, *OWN_FILES, *FILE_BASED}


def test_an_unknown_name_is_answered_with_the_known_ones_and_the_closest():
    with pytest.raises(DataError, match=r'digits, .*aptos, got "breast_cancr"\. Did you mean "breast-cancer"\?'):
        load_dataset("breast_cancr")


def test_an_unknown_option_is_answered_with_the_accepted_ones():
    with pytest.raises(DataError, match=r'"digits" among: flat, normalise, seed; got flatten'):
        load_dataset("digits", flatten=True)
    with pytest.raises(DataError, match=r"among: normalise, num_test, num_train, seed, shrink, task; got size"):
        load_dataset("cifar10", size=3)


@pytest.mark.parametrize("name", FILE_BASED)
def test_without_a_directory_the_error_says_what_to_get_and_how_to_point_to_it(no_data_variable, name):
    with pytest.raises(MissingDataError, match=r"no data directory.*Get them from .*--data-dir.*BILATERAL_DATA"):
        load_dataset(name)


@pytest.mark.parametrize("name", FILE_BASED)
def test_in_an_empty_directory_the_error_says_where_it_looked(tmp_path, name):
    with pytest.raises(MissingDataError) as refusal:
        load_dataset(name, tmp_path)
    assert f"looked in {tmp_path}" in str(refusal.value)


def test_a_directory_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(MissingDataError, match="nowhere is not a directory"):
        load_dataset("mnist", tmp_path / "nowhere")


def test_the_error_for_bank_marketing_names_files_and_source(tmp_path):
    with pytest.raises(MissingDataError, match=r"bank-additional-full\.csv.*UCI Machine Learning Repository, Bank"):
        load_dataset("bank-marketing", tmp_path)


def test_the_environment_variable_is_the_fallback_and_the_argument_wins(monkeypatch, tmp_path):
    monkeypatch.setenv("BILATERAL_DATA", str(tmp_path / "from-variable"))
    with pytest.raises(MissingDataError, match="from-variable is not a directory"):
        load_dataset("mnist")
    with pytest.raises(MissingDataError, match="from-argument is not a directory"):
        load_dataset("mnist", tmp_path / "from-argument")


def test_a_users_function_gets_options_and_the_directory_if_it_takes_it(user_module, tmp_path):
    user_module.with_dir = lambda data_dir, site: toy(f"{site} in {data_dir.name}")
    user_module.without_dir = lambda site="north": toy(site)
    user_module.with_any = lambda **options: toy(",".join(sorted(options)))
    assert load_dataset("users_own_data:with_dir", tmp_path, site="south").name == f"south in {tmp_path.name}"
    assert load_dataset("users_own_data:without_dir", tmp_path).name == "north"
    assert load_dataset("users_own_data:with_any", tmp_path, depth=3).name == "data_dir,depth"


def test_a_users_function_is_held_to_the_same_promises(user_module):
    user_module.no_dataset = lambda: [1, 2, 3]
    user_module.bad_names = lambda: toy(class_names=("one",))
    user_module.constant = 3
    user_module.picky = lambda site: toy(name=site)
    with pytest.raises(DataError, match=r'"users_own_data:no_dataset" to return a bilateral.data.Dataset, got list'):
        load_dataset("users_own_data:no_dataset")
    with pytest.raises(DataError, match="Expected 2 class names"):
        load_dataset("users_own_data:bad_names")
    with pytest.raises(DataError, match=r"Expected a function.*found int"):
        load_dataset("users_own_data:constant")
    with pytest.raises(DataError, match="among: site; got place"):
        load_dataset("users_own_data:picky", place="x")
    with pytest.raises(DataError, match="needs the options site"):
        load_dataset("users_own_data:picky")


@pytest.mark.parametrize("name", [":load", "..x:load", "module:", "a/b.py:load", "module:load:twice"])
def test_a_malformed_path_to_a_function_is_refused(name):
    with pytest.raises(DataError, match=r"`package\.module:function`, got"):
        load_dataset(name)


def test_a_users_function_that_is_not_there_is_an_error_of_data(user_module):
    with pytest.raises(DataError, match=r"No module named 'no_such_module_at_all'.*PYTHONPATH"):
        load_dataset("no_such_module_at_all:load")
    with pytest.raises(DataError, match="found nothing"):
        load_dataset("users_own_data:absent")
