"""`audit(plan)`: every experiment that applies, on the plan and on its controls, and a verdict per claim.

result = audit(RunPlan())
result.verdicts                  # one a claim, with all that was tried against it
stored_result("audit.json")      # judges stored figures again
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from bilateral.arguments import checked
from bilateral.audit.audit_directory import AuditDirectory
from bilateral.audit.effort import EFFORTS, EffortName
from bilateral.audit.evidence import MALFORMED, Evidence, as_object, as_text, as_texts, evidence_from
from bilateral.audit.experiment import AnyPlan, Experiment, context_of
from bilateral.audit.fresh_trials import SEEDS_APART, with_fresh_trials
from bilateral.audit.topics.registry import about_of, experiments_for, registered
from bilateral.audit.verdict import OWN, ClaimVerdict, judge_claims, rows
from bilateral.audit.workers import run_jobs
from bilateral.documents import parse_json
from bilateral.engine import kind as kinds
from bilateral.engine.kind import HETERO, ROUNDS, RunKind, kind_named, kind_names, kind_of_plan
from bilateral.engine.plan import RunPlan
from bilateral.engine.run_directory import write_json
from bilateral.errors import CheckpointError, PlanError
from bilateral.protections import registry as protection_registry
from bilateral.protections.base import Protection
from bilateral.protocols.guarantee import Claim, Guarantee, Leak
from bilateral.protocols.share.gates.styles import DEFAULT_STYLE, STYLES, StyleName
from bilateral.runs.hetero.plan import HeteroPlan

NOT_ASKED = "not asked for"
FAILED = "failed"
NOTHING_THERE = "there is nothing in this plan that it could attack"
MAX_WORKERS = 2
"""More would help little: the longest experiment decides."""
_ONCE_CALLED: Final = {"RunPlan": ROUNDS, "HeteroPlan": HETERO}
"""What audits from before call the kinds that there were."""


@dataclass(frozen=True)
class Skipped:
    """An experiment that was not done, and why."""

    name: str
    title: str
    reason: str


@dataclass(frozen=True)
class AuditProgress:
    """How far an audit is."""

    fraction: float
    experiment: str
    note: str


@dataclass(frozen=True)
class AuditResult:
    """A finished (or interrupted) audit: raw figures, and what they mean."""

    plan: Mapping[str, Any]
    protection: str
    guarantee: Guarantee
    effort: str
    evidence: tuple[Evidence, ...]
    verdicts: tuple[ClaimVerdict, ...]
    skipped: tuple[Skipped, ...]
    seconds: float
    """Of work, in tenths: a result reads the same before it was stored and after."""
    finished: bool = True
    style: str = DEFAULT_STYLE.name
    only: tuple[str, ...] = ()
    """The experiments that were asked for; empty is all."""
    output: Path | None = None

    @property
    def failed(self) -> tuple[Skipped, ...]:
        """Experiments that should have been done and were not."""
        return tuple(one for one in self.skipped if one.reason.startswith(FAILED))

    @property
    def all_claims_hold(self) -> bool:
        """Whether there are claims, every one holds, and nothing that should have tested them failed."""
        own = [verdict for verdict in self.verdicts if verdict.claimed_by == OWN]
        return bool(own) and all(one.verdict == "holds" for one in own) and self.finished and not self.failed

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdicts": rows(self.verdicts),
            "protection": self.protection,
            "plan": dict(self.plan),
            "effort": self.effort,
            "seconds": self.seconds,
            "finished": self.finished,
            "style": self.style,
            "only": [*self.only],
            "skipped": [vars(one) for one in self.skipped],
            "guarantee": self.guarantee.as_dict(),
            "evidence": [one.as_dict() for one in self.evidence],
        }


@checked
def audit(
    plan: AnyPlan,
    *,
    effort: EffortName = "standard",
    style: StyleName | None = None,
    only: Sequence[str] = (),
    data_dir: str | Path | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    save: bool = True,
    num_workers: int | None = None,
    on_progress: Callable[[AuditProgress], None] = lambda _: None,
    on_evidence: Callable[[AuditDirectory | None, Sequence[Evidence]], None] = lambda _directory, _evidence: None,
    on_bug: Callable[[str], None] = lambda _traceback: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> AuditResult:
    """Attack the plan.

    `style`: how a heterogeneous plan compares activations, if not as it says itself.
    `only`: names of experiments; the others are skipped, and what they would test is then not tested. `save` keeps
    every experiment's figures in `output` as it ends; `resume` goes on there. `on_evidence` is called with each
    experiment's evidence (with its pictures) as it comes in, `on_bug` with the traceback of one that crashed.
    `num_workers`: processes, by default one a core, at most two.
    """
    kind = kind_of_plan(plan)
    style = style or (plan.style if isinstance(plan, HeteroPlan) else "sealed")
    context = context_of(plan, effort, None if data_dir is None else Path(data_dir), style=STYLES[style])
    guarantee = context.guarantee()
    chosen, skipped = _choose(experiments_for(plan), plan, guarantee, only)
    task: dict[str, Any] = {
        "plan": parse_json(plan.model_dump_json()),
        "kind": kind.name,
        "effort": effort,
        "style": style,
        "only": [*only],
    }
    directory = _directory(kind.outline(plan).title, task, output, resume=resume, save=save)
    done = directory.finished() if directory is not None else {}
    progress = _Progress(chosen, on_progress, set(done))
    left = [one.name for one in sorted(chosen, key=lambda one: -one.weight) if one.name not in done]
    job = partial(
        run_experiment,
        plan=plan,
        effort=effort,
        style=style,
        data_dir=context.data_dir,
        kind=kind,
        others=registered(),
        protections=plan.chosen.each if isinstance(plan, RunPlan) else (),
    )
    workers = num_workers or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    if min(workers, len(left)) > 1:
        _expect_sendable(job)
    if left:
        for ended in run_jobs(job, left, workers, progress.tell, should_stop):
            progress.tell(ended.name, 1.0, "done")
            if ended.traceback:
                on_bug(ended.traceback)
            if ended.error:
                skipped.append(Skipped(ended.name, progress.title(ended.name), f"{FAILED}: {ended.error}"))
                continue
            done[ended.name] = (tuple(ended.result), ended.seconds)
            on_evidence(directory, ended.result)
            if directory is not None:
                directory.write_evidence(ended.name, ended.result, ended.seconds)
    evidence = tuple(one for experiment in chosen for one in done.get(experiment.name, ((), 0.0))[0])
    skipped += [Skipped(one.name, one.title, NOTHING_THERE) for one in chosen if not done.get(one.name, (True,))[0]]
    missing = [one for one in chosen if one.name not in done and all(one.name != s.name for s in skipped)]
    skipped += [Skipped(one.name, one.title, "the audit was stopped before it") for one in missing]
    result = AuditResult(
        task["plan"],
        guarantee.protection,
        guarantee,
        effort,
        evidence,
        _judged(guarantee, evidence, skipped),
        tuple(skipped),
        round(sum(seconds for _, seconds in done.values()), 1),
        finished=not missing,
        style=style,
        only=tuple(only),
        output=directory.path if directory is not None else None,
    )
    if directory is not None:
        write_json(directory.result, result.as_dict(), indent=None)  # thousands of raw figures
    return result


def run_experiment(
    name: str,
    tell: Callable[[float, str], None],
    *,
    plan: AnyPlan,
    effort: EffortName,
    style: StyleName,
    data_dir: Path | None,
    kind: RunKind[Any] | None = None,
    others: Sequence[Experiment] = (),
    protections: Sequence[Protection] = (),
) -> list[Evidence]:
    """One experiment, in whichever process this is.

    `kind`, `others`, `protections`: what only the auditor's own process may know, because it was registered there.
    """
    if kind is not None:
        kinds.make_known(kind)
    protection_registry.make_known(protections)
    experiment = next(one for one in (*others, *experiments_for(plan)) if one.name == name)

    def tried(number: int) -> Sequence[Evidence]:
        seeded = plan if number == 0 else _on_other_seed(plan, number)
        note = partial(_tell_again, tell, number) if number else tell
        return experiment.run(context_of(seeded, effort, data_dir, note, style=STYLES[style]))

    fresh_runs = EFFORTS[effort].fresh_runs if isinstance(plan, RunPlan | HeteroPlan) else 0
    return with_fresh_trials(tried(0), tried, fresh_runs)


def _on_other_seed(plan: AnyPlan, number: int) -> AnyPlan:
    assert isinstance(plan, RunPlan | HeteroPlan)
    return plan.with_settings({"seed": (plan.seed + SEEDS_APART * number) % 2**63})


def _tell_again(tell: Callable[[float, str], None], number: int, fraction: float, note: str) -> None:
    tell(min(fraction, 0.99), f"again, on other seeds ({number}): {note}")


def _expect_sendable(job: object) -> None:
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PlanError(
            f"What was registered cannot be handed to the processes of an audit: {error}.",
            remedy="Make it of classes and functions of a module, or audit with one worker.",
        ) from error


def stored_plan(task: Mapping[str, Any]) -> AnyPlan:
    """The plan of an audit's directory."""
    task = _renamed(task)
    _check_task(task)
    plan: AnyPlan = kind_named(task["kind"]).parse(task["plan"], "plan.json")
    return plan


