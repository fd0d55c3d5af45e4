"""`bilateral watch`: what an operator sees of a run, in any terminal or none.

It runs what docs/how-to/many-machines.md prints of it.
"""

import io
import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

import bilateral.cli.watch as watch_module
from bilateral.cli.main import app
from bilateral.cli.watch_view import BLOCKS, View, duration, sparkline
from bilateral.engine.events import (
    Evaluated,
    MessageRefused,
    RoundDone,
    RoundFailed,
    RunEnded,
    RunStarted,
    SiteMissed,
    Waiting,
)
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.run_status import RunStatus, read_run

SITES = tuple(f"site-{number}" for number in range(1, 6))
HANG = 900.0
"""Seconds after which a command that should have ended hangs."""


def invoke(*words: object, **environment: str):
    return CliRunner().invoke(app, ["watch", *map(str, words)], env={"COLUMNS": "80", **environment})


def tell_rounds(directory: RunDirectory, sites: tuple[str, ...] = SITES, rounds: int = 12) -> None:
    directory.tell(RunStarted("flare-poc", 0, 0, 20, sites, "0123"))
    for number in range(1, rounds + 1):
        if number == 6:
            directory.tell(RoundFailed(6, "2 of 5 sites left, 3 needed."))
            continue
        if number == 9:
            directory.tell(SiteMissed(sites[1], 9, "upload", "no answer in 30 s"))
        who = sites if number < 9 else (sites[0], *sites[2:])
        directory.tell(RoundDone(number, 2.0, who, 1.0, 1.0))
        directory.tell(Evaluated(number, {"test_accuracy": 0.5 + number / 50, "test_loss": 1 / number}, 1e-7))


@pytest.fixture
def directory(tmp_path) -> RunDirectory:
    """A run in its twelfth round of twenty; `site-2` was missed in the ninth."""
    made = RunDirectory.create(tmp_path / "out", RunPlan())
    tell_rounds(made)
    return made


def test_one_picture_tells_how_the_run_stands(directory):
    outcome = invoke(directory.path, "--once")
    assert outcome.exit_code == 0
    for words in (
        "digits / lenet  flare-poc, term 0", "running", "12/20 rounds", "2 s a round", "16 s left",
        "4 of 5 sites in the last round", "1 round failed", "test_accuracy 0.7400", "0.5200 to 0.7400", "test_loss",
        "difference to FedSGD 1.0e-07", "round 9, upload: no answer in", "site-2 missed at upload",
    ):  # fmt: skip
        assert words in outcome.output
    (row,) = (line.split() for line in outcome.output.splitlines() if line.startswith("site-2"))
    assert row[1:5] == ["missed", "7", "1", "0"]


def test_json_is_one_object_with_the_documented_keys(directory):
    found = json.loads(invoke(directory.path, "--json").stdout)
    assert set(found) == {
        "directory", "kind", "data", "model", "state", "reason", "engine", "term", "round", "num_rounds",
        "rounds_failed", "seconds_per_round", "seconds_left", "seconds_since_event", "metrics", "difference_to_fedavg",
        "history", "privacy", "sites", "events", "lines_unreadable",
    }  # fmt: skip
    assert (found["state"], found["round"], found["num_rounds"], found["rounds_failed"]) == ("running", 12, 20, 1)
    assert found["history"][-1] == {"round": 12, **found["metrics"]}
    missed = found["sites"][1]
    assert (missed["site"], missed["state"], missed["rounds"], missed["misses"]) == ("site-2", "missed", 7, 1)
    assert (missed["last_trouble_round"], missed["last_trouble_stage"]) == (9, "upload")
    assert [event["event"] for event in found["events"]] == ["run_started", "round_failed", "site_missed"]


def test_epsilon_is_shown_with_whom_it_holds_against(directory):
    row = {"observer": "everybody", "epsilon_per_round": 0.1, "epsilon": 7.93, "delta": 1e-5, "assumption": "none"}
    directory.write_privacy({}, {"status": "sound", "unit": "sample", "deviations": {}, "rows": [row]})
    text = " ".join(invoke(directory.path, "--once").output.split())
    assert "epsilon 7.93 at delta 1e-05 for the whole run, against everybody (sound; unit: one sample)" in text


def test_a_directory_that_is_no_run_is_one_message(bilateral, tmp_path):
    for words in ((tmp_path, "--once"), (tmp_path / "nowhere", "--json"), (tmp_path,)):
        outcome = bilateral("watch", *words)
        assert outcome.code == 2
        assert outcome.out == ""
        assert "is not a run directory" in outcome.err
        assert "Traceback" not in outcome.err


def test_help_has_examples():
    outcome = invoke("--help")
    assert outcome.exit_code == 0
    assert "Examples" in outcome.output


def test_a_run_in_this_process_can_be_watched(bilateral):
    words = ("--data", "wine", "--model", "mlp-3", "--clients", 3, "--rounds", 4, "--output", "out", "--quiet")
    assert bilateral("run", *words).code == 0
    found = bilateral("watch", "out", "--json").json
    assert (found["state"], found["round"]) == ("finished", 4)
    assert "finished" in bilateral("watch", "out").out  # ends by itself


