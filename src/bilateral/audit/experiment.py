"""What an experiment is, and what it is given: the plan, how much work to spend, runs of the plan and of its controls.

An experiment attacks one thing. It records runs of the plan (and of `undefended(plan)`: plain FedSGD with the same
seeds and images, the positive control), cuts out an adversary's view, attacks, scores, and returns raw figures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bilateral.audit.effort import EFFORTS, Effort, EffortName
from bilateral.audit.evidence import Evidence
from bilateral.audit.recording import Recording, record
from bilateral.engine.federation import Federation, load_federation
from bilateral.engine.kind import Plan, RunKind, kind_of_plan
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint, reference_plan
from bilateral.errors import NotAuditableError
from bilateral.protocols.guarantee import Guarantee, Subject
from bilateral.protocols.share.gates.styles import DEFAULT_STYLE, ComparisonStyle
from bilateral.protocols.share.prediction.guarantee import guarantee as answers_guarantee
from bilateral.randomness import SeededRandomness
from bilateral.runs.hetero.parties import guarantee_of as hetero_guarantee
from bilateral.runs.hetero.plan import HeteroPlan

AnyPlan = RunPlan | HeteroPlan | Plan
"""Of a kind of this package, or of one that was registered."""
ON_UPLOADS: Final[tuple[Subject | int, ...]] = ("single uploads", 0, 3, 6)
"""What `subject_of_uploads` may answer."""


@dataclass
class Context:
    """What experiments share: the plan, its data, the budget, and a way to say how far they are."""

    plan: RunPlan
    effort: Effort
    data_dir: Path | None = None
    on_progress: Callable[[float, str], None] = lambda _fraction, _note: None
    """Called with the fraction of this experiment that is done, and a word."""
    _federations: dict[str, Federation] = field(default_factory=dict, repr=False)

    def federation(self, plan: RunPlan | None = None) -> Federation:
        """The data of a plan, loaded once."""
        plan = plan or self.plan
        key = plan.model_dump_json(include={"data", "federation", "seed", "training"})
        if key not in self._federations:
            self._federations[key] = load_federation(plan, self.data_dir)
        return self._federations[key]

    def record(
        self,
        plan: RunPlan,
        *,
        keep: Collection[int] | None = None,
        on_round: Callable[[int, int], None] | None = None,
    ) -> Recording:
        """Run a plan (the audit's own, changed, or a control) and keep it."""
        return record(plan, self.federation(plan), keep=keep, on_round=on_round)

    def guarantee(self) -> Guarantee:
        """What the plan claims and admits."""
        return make_blueprint(self.plan, self.federation()).guarantee

    def randomness(self, *labels: str | int) -> SeededRandomness:
        """For what attackers draw. It has nothing to do with the streams of the run under attack."""
        return SeededRandomness(self.plan.seed, "audit", *labels)


@dataclass
class HeteroContext:
    """The same for a heterogeneous plan, whose parties answer each other's queries."""

    plan: HeteroPlan
    effort: Effort
    data_dir: Path | None = None
    on_progress: Callable[[float, str], None] = lambda _fraction, _note: None
    style: ComparisonStyle = DEFAULT_STYLE
    """How activations are compared: as the plan says, or in another way that is to be audited."""

    def guarantee(self) -> Guarantee:
        plain = self.plan.answers == "plain"
        return hetero_guarantee(self.plan) if plain else answers_guarantee(self.plan.num_answerers, self.style)

    def randomness(self, *labels: str | int) -> SeededRandomness:
        return SeededRandomness(self.plan.seed, "audit", *labels)


@dataclass
class KindContext:
    """The same for a plan of a kind from outside of this package, which says by itself what it claims and admits."""

    plan: Plan
    kind: RunKind[Any]
    effort: Effort
    data_dir: Path | None = None
    on_progress: Callable[[float, str], None] = lambda _fraction, _note: None

    def guarantee(self) -> Guarantee:
        return self.kind.guarantee(self.plan, self.data_dir)

    def randomness(self, *labels: str | int) -> SeededRandomness:
        """For what attackers draw. Not every kind of plan has a seed, but all have a digest."""
        return SeededRandomness(0, "audit", self.plan.digest(), *labels)


def context_of(
    plan: AnyPlan,
    effort: EffortName,
    data_dir: Path | None,
    on_progress: Callable[[float, str], None] = lambda _fraction, _note: None,
    *,
    style: ComparisonStyle | None = None,
) -> Context | HeteroContext | KindContext:
    """What experiments on a plan of this kind are given. `style`: instead of a heterogeneous plan's own.

    Simulated deaths are switched off: who is dead sends nothing, and only takes trials from the attacker. What the
    server learns where clients do die is an experiment of its own (`presence`), which lets them die by itself.
    """
    if isinstance(plan, HeteroPlan):
        return HeteroContext(plan, EFFORTS[effort], data_dir, on_progress, style or plan.comparisons)
    if isinstance(plan, RunPlan):
        return Context(plan.with_settings({"federation.dropout": 0.0}), EFFORTS[effort], data_dir, on_progress)
    return KindContext(plan, kind_of_plan(plan), EFFORTS[effort], data_dir, on_progress)


def undefended(plan: RunPlan) -> RunPlan:
    """The positive control: the same plan without any protection."""
    return reference_plan(plan)


@dataclass(frozen=True)
class Experiment:
    """An attack with its controls. `applies` returns why it does not apply to a plan, or nothing.

    `run` takes the context of its kind of plan (`Context`, `HeteroContext` or `KindContext`).
    """

    name: str
    title: str
    about: tuple[Subject | int, ...]
    """The claims and ledger lines that it can test: what is left untested where it is not done."""
    applies: Callable[[Any, Guarantee], str]
    run: Callable[[Any], Sequence[Evidence]]
    weight: float = 1.0
    """Seconds it takes on the default plan, roughly: for progress and for dealing out work."""
    kinds: tuple[type[AnyPlan], ...] = (RunPlan,)
    """The plans of the runs that it attacks."""


def said_of_uploads(guarantee: Guarantee) -> Subject | int | None:
    """What a plan says about single uploads to the server: its claim, or the ledger line that admits them; or nothing.

    Line 0 is also about the model, which clients are sent: only what the server is said to learn counts.
    """
    if has_subject(guarantee, "single uploads"):
        return "single uploads"
    admitted = {leak.ledger_line for leak in guarantee.leaks if leak.whom == "server"}
    return next((line for line in (3, 0, 6) if line in admitted), None)


def subject_of_uploads(guarantee: Guarantee) -> Subject | int:
    """Which claim or ledger line an attack on single uploads by the server is about."""
    said = said_of_uploads(guarantee)
    if said is None:
        raise NotAuditableError(
            f"{guarantee.protection} says nothing about what the server learns of single uploads.",
            remedy="Its guarantee must claim them to be hidden, or admit ledger line 0, 3 or 6 to the server.",
        )
    return said


def has_line(guarantee: Guarantee, *lines: int) -> bool:
    """Whether the plan admits one of these ledger lines."""
    return any(leak.ledger_line in lines for leak in guarantee.leaks)


def has_subject(guarantee: Guarantee, *subjects: str) -> bool:
    """Whether the plan claims something about one of these."""
    return any(claim.subject in subjects for claim in guarantee.claims)
