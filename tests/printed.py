"""What the pages print for readers to type: every command and every snippet, with what becomes of it in the tests.

A block is run where nothing is said of it. Where something is, it stands in the page's source above the block, or above
the paragraph before it, as a comment that readers do not see:

    <!-- parsed: needs data that are not shipped -->
    <!-- long, `--engine`: starts processes of FLARE -->          (only the lines that contain these words)
    <!-- elsewhere: tests/test_own_data.py -->

`parsed`: the command's words are understood, and nothing is run. `long`: run as it is printed by `make test-long`.
`elsewhere`: that file runs it, and names the page.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).parents[1]
How = Literal["run", "long", "parsed", "elsewhere"]
_SAID: Final = re.compile(r"<!-- (long|parsed|elsewhere)(?:, `([^`]+)`)?: (.+?) -->")
_SHELL: Final = ("", "bash", "sh", "console")
_ALONE: Final = ("python", "toml", "text")
_PROGRAMS: Final = re.compile(
    r"(?:[A-Z_]+=\S+ )*"
    r"(?:bilateral|make|pip|python3?|cd|rm|git|echo|cp|mkdir|docker|[A-Z]+/bin/\S+|\.?\S*/bin/\S+|\S+\.sh) ?"
)


@dataclass(frozen=True)
class Printed:
    """A command, or a snippet of another language."""

    page: str
    line: int
    language: str
    """`shell`, `python`, `toml`, or `text`: a drawing, or what a command prints."""
    text: str
    how: How = "run"
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def words(self) -> list[str]:
        """Of a command; what follows a `#` is for readers."""
        return shlex.split(self.text, comments=True)


def pages() -> list[Path]:
    """All that people read; not what is generated from the code, nor decisions, which tell of their time."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    found += sorted((ROOT / "docs").glob("*.md"))
    found += [page for folder in ("how-to", "explanation") for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
    return [*found, ROOT / "examples" / "README.md", ROOT / "benchmarks" / "README.md"]


def printed(page: Path) -> list[Printed]:
    """From top to bottom."""
    return list(_of_lines(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8").split("\n")))


def _of_lines(page: str, lines: Sequence[str]) -> Iterator[Printed]:
    said: list[tuple[How, str, str]] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if line.startswith("#"):
            said = []
        said += [(how, words, reason) for how, words, reason in _SAID.findall(line)]  # type: ignore[misc]
        if line.startswith("```"):
            end = next(after for after in range(number + 1, len(lines)) if lines[after].startswith("```"))
            block, language, begin = lines[number + 1 : end], line[3:].strip(), number + 1
        elif line.startswith("    ") and not lines[number - 1].strip():
            end = next(
                (after for after in range(number, len(lines)) if not lines[after].startswith("    ")), len(lines)
            )
            block, language, begin = [one[4:] for one in lines[number:end]], "", number
        else:
            number += 1
            continue
        for one in _of_block(page, begin, language, block):
            yield _marked(one, said)
        said = []
        number = end + 1


def _of_block(page: str, begin: int, language: str, block: Sequence[str]) -> Iterator[Printed]:
    if language in _ALONE:
        yield Printed(page, begin + 1, language, "\n".join(block) + "\n")
    elif language in _SHELL:
        whole = ""
        for number, line in enumerate(block):
            whole += line.strip()
            if whole.endswith("\\"):
                whole = whole[:-1]
                continue
            if whole:
                is_command = _PROGRAMS.match(whole) is not None
                yield Printed(page, begin + number + 1, "shell" if is_command else "text", whole)
            whole = ""


def _marked(one: Printed, said: Sequence[tuple[How, str, str]]) -> Printed:
    for how, words, reason in said:
        if words in one.text:
            return replace(one, how=how, reason=reason)
    return one
