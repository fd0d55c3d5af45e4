"""Overlapping sums: an active server that shows clients different things (`attacks/split_view`), against real clients.

A trial is one victim in one round. A strategy that is refused falls back on what an honest sum tells about one client,
its mean, which is the negative control: so a strategy that gets nothing scores exactly as the control does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from bilateral.audit.attacks import split_view
from bilateral.audit.attacks.split_view import Stage, Strategy
from bilateral.audit.evidence import Condition, Evidence, Gate
from bilateral.audit.experiment import Context, Experiment, has_subject
from bilateral.audit.experiments.neighbouring_worlds import surroundings_of
from bilateral.audit.scores import Metric, Scores
from bilateral.engine.layers import mask_settings
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.setup import make_blueprint
from bilateral.learning.exchange import Packet
from bilateral.learning.halves import ServerHalf
from bilateral.learning.masked_aggregation import UploadShape
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Message, Question, RoundModel, Upload
from bilateral.protocols.perturb.scheme import term_names

OBTAINED = Metric("single uploads obtained", "high", is_rate=True, digits=2)
UPLOAD_ERROR = Metric("error of the upload, over that of the sum's mean", "low", digits=2)
SUCCESS = 0.05
"""An upload counts as obtained if the guess is this much closer to it than the mean of an honest sum."""
_TRIALS = 20
Guess = Callable[[int, str], Tensor | None]


class _Cast:
    """Real clients of a plan, made afresh for every trial: what one trial did to them must not help the next."""

    def __init__(self, context: Context, plan: RunPlan) -> None:
        self._around = surroundings_of(context)
        self._blueprint = make_blueprint(plan, context.federation())
        self._run_id = SimulatedSecrets(plan.seed, context.federation().names).run_id
        self._num_terms = len(term_names(self._around.perturbation)) if plan.protection == "perturbation" else 1

    def stage(self, round_index: int) -> Stage:
        half, around = self._blueprint.server().server, self._around
        model = half.start_round(round_index)
        assert isinstance(model, RoundModel)
        return Stage(
            self._blueprint.local_exchange(_unrecorded),
            self._run_id,
            tuple(around.names[: around.num_participants]),
            mask_settings(around),
            UploadShape(self._num_terms, around.graph.num_parameters, around.graph.num_statistics),
            round_index,
            model,
            partial(_answer, half),
        )


def _closer(read: Tensor, mean: Tensor, truth: Tensor) -> float:
    """|read - truth| / |mean - truth|: uploads may be alike, and then their mean is a good guess by itself."""
    return float((read - truth).norm() / (mean - truth).norm())


def _answer(half: ServerHalf, sender: str, reply: Message) -> Packet:
    return (half.answer(sender, reply),) if isinstance(reply, Question) else ()


def _unrecorded(round_index: int, sender: str, receiver: str, message: Message) -> None:
    """The attacker looks at what comes back."""


def _run(context: Context) -> Sequence[Evidence]:
    plan = context.plan
    masked = _Cast(context, plan)
    floats = _Cast(context, plan.with_settings({"aggregation.masks": "float"}))
    bare = _Cast(context, plan.with_settings({"aggregation.masks": "none"}))
    names = masked.stage(0).names
    trials = [(number, names[number % len(names)]) for number in range(_TRIALS)]
    truth, mean = [], []
    for number, victim in trials:
        stage = bare.stage(number)
        sent = stage.send({victim: (stage.model,)})[victim]
        assert isinstance(sent, Upload)
        truth.append(sent.terms.double())
        total = split_view.honest_sum(masked.stage(number))
        mean.append(total.terms / total.total_weight)
        context.on_progress(0.2 * number / _TRIALS, "honest sums")

    def condition(what: str, guess: Guess) -> Condition:
        found = [guess(number, victim) for number, victim in trials]
        pairs = zip(found, mean, truth, strict=True)
        errors = [1.0 if read is None else _closer(read, fallback, true) for read, fallback, true in pairs]
        obtained = tuple(float(error <= SUCCESS) for error in errors)
        return Condition(what, (Scores(OBTAINED, obtained), Scores(UPLOAD_ERROR, tuple(errors))))

    negative = condition("the mean of an honest sum", lambda number, victim: None)  # noqa: ARG005
    unchecked = condition("real-valued masks, whose clients check nothing", partial(_models_without_checks, floats))
    forgetful = condition("clients that forget what they signed", partial(_without_memory, masked))
    found = []
    for place, (name, strategy, positive) in enumerate(_strategies(unchecked, forgetful)):
        context.on_progress(0.5 + 0.5 * place / 4, name)
        refusals: list[str] = []
        target = condition("clients of this plan", partial(_against, strategy, masked, refusals))
        remark = f"refused: {refusals[0]}" if refusals else "never refused"
        found.append(_evidence(name, target, positive, negative, remark))
    context.on_progress(1.0, "dishonest server done")
    return found


def _strategies(unchecked: Condition, forgetful: Condition) -> list[tuple[str, Strategy, Condition]]:
    return [
        ("different models", split_view.different_models, unchecked),
        ("different openings", split_view.different_openings, unchecked),
        ("two lists of survivors", split_view.two_lists, forgetful),
        ("another attempt after the sum", split_view.another_attempt, forgetful),
    ]


def _against(strategy: Strategy, cast: _Cast, refusals: list[str], number: int, victim: str) -> Tensor | None:
    outcome = split_view.attempt(strategy, cast.stage(number), victim)
    if outcome.guess is None:
        refusals.append(outcome.refusal)
    return outcome.guess


def _models_without_checks(cast: _Cast, number: int, victim: str) -> Tensor | None:
    return split_view.attempt(split_view.different_models_without_checks, cast.stage(number), victim).guess


def _without_memory(cast: _Cast, number: int, victim: str) -> Tensor | None:
    """Clients that were started anew remember no list and no sum of the round: two sums of it can be had."""

    def two_sums(stage: Stage, victim: str) -> Tensor:
        others = replace(cast.stage(number), names=tuple(name for name in stage.names if name != victim))
        return split_view.difference_of_sums(split_view.honest_sum(stage), split_view.honest_sum(others))

    return split_view.attempt(two_sums, cast.stage(number), victim).guess


def _evidence(name: str, target: Condition, positive: Condition, negative: Condition, remark: str) -> Evidence:
    return Evidence(
        tests="overlapping sums",
        adversary="dishonest server",
        attack=name,
        adaptive=True,
        seen="what clients answer to what they are shown",
        target=target,
        positive=positive,
        negative=negative,
        gates=(Gate(OBTAINED, 0.9),),
        paired=True,
        remark=remark,
    )


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_subject(guarantee, "overlapping sums"):
        return "the plan claims nothing about overlapping sums"
    if plan.noise.mechanism != "none":
        return "uploads carry noise: a sum of one would be covered by the claim about noise"
    return ""


EXPERIMENT = Experiment(
    "dishonest-server",
    "Two sums with a client in common, by showing clients different things",
    _applies,
    _run,
    weight=12.0,
)
