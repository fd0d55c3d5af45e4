import subprocess
import sys

import pytest

import bilateral

EXPECTED = {
    "BilateralError",
    "Dataset",
    "Identity",
    "KeyRing",
    "MaskClient",
    "MaskServer",
    "MaskSettings",
    "PerturbClient",
    "PerturbServer",
    "PerturbationSettings",
    "RunPlan",
    "RunResult",
    "ScaleGraph",
    "Split",
    "aggregate",
    "build_model",
    "compare",
    "export_run",
    "inspect",
    "load_dataset",
    "load_exported",
    "load_plan",
    "noise_for",
    "privacy_of",
    "run",
    "spent",
}


def test_the_public_namespace_is_exactly_what_is_documented():
    assert set(bilateral.__all__) == EXPECTED
    assert set(bilateral._HOME) == EXPECTED
    for name in EXPECTED:
        assert getattr(bilateral, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        bilateral.nothing  # noqa: B018


def test_the_package_starts_without_torch_so_that_the_command_can_prepare_it():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, bilateral; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "False"
