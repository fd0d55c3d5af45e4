"""Heterogeneous runs in one process: simulation, and the reference for every other engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bilateral.arguments import checked
from bilateral.engine.checkpoint import Checkpoint, load_checkpoint
from bilateral.engine.kind import HETERO, ServerAround, kind_named
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.term import IN_PROCESS, Term, checkpoint_to_resume
from bilateral.errors import CheckpointError
from bilateral.learning.hetero.answers import Answers
from bilateral.runs.hetero.here import ClientsHere
from bilateral.runs.hetero.parties import Shares, deal, make_answers, make_client
from bilateral.runs.hetero.plan import HeteroPlan, load_hetero_plan
from bilateral.runs.hetero.record import HeteroRecord, PublicFacts
from bilateral.runs.hetero.result import HeteroProgress, HeteroResult
from bilateral.runs.hetero.server import HeteroServer
from bilateral.runs.hetero.staged_client import StagedClient
from bilateral.version import __version__


@checked
def run_hetero(
    plan: HeteroPlan,
    *,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    save: bool = True,
    answers: Answers | None = None,
    trained: str | Path | None = None,
    training_only: bool = False,
    on_progress: Callable[[HeteroProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> HeteroResult:
    """Run as the plan says.

    `save` keeps plan, events, checkpoint and result in `output`; `resume` goes on from the checkpoint there, to the
    same models bit for bit with plain answers; with secure ones the masks are new, and sums may differ in the last
    place. `should_stop` is asked after every stage. `answers` replaces the plan's way of asking.
    `training_only` stops when every client has trained alone; `trained` is the directory of such a run, to start from
    its models (same data, clients, training and seed).
    """
    directory = None if output is None else RunDirectory(Path(output))
    checkpoint: Checkpoint | None = None
    if resume:
        checkpoint = checkpoint_to_resume(plan, directory)
    elif trained is not None:
        checkpoint = _trained_alone(plan, Path(trained))
    shares = deal(plan, None if data_dir is None else Path(data_dir))
    members = members_of(plan, shares)
    record = record_of(plan, shares)
    if not resume:  # made only now: a plan or data that are refused leave nothing behind
        directory = RunDirectory.create(None if output is None else Path(output), plan) if save else None
    term = Term(kind_named(HETERO), plan, IN_PROCESS, directory, every=0, should_stop=should_stop or (lambda: False))
    note = on_progress or (lambda _: None)
    around = ServerAround(IN_PROCESS, __version__, tell=term.tell, keep=term.keep, note=lambda: note(record.progress()))
    clients = ClientsHere(plan, members, lambda note, masks: answers or make_answers(plan, note, masks))
    with term.held():
        result: HeteroResult = term.drive(
            HeteroServer(record, clients, around, until=1 if training_only else None), checkpoint
        )
    return result


def members_of(plan: HeteroPlan, shares: Shares) -> dict[str, StagedClient]:
    """Every client, from its own samples."""
    return {
        name: StagedClient(plan, make_client(plan, name, share, shares.num_classes), shares.test)
        for name, share in shares.clients.items()
    }


def record_of(plan: HeteroPlan, shares: Shares) -> HeteroRecord:
    """Nothing is done yet."""
    facts = PublicFacts(shares.dataset, {name: len(share) for name, share in shares.clients.items()})
    return HeteroRecord(plan, facts, at_sites=False)


def _trained_alone(plan: HeteroPlan, path: Path) -> Checkpoint:
    directory, other = RunDirectory.open(path, load_hetero_plan)
    if other.training_digest() != plan.training_digest():
        raise CheckpointError(
            f"{path} trained other models than this plan would.",
            remedy="Use the same data, clients, training and seed.",
        )
    checkpoint = load_checkpoint(directory.checkpoint)
    if checkpoint.next_round != plan.clients.number:
        raise CheckpointError(
            f"{path} is not a run that stopped after local training.", remedy="Make it with `training_only`."
        )
    return replace(checkpoint, counters={"seconds": checkpoint.counters["seconds"], "resumed": -1})
