"""One run, one page: self-contained, whatever the run's files say, and true to them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.run_pages import RUNS, SMALL, directory_of, page_of

from bilateral.engine.events import MessageRefused, RunStarted, SiteMissed, write_event
from bilateral.engine.plan import RunPlan
from bilateral.engine.privacy import privacy_of
from bilateral.errors import CheckpointError
from bilateral.report.run_page.facts import facts_of
from bilateral.report.run_page.page import run_page, write_run_page
from bilateral.runs.rounds.in_process import run

_HOSTILE = '</title><script src="https://example.org/x.js"></script><img src=x onerror=alert(1)>'


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A run's directory to spoil."""
    path = tmp_path / "run"
    shutil.copytree(directory_of("fedavg"), path)
    return path


@pytest.mark.parametrize("name", RUNS)
def test_a_page_loads_nothing(name: str) -> None:
    page = page_of(name).read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page), "only links within the page"
    assert "url(" not in page and "@import" not in page


@pytest.mark.parametrize("name", RUNS)
def test_a_page_tells_what_the_run_wrote(name: str) -> None:
    page, result = (
        page_of(name).read_text(encoding="utf-8"),
        json.loads((directory_of(name) / "result.json").read_text()),
    )
    assert f"{result['metric_value']:.4f}" in page
    for claim in result["guarantee"]["claims"]:
        assert claim["what"].replace("'", "&#x27;") in page or claim["what"] in page
    for leak in result["guarantee"]["leaks"]:
        assert f"line {leak['ledger_line']} of the leakage ledger" in page


def test_the_curve_of_fedsgd_lies_beside_the_runs() -> None:
    rows = facts_of(directory_of("perturbation")).rows
    assert [row["round"] for row in rows] == [0, 2, 4]
    for row in rows:
        assert row["fedsgd_test_loss"] == pytest.approx(row["test_loss"], rel=1e-4)
    assert "FedSGD, same seed" in page_of("perturbation").read_text(encoding="utf-8")


def test_costs_by_party_add_up_to_the_runs() -> None:
    result = json.loads((directory_of("sealed") / "result.json").read_text())
    for direction, total in (("up", result["megabytes_up"]), ("down", result["megabytes_down"])):
        rows = [row for row in result["traffic"] if row["direction"] == direction]
        assert sum(row["megabytes"] for row in rows) == pytest.approx(total, abs=1e-4)
    assert {row["party"] for row in result["traffic"]} == {"client-1", "client-2", "client-3", "auditor"}


def test_costs_go_on_where_a_resumed_run_stopped(tmp_path: Path) -> None:
    plan = RunPlan().with_settings({**SMALL, "protection": "masks"})
    whole = run(plan, save=False).transcript.traffic
    assert not run(plan, output=tmp_path / "run", should_stop=lambda: True).finished
    resumed = run(plan, output=tmp_path / "run", resume=True).transcript.traffic
    again = {"KeyRequest", "KeyAnnouncement", "Roster"}  # keys are agreed anew in every term
    for (party, direction, kind), count in whole.items():
        assert resumed[party, direction, kind] == (2 * count if kind in again else count)


def test_noise_is_shown_over_the_rounds_and_ends_at_what_is_spent() -> None:
    page, result = (
        page_of("noise").read_text(encoding="utf-8"),
        json.loads((directory_of("noise") / "result.json").read_text()),
    )
    assert "Epsilon over the rounds" in page
    assert f"bounded: epsilon {result['privacy']['rows'][0]['epsilon']:.3g}" in page


def test_what_a_paper_claims_under_conditions_is_not_drawn_over_the_rounds() -> None:
    claimed = {"noise.mechanism": "published", "noise.epsilon": 3.0, "perturbation.noise": "offset"}
    report = privacy_of(RunPlan().with_settings({**SMALL, "protection": "perturbation", **claimed}))
    assert report is not None and report.is_conditional
    page = run_page(replace(facts_of(directory_of("noise")), privacy=report.as_dict()))
    assert "Published, conditional" in page
    assert "Epsilon over the rounds" not in page


def test_hidden_parameters_are_drawn_where_clients_get_a_disguise() -> None:
    assert "with a secret factor" in page_of("perturbation").read_text(encoding="utf-8")
    assert "Nothing: every site is sent the model as it is." in page_of("fedavg").read_text(encoding="utf-8")
    assert "All of it" in page_of("sealed").read_text(encoding="utf-8")


def test_sites_that_were_missed_or_refused_are_told_with_their_reason(copied: Path) -> None:
    log = copied / "events.jsonl"
    write_event(log, RunStarted("flare-poc", 1, 4, 4, ("client-1", "client-2", "client-3"), "x"))
    write_event(log, SiteMissed("client-2", 4, "training", "no answer within 120 s"))
    write_event(log, MessageRefused("client-3", 4, _HOSTILE))
    page = run_page(facts_of(copied))
    assert "client-2, round 4: missed" in page
    assert "training: no answer within 120 s" in page
    assert "&lt;script" in page and "<script" not in page


def test_what_the_files_say_is_shown_and_not_interpreted(copied: Path) -> None:
    for name in ("result.json", "privacy.json"):
        values = json.loads((copied / name).read_text())
        values["guarantee"]["leaks"][0]["what"] = _HOSTILE
        values["guarantee"]["protection"] = _HOSTILE
        (copied / name).write_text(json.dumps(values))
    page = run_page(facts_of(copied))
    assert "<script" not in page and "<img" not in page
    assert page.count("&lt;/title&gt;") >= 2


def test_a_run_that_goes_on_has_a_page_too(copied: Path) -> None:
    (copied / "result.json").unlink()
    lines = (copied / "events.jsonl").read_text().splitlines()
    (copied / "events.jsonl").write_text("\n".join(line for line in lines if "run_ended" not in line) + "\n")
    assert "of 4 rounds" in run_page(facts_of(copied))


@pytest.mark.parametrize("name", ["privacy.json", "result.json"])
def test_a_broken_file_is_one_error_with_its_name(copied: Path, name: str) -> None:
    (copied / name).write_text("{")
    with pytest.raises(CheckpointError, match=name):
        write_run_page(copied)


def test_no_run_and_no_audit_are_errors_that_say_so(tmp_path: Path, copied: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run directory"):
        write_run_page(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="no audit"):
        write_run_page(copied, audit=tmp_path / "nothing")


def test_the_audit_of_another_plan_is_said_to_be_one(copied: Path) -> None:
    stored = Path(__file__).resolve().parents[2] / "docs" / "audits" / "fedsgd"
    facts = facts_of(copied, stored)
    page = run_page(facts)
    assert "This audit is of another plan" in page
    assert "attacks with controls found nothing" not in page.split("Attacks</h2>")[0]
