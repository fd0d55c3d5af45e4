"""`bilateral reproduce`: the list, a table, the page, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.reproduce.toy import toy_table

from bilateral.cli import reproduce as command
from bilateral.errors import PlanError
from bilateral.report.reproduced_page import page_of_folder
from bilateral.reproduce import registry

STORED = Path(__file__).parents[2] / "docs" / "reproductions"


@pytest.fixture
def toy(tmp_path):
    registry.register(toy_table(tmp_path / "log"))
    yield
    registry.unregister("toy-1")


def call(**options):
    given = {
        "table": None,
        "list_tables": False,
        "quick": False,
        "full": False,
        "page": None,
        "summary": None,
        "data_dir": None,
    }
    command.reproduce_command(**{**given, "json": False, "quiet": True, **options})


@pytest.mark.usefixtures("toy")
def test_a_table_is_shown_with_the_papers_figures(tmp_path, capsys):
    call(table="TOY 1", output=tmp_path)
    shown = capsys.readouterr().out
    assert "0.5" in shown
    assert "does not agree: two is below one: worse on 0 of 3 rows" in shown or "agrees: two is below one" in shown
    call(table="toy-1", output=tmp_path, json=True)
    (told,) = json.loads(capsys.readouterr().out)["tables"]
    assert told["finished"]


@pytest.mark.usefixtures("toy")
def test_a_full_table_says_first_how_long_it_takes(tmp_path, capsys):
    call(table="toy-1", output=tmp_path, full=True, quiet=False)
    assert "by pilots of" in capsys.readouterr().err


@pytest.mark.usefixtures("toy")
def test_the_list_names_every_table(capsys):
    call(list_tables=True, output=Path())
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(registry.tables())


@pytest.mark.usefixtures("toy")
def test_the_page_follows_from_the_stored_table(tmp_path):
    call(table="toy-1", output=tmp_path / "stored")
    call(page=tmp_path / "page.md", output=tmp_path / "stored")
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page == page_of_folder(tmp_path / "stored")
    assert "### toy-1" in page
    assert "two is below one" in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "name of a table"),
        ({"table": "p9-i"}, "no table 'p9-i'"),
        ({"table": "p0-i", "quick": True, "full": True}, "got both"),
        ({"table": "p0-i", "page": Path("page.md")}, "Name no table"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, options, said):
    with pytest.raises(PlanError, match=said):
        call(output=tmp_path, **options)


@pytest.mark.skipif(not list(STORED.glob("*.json")), reason="no table is stored")
def test_the_stored_tables_regenerate_the_page_bit_for_bit():
    assert page_of_folder(STORED) == (STORED.parent / "reproductions.md").read_text(encoding="utf-8")
