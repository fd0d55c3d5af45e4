"""Whatever a public function is given, it answers, or refuses with an error of this package that names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

import bilateral
from bilateral.arguments import checked, fits
from bilateral.errors import ArgumentError, BilateralError, PlanError
from bilateral.randomness import SeededRandomness

NET = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
INPUTS = torch.ones(5, 4)
GRAPH = bilateral.ScaleGraph.of(NET, INPUTS)
RANDOMNESS = SeededRandomness(0, "arguments")
IDENTITY = bilateral.Identity.generate(RANDOMNESS)
PINNED = {"b": IDENTITY.public_bytes}
RING = bilateral.KeyRing("a", b"r" * 16, IDENTITY, PINNED, RANDOMNESS)
COHORT = bilateral.Cohort({"a": IDENTITY.public_bytes, "b": bilateral.Identity.generate(RANDOMNESS).public_bytes})
PERTURBATION, MASKS = bilateral.PerturbationSettings(), bilateral.MaskSettings()
PLAN = bilateral.RunPlan().with_settings(
    {"training.rounds": 1, "data.name": "wine", "model.name": "mlp-3", "federation.clients": 2}
)
HETERO = bilateral.HeteroPlan().with_settings({"training.epochs": 1, "data.samples_per_client": 10})


def _positional(function: Callable[..., object], **arguments: object) -> object:
    return function(*arguments.values())


def _build_model(name: object, **others: Any) -> object:
    return bilateral.build_model(name, **others)  # type: ignore[arg-type]  # a model's options may be called name


CALLS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "PerturbationSettings": (
        bilateral.PerturbationSettings,
        {"loss": "ce", "noise": "activation", "num_partitions": 1, "scale_range": (0.25, 4.0), "noise_ratio": 1.0},
    ),
    "MaskSettings": (
        bilateral.MaskSettings,
        {"graph": "auto", "num_neighbours": None, "threshold": 2 / 3, "initial_bound_bits": 20, "min_in_sum": None},
    ),
    "inspect": (bilateral.inspect, {"model": NET, "example_input": INPUTS}),
    "ScaleGraph.of": (bilateral.ScaleGraph.of, {"model": NET, "example_input": INPUTS}),
    "build_model": (
        _build_model,
        {"name": "mlp-3", "input_shape": (4,), "num_outputs": 2, "seed": 0},
    ),
    "spent": (
        bilateral.spent,
        {"noise_multiplier": 1.0, "sampling_rate": 0.1, "num_rounds": 3, "delta": 1e-5, "accountant": "rdp"},
    ),
    "noise_for": (
        bilateral.noise_for,
        {
            "target_epsilon": 4.0,
            "delta": 1e-5,
            "sampling_rate": 0.1,
            "num_rounds": 3,
            "accountant": "rdp",
            "tolerance": 0.5,
        },
    ),
    "aggregate": (bilateral.aggregate, {"uploads": {}, "round_index": 0}),
    "PerturbClient": (
        bilateral.PerturbClient,
        {"name": "a", "model": NET, "graph": GRAPH, "settings": PERTURBATION, "randomness": RANDOMNESS},
    ),
    "PerturbServer": (
        bilateral.PerturbServer,
        {"model": NET, "graph": GRAPH, "settings": PERTURBATION, "calibration_inputs": INPUTS},
    ),
    "Identity": (bilateral.Identity, {"private_key": None}),
    "Identity.generate": (bilateral.Identity.generate, {"randomness": RANDOMNESS}),
    "KeyRing": (
        bilateral.KeyRing,
        {"name": "a", "run_id": b"r" * 16, "identity": IDENTITY, "pinned": PINNED, "randomness": RANDOMNESS},
    ),
    "MaskServer": (bilateral.MaskServer, {"run_id": b"r" * 16, "names": ["a", "b"], "settings": MASKS, "pinned": None}),
    "MaskClient": (bilateral.MaskClient, {"key_ring": RING, "settings": MASKS, "randomness": RANDOMNESS}),
    "Cohort": (bilateral.Cohort, {"pinned": COHORT.pinned, "masks": MASKS, "number": COHORT.number}),
    "CohortServer": (bilateral.CohortServer, {"cohort": COHORT, "carry": dict}),
    "CohortSite": (
        bilateral.CohortSite,
        {"cohort": COHORT, "identity": IDENTITY, "train": lambda tensors: (tensors, 1), "randomness": RANDOMNESS},
    ),
    "check_recovery": (
        bilateral.check_recovery,
        {"model": NET, "graph": GRAPH, "settings": PERTURBATION, "examples": INPUTS},
    ),
    "PredictionClient": (bilateral.PredictionClient, {"keys": RING, "style": None}),
    "PredictionServer": (bilateral.PredictionServer, {"keys": RING, "transport": None}),
    "compile_model": (bilateral.compile_model, {"model": NET, "samples": INPUTS}),
    "export_run": (bilateral.export_run, {"run_directory": "none", "target": "m.safetensors", "data_dir": None}),
    "load_exported": (bilateral.load_exported, {"path": "none", "builder": None}),
    "load_plan": (bilateral.load_plan, {"path": "none"}),
    "privacy_of": (bilateral.privacy_of, {"plan": PLAN, "data_dir": None}),
    "run": (bilateral.run, {"plan": PLAN, "output": 3, "data_dir": None, "resume": False, "reference": False}),
    "run_hetero": (
        partial(bilateral.run_hetero, should_stop=lambda: True),
        {"plan": HETERO, "output": 3, "data_dir": None, "trained": None},
    ),
    "compare": (bilateral.compare, {"plan": PLAN, "protections": ["nothing"], "num_controls": 0, "data_dir": None}),
    "audit_plan": (
        bilateral.audit_plan,
        {"plan": PLAN, "effort": "smoke", "style": "hardened", "only": ["nothing"], "output": 3},
    ),
    "with_settings": (PLAN.with_settings, {"settings": {"seed": 1}}),
    "hetero with_settings": (HETERO.with_settings, {"settings": {"seed": 1}}),
    "SeededRandomness": (partial(_positional, bilateral.SeededRandomness), {"seed": 0, "label": "arguments"}),
    "TensorBoard": (bilateral.TensorBoard, {"folder": None}),
    "MLflow": (bilateral.MLflow, {"folder": None}),
    "WandB": (bilateral.WandB, {"folder": None}),
    "load_dataset": (partial(_positional, bilateral.load_dataset), {"name": "wine", "data_dir": None}),
}
WRONG = [
    None, 3, -1, 0, 2.5, float("nan"), float("inf"), "text", "", b"bytes", [], [1, 2], (), {}, {"a": 1}, True, object(),
    np.zeros((3, 4)), torch.zeros(0), torch.zeros(3, 4), torch.full((2, 4), float("nan")), INPUTS.long(), NET, "../x",
]  # fmt: skip


def test_all_public_names_that_can_be_called_are_tried():
    tried = {name.partition(".")[0] for name in CALLS}
    results_and_plans = {"AuditResult", "BilateralError", "HeteroPlan", "RunPlan", "RunResult"}  # pydantic's, or ours
    data = {"Dataset", "Split", "digest"}  # tests/data/test_dataset.py; of messages, tests/protocols/test_wire.py
    made_of_nothing = {"Callback", "Randomness", "SecureRandomness"}
    assert set(bilateral.__all__) - tried - results_and_plans - data == made_of_nothing


@pytest.mark.parametrize("kind", [bilateral.Callback, bilateral.Randomness, bilateral.SecureRandomness])
def test_what_is_made_of_nothing_takes_no_argument(kind):
    assert not inspect.signature(kind).parameters


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_never_end_in_an_error_of_another_package(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, good = CALLS[name]
    for argument in good:
        for value in WRONG:
            try:
                call(**{**good, argument: value})
            except BilateralError as error:
                assert str(error).endswith((".", "?", ")", "]", "`")), f"{argument}={value!r}: {error}"


@checked
def sample(
    plan: bilateral.RunPlan,
    count: int = 1,
    *,
    kind: Literal["a", "b"] = "a",
    path: str | Path | None = None,
    names: Sequence[str] = (),
) -> int:
    return count


def test_what_fits_the_signature_passes():
    assert sample(PLAN, 3, kind="b", path=Path("x"), names=["a"]) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"plan": "plan.toml"}, "expected `plan` to be a RunPlan, got str ('plan.toml'). Read a file with `load_plan"),
        ({"plan": PLAN, "count": "2"}, "expected `count` to be a whole number, got str ('2')"),
        ({"plan": PLAN, "count": True}, "expected `count` to be a whole number, got bool (True)"),
        ({"plan": PLAN, "kind": "c"}, "expected `kind` to be 'a' or 'b', got str ('c')"),
        ({"plan": PLAN, "path": 3}, "expected `path` to be text or a path or None, got int (3)"),
        ({"plan": PLAN, "names": "abc"}, "expected `names` to be a sequence of text, got str ('abc')"),
        ({"plan": PLAN, "names": ["a", 1]}, "expected `names` to be a sequence of text, got list of int, str"),
        ({}, "missing a required argument: 'plan'. It is called as sample(plan, count, kind, path, names)"),
        ({"plan": PLAN, "counts": 1}, "got an unexpected keyword argument 'counts'"),
    ],
)
def test_the_error_says_what_was_expected_and_what_came(arguments, expected):
    with pytest.raises(ArgumentError) as refusal:
        sample(**arguments)
    assert str(refusal.value).startswith("sample: ")
    assert expected in str(refusal.value)
    assert isinstance(refusal.value, TypeError)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, True),
        (True, float, False),
        (1.0, int, False),
        ((1.0, 2.0), tuple[float, float], True),
        ((1.0,), tuple[float, float], False),
        ((1, 2, 3), tuple[int, ...], True),
        ({"a": b"x"}, Mapping[str, bytes], True),
        ({"a": "x"}, Mapping[str, bytes], False),
        (len, Callable[[Any], int], True),
        (None, Callable[[Any], int], False),
        (object(), Any, True),
    ],
)
def test_annotations_are_read_as_python_reads_them(value, hint, expected):
    assert fits(value, hint) is expected


@pytest.mark.parametrize("tolerance", [0, -1.0, float("nan"), 1])
def test_a_search_for_noise_that_could_not_end_is_refused(tolerance):
    with pytest.raises(PlanError, match="tolerance"):
        bilateral.noise_for(8.0, 1e-5, 0.1, 3, tolerance=tolerance)
