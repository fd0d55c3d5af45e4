"""The driver of the training step: its cases, what it reads, what it refuses, and how it compares."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sealed_step
from bilateral.errors import DeploymentError
from driver import is_skipped
from step_comparison import print_steps, step_rows
from step_networks import NETWORKS
from step_systems import StepCase, StepMeasurement, our_step, read_our_step, read_step, spu_steps
from systems import OURS, System, measure

CASE = StepCase("lenet", "ce", 32)
HANG = 900.0
PEER = {
    "system": "spu-aby3",
    "parties": 3,
    "model": "lenet",
    "loss": "ce",
    "batch_size": 32,
    "seconds_per_step": 7.0,
    "seconds": [7.0],
    "megabytes_per_step": 229.0,
    "rounds": None,
    "relative_error": 0.05,
    "relative_error_summed": 0.01,
}


def our_row(**changes):
    row = {"model": "lenet", "loss": "ce", "batch_size": 32, "phase": "total", "party": "all", "seconds": 0.1}
    return {**row, "megabytes": 50.0, "rounds": 40, "relative_error": 1e-5, "ratio_to_plain": 50.0, **changes}


def run(seconds, megabytes=10.0, summed=None):
    return StepMeasurement(seconds, megabytes, None, 0.25, summed, 2)


def started(source):
    system = System("peer", lambda case, task: [sys.executable, "-c", source], read_step)
    return measure(system, CASE, Path("none.npz"), threads=1, timeout_seconds=HANG)


def test_the_script_starts_without_the_peers_folder_on_its_path():
    done = subprocess.run([sys.executable, sealed_step.__file__, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, "MODEL:LOSS:BATCH" in done.stdout) == (0, True), done.stderr


def test_the_cases_are_those_of_the_issue():
    assert [":".join(case.words) for case in sealed_step.parse([]).case] == [
        "mlp-tab:mse:64",
        "mlp-a:mse:128",
        "mlp-a:ce:128",
        "lenet:mse:32",
        "lenet:ce:32",
        "lenet:mse:128",
        "lenet:ce:128",
        "resnet-8:mse:32",
    ]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mlp-tab", [(64, 20), (64, 64), (1, 64)]),
        ("mlp-a", [(128, 784), (128, 128), (10, 128)]),
        ("lenet", [(20, 1, 5, 5), (50, 20, 5, 5), (100, 800), (10, 100)]),
    ],
)
def test_the_networks_have_the_layers_of_their_names(name, shapes):
    assert [tuple(p.shape) for p in NETWORKS[name].build().parameters() if p.ndim > 1] == shapes


def test_a_case_is_given_by_model_loss_and_batch():
    assert sealed_step.parse(["--case", "lenet:ce:32", "mlp-tab:mse:4"]).case == [CASE, StepCase("mlp-tab", "mse", 4)]


@pytest.mark.parametrize(
    "case", ["", "lenet", "lenet:ce", "lenet:ce:0", "lenet:ce:x", "lenet:l1:3", "vgg:ce:3", "lenet:ce:3:4", "::"]
)
def test_senseless_cases_are_refused(case, capsys):
    with pytest.raises(SystemExit):
        sealed_step.parse(["--case", case])
    assert "error: argument --case" in capsys.readouterr().err


def test_cross_entropy_of_one_output_is_refused_with_what_to_ask_for(capsys):
    with pytest.raises(SystemExit):
        sealed_step.parse(["--case", "mlp-tab:ce:64"])
    assert "mlp-tab:mse:64" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ([], [OURS, "crypten", "crypten-dealer", "spu-semi2k", "spu-aby3"]),
        (["--only", "peers"], ["crypten", "crypten-dealer", "spu-semi2k", "spu-aby3"]),
        (["--only", "ours"], [OURS]),
    ],
)
def test_only_leaves_out_the_others(only, names):
    options = sealed_step.parse(["--crypten", "a", "--spu", "b", *only])
    systems = sealed_step.chosen_systems(options, sealed_step.Console(stderr=True))
    assert [system.name for system in systems] == names


def test_missing_peers_are_skipped_by_name_with_how_to_install(capsys):
    systems = sealed_step.chosen_systems(sealed_step.parse([]), sealed_step.Console(stderr=True, soft_wrap=True))
    said = capsys.readouterr().err
    assert [system.name for system in systems] == [OURS]
    assert "crypten==0.4.1" in said
    assert "spu==0.9.5" in said


@pytest.mark.parametrize(
    ("skip", "left_out"),
    [(skip, True) for skip in ("crypten", "crypten:lenet", "crypten:lenet:ce", "crypten:lenet:ce:32")]
    + [(skip, False) for skip in ("spu", "crypten:mlp-a", "crypten:lenet:mse", "crypten:lenet:ce:3", "lenet")],
)
def test_skip_leaves_out_what_it_names(skip, left_out):
    assert is_skipped("crypten", CASE, [skip]) is left_out


def test_commands_name_the_case_and_the_passes():
    ours = our_step(2).command(CASE, Path("task.npz"))
    assert ours[1:5] == ["-m", "bilateral", "bench", "sealed-step"]
    assert " ".join(ours[5:]) == "--model lenet --loss ce --batch-size 32 --repeats 2 --quiet --json"
    peer = spu_steps(Path("python"), 2)[1].command(CASE, Path("task.npz"))
    assert (peer[0], Path(peer[1]).is_file()) == ("python", True)
    assert " ".join(peer[2:]) == "--model lenet --task task.npz --steps 2 --protocol aby3 --json"


def test_of_our_rows_the_total_of_all_parties_counts():
    rows = [
        our_row(phase="online", seconds=0.01),
        our_row(party="server", seconds=0.02),
        our_row(),
        our_row(loss="mse", seconds=0.03),
    ]
    found = read_our_step({"rows": rows}, CASE)
    assert (found.seconds, found.megabytes, found.relative_error_summed) == (0.1, 50.0, None)


@pytest.mark.parametrize("rows", [[], [our_row(phase="online")], [our_row(), our_row()]])
def test_our_answer_without_exactly_one_total_is_refused(rows):
    with pytest.raises(ValueError, match="expected one row"):
        read_our_step({"rows": rows}, CASE)


def test_a_peers_answer_is_read():
    found = started(f"print({json.dumps(PEER)!r})")
    assert (found.seconds, found.megabytes, found.relative_error, found.parties) == (7.0, 229.0, 0.05, 3)


def test_an_answer_of_another_case_is_refused():
    with pytest.raises(DeploymentError, match="asked for lenet, ce, batch 32, got lenet, mse, batch 32"):
        started(f"print({json.dumps({**PEER, 'loss': 'mse'})!r})")


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10), st.booleans(), st.booleans()), min_size=1, max_size=9)
)
def test_ratios_are_taken_pass_by_pass_where_both_were_measured(passes):
    own = [run(a, 4.0) if there else None for a, _, there, _ in passes]
    peer = [run(b, 12.0) if there else None for _, b, _, there in passes]
    rows = {row["system"]: row for row in step_rows(CASE, {OURS: own, "peer": peer})}
    ratios = sorted(b / a for a, b, here, there in passes if here and there)
    assert (OURS in rows, "peer" in rows) == (any(own), any(peer))
    if any(peer) and not ratios:
        assert rows["peer"]["seconds_ratio"] is None
    if ratios:
        assert ratios[0] * (1 - 1e-9) <= rows["peer"]["seconds_ratio"] <= ratios[-1] * (1 + 1e-9)
        assert rows["peer"]["megabytes_ratio"] == pytest.approx(3.0)


def test_peers_alone_have_rows_without_ratios(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = step_rows(CASE, {"spu-aby3": [run(2.0, 229.0, 0.5), run(4.0, 229.0, 0.125)]})
    assert [(row["seconds"], row["seconds_ratio"], row["relative_error_summed"]) for row in rows] == [(3.0, None, 0.5)]
    print_steps(rows)
    line = next(line for line in capsys.readouterr().out.splitlines() if "spu-aby3" in line)
    assert line.split() == ["lenet", "ce", "32", "spu-aby3", "2", "3", "2.2-3.8", "229", "2.5e-01", "5.0e-01"]
