"""The ladder says what the protections are: as settings, on the page, and in the stored audits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bilateral.cli.main import app
from bilateral.engine.plan import RunPlan
from bilateral.errors import UnsoundPlanError
from bilateral.protections.ladder import LADDER, as_dicts, as_markdown
from bilateral.protections.registry import baseline_names, protection_words, unaliased
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
    assert all(rung.protection in said for rung in LADDER)


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
