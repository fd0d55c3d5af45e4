"""`bilateral reproduce`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from bilateral.cli.console import ProgressBar, interruptible, out, print_json
from bilateral.cli.options import DataDir, Json, Quiet, check_writable
from bilateral.errors import PlanError
from bilateral.report.reproduced_files import write_outcome
from bilateral.report.reproduced_page import page_of_folder, stored_tables
from bilateral.report.reproduced_summary import BEGIN, END, with_summary
from bilateral.report.reproduced_table import as_text, in_words
from bilateral.reproduce.papers.summary import NAME
from bilateral.reproduce.registry import table_named, tables
from bilateral.reproduce.runner import estimate, reproduce
from bilateral.reproduce.tables import Scale, Table

DEFAULT_OUTPUT = Path("bilateral-reproductions")


def reproduce_command(
    table: Annotated[
        str | None, typer.Argument(help="Such as p0-i, or 'P2 3'; `all` is every one.", show_default=False)
    ] = None,
    list_tables: Annotated[bool, typer.Option("--list", help="List the tables and stop.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes a table; the default.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="As far as this machine goes; says first how long that takes.")
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of finished rows, tables and pictures.")
    ] = DEFAULT_OUTPUT,
    page: Annotated[
        Path | None,
        typer.Option(
            help="Write the page of the tables in --output to this file, and do nothing else.", show_default=False
        ),
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(help="Write the table of all systems into this page, such as README.md.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Redo a table of the papers: their figures and ours side by side, and what agrees.

    Every finished row is kept at once: after an interruption, of whatever kind, the same command goes on. Tables share
    rows. Real data are read from --data-dir; where they are missing, a table says what stands in for them.

    Examples:

      bilateral reproduce --list

      bilateral reproduce p0-i --data-dir DIR

      bilateral reproduce all --output out --data-dir DIR

      bilateral reproduce p4-1 --full --data-dir DIR

      bilateral reproduce --output docs/reproductions --page docs/reproductions.md

      bilateral reproduce --output docs/reproductions --summary README.md
    """
    if list_tables:
        _list(json=json)
        return
    if page is not None or summary is not None:
        if table is not None or (page is not None and summary is not None):
            raise PlanError("--page and --summary write of all tables in --output.", remedy="Name no table with one.")
        written = _write_page(page, output) if page is not None else _write_summary(summary or Path(), output)
        if json:
            print_json({"page": str(written)})
        return
    if quick and full:
        raise PlanError("Expected --quick or --full, got both.", remedy="Choose one.")
    if table is None:
        raise PlanError("Expected the name of a table.", remedy="`bilateral reproduce --list` has them.")
    chosen = list(tables().values()) if table == "all" else [table_named(table)]
    done: list[dict[str, Any]] = []
    scale: Scale = "full" if full else "quick"
    with interruptible("Stopping after this row; what is done is kept. Once more to stop at once.") as interrupted:
        for one in chosen:
            done.append(_redo(one, output, scale, data_dir, lambda: bool(interrupted), quiet=quiet))
            if not json:
                out.print(as_text(done[-1]), markup=False)
            if not done[-1]["finished"]:
                break
    if json:
        print_json({"tables": done})
    elif done and not done[-1]["finished"]:
        out.print(f"Stopped; the same command goes on in {escape(str(output))}.")


def _redo(
    table: Table, output: Path, scale: Scale, data_dir: Path | None, should_stop: Callable[[], bool], *, quiet: bool
) -> dict[str, Any]:
    """One table, written as files too; a full one says first how long it will take."""
    if scale == "full":
        with ProgressBar(f"{table.name}, pilots", quiet=quiet) as bar:
            left = estimate(table, output=output, scale=scale, data_dir=data_dir, on_progress=bar.update)
            bar.note(f"{table.name}: some {in_words(left.seconds)}, by pilots of {in_words(left.pilot_seconds)}")
    with ProgressBar(table.name, quiet=quiet) as bar:
        outcome = reproduce(
            table, output=output, scale=scale, data_dir=data_dir, on_progress=bar.update, should_stop=should_stop
        )
    write_outcome(outcome, output)
    return outcome.as_dict()


def _list(*, json: bool) -> None:
    if json:
        print_json(
            {"tables": [{"name": one.name, "title": one.title, "needs": list(one.needs)} for one in tables().values()]}
        )
        return
    for one in tables().values():
        needs = f"  [{', '.join(one.needs)}]" if one.needs else ""
        out.print(f"{one.name:12} {one.title}{needs}", markup=False)


def _write_page(page: Path, folder: Path) -> Path:
    check_writable(page)
    page.write_text(page_of_folder(folder), encoding="utf-8")
    return page


def _write_summary(page: Path, folder: Path) -> Path:
    """In the place of the one that the page has."""
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise PlanError(f"{page} has no place for the table of systems.", remedy=f"Add the lines {BEGIN} and {END}.")
    found = [one for one in stored_tables(folder) if one["table"] == NAME]
    if not found:
        raise PlanError(f"{folder} has no table `{NAME}`.", remedy=f"`bilateral reproduce {NAME} --output {folder}`.")
    page.write_text(with_summary(text, found[0]), encoding="utf-8")
    return page
