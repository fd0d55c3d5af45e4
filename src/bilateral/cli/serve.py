"""`bilateral serve` and `bilateral deal`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from bilateral.cli.any_kind import print_guarantee
from bilateral.cli.console import ProgressBar, err, interruptible, out, print_json
from bilateral.cli.options import DataDir, Json, Quiet
from bilateral.cli.serve_over_flare import LOOPBACK, plan_of, serve_over_flare, write_serving_plan
from bilateral.engine.plan import load_plan
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import DeploymentError, PlanError
from bilateral.protocols.share.serving.terms import REVEALS, Reveal
from bilateral.randomness import SecureRandomness
from bilateral.report.run_page.page import write_service_page
from bilateral.serving.folder import Kit, ServingFolder
from bilateral.serving.guarantee import questions_that_read, serving_guarantee
from bilateral.serving.hosted.server import ServingResult
from bilateral.serving.model import ServedModel
from bilateral.serving.server import AnswerServer, Conditions
from bilateral.serving.sockets import Reception, deal_for

DEFAULT_QUESTIONS = 500
"""Below what reads the model of a default run (`questions_that_read`: 897)."""
OWN_DEALER = "dealer"
"""Its name where this command starts it."""
RevealOption = Annotated[
    str, typer.Option("--reveal", help="logits, or only the class: the answers of fewer bits copy a model slower.")
]


def serve_command(
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    client: Annotated[
        list[str] | None,
        typer.Option("--client", help="A client that gets a kit if it has none; repeat it.", show_default="client"),
    ] = None,
    dealer: Annotated[
        str | None,
        typer.Option(
            help="A third party that deals, with a kit made here: keep no copy of it.",
            show_default="a process of this machine",
        ),
    ] = None,
    questions: Annotated[int, typer.Option(help="So many questions for each client, ever.", min=1)] = DEFAULT_QUESTIONS,
    reveal: RevealOption = "logits",
    engine: Annotated[
        str, typer.Option(help="loopback; or flare-poc, flare-sim: a trial on NVIDIA FLARE, a process a party.")
    ] = LOOPBACK,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --engine: directory of the service.", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="With --engine: go on with the one in --output.")] = False,
    write_plan: Annotated[
        Path | None,
        typer.Option(help="Write the plan of this service for `bilateral deploy` and stop.", show_default=False),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port on 127.0.0.1; 0 keeps the last one, or takes a free one.", min=0, max=65535)
    ] = 0,
    model: Annotated[
        str | None,
        typer.Option(help="package.module:function, if the run's model is your own.", show_default=False),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="package.module:function, if the run's data are.", show_default=False)
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="package.module:function, if the run's loss is.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Answer clients with a run's model, which stays here: they learn answers, and this server no question.

    Every client and the dealer get a kit, in RUN/serving/kits: give it to them, and keep no copy. Their secret
    identities are drawn here, so whoever keeps the kits can deal in the dealer's name and read every question.
    Questions are counted in RUN/serving/questions when they are asked, whatever comes of them. Ctrl-C stops; the
    counts stay.

    Examples:

      bilateral serve out --questions 500

      bilateral ask out/serving/kits/client --data digits --reveal class

      bilateral serve out --client ward-3 --client ward-7 --dealer auditor --reveal class

      bilateral deal out/serving/kits/auditor

      bilateral serve out --client ward-3 --dealer auditor --engine flare-poc --output service

      bilateral serve first --client ward-3 --dealer auditor --write-plan serving.toml
    """
    if write_plan is not None or engine != LOOPBACK:
        wanted = plan_of(run.name, client or ["client"], dealer or OWN_DEALER, questions, checked_reveal(reveal))
        if write_plan is not None:
            write_serving_plan(wanted, write_plan, json=json)
            return
        code = {"model": model, "data": data}
        serve_over_flare(wanted, run, engine, output=output, resume=resume, data_dir=data_dir, code=code, json=json)
        return
    if output is not None or resume:
        raise PlanError("--output and --resume are for a service over FLARE.", remedy="Add --engine flare-poc.")
    RunDirectory.open(run, load_plan)  # what is read comes first
    revealed = checked_reveal(reveal)
    served = ServedModel.of_run(
        run, ("bilateral", "serve", str(run)), data_dir=data_dir, model=model, data=data, loss=loss, reveal=revealed
    )
    randomness = SecureRandomness()
    folder = ServingFolder(run, dealer or OWN_DEALER, client or ["client"], randomness)
    counters = folder.counters()
    reception = Reception(folder, port, lambda text: err.print(escape(text)))
    server = AnswerServer(
        served,
        Conditions(questions, revealed),
        folder.dealer,
        reception.dealer.tell,
        counters,
        folder.pinned,
        randomness,
        lambda text: err.print(escape(text)),
    )
    _print_service(served, folder, server, dealer is None, json=json)
    began = time.perf_counter()
    with interruptible("Stopping.") as interrupted, _own_dealer(folder if dealer is None else None) as look:

        def watch() -> None:
            look()
            if interrupted:
                reception.stop.set()

        reception.serve(server, watch)
    ended = ServingResult(
        plan_of(_plain_name(run), list(folder.clients), folder.dealer, questions, revealed),
        serving_guarantee(folder.dealer, served.circuit, revealed, questions),
        {name: counter.used for name, counter in counters.items()},
        all(counter.used >= questions for counter in counters.values()),
        time.perf_counter() - began,
        folder.path,
    )
    page = write_service_page(folder.path, ended)
    err.print(f"Stopped. What was asked stays counted. Report: {escape(str(page))}")


