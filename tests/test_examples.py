"""Every example runs as it is, and what it prints at its end is true."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
WHAT_COMES_OUT: dict[str, Any] = {
    "own_model": lambda result: result.metrics["test_accuracy"] > 0.8 and result.guarantee.claims,
    "sealed_training": lambda result: result.metrics["test_accuracy"] > 0.9 and result.difference_to_fedavg < 1e-2,
    "differential_privacy": lambda both: both[0].privacy.rows[0].epsilon <= 8 and both[1].privacy is None,
    "different_networks": lambda result: result.finished and all(len(one.accuracies) >= 2 for one in result.clients),
    "own_loop": lambda accuracies: len(accuracies) == 2 and min(accuracies.values()) > 0.8,
}


def test_every_example_is_tried() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(WHAT_COMES_OUT)
    for name in WHAT_COMES_OUT:
        assert f"`{name}.py`" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WHAT_COMES_OUT)
def test_an_example_runs_as_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    assert WHAT_COMES_OUT[name](found)
    assert list(tmp_path.iterdir()) == []
