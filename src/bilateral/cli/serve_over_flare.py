"""`bilateral serve` over FLARE: a plan for a deployment, or a trial on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, get_args

from rich.markup import escape

from bilateral.cli.any_kind import print_guarantee
from bilateral.cli.console import ProgressBar, err, interruptible, out, print_json
from bilateral.cli.flare_extra import import_flare
from bilateral.cli.options import write_new_plan
from bilateral.engine.kind import SERVING, kind_named
from bilateral.engine.plan_text import validated
from bilateral.engine.remote.hosting import hosted_kind
from bilateral.engine.run_status import RunStatus
from bilateral.errors import PlanError
from bilateral.protocols.share.serving.terms import Reveal
from bilateral.report.run_page.page import write_run_page
from bilateral.serving.hosted.plan import ServingPlan

LOOPBACK = "loopback"


def plan_of(run: str, clients: list[str], dealer: str, questions: int, reveal: Reveal) -> ServingPlan:
    answers = {"questions": questions, "reveal": reveal}
    values = {"run": run, "clients": clients, "dealer": dealer, "answers": answers}
    return validated(ServingPlan, values, "of these options")


def write_serving_plan(plan: ServingPlan, path: Path, *, json: bool) -> None:
    write_new_plan(kind_named(SERVING).dump(plan), path, json=json)


def serve_over_flare(
    plan: ServingPlan,
    run: Path,
    engine: str,
    *,
    output: Path | None,
    resume: bool,
    data_dir: Path | None,
    code: dict[str, str | None],
    json: bool,
) -> None:
    """A trial: every party a process of this machine, with secrets drawn from the plan's seed."""
    launch = import_flare("launch")
    if engine not in get_args(launch.FlareEngine):
        known = ", ".join((LOOPBACK, *get_args(launch.FlareEngine)))
        raise PlanError(f"There is no engine {engine!r} to serve over.", remedy=f"Choose {known}.")
    place = run.with_name(f"{run.name}-service") if output is None else output
    for name in plan.clients:
        kit = place / "sites" / name
        err.print(f"  {escape(name)}: {escape(shlex.join(['bilateral', 'ask', str(kit), '--data', 'NAME']))}")
    err.print("A trial: all parties are processes of this machine, with secrets drawn from a seed. Ctrl-C stops.")
    with (
        ProgressBar("questions asked, ever", quiet=json) as bar,
        interruptible("Stopping when the questions under way have their answers.") as interrupted,
    ):
        ended = launch.run_on_flare(
            hosted_kind(SERVING),
            plan,
            engine,
            output=place,
            data_dir=data_dir,
            resume=resume,
            options={"run": str(run), **code},
            on_status=lambda status: _show(bar, status),
            on_note=bar.note,
            should_stop=lambda: bool(interrupted),
        )
    page = write_run_page(place)
    if json:
        print_json(ended.as_dict())
    else:
        print_service(ended.as_dict())
        out.print(f"Report:  {escape(str(page))}")


def print_service(values: dict[str, Any]) -> None:
    """What was asked of a service that ended."""
    for name, used in values["questions"].items():
        out.print(f"{escape(name)}: {used} of {values['limit']} questions asked, ever")
    print_guarantee(values["guarantee"])


def _show(bar: ProgressBar, status: RunStatus) -> None:
    here = ", ".join(site.name for site in status.sites)
    bar.update(status.round, status.num_rounds, f"there: {here}" if here else "starting")
