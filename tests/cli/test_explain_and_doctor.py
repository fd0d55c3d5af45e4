"""What is said before anything runs, and of the machine that it would run on; and the page of what has run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from bilateral.cli import doctor
from bilateral.protocols.share.ring.cpu_features import VARIABLE

ROOT = Path(__file__).parents[2]
QUICK = ("--data", "breast-cancer", "--model", "mlp-3", "--loss", "mse", "--rounds", 2, "--clients", 3)


def test_explain_answers_the_questions_of_a_plan_and_runs_nothing(bilateral, tmp_path):
    outcome = bilateral("explain", "--protection", "sealed", *QUICK)
    assert outcome.code == 0
    for question in (
        "Can a site copy the model?",
        "Can the server see a person's record?",
        "Who must not work together?",
    ):
        assert question in outcome.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("protection", "tones"),
    [("fedavg", ["admitted"] * 4), ("masks", ["admitted", "held", "admitted", "admitted"])],
)
def test_explain_for_machines_says_the_same(bilateral, protection, tones):
    found = bilateral("explain", "--protection", protection, *QUICK, "--json").json
    assert [one["tone"] for one in found["questions"]] == tones
    assert found["privacy"] is None
    assert found["cost_of_a_round"] is None


def test_explain_never_says_of_an_audit_that_there_was_none(bilateral):
    assert "audit" not in bilateral("explain", "--protection", "sealed", *QUICK).out


def test_explain_measures_if_it_is_asked_to(bilateral, tmp_path):
    cost = bilateral("explain", "--protection", "masks", *QUICK, "--measure", "--json").json["cost_of_a_round"]
    parameters = 30 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    assert cost["megabytes_down"] > 3 * 4 * parameters / 1e6  # each of three clients is sent the model
    assert cost["seconds"] > 0
    assert list(tmp_path.iterdir()) == []


def test_explain_reads_plans_of_other_kinds(bilateral):
    bilateral("hetero", "--write-plan", "hetero.toml")
    outcome = bilateral("explain", "hetero.toml")
    assert outcome.code == 0
    assert "what another site asks" in outcome.out
    refused = bilateral("explain", "hetero.toml", "--rounds", 3)
    assert refused.code == 2
    assert "Edit the plan" in refused.err


def test_explain_refuses_what_run_refuses(bilateral):
    outcome = bilateral("explain", "--protection", "sealed", "--data", "digits", "--model", "resnet-20")
    assert outcome.code == 2
    assert "BatchNorm" in outcome.err


def test_doctor_finds_this_machine_ready(bilateral):
    outcome = bilateral("doctor", "--json")
    assert outcome.code == 0
    assert outcome.json["ready"] is True
    names = [one["name"] for one in outcome.json["checks"]]
    assert {"torch", "processor", "kernels", "memory", "data", "extra [flare]", "this folder"} <= set(names)
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert {f"extra [{extra}]" for extra in extras - {"dev", "docs"}} <= set(names)
    assert "extra [flare]" in bilateral("doctor").out


def test_doctor_says_what_is_missing_and_what_to_do(bilateral, monkeypatch):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name in ("numba", "nvflare") else real(name))
    outcome = bilateral("doctor")
    assert outcome.code == 1
    assert re.search(r"✗ +numba +not installed", outcome.out)
    assert "pip install 'bilateral[flare]'" in outcome.out
    assert "Not ready" in outcome.out


def test_doctor_names_a_kernel_that_this_processor_does_not_have(bilateral, monkeypatch):
    monkeypatch.setenv(VARIABLE, "abacus")
    outcome = bilateral("doctor")
    assert outcome.code == 1
    assert f"Unset {VARIABLE}" in outcome.out


def test_doctor_looks_at_the_folder_of_data(bilateral, tmp_path):
    assert "is no folder" in bilateral("doctor", "--data-dir", "nowhere").out
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("a\n")
    assert "1 file" in bilateral("doctor", "--data-dir", "data").out


def test_every_run_ends_with_its_page_and_report_makes_it_anew(bilateral, tmp_path):
    assert "Report:  out/report.html" in bilateral("run", *QUICK, "--output", "out", "--quiet").out
    page = tmp_path / "out" / "report.html"
    first = page.read_text()
    page.unlink()
    outcome = bilateral("report", "out", "--json")
    assert outcome.json == {"page": "out/report.html", "bytes": page.stat().st_size}
    assert page.read_text() == first
    assert bilateral("report", "out", "--output", "other.html").code == 0
    assert (tmp_path / "other.html").read_text() == first


def test_report_of_nothing_is_one_message(bilateral):
    outcome = bilateral("report", "nowhere")
    assert outcome.code == 2
    assert "not a run directory" in outcome.err
