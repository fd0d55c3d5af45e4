"""The `bilateral` command."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.markup import escape

from bilateral.cli.console import err
from bilateral.cli.lazy_commands import LazyCommands, add_lazily
from bilateral.cli.memory import keep_freed_memory
from bilateral.errors import BilateralError
from bilateral.version import __version__

app = typer.Typer(
    name="bilateral",
    cls=LazyCommands,
    help="Federated deep learning: the server sees only sums, and clients train a model that they do not have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_COMMANDS = {
    "run": "Train a model with clients and a server that do not see each other's side; `--protection` says how far.",
    "hetero": "Let clients with different networks teach each other; each learns only the sum of the others' answers.",
    "audit": "Attack a plan from the place of each of its parties, and say which of its claims were not broken.",
    "leakage-page": "Write the page on what leaks, from stored audits: what the papers claim, what attackers got, what "
    "closes it.",
    "report": "Write the page of a run: one HTML file that needs no network and no scripts.",
    "watch": "Watch a run: progress, metrics, which site is in, which was missed and why.",
    "deploy": "Write what the operators of a plan's parties need: start-up kits with certificates, identities and "
    "settings.",
    "submit": "Run a plan on a deployment and look after it: a new term begins when a site or the server comes back.",
    "sites": "List the sites that are connected to a deployment's server, one a line.",
    "ladder": "Which protections there are, from none to both directions: who sees what, and at what cost.",
    "new": "Make a small project: a network, data, a plan, a script and a test. It runs at once, without a network.",
    "explain": "Say in plain words what a plan hides from whom, what it does not, and what it costs, before anything "
    "runs.",
    "doctor": "Look at this machine: versions, processor, kernels, memory, data, NVIDIA FLARE, space; and say what to "
    "do.",
    "compare": "FedSGD and the protections side by side, on the same batches.",
    "reproduce": "Redo a table of the papers: their figures and ours side by side, and what agrees.",
    "inspect": "Which protections take a model, and what perturbation hides of it, parameter by parameter.",
    "privacy": "Print what a plan spends, or solve for the noise that meets a budget. Nothing is trained.",
    "export": "Write a run's model for inference: exact predictions, scaled and permuted parameters.",
    "predict": "Predict with an exported model and report how good it is.",
    "serve": "Answer clients with a run's model, which stays here: they learn answers, and this server no question.",
    "ask": "Ask a served model about inputs of one's own: only who asks learns the answers, and nothing "
    "of the model else.",
    "deal": "Deal for the clients of a `bilateral serve`, as a third party: it sees no model, no question and no "
    "answer.",
    "schema": "Print the JSON Schema of what a command prints with `--json`.",
    "bench": "Measure this installation; both sides of a ratio are measured alternately in one process (or one "
    "FLARE job).",
}
"""What `--help` says of each: the first line of the command's own help."""
_ELSEWHERE = {"leakage-page": "audit", "sites": "submit", "predict": "export", "deal": "serve"}
"""Commands that are not in the module of their name."""
for _name, _line in _COMMANDS.items():
    add_lazily(app, _name, f"bilateral.cli.{_ELSEWHERE.get(_name, _name)}", _line)


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
        _print_error(error.in_full())
        sys.exit(2)
    except OSError as error:  # a full disk, a folder without permission
        where = f": {error.filename}" if error.filename else ""
        _print_error(f"{error.strerror or error}{where}. See that the path, its permissions and free space are right.")
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("Interrupted. What was saved is kept; where a command has --resume, that goes on.")
        sys.exit(130)


def _print_error(text: str) -> None:
    err.print(f"[bold red]Error:[/] {escape(text)}", soft_wrap=True)


if __name__ == "__main__":
    main()
