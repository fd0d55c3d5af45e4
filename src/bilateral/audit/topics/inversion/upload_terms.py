"""Uploads term by term, where they are not masked (ledger line 3): each term is a gradient of some function.

The first layer of a network that begins with a Linear gives its input away exactly, in *every* term and in the
perturbed model's own coordinates: inputs are not scaled, so nothing secret is in the way. P2 puts noise on the first
term alone. The naive attacker reads that one, the adaptive one the others.
"""

from __future__ import annotations

from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line, undefended
from bilateral.audit.image_metrics import condition
from bilateral.audit.threat import eavesdropper_view, facts_of
from bilateral.audit.topics.inversion.attacks.uploads import client_model, rows_of, sent_parameters, upload_of
from bilateral.audit.topics.inversion.inversion_methods import (
    ANALYTIC,
    InversionTools,
    Observed,
    best_method,
    gates_for,
)
from bilateral.audit.topics.inversion.one_sample_rounds import (
    Rounds,
    observe,
    one_sample_plan,
    random_gradients,
    record_rounds,
    ruler_of,
    tools_of,
)
from bilateral.audit.views import View
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee

STAND_IN = "mlp-3"
MOST_TERMS = 8


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not plan.traits.hides_model:
        return "uploads have one term without perturbation"
    if not has_line(guarantee, 3):
        return "the terms of an upload are masked: gradient inversion covers what is left"
    return ""


def _run(context: Context) -> list[Evidence]:
    plan = context.plan
    remark = ""
    target = _recorded(context, plan)
    tools = tools_of(context, target.recording, "terms")
    if best_method(client_model(facts_of(target.recording)), tools) is not ANALYTIC:
        remark = (
            f"on a stand-in, the zoo's {STAND_IN}, under the same protections: the plan's does not begin with a Linear"
        )
        plan = plan.with_settings({"model.name": STAND_IN, "model.options": {}})
        target = _recorded(context, plan)
    context.on_progress(0.4, "undefended control")
    control = _recorded(context, undefended(plan))
    positive = _scored("FedSGD, the same samples", _term(control, 0), control, tools)
    names = _term_names(context, plan)
    found = []
    for number, name in enumerate(names[:MOST_TERMS]):
        context.on_progress(0.6 + 0.4 * number / len(names), f"term {name}")
        found.append(_row(target, number, name, positive, tools, remark))
    return found


def _row(target: Rounds, number: int, name: str, positive: Condition, tools: InversionTools, remark: str) -> Evidence:
    observed = _term(target, number)
    return with_controls(
        3,
        "curious server",
        f"{ANALYTIC.name}, term `{name}`",
        f"row {number + 1} of each upload, without any secret",
        gates_for(target.trials[0].sample),
        target=_scored(target.recording.protection, observed, target, tools),
        positive=positive,
        negative=_scored("random gradients", random_gradients(observed, tools), target, tools),
        adaptive=number > 0,
        remark=remark,
    )


def _recorded(context: Context, plan: RunPlan) -> Rounds:
    count = len(context.federation(plan).names)
    return record_rounds(context, one_sample_plan(plan, count, context.effort.images))


def _term_names(context: Context, plan: RunPlan) -> tuple[str, ...]:
    return plan.chosen.term_names(context.federation(plan).problem.loss)


def _term(rounds: Rounds, number: int) -> Observed:
    """One term of every trial's upload, as it was sent."""
    view: View = eavesdropper_view(rounds.recording)

    def row(round_index: int, client: str) -> Tensor | None:
        upload = upload_of(view, round_index, client)
        return None if upload is None else rows_of(upload, len(sent_parameters(view, round_index)))[number]

    keys = [(trial.round_index, trial.client) for trial in rounds.trials]
    return observe(client_model(view.facts), keys, lambda index: sent_parameters(view, index), row)


def _scored(what: str, observed: Observed, rounds: Rounds, tools: InversionTools) -> Condition:
    guesses = [candidates[0] for candidates in ANALYTIC.invert(observed, tools)]
    ruler, pairs = ruler_of(rounds.recording, tools), zip(guesses, rounds.trials, strict=True)
    return condition(what, [ruler.score(guess, trial.sample) for guess, trial in pairs])


EXPERIMENT = Experiment("upload-terms", "Uploads term by term", (3,), _applies, _run, 5.0)
