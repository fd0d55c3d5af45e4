"""Each client gives one gradient a round, and that is FedSGD: no output and no page calls it FedAvg.

What keeps the old word, and why: docs/decisions/0023-fedsgd-by-name.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from bilateral.bench.round_trip import PROTECTIONS as ROUND_TRIP_PROTECTIONS
from bilateral.cli import bench
from bilateral.cli.main import app
from bilateral.engine.plan import RunPlan, dump_plan, fingerprint_of, load_plan
from bilateral.errors import PlanError

ROOT = Path(__file__).parents[2]
QUICK = (
    "--data", "breast-cancer", "--model", "mlp-3", "--clients", 3, "--rounds", 2, "--set", "model.options={width = 8}",
)  # fmt: skip
COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")}
    - {*(ROOT / "docs" / "reference").rglob("*.md")}  # written from the code
)
EXPLAINED = {
    "README.md": (
        "the same as FedAvg with one local step",
        "**Local training** between two models (FedAvg, FedProx, server optimisers): `--set training.local_epochs=1`",
    ),
    "docs/decisions/0041-where-clients-compute.md": ("plain gradients: FedSGD and FedAvg, with or without masks",),
    "src/bilateral/engine/setup.py": ("micro_batch are for FedSGD and FedAvg, with or without masks",),
    "docs/decisions/0002-one-gradient-per-round.md": ("The papers call it FedAvg",),
    "src/bilateral/protections/fedavg/halves.py": ("which call it FedAvg",),
    "src/bilateral/audit/topics/model/model_inversion.py": ("on what it calls FedAvg",),
    "src/bilateral/report/run_page/learning.py": ("FedSGD, or with local steps FedAvg",),
    "docs/how-to/own-loop.md": ("## FedAvg under masks",),
}
"""Where the word is explained, is a paper's or means local steps, in these words."""
ABOUT_THE_NAME = "docs/decisions/0023-fedsgd-by-name.md"
ABOUT_LOCAL_STEPS = (
    "docs/decisions/0037-local-steps.md",
    "docs/leakage-ledger.md",
    "docs/measurements.md",
    "benchmarks/README.md",
    "src/bilateral/engine/plan.py",
    "src/bilateral/learning/local_steps.py",
    "src/bilateral/protections/fedavg/local_steps.py",
    "src/bilateral/protections/registry.py",
    "src/bilateral/runs/rounds/compare.py",
)
"""With local steps it is FedAvg (decision 37), and these speak of both."""


WORDS_OF_THE_PAPERS = (
    "docs/decisions/0049-tables-of-the-papers.md",
    "docs/reproductions.md",
    "src/bilateral/reproduce/",
)
"""Rows of the papers' tables keep the papers' names; that FedAvg is FedSGD there is said in each table."""


def unexplained(path: Path, text: str) -> list[str]:
    """What is left of the old name when its explanations are taken out."""
    if path.relative_to(ROOT).as_posix().startswith((*ABOUT_LOCAL_STEPS, *WORDS_OF_THE_PAPERS)):
        return []
    text = " ".join(text.split())
    for words in EXPLAINED.get(path.relative_to(ROOT).as_posix(), ()):
        text = text.replace(words, "")
    return re.findall(r".{0,40}FedAvg(?!Server|Client).{0,20}", text)


def says_fedsgd(text: str) -> bool:
    return "FedSGD" in text and "fedavg" not in text.lower()


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_text_has_the_old_name(bilateral, command):
    outcome = bilateral(command, "--help")
    assert outcome.code == 0
    assert "fedavg" not in outcome.out.lower()


def test_the_report_of_a_run_compares_with_fedsgd(bilateral):
    outcome = bilateral("run", *QUICK, "--output", "out")
    assert says_fedsgd(outcome.out)
    assert says_fedsgd(outcome.err)  # progress
    assert "fedavg" not in bilateral("watch", "out", "--once").out.lower()


def test_the_report_of_a_run_without_protection_names_it(bilateral):
    outcome = bilateral("run", *QUICK, "--protection", "fedsgd", "--masks", "ring")
    assert says_fedsgd(outcome.out)
    assert "What FedSGD + ring masks hides" in outcome.out


