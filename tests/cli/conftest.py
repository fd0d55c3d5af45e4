"""Running the command in this process, as a user would from a shell."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from bilateral.cli import main as main_module
from bilateral.cli.main import main

SCHEMAS = Path(main_module.__file__).parent / "schemas"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@cache
def validator(command: str) -> Draft202012Validator:
    """Of what the published schema says that a command prints with `--json`."""
    return Draft202012Validator(json.loads((SCHEMAS / f"{command}.json").read_text(encoding="utf-8")))


@pytest.fixture
def bilateral(monkeypatch, capsys, tmp_path):
    """Call `bilateral(*words)` in an empty current directory. What `--json` prints is held to its schema.

    `free=True`: of a kind of run from outside of the package, whose result prints itself.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BILATERAL_DATA", raising=False)

    def call(*words: object, free: bool = False) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bilateral", *map(str, words)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        code = stopped.value.code
        if "--json" in words and captured.out and not free:
            validator(str(words[0])).validate(json.loads(captured.out))
        return Outcome(0 if code is None else int(code), captured.out, captured.err)

    return call
