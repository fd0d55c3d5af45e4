"""Every command and every snippet of the pages is run, in the order in which it is printed, as a reader would.

One scratch directory a page and one process for all. Runs are cut to their first rounds and audits to a quick
experiment on a small plan (`shortened`), which is all that differs from what is printed.
"""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import typer.main
from tests.printed import ROOT, Printed, pages, printed

import bilateral
from bilateral.cli.lazy_commands import imported
from bilateral.cli.main import app, main
from bilateral.cli.options import parse_setting
from bilateral.engine.plan import load_plan

BLOCKS: Final = {page.relative_to(ROOT).as_posix(): printed(page) for page in pages()}
ALL: Final = [block for blocks in BLOCKS.values() for block in blocks]
COMMANDS: Final = [block for block in ALL if block.language == "shell"]
GENERATED: Final = "docs/leakage.md"
"""Written by `bilateral leakage-page`; its commands are the audits that it was made of, each of them an hour."""
SMALL_PLAN: Final = """
protection = "masks"
data.name = "wine"
model.name = "mlp-3"
training = { rounds = 2, batch_size = 8 }
federation.clients = 3
"""


def shortened(words: list[str]) -> list[str]:
    """The same command, of two rounds or of one quick experiment on a small plan."""
    match words[1]:
        case "run" | "compare" if "--write-plan" not in words and "--resume" not in words:
            kept = [re.sub(r"^training\.rounds=\d+$", "training.rounds=2", word) for word in words]
            if "--rounds" in kept:
                kept[kept.index("--rounds") + 1] = "2"
            return [*kept, *_small_plan_for(kept), "--quiet"]
        case "hetero" if "--write-plan" not in words:
            small = [
                "--clients",
                "3",
                "--queries",
                "4",
                "--samples",
                "12",
                "--models",
                "mlp-3",
                "--set",
                "training.epochs=1",
            ]
            return [*words, *small, "--quiet"]
        case "audit" if "--list" not in words and "--show" not in words:
            only = [] if "--only" in words else ["--only", "presence"]
            effort = [] if "--effort" in words else ["--effort", "smoke"]
            return [*words, *_small_plan_for(words), *only, *effort, "--workers", "1", "--quiet"]
    return words


def _small_plan_for(words: list[str]) -> list[str]:
    """What a command says of its plan stays; what it leaves to the default plan is small."""
    if any(word.endswith(".toml") for word in words[2:3]):
        return []
    small = {"--data": "digits", "--model": "mlp-3", "--clients": "3", "--rounds": "2"}
    return [word for option, value in small.items() if option not in words for word in (option, value)]


def _plan_and_run() -> None:
    Path("plan.toml").write_text(SMALL_PLAN)
    bilateral.run(load_plan("plan.toml"), output="out", reference=False)


def _sealed_run() -> None:
    plan = {"protection": "fedavg", "data.name": "digits", "model.name": "mlp-3", "training.rounds": 1}
    bilateral.run(bilateral.RunPlan().with_settings(plan), output="out", reference=False)


def _three_sites() -> None:
    draw = np.random.default_rng(0)
    for name, part, count in (("a", "train", 60), ("b", "train", 40), ("c", "train", 50), ("public_test", "test", 30)):
        inputs = draw.normal(size=(count, 12)).astype(np.float32)
        np.savez(f"{name}.npz", **{f"x_{part}": inputs, f"y_{part}": (inputs[:, 0] > 0).astype(np.int64)})
    (plan,) = [one.text for one in BLOCKS["docs/how-to/many-machines.md"] if one.language == "toml"]
    Path("sites.toml").write_text(plan)


def _somebodys_package() -> None:
    Path("my_package").mkdir()
    Path("my_package/nets.py").write_text(
        "from torch import nn\n\n\ndef build(input_shape, num_outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 8), nn.ReLU(), nn.Linear(8, num_outputs))\n"
    )


def _stored_tables() -> None:
    shutil.copytree(ROOT / "docs" / "reproductions", "docs/reproductions")


BEFORE: Final[dict[str, Callable[[], None]]] = {
    "docs/how-to/audit.md": _plan_and_run,
    "docs/how-to/command-line.md": _plan_and_run,
    "docs/how-to/serve-a-model.md": _sealed_run,
    "docs/how-to/many-machines.md": _three_sites,
    "docs/models.md": _somebodys_package,
    "docs/reproductions.md": _stored_tables,
}
"""What a page takes for granted: that the reader has a plan, a run, files of three sites."""
EXIT_CODES: Final = {"--strict": (0, 3)}


@cache
def known_commands() -> dict[str, Any]:
    return imported(app)


