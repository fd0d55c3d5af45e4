import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.runs.rounds.test_in_process import plan
from torch import nn

from bilateral.errors import CheckpointError, PlanError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.export import perturbed_state
from bilateral.randomness import SeededRandomness
from bilateral.runs.rounds.export import export_run, load_exported
from bilateral.runs.rounds.in_process import run

CONVNET = {"data__name": "digits", "model__name": "convnet", "model__options": {"batch_norm": True}}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "run"
    return run(plan(**CONVNET, training__rounds=10, training__learning_rate=0.2), output=path, reference=False)


@pytest.fixture(scope="module")
def test_inputs():
    from bilateral.data import load_dataset

    return load_dataset("digits").test.inputs


def test_an_exported_model_predicts_exactly_and_has_other_parameters(finished_run, test_inputs, tmp_path):
    export_run(finished_run.output, tmp_path / "m.safetensors")
    exported = load_exported(tmp_path / "m.safetensors")
    with torch.no_grad():
        true, ours = finished_run.model.eval()(test_inputs), exported.model(test_inputs)
    assert torch.allclose(true, ours, rtol=1e-4, atol=1e-5)
    for (name, mine), theirs in zip(finished_run.model.named_parameters(), exported.model.parameters(), strict=True):
        if name != "head.bias":  # outputs are neither scaled nor moved
            assert not torch.allclose(mine, theirs, rtol=0.05), name


def test_two_exports_of_one_run_have_different_parameters(finished_run, tmp_path):
    models = []
    for name in ("a", "b"):
        export_run(finished_run.output, tmp_path / f"{name}.safetensors")
        models.append(load_exported(tmp_path / f"{name}.safetensors").model)
    first, second = (next(iter(m.parameters())) for m in models)
    assert not torch.allclose(first, second, rtol=0.05)


def test_an_exported_program_predicts_the_same_without_our_code(finished_run, test_inputs, tmp_path):
    export_run(finished_run.output, tmp_path / "m.pt2")
    with torch.no_grad():
        ours = torch.export.load(tmp_path / "m.pt2").module()(test_inputs)
        assert torch.allclose(finished_run.model.eval()(test_inputs), ours, rtol=1e-4, atol=1e-5)


def test_onnx_export_predicts_the_same_in_another_runtime(finished_run, test_inputs, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    export_run(finished_run.output, tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    (ours,) = session.run(None, {session.get_inputs()[0].name: test_inputs.numpy()})
    with torch.no_grad():
        true = finished_run.model.eval()(test_inputs).numpy()
    assert np.allclose(true, ours, rtol=1e-4, atol=1e-4)


def test_an_existing_file_is_not_overwritten(finished_run, tmp_path):
    target = tmp_path / "m.safetensors"
    target.write_text("mine")
    with pytest.raises(PlanError, match="already exists"):
        export_run(finished_run.output, target)
    assert target.read_text() == "mine"


def test_an_unknown_format_is_refused(finished_run, tmp_path):
    with pytest.raises(PlanError, match=r"\.onnx"):
        export_run(finished_run.output, tmp_path / "m.zip")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not a run directory"):
        export_run(tmp_path, tmp_path / "m.safetensors")


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_file_that_is_no_export_is_refused(tmp_path, content):
    path = tmp_path / "m.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"m\.safetensors"):
        load_exported(path)


def test_a_file_never_decides_what_code_runs(tmp_path):
    card = {
        "format": 1, "model": "os:system", "model_options": {"command": f"touch {tmp_path / 'owned'}"},
        "input_shape": [4], "num_outputs": 2, "dtype": "float32", "dataset": "wine", "dataset_options": {},
        "task": "classification", "loss": "ce", "class_names": [], "metrics": {},
    }  # fmt: skip
    save_file({"x": torch.zeros(1)}, tmp_path / "evil.safetensors", metadata={"bilateral": json.dumps(card)})
    with pytest.raises(CheckpointError, match="must not decide what code runs"):
        load_exported(tmp_path / "evil.safetensors")
    assert not (tmp_path / "owned").exists()


def test_a_users_own_model_loads_when_the_user_names_it(tmp_path):
    name = "tests.runs.rounds.test_in_process:own_model"
    run(plan(model__name=name, training__rounds=2), output=tmp_path / "run", reference=False)
    export_run(str(tmp_path / "run"), str(tmp_path / "m.safetensors"), model=name)
    with pytest.raises(CheckpointError, match="--model"):
        load_exported(tmp_path / "m.safetensors")
    assert load_exported(tmp_path / "m.safetensors", builder=name).card.num_outputs == 2


def test_a_run_whose_plan_was_edited_is_not_exported(finished_run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(finished_run.output, copied)
    text = (copied / "plan.toml").read_text()
    (copied / "plan.toml").write_text(text.replace("learning_rate = 0.2", "learning_rate = 0.3"))
    with pytest.raises(CheckpointError, match="another plan"):
        export_run(copied, tmp_path / "m.safetensors")


def layer_normed(input_shape, num_outputs):
    return nn.Sequential(
        nn.Linear(input_shape[0], 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.GroupNorm(2, 8),
        nn.ReLU(), nn.Linear(8, num_outputs),
    )  # fmt: skip


def test_exports_with_layer_and_group_norm_are_exact_too():
    torch.manual_seed(0)
    model = layer_normed((5,), 3).double().eval()
    with torch.no_grad():
        model[0].weight.mul_(1e-3)  # eps matters
    graph = ScaleGraph.of(model, torch.zeros(2, 5))
    inputs = torch.randn(10, 5, dtype=torch.float64)
    true = model(inputs)
    model.load_state_dict(perturbed_state(model, graph, SeededRandomness(0)))
    assert torch.allclose(model(inputs), true, rtol=1e-12, atol=1e-12)