# Without a terminal


def test_watching_without_a_terminal_prints_lines_and_ends_with_the_run(directory, monkeypatch):
    told = iter([Waiting(13, ("site-1",), 3), RunEnded(20, True, "all rounds done")])
    between_looks = SimpleNamespace(sleep=lambda _: directory.tell(next(told)), monotonic=time.monotonic)
    monkeypatch.setattr(watch_module, "time", between_looks)
    outcome = invoke(directory.path)
    assert outcome.exit_code == 0
    lines = outcome.output.splitlines()
    assert sum("site-2 missed at upload" in line for line in lines) == 2  # once as it came, once in the last picture
    assert any(line.startswith("running  round 12/20  test_accuracy 0.7400") for line in lines)
    assert any(line.startswith("waiting  round 12/20") for line in lines)
    assert "all rounds done" in lines[-1]
    assert "\x1b" not in outcome.output


def test_ctrl_c_ends_watching_with_code_0(directory):
    # A shell that starts the tests in the background would have its children ignore the signal.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    words = [sys.executable, "-c", f"{heed}; from bilateral.cli.main import main; main()", "watch", directory.path]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "run begins" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG)
    finally:
        process.kill()
    assert process.returncode == 0
    assert err == ""


def test_a_terminal_without_unicode_gets_a_picture(directory):
    directory.tell(MessageRefused("site-3", 12, "sent größe"))
    words = [sys.executable, "-m", "bilateral.cli.main", "watch", str(directory.path), "--once"]
    made = subprocess.run(words, capture_output=True, env={"PYTHONIOENCODING": "ascii"}, timeout=HANG, check=False)
    assert made.returncode == 0, made.stderr
    assert "sent gr??e" in made.stdout.decode("ascii")


# On a screen


def draw(status: RunStatus, width: int, height: int, *, colour: bool = False) -> list[str]:
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=colour, color_system="256" if colour else None
    )
    console.print(View.of(console, whole=False).picture(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 16)])
@pytest.mark.parametrize("num_sites", [2, 5, 50])
def test_the_picture_fits_the_screen(tmp_path, width, height, num_sites):
    made = RunDirectory.create(tmp_path / "out", RunPlan())
    tell_rounds(made, tuple(f"hospital-{number}" for number in range(num_sites)))
    for number in range(30):
        made.tell(SiteMissed("hospital-1", 12 + number, "unmask", "a reason that is much longer than a line " * 5))
    lines = draw(read_run(made.path), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "12/20 rounds" in text
    rows = [line.split()[:2] for line in lines]
    assert ["hospital-1", "missed"] in rows  # the one in trouble is shown, however many there are
    assert "hospital-1 missed at unmask" in lines[-1]
    shown = sum(line.startswith("hospital-") for line in lines)
    if shown < num_sites:
        assert f"and {num_sites - shown} more sites: {num_sites - shown} in last round" in text


def test_colours_add_nothing_that_words_do_not_say(directory):
    status = read_run(directory.path)
    coloured, plain = draw(status, 80, 24, colour=True), draw(status, 80, 24)
    assert any("\x1b[" in line for line in coloured)
    assert not any("\x1b[" in line for line in plain)
    stripped = [Text.from_ansi(line).plain.rstrip() for line in coloured]
    progress_bar = 1  # its empty part is drawn in another colour, or not at all
    assert [line for n, line in enumerate(stripped) if n != progress_bar] == [
        line.rstrip() for n, line in enumerate(plain) if n != progress_bar
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_site_writes_cannot_steer_the_terminal(directory, whole):
    evil = "\x1b]0;owned\x07\x1b[2J\r\n\u202e[bold]x[/bold] [link=http://x]y"
    directory.tell(SiteMissed(f"site-{evil}", 12, f"stage {evil}", f"reason {evil}"))
    directory.tell(RunEnded(12, False, evil))
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(View.of(console, whole=whole).picture(read_run(directory.path)))
    console.print(View.of(console, whole=whole).summary(read_run(directory.path)))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "[bold]x[/bold]" in text


# Words and curves


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60), st.integers(1, 70))
def test_a_curve_has_the_order_of_the_means_it_stands_for(values, width):
    curve = [BLOCKS.index(block) for block in sparkline(values, width)]
    assert len(curve) == min(width, len(values))
    if width >= len(values):  # a block a value
        for a, height in zip(values, curve, strict=True):
            for b, other in zip(values, curve, strict=True):
                assert a > b or height <= other
        largest = max(map(abs, values)) or 1.0
        if len({value / largest for value in values}) > 1:
            assert (min(curve), max(curve)) == (0, len(BLOCKS) - 1)


def test_a_long_history_is_drawn_by_means():
    assert sparkline([0, 0, 3, 5, 15, 13, 1, 3], 4, "01234567") == "0271"  # means 0, 4, 14, 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.42, "0.42 s"), (12.4, "12 s"), (59.7, "1 min 0 s"), (171, "2 min 51 s"),
     (11_100, "3 h 5 min"), (187_200, "2 d 4 h")],
)  # fmt: skip
def test_durations_are_told_in_two_units(seconds, words):
    assert duration(seconds) == words
