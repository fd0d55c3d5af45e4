"""Every mistake gets one clear message (what, where, what to do), exit code 2, no traceback, nothing overwritten."""

import subprocess
import sys
import time

import numpy as np
import pytest

from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.plan import load_plan
from bilateral.errors import ThresholdError
from bilateral.learning.training import Training
from bilateral.runs.rounds.in_process import run

QUICK = ("--rounds", 2, "--quiet")
HANG = 900.0
"""Seconds after which a command that should have ended hangs."""


def refused(outcome, *expected: str) -> None:
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert outcome.err.startswith("Error: ")
    assert outcome.err.count("\n") == 1
    text = " ".join(outcome.err.split())
    for words in expected:
        assert words in text, f"{words!r} not in {text!r}"


DATA = """
import torch
from bilateral.data import Dataset, Split

def good(inputs=None, labels=None):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return Dataset("mine", "classification", Split(x, y), Split(x[:10], y[:10]), 2)

def nan():
    d = good()
    d.train.inputs[3, 1] = float("nan")
    return d

def infinite():
    d = good()
    d.test.inputs[0, 0] = float("inf")
    return d

def labels_out_of_range():
    d = good()
    d.train.targets[5] = 7
    return d

def wrong_shape():
    d = good()
    return Dataset("mine", "classification", Split(d.train.inputs, d.train.targets[:-1]), d.test, 2)

def no_dataset():
    return 3

def parts_missing():
    return Dataset(train=good().train)

def failing():
    return open("no/such/file")

def lists():
    d = good()
    return Dataset("mine", "classification", Split(d.train.inputs, d.train.targets.tolist()), d.test, 2)
"""

NETS = """
from torch import nn

def unsupported(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(4, 6), nn.Bilinear(6, 6, 3), nn.Linear(3, num_outputs))

def attention(input_shape, num_outputs):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.InstanceNorm1d(4)
            self.head = nn.Linear(4, num_outputs)
        def forward(self, x):
            return self.head(self.inner(x))
    return Net()

def softmax_head(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(4, num_outputs), nn.Softmax(1))

def other_names(s, n):
    return nn.Linear(s[0], n)

def wrong_width(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, num_outputs))

def no_module(input_shape, num_outputs):
    return "a model"
"""


@pytest.fixture
def here(tmp_path):
    (tmp_path / "bad_data.py").write_text(DATA)
    (tmp_path / "bad_nets.py").write_text(NETS)
    yield tmp_path
    for name in ("bad_data", "bad_nets"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("nan", "NaN"),
        ("infinite", "Inf"),
        ("labels_out_of_range", "7"),
        ("wrong_shape", "39"),
        ("no_dataset", "Dataset"),
        ("failing", "FileNotFoundError"),
        ("lists", "torch tensor"),
        ("parts_missing", "Dataset was called without name, task, test, num_outputs. A Dataset needs"),
    ],
)
def test_bad_data_are_named(bilateral, here, function, expected):
    refused(bilateral("run", "--data", f"bad_data:{function}", "--model", "mlp-3", *QUICK), expected)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("unsupported", "Bilinear `1`"),
        ("attention", "InstanceNorm1d `inner`"),
        ("softmax_head", "but of Softmax `1`. End the model with nn.Linear"),
        ("other_names", "(s, n) with no arguments"),
        ("other_names", "The arguments are passed by name: input_shape, num_outputs"),
        ("wrong_width", "Linear `0`"),
        ("no_module", "nn.Module"),
    ],
)
def test_bad_models_are_named_with_their_layer(bilateral, here, function, expected):
    refused(bilateral("run", "--data", "bad_data:good", "--model", f"bad_nets:{function}", *QUICK), expected)


def test_an_empty_client_is_refused(bilateral, here):
    refused(bilateral("run", "--data", "bad_data:good", "--model", "mlp-3", "--clients", 500, *QUICK), "500")


def test_a_single_class_client_is_refused_with_a_remedy(bilateral):
    words = ("--set", "federation.partition=dirichlet", "--set", "federation.alpha=0.02", "--seed", 3)
    refused(bilateral("run", "--data", "breast-cancer", "--model", "mlp-3", *words, *QUICK), "only", "alpha")


def test_one_sample_with_batch_norm_is_refused(bilateral):
    words = ("--model", "convnet", "--set", "model.options={batch_norm = true}", "--set", "training.batch_size=1")
    refused(bilateral("run", *words, *QUICK), "client-1", "one sample", "GroupNorm")


