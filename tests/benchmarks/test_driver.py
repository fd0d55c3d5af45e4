"""The driver: what it reads, what it refuses, and how it compares."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import secure_prediction
from bilateral.errors import DeploymentError
from comparison import print_table, rows_of
from driver import is_skipped
from systems import OURS, Case, Measurement, System, crypten, measure, read_ours, read_peer

CASE = Case("resnet-8", 1)
HANG = 900.0
"""Seconds after which a program that should have ended hangs."""
PEER = {
    "system": "spu-aby3",
    "parties": 3,
    "model": "resnet-8",
    "batch_size": 1,
    "seconds_per_prediction": 0.5,
    "seconds": [0.5],
    "megabytes_per_prediction": 17.0,
    "rounds": None,
    "max_logit_error": 1e-4,
}


def our_row(**changes):
    row = {"model": "resnet-8", "batch_size": 1, "phase": "total", "party": "all", "seconds_per_prediction": 0.1}
    return {**row, "megabytes_per_prediction": 5.0, "rounds": 40, "max_logit_error": 1e-5, **changes}


def run(seconds, megabytes=10.0):
    return Measurement(seconds, megabytes, None, 0.0, 2)


def program(source):
    return System("peer", lambda case, weights: [sys.executable, "-c", source], read_peer)


def started(system, timeout_seconds=HANG):
    return measure(system, CASE, Path("none.npz"), threads=1, timeout_seconds=timeout_seconds)


def test_of_our_rows_the_total_of_all_parties_counts():
    rows = [
        our_row(phase="online", seconds_per_prediction=0.01),
        our_row(party="server", seconds_per_prediction=0.02),
        our_row(),
        our_row(batch_size=32, seconds_per_prediction=0.03),
    ]
    assert read_ours({"rows": rows}, CASE).seconds_per_prediction == 0.1


@pytest.mark.parametrize("rows", [[], [our_row(phase="online")], [our_row(), our_row()]])
def test_our_answer_without_exactly_one_total_is_refused(rows):
    with pytest.raises(ValueError, match="expected one row"):
        read_ours({"rows": rows}, CASE)


def test_an_answer_of_another_case_is_refused():
    source = f"print({json.dumps({**PEER, 'batch_size': 2})!r})"
    with pytest.raises(DeploymentError, match="asked for resnet-8, batch 1, got resnet-8, batch 2"):
        started(program(source))


def test_a_greeting_before_the_answer_is_passed_over():
    source = f"print('hello {{}}'); print({json.dumps(PEER, indent=2)!r})"
    assert started(program(source)).megabytes_per_prediction == 17.0


@pytest.mark.parametrize("output", ["", "hello", "[1]", "{}", '{"model": 1}'])
def test_output_that_is_no_answer_is_refused_by_the_systems_name(output):
    with pytest.raises(DeploymentError, match="peer did not answer as expected"):
        started(program(f"print({output!r})"))


def test_a_failure_shows_the_end_of_standard_error():
    with pytest.raises(DeploymentError, match=r"(?s)peer failed with exit code 1.*ZeroDivisionError"):
        started(program("1 / 0"))


def test_a_missing_interpreter_is_named():
    system = crypten(Path("no-such-python"), 1)[0]
    with pytest.raises(DeploymentError, match="crypten: there is no interpreter no-such-python"):
        started(system)


def test_what_a_late_system_started_ends_with_it(tmp_path):
    note = tmp_path / "child"
    child = "import time; time.sleep(600)"
    source = (
        "import pathlib, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)"
    )
    for seconds in (1.0, 4.0, 16.0, 64.0, 256.0):  # until it comes so far as to start something
        with pytest.raises(DeploymentError, match="did not end within"):
            started(program(source), timeout_seconds=seconds)
        if note.exists() and note.read_text():
            break
    assert not is_running(int(note.read_text()))


def is_running(pid):
    """Waits: a killed process leaves when its new parent has looked at it."""
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return True


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10), st.booleans(), st.booleans()), min_size=1, max_size=9)
)
def test_ratios_are_taken_pass_by_pass_where_both_were_measured(passes):
    own = [run(a, 4.0) if there else None for a, _, there, _ in passes]
    peer = [run(b, 12.0) if there else None for _, b, _, there in passes]
    rows = {row["system"]: row for row in rows_of(CASE, {OURS: own, "peer": peer})}
    ratios = sorted(b / a for a, b, here, there in passes if here and there)
    assert (OURS in rows, "peer" in rows) == (any(own), any(peer))
    if not any(peer):
        return
    if not ratios:
        assert rows["peer"]["seconds_ratio"] is None
        return
    middle = len(ratios) // 2
    expected = ratios[middle] if len(ratios) % 2 else (ratios[middle - 1] + ratios[middle]) / 2
    assert rows["peer"]["seconds_ratio"] == pytest.approx(expected)
    low, high = rows["peer"]["seconds_ratio_p10"], rows["peer"]["seconds_ratio_p90"]
    assert ratios[0] * (1 - 1e-9) <= low <= expected * (1 + 1e-9)
    assert expected * (1 - 1e-9) <= high <= ratios[-1] * (1 + 1e-9)
    assert rows["peer"]["megabytes_ratio"] == pytest.approx(3.0)


def test_a_narrow_terminal_loses_no_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    runs = {OURS: [run(0.125, 4.0)], "crypten-dealer": [run(12.5, 375.0)]}
    print_table(rows_of(Case("resnet-10", 32), runs))
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if "crypten-dealer" in line)
    shown = ["resnet-10", "32", "crypten-dealer", "2", "12.5", "12.5-12.5", "375", "0.0e+00", "100", "100-100", "93.8"]
    assert line.split() == shown


@pytest.mark.parametrize(
    ("skip", "left_out"),
    [("crypten", True), ("crypten:vgg-7", True), ("crypten:vgg-7:32", True)]
    + [(other, False) for other in ("spu", "crypten-dealer", "crypten:vgg-7:1", "crypten:resnet-8", "crypten:vgg-7:3")],
)
def test_skip_leaves_out_what_it_names(skip, left_out):
    assert is_skipped("crypten", Case("vgg-7", 32), [skip]) is left_out


def test_missing_peers_are_skipped_by_name_with_how_to_install(capsys):
    options = secure_prediction.parse([])
    systems = secure_prediction.chosen_systems(options, secure_prediction.Console(stderr=True, soft_wrap=True))
    said = capsys.readouterr().err
    assert [system.name for system in systems] == [OURS, f"{OURS}-hardened"]
    assert "crypten==0.4.1" in said
    assert "spu==0.9.5" in said


@pytest.mark.parametrize("words", [["--repeats", "0"], ["--batch-size", "-1"], ["--batch-size", "x"], ["--model", "q"]])
def test_senseless_options_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        secure_prediction.parse(words)
    assert "error: argument" in capsys.readouterr().err
