"""The engine that runs a whole federation in one process: simulation, and the reference for every other engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from bilateral.arguments import checked
from bilateral.engine.checkpoint import Checkpoint, matching_checkpoint
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.setup import REFERENCE, make_blueprints, reference_plan
from bilateral.engine.transcript import Transcript
from bilateral.errors import PlanError
from bilateral.learning.exchange import Dropouts
from bilateral.protocols.messages import Message
from bilateral.randomness import SeededRandomness
from bilateral.runs.rounds.loop import Lane, RoundLoop
from bilateral.runs.rounds.result import RoundReport, RunResult


@checked
def run(
    plan: RunPlan,
    *,
    output: str | Path | None = None,
    data_dir: str | Path | None = None,
    resume: bool = False,
    reference: bool | None = None,
    save: bool = True,
    keep_messages: bool = False,
    on_round: Callable[[RoundReport], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RunResult:
    """Train as the plan says.

    `reference` trains plain FedSGD beside it, round by round, and reports the difference; on the same batches, unless
    the plan adds sound noise (which draws its own). By default it does so except with sound noise: a model without
    noise has no place in the directory of a private run.
    `save` keeps plan, metrics, events and checkpoints in `output`; `resume` goes on from the checkpoint there.
    `should_stop` is asked after every round; a stopped run leaves a checkpoint.
    """
    output = None if output is None else Path(output)
    checkpoint: Checkpoint | None = None
    if resume:
        if output is None:
            raise PlanError("Resuming needs the directory of the run.", remedy="Give it as `output`.")
        checkpoint = matching_checkpoint(plan.digest(), RunDirectory(output).checkpoint)
        reference = any(name.startswith(f"{REFERENCE}/") for name in checkpoint.tensors)
    federation = load_federation(plan, None if data_dir is None else Path(data_dir))
    bare = reference_plan(plan)
    if reference is None:
        reference = plan.noise.mechanism != "sound"
    main, *others = make_blueprints([plan, bare] if reference and plan != bare else [plan], federation)
    transcript = Transcript(keep_messages)
    rate = plan.federation.dropout
    dropouts = Dropouts(rate, SeededRandomness(plan.seed, "dropouts")) if rate else None
    main_lane = Lane(main.server(), main.local_exchange(transcript.record, dropouts))
    reference_lane = Lane(others[0].server(), others[0].local_exchange(no_record)) if others else None
    directory = None  # made only now: a plan or data that are refused leave nothing behind
    if checkpoint is not None and output is not None:
        directory = RunDirectory(output)
    elif save:
        directory = RunDirectory.create(output, plan)
    loop = RoundLoop(
        plan,
        federation.names,
        federation.test_data,
        federation.problem.loss,
        main_lane,
        reference_lane,
        directory,
        transcript,
        on_round=on_round or (lambda _: None),
        should_stop=should_stop or (lambda: False),
    )
    with directory.locked() if directory is not None else nullcontext():
        if checkpoint is not None:
            loop.resume(checkpoint)
        return loop.run()


def no_record(round_index: int, sender: str, receiver: str, message: Message) -> None:
    """FedSGD beside a protected run is a yardstick; its traffic is not the run's."""
