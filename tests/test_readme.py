"""What README prints works as it is printed: plans, Python, and every command's words."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from tests.runs.rounds.harness import conduct, weights_in

import bilateral
from bilateral.engine.plan import load_plan

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
_PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "tutorial.md",
    *ROOT.glob("docs/how-to/*.md"),
    *ROOT.glob("docs/explanation/*.md"),
)
PAGES = {page.name: page.read_text(encoding="utf-8") for page in _PAGES}
NUM_FEATURES = 12


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """Lines that begin with the command, indented or in a block of shell, without what follows a `#`."""
    shell = "\n".join(blocks(text, "bash"))
    lines = re.findall(r"^(?: {4})(bilateral [^#\n]*)", text, re.MULTILINE)
    return [line.strip() for line in lines + re.findall(r"^(bilateral [^#\n]*)", shell, re.MULTILINE)]


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """The plan for three sites as it is printed, and the files that it names, made on the spot."""
    monkeypatch.chdir(tmp_path)
    (printed,) = [block for block in blocks(PAGES["many-machines.md"], "toml") if "[data.sites." in block]
    Path("sites.toml").write_text(printed, encoding="utf-8")
    draw = np.random.default_rng(0)
    for name, part, count in (("a", "train", 60), ("b", "train", 40), ("c", "train", 50), ("public_test", "test", 30)):
        inputs = draw.normal(size=(count, NUM_FEATURES)).astype(np.float32)
        np.savez(f"{name}.npz", **{f"x_{part}": inputs, f"y_{part}": (inputs[:, 0] > 0).astype(np.int64)})
    return load_plan("sites.toml").with_settings({"training.rounds": 4})


def test_the_plan_for_sites_trains_in_one_process(sites):
    result = bilateral.run(sites, save=False)
    assert result.rounds == 4
    assert not result.failed
    assert result.guarantee.protection == "perturbation + ring masks"


def test_the_plan_for_sites_trains_the_same_model_over_sites_of_their_own(sites, tmp_path):
    result = conduct(sites, tmp_path / "far")
    assert result.finished
    assert not result.failed
    bilateral.run(sites, output=tmp_path / "here", reference=False)
    far, here = (weights_in(tmp_path / place / "checkpoint.safetensors", sites) for place in ("far", "here"))
    assert far.equal(here)


@pytest.mark.parametrize(
    ("page", "number"), [(page, number) for page, text in PAGES.items() for number in range(len(blocks(text, "toml")))]
)
def test_every_printed_plan_is_one(page, number, tmp_path):
    (tmp_path / "plan.toml").write_text(blocks(PAGES[page], "toml")[number], encoding="utf-8")
    load_plan(tmp_path / "plan.toml")


def test_the_first_page_is_short():
    assert len(README.splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("option", ["--output", "--write-plan"])
def test_no_command_writes_where_one_above_it_wrote(option, page):
    """From top to bottom in one folder: a second command that is to write there would be refused."""
    written = [words[words.index(option) + 1] for words in map(shlex.split, commands(PAGES[page])) if option in words]
    assert len(written) == len(set(written))


def test_it_says_where_the_command_is_before_the_first_one():
    assert 0 < README.index(". .venv/bin/activate") < README.index("\n    bilateral ")


def test_the_noise_that_is_solved_for_is_that_of_the_run_below():
    page = PAGES["masks-and-noise.md"]
    (solved,) = [line for line in commands(page) if line.startswith("bilateral privacy")]
    assert solved.replace("bilateral privacy", "bilateral run") in commands(page)


def test_the_settings_in_the_table_are_those_of_plans():
    plan = bilateral.RunPlan()
    rows = re.findall(r"^\| `([a-z_.]+)`[^|]*\| (.*) \|$", PAGES["plans.md"], re.MULTILINE)
    sections = [row for row in rows if row[0] in type(plan).model_fields]
    assert len(sections) >= 5
    for section, values in sections:
        known = type(getattr(plan, section)).model_fields
        outside = re.sub(r"\([^()]*\)", "", values)
        for name in re.findall(r"`([a-z_]+)`", outside):
            assert name in known, f"{section}.{name}"
