"""The ladder says what the protections are: as settings, on the page, and in the stored audits."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bilateral.audit.auditor import stored_result
from bilateral.cli.main import app
from bilateral.engine.plan import RunPlan
from bilateral.errors import UnsoundPlanError
from bilateral.protections.ladder import LADDER, TITLES, as_dicts, as_markdown, who_sees_what
from bilateral.protections.registry import baseline_names, protection_words, unaliased, word_of
from bilateral.report.audit_html import audit_html
from bilateral.runs.rounds.in_process import run

ROOT = Path(__file__).parents[2]
SMALL = {"data.name": "wine", "model.name": "mlp-3", "federation.clients": 3, "training.rounds": 2}


def test_every_rung_is_a_protection_that_plans_can_name():
    for rung in LADDER:
        assert RunPlan().with_settings({"protection": rung.protection}).protection == unaliased(rung.protection)


def test_every_protection_of_the_package_that_stands_alone_is_a_rung():
    assert {rung.protection for rung in LADDER} == {unaliased(word) for word in protection_words()}
    assert not {rung.protection for rung in LADDER} & set(baseline_names())


def test_the_readme_has_the_table():
    assert as_markdown() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_prints_every_rung():
    found = CliRunner().invoke(app, ["ladder", "--json"])
    assert json.loads(found.stdout)["ladder"] == as_dicts()
    said = CliRunner().invoke(app, ["ladder"]).stdout
    assert all(word_of(rung.protection) in said for rung in LADDER)


def test_the_help_of_the_option_says_what_clients_see():
    shown = "".join(CliRunner(env={"COLUMNS": "200"}).invoke(app, ["run", "--help"]).stdout.split())
    for rung in LADDER:
        assert word_of(rung.protection) in shown
        assert "".join(f"clientssee{rung.clients_see.partition(':')[0]}".split()) in re.sub("[│|]", "", shown)


@pytest.mark.parametrize("rung", LADDER, ids=lambda rung: rung.protection)
def test_a_run_says_where_it_stands(tmp_path, monkeypatch, rung):
    monkeypatch.chdir(tmp_path)
    words = [
        "run",
        "--data",
        "wine",
        "--model",
        "mlp-3",
        "--clients",
        "2",
        "--rounds",
        "1",
        "--quiet",
        "--no-reference",
    ]
    words += ["--protection", rung.protection, "--set", "model.options={width = 4}"]
    said = " ".join(CliRunner().invoke(app, words).stdout.split())
    for words_seen in who_sees_what(rung).values():
        assert " ".join(words_seen.split()) in said
    values = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert values["ladder"] == next(row for row in as_dicts() if row["protection"] == rung.protection)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"protection": "fedavg"}, "fedavg"),
        ({"protection": "fedavg", "aggregation.masks": "ring"}, "masks"),
        ({"protection": "masks"}, "masks"),
        ({"protection": "perturbation"}, "perturbation"),
        ({"protection": "sealed"}, "sealed"),
        ({"protection": "fedavg", "aggregation.masks": "float"}, None),
        ({"protection": "perturbation", "aggregation.masks": "none"}, None),
        ({"protection": "perturbation", "federation.clients": 1}, None),
    ],
)
def test_a_plan_that_shows_more_than_a_rung_says_does_not_stand_on_it(settings, expected):
    rung = RunPlan().with_settings(settings).rung
    assert (rung.protection if rung else None) == expected


def test_an_audits_page_has_the_table_and_marks_the_plans_own_rung():
    for name, own in (("sealed", "sealed"), ("default", "perturbation"), ("unmasked", None), ("hetero", None)):
        page = audit_html(stored_result(ROOT / "docs" / "audits" / name / "audit.json"))
        for rung in LADDER:
            cells = [html.escape(getattr(rung, column), quote=False) for column in TITLES if column != "protection"]
            assert all(f"<td>{cell}</td>" in page for cell in cells)
            assert (f"<code>{rung.protection}</code>: this plan" in page) == (rung.protection == own)


def test_the_page_of_what_leaks_has_the_table():
    assert as_markdown() in (ROOT / "docs" / "leakage.md").read_text(encoding="utf-8")


def test_masks_are_fedsgd_under_ring_masks_to_the_bit():
    by_one_word = run(RunPlan().with_settings({**SMALL, "protection": "masks"}), reference=False)
    by_two = run(
        RunPlan().with_settings({**SMALL, "protection": "fedavg", "aggregation.masks": "ring"}), reference=False
    )
    assert by_one_word.metrics == by_two.metrics
    assert by_one_word.guarantee == by_two.guarantee


def test_masks_without_masks_are_refused_by_name():
    with pytest.raises(UnsoundPlanError, match="masks without masks"):
        run(RunPlan().with_settings({**SMALL, "protection": "masks", "aggregation.masks": "none"}))


def test_masks_of_a_single_client_are_refused_by_name():
    with pytest.raises(UnsoundPlanError, match="masks without masks"):
        run(RunPlan().with_settings({**SMALL, "protection": "masks", "federation.clients": 1}))
