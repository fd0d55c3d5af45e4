"""Overlapping sums: an active server that shows clients different things (`attacks/split_view`), against real clients.

A trial is one victim in one round. A strategy that is refused falls back on what an honest sum tells about one client,
its mean, which is the negative control: so a strategy that gets nothing scores exactly as the control does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_subject
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.topics.dishonest.attacks import split_view
from bilateral.audit.topics.dishonest.attacks.split_view import StagedRound, Strategy
from bilateral.audit.topics.dishonest.staged_rounds import Cast
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee

OBTAINED = Metric("single uploads obtained", "high", is_rate=True, digits=2)
UPLOAD_ERROR = Metric("error of the upload, over that of the sum's mean", "low", digits=2)
SUCCESS = 0.2
"""An upload counts as obtained if the guess is this much closer to it than the mean of an honest sum. Those who were
sent a model of zeros still say something about their labels, in the head's bias: some 0.06 with cross entropy."""
_TRIALS = 20
Guess = Callable[[int, str], Tensor | None]


@dataclass(frozen=True, eq=False)
class _Trials:
    """Victims with their uploads, and what an honest sum tells about each of them."""

    victims: list[tuple[int, str]]
    truth: list[Tensor]
    mean: list[Tensor]

    @staticmethod
    def of(cast: Cast, on_progress: Callable[[float], None]) -> _Trials:
        names = cast.stage(0).names
        found = _Trials([(number, names[number % len(names)]) for number in range(_TRIALS)], [], [])
        for number, victim in found.victims:
            found.truth.append(cast.upload(number, victim))
            total = split_view.honest_sum(cast.stage(number))
            found.mean.append(total.terms / total.total_weight)
            on_progress(number / _TRIALS)
        return found

    def condition(self, what: str, guess: Guess) -> Condition:
        guesses = [guess(number, victim) for number, victim in self.victims]
        pairs = zip(guesses, self.mean, self.truth, strict=True)
        errors = [1.0 if read is None else _closer(read, fallback, true) for read, fallback, true in pairs]
        obtained = tuple(float(error <= SUCCESS) for error in errors)
        return Condition(what, (Scores(OBTAINED, obtained), Scores(UPLOAD_ERROR, tuple(errors))))


def _closer(read: Tensor, mean: Tensor, truth: Tensor) -> float:
    """|read - truth| / |mean - truth|: uploads may be alike, and then their mean is a good guess by itself."""
    return float((read - truth).norm() / (mean - truth).norm())


def _run(context: Context) -> Sequence[Evidence]:
    plan, note = _with_fixed_norm(context.plan)
    if plan.traits.computes_on_shares:  # what clients are shown of masks is the same; for weights see `crafted-models`
        bare = {"protection": "fedsgd", "aggregation.masks": "ring"}
        plan, note = plan.with_settings(bare), "the masks of this plan, on gradients in the clear; "
    masked = Cast(context, plan)
    trials = _Trials.of(masked, lambda done: context.on_progress(0.2 * done, "honest sums"))
    negative = trials.condition("the mean of an honest sum", lambda number, victim: None)  # noqa: ARG005
    unchecked = _unchecked(context, plan, trials)
    forgetful = trials.condition("clients that forget what they signed", partial(_without_memory, masked))
    found = []
    for place, (name, strategy, positive) in enumerate(_strategies(unchecked, forgetful)):
        context.on_progress(0.5 + 0.5 * place / 4, name)
        refusals: list[str] = []
        target = trials.condition("clients of this plan", partial(_against, strategy, masked, refusals))
        remark = f"refused: {refusals[0]}" if refusals else "never refused"
        found.append(_evidence(name, target, positive, negative, note + remark))
    context.on_progress(1.0, "dishonest server done")
    return found


def _with_fixed_norm(plan: RunPlan) -> tuple[RunPlan, str]:
    """A clipping norm that adapts is one more thing that clients are shown; the strategies here leave it alone."""
    if not plan.noise.adaptive_clip:
        return plan, ""
    return plan.with_settings({"noise.adaptive_clip": False}), "with the clipping norm that the run begins with; "


def _unchecked(context: Context, plan: RunPlan, trials: _Trials) -> Condition:
    """Noise does not go with real-valued masks, and would cover what this strategy reads: the control has none."""
    floats = Cast(context, plan.with_settings({"aggregation.masks": "float", "noise.mechanism": "none"}))
    what = "real-valued masks, whose clients check nothing"
    if plan.traits.adds_noise:
        bare = Cast(context, plan.with_settings({"aggregation.masks": "ring", "noise.mechanism": "none"}))
        trials = _Trials.of(bare, lambda done: context.on_progress(0.2 + 0.2 * done, "honest sums without noise"))
        what += ", without noise"
    return trials.condition(what, partial(_models_without_checks, floats))


def _strategies(unchecked: Condition, forgetful: Condition) -> list[tuple[str, Strategy, Condition]]:
    return [
        ("different models", split_view.different_models, unchecked),
        ("different openings", split_view.different_openings, unchecked),
        ("two lists of survivors", split_view.two_lists, forgetful),
        ("another attempt after the sum", split_view.another_attempt, forgetful),
    ]


def _against(strategy: Strategy, cast: Cast, refusals: list[str], number: int, victim: str) -> Tensor | None:
    outcome = split_view.attempt(strategy, cast.stage(number), victim)
    if outcome.guess is None:
        refusals.append(outcome.refusal)
    return outcome.guess


def _models_without_checks(cast: Cast, number: int, victim: str) -> Tensor | None:
    return split_view.attempt(split_view.different_models_without_checks, cast.stage(number), victim).guess


def _without_memory(cast: Cast, number: int, victim: str) -> Tensor | None:
    """Clients that were started anew remember no list and no sum of the round: two sums of it can be had."""

    def two_sums(stage: StagedRound, victim: str) -> Tensor:
        others = replace(cast.stage(number), names=tuple(name for name in stage.names if name != victim))
        return split_view.difference_of_sums(split_view.honest_sum(stage), split_view.honest_sum(others))

    return split_view.attempt(two_sums, cast.stage(number), victim).guess


def _evidence(name: str, target: Condition, positive: Condition, negative: Condition, remark: str) -> Evidence:
    return with_controls(
        "overlapping sums",
        "dishonest server",
        name,
        "what clients answer to what they are shown",
        Gate(OBTAINED, 0.9),
        target=target,
        positive=positive,
        negative=negative,
        remark=remark,
    )


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "" if has_subject(guarantee, "overlapping sums") else "the plan claims nothing about overlapping sums"


EXPERIMENT = Experiment(
    "dishonest-server",
    "Two sums with a client in common, by showing clients different things",
    ("overlapping sums",),
    _applies,
    _run,
    weight=12.0,
)
