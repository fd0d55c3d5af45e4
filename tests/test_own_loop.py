"""The page on loops of one's own works as it is printed, and such a loop is short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-to" / "own-loop.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "examples" / "own_loop.py").read_text(encoding="utf-8")


def test_the_page_works_from_top_to_bottom():
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(block, names)
    try:
        assert names["server"].contributors == ("east", "north", "south", "west")  # type: ignore[attr-defined]
        assert names["server"].incidents == ()  # type: ignore[attr-defined]
        before = names["network"].state_dict()  # type: ignore[attr-defined]
        assert any(not torch.equal(before[name], after) for name, after in names["state"].items())  # type: ignore[attr-defined]
        gone = names["doors"].pop("west")  # type: ignore[attr-defined]
        gone.shutdown()
        gone.server_close()
        names["doors"]["west"] = gone  # type: ignore[index]
        names["server"].mean(before)  # type: ignore[attr-defined]
        assert names["server"].contributors == ("east", "north", "south")  # type: ignore[attr-defined]
    finally:
        for door in names["doors"].values():  # type: ignore[attr-defined]
            door.shutdown()
            door.server_close()


@pytest.mark.parametrize(("loop", "most"), [("masked_fedavg", 20), ("masked_perturbation", 30)])
def test_a_loop_is_as_short_as_it_is_said_to_be(loop, most):
    """Lines that hold code: no imports, no data, no docstring, no comments, no empty ones."""
    (found,) = [one for one in ast.parse(EXAMPLE).body if isinstance(one, ast.FunctionDef) and one.name == loop]
    lines = EXAMPLE.splitlines()[found.body[1].lineno - 1 : found.end_lineno]
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    assert len(code) <= most
    assert len(code) > 10  # the count counts
