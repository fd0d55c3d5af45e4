"""What the package has as data is what the code says: schemas and completions are written anew and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

import bilateral
import write_package_data
from bilateral.cli.printed import PRINTED

FOLDER = Path(bilateral.__file__).parent / "cli"
REMEDY = "python tools/write_package_data.py src/bilateral/cli"


@pytest.mark.parametrize("command", PRINTED)
def test_schemas_are_those_of_the_types(command):
    stored = (FOLDER / "schemas" / f"{command}.json").read_text(encoding="utf-8")
    assert stored == write_package_data.schema_text(command), REMEDY


def test_completions_are_those_of_the_commands():
    stored = (FOLDER / "completions.json").read_text(encoding="utf-8")
    assert stored == write_package_data.completions_text(), REMEDY


def test_files_of_commands_that_are_gone_are_taken_away(tmp_path):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "gone.json").write_text("{}")
    write_package_data.write_package_data(tmp_path)
    assert {path.stem for path in (tmp_path / "schemas").iterdir()} == set(PRINTED)
    assert (tmp_path / "completions.json").exists()
