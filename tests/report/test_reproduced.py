"""Pages and tables of reproductions say what the stored figures say, and nothing else."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import pytest

from bilateral.protections.ladder import LADDER
from bilateral.report.reproduced_files import curves_svg
from bilateral.report.reproduced_page import page_of, stored_tables
from bilateral.report.reproduced_summary import BEGIN, END, summary, with_summary
from bilateral.report.reproduced_table import as_csv, as_text, in_words
from bilateral.reproduce.papers.summary import ACCURACY_OF, BYTES, EPOCH, OTHER_SUMS, ROUND, UPLOADS

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "reproductions"


def cell(method, metric, ours, word="", paper=None, spread=None):
    names = {"dataset": "d", "model": "m", "setting": "", "paper_id": "", "seeds": 2}
    return {**names, "method": method, "metric": metric, "ours": ours, "word": word, "paper": paper, "spread": spread}


def table(cells, **changed):
    finding = {"asked": "Is it | so?", "agrees": False, "found": "no", "why": "because"}
    return {
        "table": "p0-i",
        "paper": "P0",
        "title": "A table",
        "scale": "quick",
        "finished": True,
        "seconds": 90.0,
        "rows": [],
        "cells": cells,
        "findings": [finding],
        "differs": [{"what": "size", "paper": "large", "here": "small"}],
        "notes": ["A note"],
        "missing": ["a gap"],
        "pictures": [{"file": "p0-i-1.svg", "title": "Curves"}],
        **changed,
    }


def test_what_does_not_agree_stands_first_in_the_open_and_loud():
    page = page_of([table([cell("a", "test_mse", 0.25, paper=0.2)])], "reproductions")
    in_the_open = page.split("<details>")[0]
    assert "**does not agree**: Is it | so?. No. *Why:* Because." in in_the_open
    assert "| 0 agree" not in page
    assert "1 do not" in in_the_open
    assert "| d | m | a | test_mse | 0.2 | 0.25 |" in page
    assert "![Curves](reproductions/p0-i-1.svg)" in in_the_open
    assert "Not measured: a gap" in in_the_open


def test_an_unfinished_table_says_so():
    assert "quick, unfinished" in page_of([table([cell("a", "x", None)], finished=False)], "reproductions")


def test_csv_and_text_have_every_figure():
    told = table([cell("a", "test_mse", 0.25, paper=0.2), cell("b", "test_mse", None, word="diverged")])
    rows = list(csv.DictReader(StringIO(as_csv(told))))
    assert [(row["method"], row["ours"], row["word"]) for row in rows] == [("a", "0.25", ""), ("b", "", "diverged")]
    assert "does not agree: Is it | so?: no" in as_text(told)


@pytest.mark.parametrize(("seconds", "said"), [(30, "30 seconds"), (150, "2.5 minutes"), (9000, "2.5 hours")])
def test_durations_are_in_a_unit_that_suits_them(seconds, said):
    assert in_words(seconds) == said


def test_the_summary_marks_what_was_multiplied_up_and_tells_what_was_broken():
    cells = [
        *(cell("tp-smc", metric, 2.0) for metric in (ROUND, BYTES)),
        cell("tp-smc", ACCURACY_OF, 80.0, spread=2.0),
        cell("tp-smc", EPOCH, 3.0, word="8 of 80 values encrypted, multiplied up"),
        cell("tp-smc", UPLOADS, 9.0, word="matching: holds"),
        cell("tp-smc", OTHER_SUMS, 40.0, word="opening: broken"),
        cell("sealed training", ACCURACY_OF, 80.0),
    ]
    shown = summary(table(cells, table="systems"))
    assert "| tp-smc | 80 ±1.0 | 2x | 3x* | 2x | single uploads, by asking for other sums |" in shown
    (sealed,) = [rung.audit for rung in LADDER if rung.protection == "sealed"]
    assert f"| sealed training | 80 | - | - | - | {sealed} |" in shown
    page = with_summary(f"a\n{BEGIN}\nold\n{END}\nb", table(cells))
    assert page == f"a\n{shown}\nb"


def test_the_same_curves_give_the_same_picture():
    rows = {"row": {"fedavg": [(1.0, 0.5), (2.0, 0.6)], "ours": [(1.0, 0.5), (2.0, 0.7)]}}
    first = curves_svg(rows)
    assert first == curves_svg(rows)
    assert b"fedavg" in first


def test_readme_has_the_summary_of_the_stored_table():
    found = [one for one in stored_tables(STORED) if one["table"] == "systems"]
    if not found:
        pytest.skip("the table of systems is not stored")
    assert summary(found[0]) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_stored_tables_say_what_of_them_is_missing_and_are_no_large_files():
    page = (STORED.parent / "reproductions.md").read_text(encoding="utf-8")
    for one in stored_tables(STORED):
        (line,) = [line for line in page.splitlines() if line.startswith(f"| [{one['table']}](#")]
        assert ("unfinished" in line) is not one["finished"]
    assert all(path.stat().st_size < 200_000 for path in STORED.iterdir())
    assert sum(path.stat().st_size for path in STORED.iterdir()) < 3_000_000
