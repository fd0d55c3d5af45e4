"""The `bilateral` command."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.markup import escape

from bilateral.cli import (
    ask,
    audit,
    bench,
    compare,
    deploy,
    doctor,
    explain,
    export,
    hetero,
    inspect,
    ladder,
    new,
    privacy,
    report,
    run,
    serve,
    submit,
    watch,
)
from bilateral.cli.console import err
from bilateral.cli.memory import keep_freed_memory
from bilateral.errors import BilateralError
from bilateral.version import __version__

app = typer.Typer(
    name="bilateral",
    help="Federated deep learning: the server sees only sums, and clients train a model that they do not have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("run")(run.run_command)
app.command("hetero")(hetero.hetero_command)
app.command("audit")(audit.audit_command)
app.command("leakage-page")(audit.leakage_page_command)
app.command("report")(report.report_command)
app.command("watch")(watch.watch_command)
app.command("deploy")(deploy.deploy_command)
app.command("submit")(submit.submit_command)
app.command("sites")(submit.sites_command)
app.command("ladder")(ladder.ladder_command)
app.command("new")(new.new_command)
app.command("explain")(explain.explain_command)
app.command("doctor")(doctor.doctor_command)
app.command("compare")(compare.compare_command)
app.command("inspect")(inspect.inspect_command)
app.command("privacy")(privacy.privacy_command)
app.command("export")(export.export_command)
app.command("predict")(export.predict_command)
app.command("serve")(serve.serve_command)
app.command("ask")(ask.ask_command)
app.command("deal")(serve.deal_command)
app.command("bench")(bench.bench_command)


@app.callback(invoke_without_command=True)
def version_option(
    version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True),
) -> None:
    """Federated deep learning: the server sees only sums, clients see a disguised model."""
    if version:
        typer.echo(f"bilateral {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; an error of the user's is one message and exit code 2."""
    # A console script does not look into the current folder; `my_package.nets:build` should be found there.
    sys.path.append(str(Path.cwd()))
    keep_freed_memory()
    try:
        app()
    except BilateralError as error:
        _print_error(str(error))
        sys.exit(2)
    except OSError as error:  # a full disk, a folder without permission
        _print_error(f"{error.strerror or error}: {error.filename or ''}")
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("Interrupted.")
        sys.exit(130)


def _print_error(text: str) -> None:
    err.print(f"[bold red]Error:[/] {escape(text)}", soft_wrap=True)


if __name__ == "__main__":
    main()