def deal_command(
    kit: Annotated[Path, typer.Argument(help="The dealer's kit (a folder).", show_default=False)],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Deal for the clients of a `bilateral serve`, as a third party: it sees no model, no question and no answer.

    It must not tell the server or a client what it dealt. It runs until the server stops.

    Examples:

      bilateral deal kits/auditor
    """
    own = Kit.read(kit)
    if not own.deals:
        raise DeploymentError(
            f"{kit} is the kit of {own.name}, who asks.", remedy=f"Use it with `bilateral ask {kit}`."
        )
    err.print(f"{own.name} deals. Ctrl-C stops.")
    dealt = 0
    with ProgressBar("questions dealt for", quiet=quiet) as bar:

        def tell(count: int) -> None:
            nonlocal dealt
            dealt = count
            bar.update(count, max(count, 1))

        deal_for(own, SecureRandomness(), tell)
    err.print("The server has stopped, or another process deals with this kit.")
    if json:
        print_json({"dealer": own.name, "questions_dealt": dealt})


def checked_reveal(reveal: str) -> Reveal:
    for known in REVEALS:
        if reveal == known:
            found: Reveal = known
            return found
    raise PlanError(
        f"Expected --reveal {' or '.join(REVEALS)}, got {reveal!r}.",
        remedy="`class` tells least.",
    )


def _plain_name(run: Path) -> str:
    """A directory's name as a plan may have it."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", run.resolve().name).lstrip("._-")[:100] or "run"


@contextmanager
def _own_dealer(folder: ServingFolder | None) -> Iterator[Callable[[], None]]:
    """A dealer's process, for as long as this lasts. Gives what to call to see whether it lives."""
    if folder is None:
        yield lambda: None
        return
    command = [sys.executable, "-m", "bilateral", "deal", "--quiet", str(folder.kit(folder.dealer))]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)

    def look() -> None:
        if process.poll() is not None:
            raise DeploymentError(
                f"The dealer's process ended (exit code {process.returncode}).", remedy="See what it said above."
            )

    try:
        yield look
    finally:
        process.terminate()
        process.wait()


def _warn_of_many(served: ServedModel, conditions: Conditions, num_clients: int) -> None:
    enough, allowed = questions_that_read(served.circuit, conditions.reveal), conditions.limit * num_clients
    if allowed >= enough:
        err.print(
            f"[bold]Warning[/] {allowed} questions of all clients are enough to read the whole model, for clients that "
            f"do not follow the protocol: some {enough} are. Allow fewer (--questions, --client)."
        )


def _print_service(
    served: ServedModel, folder: ServingFolder, server: AnswerServer, deals_here: bool, *, json: bool
) -> None:
    conditions = server.conditions
    guarantee = serving_guarantee(folder.dealer, served.circuit, conditions.reveal, conditions.limit).as_dict()
    _warn_of_many(served, conditions, len(folder.clients))
    kits = {name: str(folder.kit(name)) for name in (*folder.clients, folder.dealer)}
    used = {name: counter.used for name, counter in server.counters.items()}
    if json:
        print_json(
            {
                "model": served.model,
                "dataset": served.dataset,
                "protection_of_run": served.protection,
                "port": folder.port,
                "reveal": conditions.reveal,
                "questions": conditions.limit,
                "used": used,
                "dealer": folder.dealer,
                "dealer_here": deals_here,
                "kits": kits,
                "identities_drawn_by": "server",
                "guarantee": guarantee,
            }
        )
        sys.stdout.flush()
        return
    out.print(f"[bold]Serving {escape(served.model)}[/] for {escape(served.dataset)} on 127.0.0.1:{folder.port}")
    for name in folder.clients:
        only = ["--reveal", "class"] if conditions.reveal == "class" else []
        ask = shlex.join(["bilateral", "ask", kits[name], "--data", served.dataset, *only])
        out.print(f"  {escape(name)}: {used[name]} of {conditions.limit} questions asked. {escape(ask)}")
    if deals_here:
        out.print(
            f"  {folder.dealer}: a process of this machine. Who can look into both it and the server sees questions: "
            "name a third party with --dealer."
        )
    else:
        out.print(f"  {escape(folder.dealer)}: {escape(shlex.join(['bilateral', 'deal', kits[folder.dealer]]))}")
        out.print(
            f"  These kits were made here, with everybody's secret identity: questions are hidden from this server "
            f"only if no copy stays. Move them out: with {escape(folder.dealer)}'s kit whoever has it can deal."
        )
    print_guarantee(guarantee)
