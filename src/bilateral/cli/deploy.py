"""`bilateral deploy`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from bilateral.cli.console import out, print_json
from bilateral.cli.flare_extra import import_flare
from bilateral.cli.options import Json, deployable_plan
from bilateral.errors import PlanError


def deploy_command(
    plan: Annotated[Path, typer.Argument(help="Plan file (TOML), with [data.sites].", show_default=False)],
    server: Annotated[
        str | None, typer.Option(help="Host name under which the sites reach the server.", show_default=False)
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of the server; by default 8002.", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the deployment; by default federation.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New directory; by default the name.", show_default=False)
    ] = None,
    update: Annotated[
        Path | None, typer.Option(help="Add the plan and its new sites to this deployment.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Write what the operators of a plan's parties need: start-up kits with certificates, identities and settings.

    Each party gets its kit, over a channel that both ends trust, and starts it with flare/startup/start.sh. The kits
    accept this plan and no other. The README.md beside them has all the steps; docs/how-to/deployment.md explains them.

    Examples:

      bilateral deploy plan.toml --server fl.example.org

      bilateral deploy plan.toml --server localhost --port 18002 --output trial

      bilateral deploy larger-plan.toml --update federation
    """
    deployment = import_flare("deployment")
    chosen = deployable_plan(plan)
    if update is not None:
        if server or port or name or output:
            raise PlanError("--update keeps the server, port, name and directory.", remedy="Give it alone.")
        deployed = deployment.add_plan(chosen, update)
    elif server is None:
        raise PlanError(
            "Expected --server: the host name under which the sites reach the server.",
            remedy="--server fl.example.org; for a trial on this machine, --server localhost.",
        )
    else:
        deployed = deployment.deploy(
            chosen,
            server=server,
            port=deployment.DEFAULT_PORT if port is None else port,
            name=name or deployment.DEFAULT_NAME,
            output=output,
        )
    if json:
        print_json(deployed.as_dict())
    else:
        _print(deployed.as_dict())


def _print(values: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("server", escape(_short(values["server_kit"])))
    for site, kit in values["site_kits"].items():
        table.add_row(escape(site), escape(_short(kit)))
    table.add_row("administrator", escape(_short(values["admin_kit"])))
    out.print("[bold]Kits[/] (secret: give each to its party only, over a channel that both ends trust)")
    out.print(table)
    out.print("\n[bold]Fingerprint of the plan[/], for the operators to compare by telephone")
    out.print(f"  {values['fingerprint']}")
    out.print("\n[bold]What this deployment does not hide[/] (docs/leakage-ledger.md)")
    for warning in values["warnings"]:
        out.print(f"  - {escape(warning)}")
    out.print("\n[bold]Next[/]")
    out.print("  at each party, in its kit: check \\[data] in bilateral.toml, then run flare/startup/start.sh")
    out.print(f"  here: bilateral submit {escape(_short(values['admin_kit']))} {escape(_short(values['plan']))}")
    out.print(f"  all the steps: {escape(_short(values['handbook']))}")


def _short(path: str) -> str:
    """From here, if it is below; otherwise as it is."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