@pytest.mark.parametrize("words", [("run", *QUICK, "--protection", "fedsgd"), ("ladder",)], ids=lambda words: words[0])
def test_what_names_the_rungs_of_the_ladder_says_fedsgd(bilateral, words):
    out = bilateral(*words).out
    assert "fedsgd" in out
    assert "fedavg" not in out.lower()


def test_the_table_of_compare_compares_with_fedsgd(bilateral):
    outcome = bilateral("compare", *QUICK, "--quiet")
    assert says_fedsgd(outcome.out)
    assert "FedSGD-reordered-1" in outcome.out


def test_tables_of_bench_compare_with_fedsgd(capsys):
    protections = ROUND_TRIP_PROTECTIONS.values()
    rows = [{"protection": name, "ratio_to_fedavg": 1.0 + len(name), "overhead_of_fedavg": 0.1} for name in protections]
    bench._print_rows(rows)
    assert says_fedsgd(capsys.readouterr().out)


def test_an_audit_and_its_page_compare_with_fedsgd(bilateral):
    words = ("--effort", "smoke", "--only", "function-recovery", "--workers", 1)
    outcome = bilateral("audit", *QUICK, *words, "--details", "--output", "out")
    assert says_fedsgd(outcome.out)
    assert "FedSGD" in Path("out/audit.html").read_text()
    assert "FedAvg" not in Path("out/audit.html").read_text() + Path("out/audit.json").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("masks", "--masks", "none"),
        ("sealed", "--epsilon", 8),
        ("perturbation", "--loss", "huber"),
        ("perturbation", "--loss", "ce", "--set", "training.label_smoothing=0.1"),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_errors_advise_fedsgd(bilateral, words):
    outcome = bilateral("run", *QUICK, "--protection", *words)
    assert outcome.code != 0
    assert "'fedsgd'" in outcome.err
    assert "fedavg" not in outcome.err.lower()


def test_nothing_in_the_source_has_the_old_name_but_two_classes():
    found = {path.name: unexplained(path, path.read_text()) for path in sorted((ROOT / "src").rglob("*.py"))}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_has_the_old_name_unless_it_explains_it(page):
    if page.relative_to(ROOT).as_posix() != ABOUT_THE_NAME:
        assert not unexplained(page, page.read_text())


def test_no_stored_audit_has_the_old_name():
    stored = sorted((ROOT / "docs" / "audits").glob("*/audit.json"))
    assert stored
    assert [path.parent.name for path in stored if "FedAvg" in path.read_text()] == []


def test_plans_may_say_fedsgd_and_are_the_plans_that_they_were(tmp_path):
    old = RunPlan(protection="fedavg")
    (tmp_path / "old.toml").write_text('protection = "fedavg"\n')
    (tmp_path / "new.toml").write_text('protection = "fedsgd"\n')
    for new in (load_plan(tmp_path / "new.toml"), RunPlan().with_settings({"protection": "fedsgd"})):
        assert new == old == load_plan(tmp_path / "old.toml")
        assert new.protection == "fedavg"
        assert new.fingerprint() == old.fingerprint() == fingerprint_of(new.model_dump(mode="json"))
        assert dump_plan(new) == dump_plan(old)
    with pytest.raises(PlanError, match="protection"):
        RunPlan().with_settings({"protection": "FedSGD with local epochs"})


def test_files_and_scripts_keep_their_identifiers(bilateral):
    result = bilateral("run", *QUICK, "--protection", "fedavg", "--json", "--quiet").json
    assert {"difference_to_fedavg", "final_difference_to_fedavg", "metrics_of_fedavg"} <= set(result)
    rows = bilateral("compare", *QUICK, "--json", "--quiet").json["rows"]
    assert [row["protection"] for row in rows][:2] == ["fedavg", "fedavg-reordered-1"]


def test_with_local_steps_it_is_fed_avg_and_only_then(bilateral):
    local = bilateral("run", *QUICK, "--protection", "masks", "--set", "training.local_epochs=1", "--reference")
    assert "What FedAvg + ring masks hides" in local.out
    assert "of FedAvg, same seed" in local.out
    assert "FedSGD" not in local.out + local.err
    compared = bilateral("compare", *QUICK, "--protection", "local-steps", "--quiet").out
    assert "FedAvg" in compared
    assert "FedSGD" in compared
