"""The engine that runs a whole federation in one process: simulation, and the reference for every other engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from bilateral.arguments import checked
from bilateral.engine.checkpoint import Checkpoint
from bilateral.engine.federation import Federation, load_federation
from bilateral.engine.kind import ROUNDS, kind_named
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.setup import REFERENCE, make_blueprints, reference_plan
from bilateral.engine.term import IN_PROCESS, Term, checkpoint_to_resume
from bilateral.engine.transcript import Transcript
from bilateral.errors import PlanError
from bilateral.learning.exchange import Dropouts
from bilateral.protocols.messages import Message
from bilateral.randomness import SeededRandomness
from bilateral.runs.rounds.callbacks import Callback, Callbacks
from bilateral.runs.rounds.given import given_federation, network_of, plan_for
from bilateral.runs.rounds.loop import Lane, RoundLoop
from bilateral.runs.rounds.result import RoundReport, RunResult


@checked
def run(
    plan: RunPlan | None = None,
    *,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    data: Mapping[str, Any] | None = None,
    test: Any = None,
    options: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    reference: bool | None = None,
    save: bool = True,
    keep_messages: bool = False,
    on_round: Callable[[RoundReport], None] | None = None,
    callbacks: Sequence[Callback] = (),
    should_stop: Callable[[], bool] | None = None,
) -> RunResult:
    """Train as the plan says, by default as `RunPlan()`.

    `model`: a module, or a function of `input_shape` and `num_outputs` that makes one, in place of the plan's. `data`:
    each site's, by its name: a map-style torch Dataset, whose samples are loaded when they are needed, or a Dataset of
    this package, or (inputs, targets). `test`: the server's; without it a fifth of every site's is held out. `options`:
    `task`, `num_outputs` and `class_names` of such data, where they do not say so themselves.
    `reference` trains plain FedSGD beside it, round by round, and reports the difference; on the same batches, unless
    the plan adds sound noise (which draws its own). By default it does so except with sound noise: a model without
    noise has no place in the directory of a private run.
    `save` keeps plan, metrics, events and checkpoints in `output`; `resume` goes on from the checkpoint there.
    `callbacks` are told of the run's start, of every round (as `on_round` is) and of its end: see `Callback`.
    `should_stop` is asked after every round; a stopped run leaves a checkpoint.
    """
    if data is None and (test is not None or options):
        raise PlanError("`test` and `options` are for `data` that are given.", remedy="Give `data`, or a plan alone.")
    plan = plan_for(plan or RunPlan(), model, data)
    path = None if output is None else Path(output)
    directory = None if path is None else RunDirectory(path)
    checkpoint: Checkpoint | None = None
    if resume:
        checkpoint = checkpoint_to_resume(plan, directory)
        reference = has_reference(checkpoint)
    if reference is None:
        reference = not plan.traits.spends_budget
    folder = None if data_dir is None else Path(data_dir)
    if data is not None:
        federation = given_federation(plan, data, test, options or {}, model)
    else:
        federation = load_federation(plan, folder)
        federation = replace(federation, network=network_of(model)) if model is not None else federation
    loop = loop_of(plan, federation, reference, keep_messages=keep_messages)
    if not resume:  # made only now: a plan or data that are refused leave nothing behind
        directory = RunDirectory.create(path, plan) if save else None
    loop.directory = directory
    term = Term(
        kind_named(ROUNDS),
        plan,
        IN_PROCESS,
        directory,
        every=plan.training.checkpoint_every,
        on_step=partial(_tell, (on_round, *(one.on_round for one in callbacks))),
        should_stop=should_stop or (lambda: False),
    )
    told = Callbacks(tuple(callbacks))
    with term.held():
        told.on_start(plan, None if directory is None else directory.path)
        result: RunResult = term.drive(loop, checkpoint)
        told.on_end(result)
    return result


def _tell(those: Sequence[Callable[[RoundReport], None] | None], report: RoundReport) -> None:
    for one in those:
        if one is not None:
            one(report)


def loop_here(plan: RunPlan, data_dir: Path | None, reference: bool, *, keep_messages: bool = False) -> RoundLoop:
    """The rounds of a federation whose parties are all in this process."""
    return loop_of(plan, load_federation(plan, data_dir), reference, keep_messages=keep_messages)


def loop_of(plan: RunPlan, federation: Federation, reference: bool, *, keep_messages: bool = False) -> RoundLoop:
    """The same, with the data at hand."""
    bare = reference_plan(plan)
    main, *others = make_blueprints([plan, bare] if reference and plan != bare else [plan], federation)
    transcript = Transcript(keep_messages)

    def note(site: str, row: dict[str, Any]) -> None:
        if loop.directory is not None:
            loop.directory.note_of_site(site, row)

    rate = plan.federation.dropout
    draws, replies = SeededRandomness(plan.seed, "dropouts"), plan.traits.replies_in_a_round
    dropouts = Dropouts(rate, draws, replies) if rate else None
    loop = RoundLoop(
        plan,
        federation.names,
        federation.test_data,
        federation.problem.objective,
        Lane(main.server(), main.local_exchange(transcript.record, dropouts, note=note)),
        Lane(others[0].server(), others[0].local_exchange(no_record)) if others else None,
        None,
        transcript,
        validation=federation.validation,
        class_names=federation.problem.class_names,
    )
    return loop


def has_reference(checkpoint: Checkpoint) -> bool:
    """Was FedSGD trained beside the run?"""
    return any(name.startswith(f"{REFERENCE}/") for name in checkpoint.tensors)


def no_record(round_index: int, sender: str, receiver: str, message: Message) -> None:
    """FedSGD beside a protected run is a yardstick; its traffic is not the run's."""
