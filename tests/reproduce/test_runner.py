"""Tables are done row by row: what is done stays done, whatever happens to the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.reproduce.toy import toy_table

from bilateral.errors import CheckpointError, DirectoryInUseError
from bilateral.report.reproduced_files import write_outcome
from bilateral.reproduce.runner import estimate, reproduce
from bilateral.reproduce.store import Store

_KILLED = """
from pathlib import Path
from tests.reproduce.toy import toy_table
from bilateral.reproduce.runner import reproduce
reproduce(toy_table({log!r}, {gate!r}), output=Path({out!r}))
"""


def test_a_process_that_is_killed_in_a_row_loses_that_row_and_no_other(tmp_path):
    log, gate, out = tmp_path / "log", tmp_path / "gate", tmp_path / "out"
    os.mkfifo(gate)
    script = _KILLED.format(log=str(log), gate=str(gate), out=str(out))
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        assert gate.read_text(encoding="utf-8") == "begun"  # waits until the second row is at work
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert log.read_text(encoding="utf-8").split() == ["first", "second"]
    outcome = reproduce(toy_table(log), output=out)
    assert outcome.finished
    assert log.read_text(encoding="utf-8").split() == ["first", "second", "second", "third"]
    assert not list((out / "rows").glob("*.partial"))


def test_a_finished_table_computes_nothing_and_says_the_same(tmp_path):
    table = toy_table(tmp_path / "log")
    first = reproduce(table, output=tmp_path / "out").as_dict()
    assert reproduce(table, output=tmp_path / "out").as_dict() == first
    assert len((tmp_path / "log").read_text(encoding="utf-8").split()) == 3


def test_stopping_keeps_what_is_done_and_says_so(tmp_path):
    asked = iter([False, True])
    outcome = reproduce(toy_table(tmp_path / "log"), output=tmp_path / "out", should_stop=lambda: next(asked))
    assert not outcome.finished
    assert list(outcome.seconds) == ["first"]
    ours = [cell["ours"] for cell in outcome.as_dict()["cells"]]
    assert ours == [3.0, None, None]


def test_cells_stand_beside_the_papers_figures_with_their_unit_and_spread(tmp_path):
    cell = reproduce(toy_table(tmp_path / "log"), output=tmp_path / "out").as_dict()["cells"][0]
    assert (cell["paper"], cell["ours"], cell["spread"], cell["seeds"]) == (0.5, 3.0, 2.0, 2)
    assert cell["paper_id"] == "P0/toy/data/net/FedAvg/K=1/test_mse"


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    with Store(tmp_path).held(), pytest.raises(DirectoryInUseError, match="another process"):
        reproduce(toy_table(tmp_path / "log"), output=tmp_path)


def test_a_row_that_was_cut_is_refused_with_what_to_do(tmp_path):
    table = toy_table(tmp_path / "log")
    reproduce(table, output=tmp_path)
    for path in (tmp_path / "rows").glob("*.json"):
        path.write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="Delete it"):
        reproduce(table, output=tmp_path)


def test_the_estimate_is_of_the_rows_that_are_left(tmp_path):
    table = toy_table(tmp_path / "log")
    before = estimate(table, output=tmp_path, scale="full")
    assert before.rows_left == 3
    assert 0 < before.seconds <= 3 * before.pilot_seconds
    reproduce(table, output=tmp_path)
    assert estimate(table, output=tmp_path, scale="full").seconds == 0


def test_an_outcome_is_written_as_json_and_csv(tmp_path):
    outcome = reproduce(toy_table(tmp_path / "log"), output=tmp_path)
    write_outcome(outcome, tmp_path)
    assert json.loads((tmp_path / "toy-1.json").read_text(encoding="utf-8"))["finished"]
    lines = (tmp_path / "toy-1.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("data,net,FedAvg,K=1,test_mse,0.5,3.0,2.0,2")