class Reader:
    """Somebody who types what a page prints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch = monkeypatch
        self._screen = capsys

    def types(self, block: Printed, shorten: Callable[[list[str]], list[str]] = shortened) -> None:
        match block.language, block.words[:1] if block.language == "shell" else []:
            case "python", _:
                self._python(block)
            case "toml", _:
                self._toml(block)
            case "shell", ["bilateral"]:
                self._bilateral(block, shorten(block.words))
            case "shell", ["cd"]:
                self._patch.chdir(block.words[1])
            case "shell", ["python", "-m", *_]:
                subprocess.run([sys.executable, *block.words[1:]], check=True)
            case "shell", ["python"]:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
                    runpy.run_path(block.words[1], run_name="__main__")
            case "shell", _:
                raise AssertionError(f"{block}: {block.text!r} is not run; if it cannot be, say why above it")

    def _bilateral(self, block: Printed, words: list[str]) -> None:
        self._patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as stopped:
            main()
        told = self._screen.readouterr()
        codes = next((codes for option, codes in EXIT_CODES.items() if option in words), (0,))
        assert (stopped.value.code or 0) in codes, f"{block}: {' '.join(words)}\n{told.out}{told.err}"
        if "--write-plan" in words:  # what follows reads it
            plan = Path(words[words.index("--write-plan") + 1])
            plan.write_text(re.sub(r"^rounds = \d+", "rounds = 2", plan.read_text(), flags=re.MULTILINE))

    @staticmethod
    def _python(block: Printed) -> None:
        if named := re.match(r"# (\w+\.py)\b", block.text):
            Path(named[1]).write_text(block.text, encoding="utf-8")
        else:
            exec(compile(block.text, str(block), "exec"), {"__name__": "printed"})

    @staticmethod
    def _toml(block: Printed) -> None:
        if "entry-points" in block.text:
            tomllib.loads(block.text)
            return
        Path("printed.toml").write_text(block.text, encoding="utf-8")
        load_plan("printed.toml")


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("BILATERAL_DATA", raising=False)
    before = set(sys.modules)
    yield Reader(monkeypatch, capsys)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if any(one.how == "run" for one in blocks)])
def test_what_a_page_prints_works_from_top_to_bottom(page: str, reader: Reader) -> None:
    if page == GENERATED:
        pytest.skip("generated, and each of its audits takes an hour; its words are looked at below")
    BEFORE.get(page, lambda: None)()
    for block in BLOCKS[page]:
        if block.how == "run" and block.language != "text":
            reader.types(block)


@pytest.mark.long
@pytest.mark.parametrize("block", [one for one in ALL if one.how == "long"], ids=str)
def test_what_takes_long_works_as_it_is_printed(block: Printed, reader: Reader) -> None:
    BEFORE.get(block.page, lambda: None)()
    reader.types(block, lambda words: words)


@pytest.mark.parametrize("block", [one for one in COMMANDS if one.words[0] == "bilateral"], ids=str)
def test_a_printed_command_has_words_that_the_command_knows(block: Printed) -> None:
    words = [re.sub(r"\$\w+", "7000", word) for word in block.words[1:]]
    if words[0].startswith("--"):
        assert any(words[0] in one.opts for one in typer.main.get_command(app).params)
        return
    command = known_commands()[words[0]]
    command.make_context(words[0], words[1:])  # parses, and calls nothing
    named = [value.partition("=") for option, value in pairwise(words) if option == "--set"]
    if named and words[0] != "hetero" and "--hetero" not in words:
        settings = {name: parse_setting(f"{name}={value}")[1] for name, _, value in named}
        settings |= {"noise.epsilon": 8.0} if "--epsilon" in words else {}
        bilateral.RunPlan().with_settings(settings)


def test_a_command_in_the_middle_of_a_sentence_has_options_that_the_command_knows() -> None:
    known = known_commands()
    found = 0
    for page in pages():
        for text in re.findall(r"`bilateral ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
            name, *words = text.split()
            if name.startswith("--"):
                continue
            found += 1
            assert name in known, f"{page.name}: bilateral {text}"
            options = {option for one in known[name].params for option in (*one.opts, *one.secondary_opts)}
            for word in words:
                if word.startswith("--"):
                    assert word.partition("=")[0] in options | {"--help"}, f"{page.name}: bilateral {text}"
    assert found > 50


def test_scripts_that_a_page_names_are_there_and_know_their_options() -> None:
    found = 0
    for block in COMMANDS:
        for script in re.findall(r"\bbenchmarks/\w+\.py", block.text):
            source = (ROOT / script).read_text(encoding="utf-8") + (ROOT / "benchmarks/driver.py").read_text()
            for option in re.findall(r" \[?(--[a-z-]+)", block.text.split(script)[1].split("  ")[0]):
                assert f'"{option}"' in source, f"{block}: {script} has no {option}"
            found += 1
    assert found >= 10


def test_files_that_are_to_run_a_page_name_it() -> None:
    for block in ALL:
        if block.how == "elsewhere":
            name = block.page.rpartition("/")[2].removesuffix(".md")
            for file in re.findall(r"\S+/\S+", block.reason):
                assert name in (ROOT / file).read_text(encoding="utf-8"), f"{block}: {file}"


def test_most_of_what_is_printed_is_run_and_what_is_not_has_a_reason() -> None:
    """The count: whoever adds a command that nobody runs has to say so here."""
    counted = Counter(one.how for one in ALL if one.language != "text" and one.page != GENERATED)
    assert all(one.reason for one in ALL if one.how != "run")
    assert counted == {"run": 63, "long": 8, "elsewhere": 28, "parsed": 47}
    assert sum(one.language == "text" for one in ALL) == 9  # four drawings, five lines of a table that is printed
