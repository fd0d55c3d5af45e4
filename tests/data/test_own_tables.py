"""Tables, folders of pictures and Hugging Face datasets of a user's own."""

from __future__ import annotations

import csv
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from bilateral.data import load_dataset
from bilateral.data.dataset import LazySplit
from bilateral.errors import DataError, MissingDataError

ROWS = [
    {"age": "54", "sex": "f", "blood pressure": "120.5", "site": "a", "ill": "no", "score": "0.5"},
    {"age": "61", "sex": "m", "blood pressure": "140", "site": "b", "ill": "yes", "score": "1.5"},
    {"age": "45", "sex": "m", "blood pressure": "118", "site": "a", "ill": "no", "score": "2.5"},
] * 5
FEATURES = ["age", "blood pressure"]


def write_csv(path, rows=ROWS):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path.name


def load(tmp_path, name="csv", rows=ROWS, **options):
    kind = {"target": "ill", "classes": ["no", "yes"], "features": FEATURES, **options}
    return load_dataset(name, tmp_path, path=write_csv(tmp_path / "table.csv", rows), **kind)


def test_a_table_becomes_samples_by_what_the_plan_lists(tmp_path):
    dataset = load(
        tmp_path,
        features=["sex", "age"],
        categories={"sex": ["f", "m", "x"]},
        scale={"age": [54, 9]},
        test_path=write_csv(tmp_path / "test.csv", ROWS[:2]),
    )
    assert dataset.columns == ("sex=f", "sex=m", "sex=x", "age")
    assert dataset.class_names == ("no", "yes")
    assert dataset.train.inputs[1].tolist() == pytest.approx([0, 1, 0, (61 - 54) / 9])
    assert dataset.train.targets.tolist() == [0, 1, 0] * 5
    assert len(dataset.test) == 2


def test_a_fifth_is_held_out_of_each_class(tmp_path):
    dataset = load(tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (12, 3)
    assert dataset.test.targets.tolist().count(1) == 1
    whole = np.concatenate([dataset.train.inputs, dataset.test.inputs])
    assert sorted(map(tuple, whole)) == sorted((float(r["age"]), float(r["blood pressure"])) for r in ROWS)


def test_sites_regression_and_several_labels(tmp_path):
    assert load(tmp_path, site="site").train.sites.count("b") == 4
    values = load(tmp_path, target=["score"], task="regression", classes=None)
    assert values.train.targets.shape == (12, 1)
    rows = [{**row, "ill": str(i % 2), "well": "1"} for i, row in enumerate(ROWS)]
    labels = load(tmp_path, rows=rows, target=["ill", "well"], task="multi-label", classes=None)
    assert labels.num_outputs == 2
    assert labels.train.targets.unique().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("options", "said", "remedy"),
    [
        ({"target": "sick"}, "lacks the columns sick; it has age, sex", "case-sensitive"),
        ({"features": ["Age"]}, "lacks the columns Age", "case-sensitive"),
        ({"features": ["sex"]}, "Column sex of .* has 'f' in row 1, which is no number", "categories.sex"),
        (
            {"features": ["sex"], "categories": {"sex": ["m"]}},
            "'f' in row 1, which is not in categories.sex",
            "all sites",
        ),
        ({"classes": ["no", "maybe"]}, "'yes' in row 2, which is not in classes", "one order for all"),
        ({"classes": None}, "Column ill of .* has 'no' in row 1, which is no number", "category"),
        ({"target": "score", "classes": None}, "class numbers in column score .* got 0.5", "regression"),
        ({"scale": {"age": [1, 0]}}, r"scale.age to be \[center, spread\]", "Try"),
        ({"target": ["ill", "score"]}, "one target column for classes", "labels"),
        ({"task": "segmentation"}, "no maps of classes", "regression"),
        ({"size": 3}, "options of dataset .csv. among", "unknown option"),
    ],
)
def test_what_a_newcomer_gets_wrong_in_a_table_is_told_with_what_to_do(tmp_path, options, said, remedy):
    with pytest.raises(DataError, match=said) as caught:
        load(tmp_path, **options)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("gap", ["", "NA", "?", "nan"])
def test_missing_values_are_refused_by_row(tmp_path, gap):
    with pytest.raises(DataError, match=r"Column age of .* has no value in row 2"):
        load(tmp_path, rows=[ROWS[0], {**ROWS[1], "age": gap}, *ROWS[2:]])


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "begin with a line"), ("a,a\n1,2\n", "each once"), ("a,b\n", "to have rows"), ("a,b\n1,2\n3\n", "Line 3 of")],
)
def test_a_file_that_is_no_table_is_told(tmp_path, text, said):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        load_dataset("csv", tmp_path, path="t.csv", target="a")
    with pytest.raises(MissingDataError, match=r"none.csv"):
        load_dataset("csv", tmp_path, path="none.csv", target="a")


