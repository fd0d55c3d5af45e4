"""What the sum shows at the plan's own batch size, over all clients (ledger line 12).

The server matches the recovered mean gradient with as many images as are behind it. Every true image is scored by the
best of the candidates, its own round's and another round's; over all rounds that favours no round, so images that
happen to be easy to guess do not count as a leak. (One sample a client is in `gradient_inversion`.)
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bilateral.audit.evidence import NUM_PICTURES, Condition, Evidence, Picture, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line, undefended
from bilateral.audit.image_metrics import condition, is_image
from bilateral.audit.recording import Recording
from bilateral.audit.threat import facts_of, server_view
from bilateral.audit.topics.inversion.attacks.uploads import own_gradient, sum_gradient, true_model
from bilateral.audit.topics.inversion.gradient_inversion import doubt_about_own
from bilateral.audit.topics.inversion.inversion_methods import InversionTools, Method, Observed, best_method, gates_for
from bilateral.audit.topics.inversion.one_sample_rounds import (
    LEARNING_RATE,
    observe,
    one_sample_plan,
    record_rounds,
    ruler_of,
    tools_of,
)
from bilateral.audit.victims import CONVNET
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee

NUM_ROUNDS = 2
MOST_IMAGES = 256
"""Behind one sum: more are neither recovered nor worth the time."""


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "" if has_line(guarantee, 12) else "the plan admits nothing about sums (line 12)"


def _run(context: Context) -> list[Evidence]:
    plan, remark = context.plan, ""
    doubt = doubt_about_own(context)
    if doubt and len(context.federation().problem.input_shape) == 3:
        plan = plan.with_settings({"model.name": CONVNET, "model.options": {}})
        remark = f"; on a stand-in, a ConvNet without pooling: the plan's own is no test, {doubt}"
    recording = context.record(_own_batches(plan))
    tools = tools_of(context, recording, "sums")
    method = None if recording.graph.statistics else best_method(true_model(facts_of(recording)), tools)
    if method is None:
        return []
    positive = _one_sample_control(context, plan, method)
    tools = replace(tools, on_progress=lambda fraction: context.on_progress(0.3 + 0.7 * fraction, "sums"))
    truths = _truths(recording)
    candidates = _candidates(recording, truths, method, tools)
    rounds = tuple(truths)
    following = dict(zip(rounds, rounds[1:] + rounds[:1], strict=True))
    ruler = ruler_of(recording, tools)
    own = [ruler.score_best(candidates[r], sample) for r in rounds for sample in truths[r]]
    foreign = [ruler.score_best(candidates[following[r]], sample) for r in rounds for sample in truths[r]]
    count = len(truths[rounds[0]])
    found = with_controls(
        12,
        "curious server",
        method.name,
        f"the round's sum over {count} samples; every sample is scored by the best candidate",
        gates_for(truths[rounds[0]][0]),
        target=condition(recording.protection, own),
        positive=positive,
        negative=condition("the sum of another round", foreign),
        remark=f"at the plan's own batch size: {count} samples a round{remark}",
    )
    return [replace(found, pictures=_pictures(candidates, truths, tools, method))]


def _own_batches(plan: RunPlan) -> RunPlan:
    """The plan as it is, for two rounds with hardly a step between them."""
    return plan.with_settings(
        {"training.rounds": NUM_ROUNDS, "training.learning_rate": LEARNING_RATE, "training.augment": False}
    )


def _truths(recording: Recording) -> dict[int, Tensor]:
    """By round, all samples behind its sum (up to MOST_IMAGES)."""
    result = {}
    for kept in recording.server_rounds:
        batches = [recording.batches[name, kept.round_index].inputs for name in kept.total.contributors]
        result[kept.round_index] = torch.cat(batches)[:MOST_IMAGES].float()
    return {index: samples for index, samples in result.items() if len(samples)}


def _candidates(
    recording: Recording, truths: dict[int, Tensor], method: Method, tools: InversionTools
) -> dict[int, Tensor]:
    """By round. How many samples are behind a sum the server knows: batch sizes are public."""
    view = server_view(recording)
    model = true_model(view.facts)
    result = {}
    for index, samples in truths.items():
        gradient, _ = sum_gradient(view, index)
        parameters = view.server_round(index).parameters
        observed = Observed(model, parameters[None].float(), gradient[None].float(), len(samples))
        result[index] = method.invert(observed, tools)[0]
    return result


def _one_sample_control(context: Context, plan: RunPlan, method: Method) -> Condition:
    """The same attack, the same budget, on FedSGD with one sample behind the gradient: it must work there."""
    count = len(context.federation().names)
    rounds = record_rounds(context, one_sample_plan(undefended(plan), count, context.effort.images))
    tools = tools_of(context, rounds.recording, "sums")
    tools = replace(tools, on_progress=lambda fraction: context.on_progress(0.3 * fraction, "FedSGD"))
    view = server_view(rounds.recording)
    observed: Observed = observe(
        true_model(view.facts),
        [(trial.round_index, trial.client) for trial in rounds.trials],
        lambda index: view.server_round(index).parameters,
        lambda index, client: own_gradient(view, index, client),
    )
    guesses = [found[0] for found in method.invert(observed, tools)]
    ruler, pairs = ruler_of(rounds.recording, tools), zip(guesses, rounds.trials, strict=True)
    return condition("FedSGD, one sample a gradient", [ruler.score(guess, trial.sample) for guess, trial in pairs])


def _pictures(
    candidates: dict[int, Tensor], truths: dict[int, Tensor], tools: InversionTools, method: Method
) -> tuple[Picture, ...]:
    index, samples = next(iter(truths.items()))
    if not is_image(samples[0]):
        return ()
    rows = []
    for sample in samples[:NUM_PICTURES]:
        nearest = candidates[index][int((candidates[index] - sample).flatten(1).norm(dim=1).argmin())]
        rows.append((tools.bounds.to_unit(sample), tools.bounds.to_unit(nearest)))
    title = f"{method.name}, a sum over {len(samples)}"
    return (Picture(title, ("target", "best of the candidates"), tuple(rows)),)


EXPERIMENT = Experiment("sum-inversion", "Gradient inversion of the sum", (12,), _applies, _run, 45.0)