def test_more_partitions_than_outputs_are_refused(bilateral):
    refused(bilateral("run", "--partitions", 12, *QUICK), "Expected partitions between 1 and 10", "got 12")


def test_a_missing_data_file_says_where_it_looked_and_how_to_get_it(bilateral, tmp_path):
    refused(bilateral("run", "--data", "cifar10", "--data-dir", tmp_path, *QUICK), "cifar", str(tmp_path.name))
    refused(bilateral("run", "--data", "bank-marketing", *QUICK), "BILATERAL_DATA", "bank-additional-full.csv")


def test_a_corrupt_data_file_is_named(bilateral, tmp_path):
    (tmp_path / "mnist.npz").write_bytes(b"nonsense")
    refused(bilateral("run", "--data", "mnist", "--data-dir", tmp_path, *QUICK), "mnist.npz")


def test_labels_out_of_range_in_a_file_are_named(bilateral, tmp_path):
    images, labels = np.zeros((4, 28, 28), np.uint8), np.array([0, 1, 2, 11])
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    refused(bilateral("run", "--data", "mnist", "--data-dir", tmp_path, *QUICK), "11")


def test_unknown_names_come_with_suggestions(bilateral):
    refused(bilateral("run", "--data", "digit", *QUICK), "digits")
    refused(bilateral("run", "--model", "resnet20", *QUICK), "resnet-20")
    refused(bilateral("bench", "recover"), "recovery")
    refused(bilateral("run", "--set", "training.round=2"), "training.round", "rounds")
    refused(bilateral("compare", "--protection", "nothing"), "perturbation-offset")


def test_a_loss_that_does_not_fit_the_data_is_refused(bilateral):
    refused(bilateral("run", "--data", "diabetes", "--model", "mlp-3", "--loss", "ce", *QUICK), "mse")


def test_a_corrupt_checkpoint_is_refused_and_left_alone(bilateral, tmp_path):
    bilateral("run", "--data", "wine", "--model", "mlp-3", "--output", "out", *QUICK)
    checkpoint = tmp_path / "out" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-9])
    before = checkpoint.read_bytes()
    refused(bilateral("run", "--resume", "out", "--quiet"), "checkpoint.safetensors")
    refused(bilateral("export", "out"), "checkpoint.safetensors")
    assert checkpoint.read_bytes() == before