def _renamed(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task as it is written now."""
    said = task.get("kind")
    return {**task, "kind": _ONCE_CALLED.get(said, said)} if isinstance(said, str) else {**task}


def _check_task(task: Mapping[str, Any]) -> None:
    only = task.get("only")
    choices = {"kind": kind_names(), "effort": get_args(EffortName), "style": tuple(STYLES)}
    if (
        any(not isinstance(task.get(name), str) or task[name] not in known for name, known in choices.items())
        or not isinstance(task.get("plan"), dict)
        or not isinstance(only, list)
        or not all(isinstance(name, str) for name in only)
    ):
        raise CheckpointError(
            "plan.json does not say what is audited, and how hard.", remedy="Start the audit anew, elsewhere."
        )


def stored_result(path: str | Path) -> AuditResult:
    """A stored audit (`audit.json`). The verdicts are not read but judged anew from the raw figures."""
    try:
        values = parse_json(Path(path).read_bytes())
        guarantee = Guarantee(
            as_text(values["guarantee"]["protection"]),
            tuple(Claim(**as_texts(claim)) for claim in values["guarantee"]["claims"]),
            tuple(Leak(**as_texts(leak, whole="ledger_line")) for leak in values["guarantee"]["leaks"]),
        )
        evidence = tuple(evidence_from(one) for one in values["evidence"])
        skipped = tuple(Skipped(**as_texts(one)) for one in values["skipped"])
        return AuditResult(
            as_object(values["plan"]),
            as_text(values["protection"]),
            guarantee,
            as_text(values["effort"]),
            evidence,
            _judged(guarantee, evidence, skipped),
            skipped,
            float(values["seconds"]),
            bool(values["finished"]),
            str(values.get("style", "hardened")),
            tuple(as_text(name) for name in values.get("only", ())),
        )
    except (*MALFORMED, OSError) as error:
        raise CheckpointError(
            f"{path} is no stored audit: {type(error).__name__}: {str(error)[:500]}", remedy="Name an `audit.json`."
        ) from error


def _judged(guarantee: Guarantee, evidence: Sequence[Evidence], skipped: Sequence[Skipped]) -> tuple[ClaimVerdict, ...]:
    """The judge's verdicts. Where nothing was tried, the reason is that of the experiments that could have."""
    untried: dict[str | int, list[str]] = {}
    for one in skipped:
        for tests in about_of(one.name):
            untried.setdefault(tests, []).append(f"{one.name}: {one.reason}")
    return tuple(
        replace(one, reason="; ".join(untried[one.tests])) if one.tests in untried and not one.findings else one
        for one in judge_claims(guarantee, evidence)
    )


class _Progress:
    """Adds up the experiments' fractions by their weight."""

    def __init__(
        self, experiments: Sequence[Experiment], on_progress: Callable[[AuditProgress], None], done: set[str]
    ) -> None:
        self._experiments = {one.name: one for one in experiments}
        self._fractions = {one.name: float(one.name in done) for one in experiments}
        self._on_progress = on_progress

    def tell(self, name: str, fraction: float, note: str) -> None:
        self._fractions[name] = max(self._fractions[name], min(1.0, fraction))
        total = sum(one.weight for one in self._experiments.values())
        part = sum(one.weight * self._fractions[one.name] for one in self._experiments.values())
        self._on_progress(AuditProgress(part / total, self.title(name), note))

    def title(self, name: str) -> str:
        return self._experiments[name].title


def _choose(
    experiments: Sequence[Experiment], plan: AnyPlan, guarantee: Guarantee, only: Sequence[str]
) -> tuple[list[Experiment], list[Skipped]]:
    names = [one.name for one in experiments]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise PlanError(
            f"There is no experiment {', '.join(repr(name) for name in unknown)}.", remedy=f"Choose {', '.join(names)}."
        )
    chosen: list[Experiment] = []
    skipped: list[Skipped] = []
    for one in experiments:
        reason = NOT_ASKED if only and one.name not in only else one.applies(plan, guarantee)
        if reason:
            skipped.append(Skipped(one.name, one.title, reason))
        else:
            chosen.append(one)
    return chosen, skipped


def _directory(
    title: str, task: dict[str, Any], output: str | Path | None, *, resume: bool, save: bool
) -> AuditDirectory | None:
    if resume:
        if output is None:
            raise PlanError("Resuming needs the directory of the audit.", remedy="Give it as `output`.")
        directory = AuditDirectory.open(Path(output))
        if _renamed(directory.task()) != task:
            raise CheckpointError(
                f"{output} is the audit of another plan or effort.", remedy="Choose another --output."
            )
        return directory
    if not save:
        return None
    return AuditDirectory.create(None if output is None else Path(output), title, task)
