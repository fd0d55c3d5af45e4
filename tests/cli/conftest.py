"""Running the command in this process, as a user would from a shell."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from bilateral.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def bilateral(monkeypatch, capsys, tmp_path):
    """Call `bilateral(*words)` in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BILATERAL_DATA", raising=False)

    def call(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bilateral", *map(str, words)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        code = stopped.value.code
        return Outcome(0 if code is None else int(code), captured.out, captured.err)

    return call
