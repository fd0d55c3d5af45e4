"""Gradient inversion by the server (and on the wire), one sample a client and round: images, table rows, labels.

Rows against "single uploads" (or, where uploads are not masked, against the ledger's line on them):

| attack          | uses                                                        | negative control       |
|-----------------|-------------------------------------------------------------|------------------------|
| naive           | the upload read as a gradient of the model that was sent    | random gradients       |
| adaptive, bare  | the upload with the server's secrets                        | random gradients       |
| adaptive, masks | the sum with the server's secrets, dealt out by the uploads | attribution            |
| + colluders     | the sum less what colluders can account for                 | attribution            |

*Attribution*: the same guess, scored against another honest participant of the round. A guess that is as near to
everybody in the sum does not break what is said about single uploads.

A sum may show something of everybody in it; that is line 12, and has a row of its own: every sample by its best
candidate, against the candidates of another round's sum. With cross entropy the softmax queries then say whose sample a
candidate is (line 8), which masks do not prevent: that has a row too, with attribution as its control.

The plan's own network comes first. Where matching does not work on it even without protection, a small ConvNet stands
in, under the same protections. DLG and iDLG need a smooth network, and always have a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable

from bilateral.audit.evidence import Evidence
from bilateral.audit.experiment import ON_UPLOADS, Context, Experiment, said_of_uploads, subject_of_uploads, undefended
from bilateral.audit.threat import facts_of
from bilateral.audit.topics.inversion.attacks.uploads import true_model
from bilateral.audit.topics.inversion.inversion_evidence import Inversion
from bilateral.audit.topics.inversion.inversion_methods import DLG, IDLG, MATCHING, Method, best_method
from bilateral.audit.topics.inversion.label_reading import label_evidence
from bilateral.audit.topics.inversion.one_sample_rounds import Rounds, one_sample_plan, record_rounds, tools_of
from bilateral.audit.victims import CONVNET, SIGMOID_LENET
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import analyse, initial_model
from bilateral.protocols.guarantee import Guarantee

MOST_PARAMETERS = 200_000
"""Matching a larger network takes minutes an image: a stand-in is tried instead."""


def applies_to_uploads(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "the plan says nothing about single uploads" if said_of_uploads(guarantee) is None else ""


def _deep_leakage_applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if plan.traits.computes_on_shares:
        return "it needs a network with second derivatives, and sealed training takes none"
    return applies_to_uploads(plan, guarantee)


def _run_matching(context: Context) -> list[Evidence]:
    """The plan's own network by the best method for it, and a stand-in if that proves nothing."""
    tests = subject_of_uploads(context.guarantee())
    found: list[Evidence] = []
    doubt = doubt_about_own(context)
    if not doubt:
        target, control = recorded(context, context.plan)
        method = best_method(true_model(facts_of(target.recording)), tools_of(context, target.recording))
        if method is None:
            return []
        own = Inversion(context, method, target, control, tests, progress=_share_of(context, 0.0, 0.9))
        found = own.evidence()
        if all(trial.label >= 0 for trial in target.trials):
            found += label_evidence(context, target, control, tests)
        doubt = "" if own.works else "its attack misses the gates without protection too"
    if doubt and len(context.federation().problem.input_shape) == 3:
        remark = (
            f"on a stand-in, a ConvNet without pooling, under the same protections: the plan's own is no test, {doubt}"
        )
        target, control = recorded(context, context.plan.with_settings({"model.name": CONVNET, "model.options": {}}))
        stand_in = Inversion(context, MATCHING, target, control, tests, remark, _share_of(context, 0.5, 1.0))
        labels_are_read = bool(found)
        found += stand_in.evidence()
        if not labels_are_read:
            found += label_evidence(context, target, control, tests)
    return found


def _run_deep_leakage(context: Context) -> list[Evidence]:
    """DLG and iDLG on the sigmoid LeNet of their authors, under the plan's protections."""
    if len(context.federation().problem.input_shape) != 3:
        return []  # a table's rows go through `gradient-inversion`, exactly
    plan = context.plan.with_settings({"model.name": SIGMOID_LENET, "model.options": {}})
    target, control = recorded(context, plan)
    remark = "on a stand-in, a LeNet with sigmoids, under the same protections: these attacks need a smooth network"
    tests, methods = subject_of_uploads(context.guarantee()), (IDLG, DLG)
    found: list[Evidence] = []
    for number, method in enumerate(methods):
        share = _share_of(context, number / len(methods), (number + 1) / len(methods))
        found += _rows(Inversion(context, method, target, control, tests, remark, share), method)
    return found


def _rows(inversion: Inversion, method: Method) -> list[Evidence]:
    """DLG as published only: the adaptive server reads the labels first."""
    return inversion.evidence() if method is IDLG else [inversion.naive()]


def recorded(context: Context, plan: RunPlan) -> tuple[Rounds, Rounds]:
    """The plan and its undefended control, with one sample a client and round."""
    count = len(context.federation(plan).names)
    plan = one_sample_plan(plan, count, context.effort.images)
    context.on_progress(0.0, "recording")
    return record_rounds(context, plan), record_rounds(context, undefended(plan))


def doubt_about_own(context: Context) -> str:
    """Why the plan's own network is not worth a try; empty if it is."""
    problem = context.federation().problem
    model = initial_model(context.plan, problem)
    graph = analyse(model, problem)
    if graph.statistics:
        return "BatchNorm cannot train on one sample"
    if len(problem.input_shape) == 3 and graph.num_parameters > MOST_PARAMETERS:
        return f"matching its {graph.num_parameters} parameters takes too long"
    return ""


def _share_of(context: Context, start: float, end: float) -> Callable[[float, str], None]:
    return lambda fraction, note: context.on_progress(start + (end - start) * fraction, note)


GRADIENT_INVERSION = Experiment(
    "gradient-inversion",
    "Gradient inversion by the server",
    (*ON_UPLOADS, 8, 12),
    applies_to_uploads,
    _run_matching,
    75.0,
)
DEEP_LEAKAGE = Experiment(
    "deep-leakage", "DLG and iDLG by the server", (*ON_UPLOADS, 8, 12), _deep_leakage_applies, _run_deep_leakage, 25.0
)
EXPERIMENTS = (GRADIENT_INVERSION, DEEP_LEAKAGE)
