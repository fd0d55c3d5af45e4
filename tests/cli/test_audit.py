"""`bilateral audit` and `bilateral leakage-page`, as a user calls them. Smoke effort: it proves little, and says so."""

import json

import pytest

QUICK = (
    "--data", "breast-cancer", "--model", "mlp-3", "--clients", 3, "--rounds", 3, "--effort", "smoke",
    "--only", "softmax-recovery", "--workers", 1, "--set", "perturbation.softmax=blinded",
)  # fmt: skip
KEYS = {
    "claim", "adversary", "attack", "adaptive", "metric", "value", "interval", "positive_control", "negative_control",
    "verdict",
}  # fmt: skip


def test_audit_prints_the_documented_object_with_every_claim(bilateral):
    outcome = bilateral("audit", *QUICK, "--json", "--quiet", "--output", "out")
    assert outcome.code == 0
    assert outcome.err == ""
    rows = outcome.json["verdicts"]
    assert all(set(row) >= KEYS for row in rows)
    assert {row["verdict"] for row in rows} <= {"holds", "broken", "not tested", "proves nothing"}
    tested = {row["tests"] for row in rows if row["verdict"] != "not tested"}
    assert 8 in tested  # the experiment that was asked for
    assert any(row["tests"] == "single uploads" and row["verdict"] == "not tested" for row in rows)


def test_audit_leaves_figures_and_a_page_and_can_show_them_again(bilateral, tmp_path):
    outcome = bilateral("audit", *QUICK, "--output", "out")
    assert outcome.code == 0
    assert "not tested" in outcome.out
    assert "line 8" in outcome.out
    assert "100/100" in outcome.err
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["finished"]
    assert (tmp_path / "out" / "audit.html").read_text().startswith("<!DOCTYPE html>")
    shown = bilateral("audit", "--show", "out")
    assert shown.out.split("Figures, pictures")[0].strip() == outcome.out.split("Figures, pictures")[0].strip()
    page = bilateral("leakage-page", "out", "--output", "leakage.md")
    assert page.code == 0
    assert "line 8" in (tmp_path / "leakage.md").read_text().lower()


def test_strict_fails_where_a_claim_was_not_shown_to_hold_or_nothing_is_claimed(bilateral):
    assert bilateral("audit", *QUICK, "--strict", "--quiet", "--output", "out").code == 3
    assert bilateral("audit", "--show", "out", "--strict").code == 3
    bare = ("--protection", "fedavg", "--masks", "none")
    assert bilateral("audit", *QUICK, *bare, "--strict", "--quiet", "--output", "bare").code == 3


@pytest.mark.parametrize("other", [("--effort", "thorough"), ("--mechanism", "sound"), ("--hetero",), ("--seed", 1)])
def test_resuming_takes_no_other_settings(bilateral, other):
    outcome = bilateral("audit", "--resume", "out", *other)
    assert outcome.code == 2
    assert "Give no other settings" in outcome.err


def test_a_finished_audit_can_be_resumed_and_does_nothing_again(bilateral):
    first = bilateral("audit", *QUICK, "--json", "--quiet", "--output", "out").json
    again = bilateral("audit", "--resume", "out", "--json", "--quiet", "--workers", 1).json
    assert again["verdicts"] == first["verdicts"]


def test_experiments_are_listed_for_both_kinds_of_plan(bilateral):
    names = {one["name"] for one in bilateral("audit", "--list", "--json").json["experiments"]}
    assert {"gradient-inversion", "softmax-recovery"} <= names
    assert bilateral("audit", "--hetero", "--list").out.strip()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--effort", "lazy"), "There is no effort 'lazy' here"),
        (("--only", "nonsense"), "There is no experiment 'nonsense'"),
        (("--show", "nowhere"), "nowhere"),
        (("--resume", "nowhere"), "not an audit's directory"),
        (("--hetero", "--model", "lenet"), "model.name"),
        (("--style", "published"), "belongs to --hetero"),
        (("--workers", "0"), "equal to 1"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(bilateral, tmp_path, words, said):
    outcome = bilateral("audit", *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert not list(tmp_path.iterdir())