def test_nothing_is_overwritten(bilateral, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    refused(bilateral("run", "--output", "out", *QUICK), "not empty")
    (tmp_path / "plan.toml").write_text("x")
    refused(bilateral("run", "--write-plan", "plan.toml"), "already exists")
    assert (tmp_path / "plan.toml").read_text() == "x"


@pytest.mark.parametrize(("name", "reader"), [("model.onnx", "onnxruntime"), ("model.pt2", "torch.export.load")])
def test_predict_says_that_it_does_not_read_what_is_for_other_programs(bilateral, tmp_path, name, reader):
    (tmp_path / name).write_bytes(b"anything")
    refused(bilateral("predict", name), reader, "--output model.safetensors")


def test_predicting_on_other_data_is_refused(bilateral):
    bilateral("run", "--data", "wine", "--model", "mlp-3", "--output", "out", *QUICK)
    bilateral("export", "out")
    refused(bilateral("predict", "model.safetensors", "--data", "breast-cancer"), "(13,)")


def test_ctrl_c_leaves_a_run_that_can_be_resumed(tmp_path):
    words = ["-m", "bilateral.cli.main", "run", "--data", "wine", "--model", "mlp-3", "--rounds", "10000000",
             "--set", "training.learning_rate=0.001", "--output", "out", "--quiet"]  # fmt: skip
    process = subprocess.Popen([sys.executable, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + HANG
    while not (tmp_path / "out" / "checkpoint.safetensors").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(2)
    _, err = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "--resume out" in err
    assert "Traceback" not in err
    stopped_at = int(err.split("Stopped after round ")[1].split(".")[0])
    assert load_checkpoint(tmp_path / "out" / "checkpoint.safetensors").next_round == stopped_at
    resumed = run(
        load_plan(tmp_path / "out" / "plan.toml"), output=tmp_path / "out", resume=True, should_stop=lambda: True
    )
    assert resumed.rounds == stopped_at + 1


def test_a_module_that_does_not_compile_is_named(bilateral, tmp_path):
    (tmp_path / "broken_module.py").write_text("def load(:")
    refused(bilateral("run", "--data", "broken_module:load", *QUICK), "broken_module", "SyntaxError")


def test_output_paths_are_checked_before_the_work(bilateral):
    refused(bilateral("run", "--write-plan", "nowhere/plan.toml"), "no folder nowhere")
    refused(bilateral("compare", "--output", "nowhere/rows.json"), "no folder nowhere")
    refused(bilateral("predict", "m.safetensors", "--output", "nowhere/p.csv"), "no folder nowhere")
    refused(bilateral("run", "--output", "/proc/nothing/here", *QUICK), "/proc")


def test_brackets_in_a_path_are_printed_as_they_are(bilateral):
    outcome = bilateral("run", "--data", "wine", "--model", "mlp-3", "--output", "out[/a]", *QUICK)
    assert outcome.code == 0
    assert "out[/a]" in outcome.out


def test_a_diverging_run_is_one_message(bilateral):
    words = ("--data", "wine", "--model", "mlp-3", "--set", "training.learning_rate=1e38", "--json")
    refused(bilateral("run", *words, "--rounds", 1, "--quiet"), "Lower the learning rate")


OWN_DATA = """
import torch
from torch.utils.data import TensorDataset
from bilateral import Dataset

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()

def tensor_dataset():
    return Dataset("mine", "classification", train=TensorDataset(X, Y), test=(X[:10].numpy(), Y[:10].numpy()),
                   num_outputs=2)

def text_for_a_number():
    return Dataset("mine", "classification", train=TensorDataset(X, Y), test=(X, Y), num_outputs="2")
"""


def test_torch_data_sets_and_arrays_train_as_they_are(bilateral, tmp_path):
    (tmp_path / "own_data.py").write_text(OWN_DATA)
    outcome = bilateral("run", "--data", "own_data:tensor_dataset", "--model", "mlp-3", "--json", *QUICK)
    sys.modules.pop("own_data", None)
    assert outcome.code == 0
    assert outcome.json["rounds"] == 2


def test_a_number_of_outputs_given_as_text_is_one_message(bilateral, tmp_path):
    (tmp_path / "own_data.py").write_text(OWN_DATA)
    outcome = bilateral("run", "--data", "own_data:text_for_a_number", "--model", "mlp-3", *QUICK)
    sys.modules.pop("own_data", None)
    refused(outcome, "num_outputs", "integer", "'2'")


ALL_FAIL = ("--data", "wine", "--model", "mlp-3", "--clients", 3, "--dropout", 0.95, "--rounds", 3, "--quiet")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_run_whose_every_round_failed_is_an_error(bilateral, words):
    outcome = bilateral("run", *ALL_FAIL, "--output", "out", *words)
    refused(outcome, "All 3 rounds failed", "the model is untrained", "the last one so:", "federation.dropout")
    if words:
        assert len(outcome.json["rounds_failed"]) == outcome.json["rounds"] == 3
    else:
        assert "rounds without enough clients" in outcome.out
    again = bilateral("run", "--resume", "out", "--quiet")
    refused(again, "All 3 rounds failed")


def test_an_untrained_model_is_not_exported(bilateral, tmp_path):
    bilateral("run", *ALL_FAIL, "--output", "out")
    refused(bilateral("export", "out"), "All 3 rounds failed in out, so its model is untrained; the last one so:")
    assert not (tmp_path / "model.safetensors").exists()


def test_an_export_looks_for_the_run_before_it_looks_at_the_output(bilateral, tmp_path):
    (tmp_path / "model.safetensors").touch()
    for output in ("model.safetensors", "no/such/folder.onnx"):
        refused(bilateral("export", "nothere", "--output", output), "nothere is not a run directory")


def test_inspect_says_which_shape_it_assumed_if_that_does_not_fit(bilateral, here):
    words = ("inspect", "bad_nets:wrong_width")
    outcome = bilateral(*words)
    refused(outcome, "Samples of shape 3,32,32 are assumed: give --input-shape if yours have another.")
    assert ".. " not in outcome.err
    assert "assumed" not in bilateral(*words, "--input-shape", "3,32,32").err
    assert bilateral(*words, "--input-shape", 5).code == 0


def test_a_run_with_one_good_round_is_none(bilateral):
    outcome = bilateral("run", *ALL_FAIL, "--dropout", 0.6, "--json")
    assert 0 < len(outcome.json["rounds_failed"]) < 3
    assert outcome.code == 0


def test_a_comparison_in_which_a_round_fails_is_an_error(bilateral, monkeypatch):
    def nobody(*_: object) -> None:
        raise ThresholdError("Nobody is left.", remedy="Try again.")

    monkeypatch.setattr(Training, "advance", nobody)
    refused(bilateral("compare", "--data", "wine", "--model", "mlp-3", "--clients", 2, *QUICK), "Nobody is left")