def test_parquet_is_the_same_table(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{**row, "age": int(row["age"]), "blood pressure": float(row["blood pressure"])} for row in ROWS]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "table.parquet")
    kind = {"target": "ill", "classes": ["no", "yes"], "features": FEATURES}
    found = load_dataset("parquet", tmp_path, path="table.parquet", **kind)
    same = load(tmp_path)
    assert torch.equal(found.train.inputs, same.train.inputs)
    assert torch.equal(found.test.targets, same.test.targets)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="corrupt"):
        load_dataset("parquet", tmp_path, path="broken.parquet", **kind)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="takes pyarrow") as caught:
        load_dataset("parquet", tmp_path, path="t.parquet", target="ill")
    assert "bilateral[data]" in caught.value.remedy


def pictures(root, classes=("cat", "dog"), count=5, size=(6, 8)):
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for picture in range(count):
            Image.new("RGB", size, (50 * number, picture, 255)).save(root / name / f"{picture}.png")


def test_a_folder_a_class_is_read_picture_by_picture(tmp_path):
    pictures(tmp_path / "mine")
    dataset = load_dataset("image-folder", tmp_path, path="mine")
    assert isinstance(dataset.train, LazySplit)
    assert dataset.class_names == ("cat", "dog")
    assert (len(dataset.train), len(dataset.test)) == (8, 2)
    assert sorted(dataset.test.targets.tolist()) == [0, 1]
    inputs, label = dataset.train.first
    assert inputs.shape == (3, 8, 6)
    assert inputs[2].unique().tolist() == [1.0]
    assert int(label) == 0
    grey = load_dataset("image-folder", tmp_path, path="mine", channels=1, size=[4, 5])
    assert grey.input_shape == (1, 4, 5)


def test_train_and_test_folders_and_listed_classes(tmp_path):
    pictures(tmp_path / "mine" / "train", ("dog",))
    pictures(tmp_path / "mine" / "test", ("dog", "bird"))
    dataset = load_dataset("image-folder", tmp_path, path="mine", classes=["bird", "cat", "dog"])
    assert dataset.train.targets.unique().tolist() == [2]
    assert dataset.test.targets.unique().tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "none"}, "folder of pictures at"),
        ({"classes": ["cat"]}, "folders that are no class: dog"),
        ({"classes": ["dogs", "cat", "dog"], "path": "mine/cat"}, "no pictures"),
        ({"size": [4]}, "size = "),
        ({"channels": 4}, "1 or 3 channels"),
    ],
)
def test_what_a_newcomer_gets_wrong_with_pictures_is_told(tmp_path, options, said):
    pictures(tmp_path / "mine")
    with pytest.raises(DataError, match=said) as caught:
        load_dataset("image-folder", tmp_path, **{"path": "mine", **options})
    assert caught.value.remedy


def test_a_picture_that_is_none_is_told_by_its_number(tmp_path):
    pictures(tmp_path / "mine")
    (tmp_path / "mine" / "cat" / "0.png").write_bytes(pickle.dumps("no picture"))
    with pytest.raises(DataError, match=r"Sample 0 of .* could not be read: UnidentifiedImageError"):
        dataset = load_dataset("image-folder", tmp_path, path="mine", seed=1)
        _ = dataset.train.inputs, dataset.test.inputs


def test_a_hugging_face_dataset_on_disk(tmp_path):
    library = pytest.importorskip("datasets")
    rows = {"tokens": [[1, 2, 3], [4], [5, 6, 7, 8, 9], [1], [2]], "label": [0, 1, 1, 0, 1]}
    library.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "texts"))
    kind = {"path": "texts", "inputs": "tokens", "target": "label"}
    dataset = load_dataset("hugging-face", tmp_path, **kind, length=4, num_outputs=2)
    assert isinstance(dataset.train, LazySplit)
    assert dataset.train.input_dtype == torch.int64
    everything = torch.cat([dataset.train.inputs, dataset.test.inputs]).tolist()
    assert sorted(everything) == [[1, 0, 0, 0], [1, 2, 3, 0], [2, 0, 0, 0], [4, 0, 0, 0], [5, 6, 7, 8]]
    with pytest.raises(DataError, match="lacks the columns text; it has tokens, label"):
        load_dataset("hugging-face", tmp_path, **{**kind, "inputs": "text"})
    with pytest.raises(DataError, match="does not say how many classes"):
        load_dataset("hugging-face", tmp_path, **kind)
    with pytest.raises(MissingDataError, match="none"):
        load_dataset("hugging-face", tmp_path, **{**kind, "path": "none"})


def test_hugging_face_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(DataError, match="not installed") as caught:
        load_dataset("hugging-face", tmp_path, path="x", inputs="a", target="b")
    assert "pip install datasets" in caught.value.remedy
