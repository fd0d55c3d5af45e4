"""`bilateral report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from bilateral.audit.audit_directory import AuditDirectory
from bilateral.audit.auditor import stored_result
from bilateral.cli.console import out, print_json
from bilateral.cli.options import Json
from bilateral.errors import PlanError
from bilateral.report.audit_html import write_html
from bilateral.report.run_page.page import write_run_page


def report_command(
    directory: Annotated[Path, typer.Argument(help="A run's directory (its --output).", show_default=False)],
    audit: Annotated[
        Path | None, typer.Option(help="The folder of an audit of the same plan.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page; by default report.html in the run.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Write the page of a run: one HTML file that needs no network and no scripts.

    What it hides from whom in plain questions, how it learned, what it cost, which sites were missed, what attackers
    got. Every finished run of any kind has one; this makes it anew, with an audit's findings if there are some. Of an
    audit's folder it makes the audit's page.

    Examples:

      bilateral report out

      bilateral report out --audit bilateral-audits/20260101-120000-digits-lenet

      bilateral report out --output run.html

      bilateral report bilateral-audits/20260101-120000-digits-lenet
    """
    page = _page(directory, audit, output)
    size = page.stat().st_size
    if json:
        print_json({"page": str(page), "bytes": size})
    else:
        out.print(f"{escape(str(page))} ({size / 1000:.0f} kB): open it in a browser.")


def _page(directory: Path, audit: Path | None, output: Path | None) -> Path:
    """Of a run, or of an audit by itself."""
    audited = AuditDirectory(directory)
    if not audited.result.exists() or (directory / "plan.toml").exists():
        return write_run_page(directory, audit=audit, output=output)
    if audit is not None:
        raise PlanError(
            f"{directory} is the folder of an audit, not of a run.",
            remedy=f"`bilateral report RUN --audit {directory}` puts it into the page of a run.",
        )
    return write_html(stored_result(audited.result), audited.pictures, output or directory / "audit.html")
