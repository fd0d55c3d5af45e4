"""Ledger line 16: one sample's gradient out of the sum of all clients, by a server that chooses its blinders.

A trial is a round with the plan's own batches, of which the server picks one sample of one client.

| row                   | positive control                | negative control                             |
|-----------------------|---------------------------------|----------------------------------------------|
| the sample's gradient | the same where uploads are bare | the same terms of the sum, by drawn blinders |
| the sample            | a gradient of it alone          | the same terms of the sum, by drawn blinders |
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.audit.evidence import NUM_PICTURES, Condition, Evidence, Gate, Picture, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line
from bilateral.audit.image_metrics import Ruler, condition, is_image
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.topics.dishonest.attacks.chosen_blinders import answer_about, gradient_of_chosen
from bilateral.audit.topics.dishonest.attacks.split_view import StagedRound, bare_sum, honest_sum
from bilateral.audit.topics.dishonest.staged_rounds import Cast
from bilateral.audit.topics.inversion.attacks.gradient_matching import GradientModel
from bilateral.audit.topics.inversion.gradient_inversion import MOST_PARAMETERS
from bilateral.audit.topics.inversion.inversion_methods import ANALYTIC, Observed, best_method, gates_for
from bilateral.audit.topics.inversion.one_sample_rounds import MIN_TRIALS, tools_from
from bilateral.data import Split
from bilateral.engine.plan import RunPlan
from bilateral.learning.exchange import Packet
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.messages import Aggregate, Message
from bilateral.protocols.perturb.messages import SoftmaxQuery
from bilateral.protocols.perturb.server import PerturbServer

GRADIENT_ERROR = Metric("error of the gradient's direction", "low", digits=2)
"""The distance of vectors of length 1. Unrelated ones are 1.4 apart."""
OBTAINED = Metric("gradients of one sample obtained", "high", is_rate=True, digits=2)
SUCCESS = 0.05
_LINE = 16


@dataclass(frozen=True, eq=False)
class _Trial:
    """A sample that the server picked, its own gradient by autograd, and what is taken for it."""

    sample: Tensor
    own: Tensor
    read: Tensor
    """In the masked sum, with chosen blinders."""
    drawn: Tensor
    """In the masked sum, with blinders that were drawn."""
    bare: Tensor
    """In the sum of bare uploads, with chosen blinders."""


def _run(context: Context) -> Sequence[Evidence]:
    cast = Cast(context, context.plan)
    trials, count = [], max(MIN_TRIALS, context.effort.images)
    for number in range(count):
        context.on_progress(0.5 * number / count, "rounds with chosen blinders")
        trials.append(_trial(context, cast, number))
    rows = [_gradients(trials, cast)]
    context.on_progress(0.5, "from gradients to samples")
    rows += _samples(context, cast, trials)
    context.on_progress(1.0, "done")
    return rows


def _trial(context: Context, cast: Cast, number: int) -> _Trial:
    victim = cast.names[number % len(cast.names)]
    batch = cast.batch(number, victim)
    place = context.randomness("chosen sample", number).integer_below(len(batch))

    def read(stage: StagedRound, total: Aggregate) -> Tensor:
        return gradient_of_chosen(stage.half, cast.around.perturbation, total)

    chosen, drawn, bare = cast.stage(number), cast.stage(number), cast.bare_stage(number)
    return _Trial(
        batch.inputs[place].float(),
        _own_gradient(cast, batch, place),
        read(chosen, honest_sum(_choosing(chosen, cast, victim, place))),
        read(drawn, honest_sum(drawn)),
        read(bare, bare_sum(_choosing(bare, cast, victim, place))),
    )


def _choosing(stage: StagedRound, cast: Cast, victim: str, place: int) -> StagedRound:
    """The stage with a server that answers everybody correctly, about one sample."""
    half = stage.half
    assert isinstance(half, PerturbServer)

    def respond(sender: str, message: Message) -> Packet:
        if not isinstance(message, SoftmaxQuery):
            return ()
        return (answer_about(message, half.secrets, cast.around.perturbation, place if sender == victim else None),)

    return replace(stage, respond=respond)


def _own_gradient(cast: Cast, batch: Split, place: int) -> Tensor:
    """The truth: of the sample in its batch, with its likeliest label, as the attack chooses the direction."""
    model = copy.deepcopy(cast.around.model).train()
    outputs = model(batch.inputs)[place]
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(F.cross_entropy(outputs, outputs.argmax()), list(parameters.values()))
    return cast.around.graph.flatten(dict(zip(parameters, found, strict=True)), torch.float64)


def _gradients(trials: Sequence[_Trial], cast: Cast) -> Evidence:
    def scored(what: str, found: Sequence[Tensor]) -> Condition:
        errors = [_apart(one, trial.own) for one, trial in zip(found, trials, strict=True)]
        obtained = tuple(float(error <= SUCCESS) for error in errors)
        return Condition(what, (Scores(OBTAINED, obtained), Scores(GRADIENT_ERROR, tuple(errors))))

    samples = cast.around.plan.training.batch_size or "all"
    return with_controls(
        _LINE,
        "dishonest server",
        "one sample's gradient, by blinders of its choice",
        f"the sum of {len(cast.names)} clients, over {samples} samples each, in a round in which it chose its blinders",
        Gate(OBTAINED, 0.9),
        target=scored("clients of this plan", [trial.read for trial in trials]),
        positive=scored("the same, where uploads are bare", [trial.bare for trial in trials]),
        negative=scored("the same terms, with blinders that were drawn", [trial.drawn for trial in trials]),
        remark="no answer of it is wrong, and the model learns as ever",
    )


def _samples(context: Context, cast: Cast, trials: Sequence[_Trial]) -> list[Evidence]:
    """What the gradients show, by the best method for the network; nothing if there is none that is affordable."""
    around = cast.around
    model = GradientModel(copy.deepcopy(around.model).float().eval(), around.graph, "ce")
    tools = tools_from(context, context.federation().test_data, "chosen sample")
    method = best_method(model, tools)
    if method is None or (method is not ANALYTIC and around.graph.num_parameters > MOST_PARAMETERS):
        return []
    parameters = around.graph.flatten(dict(around.model.named_parameters()), torch.float32)
    found: dict[str, list[Tensor]] = {}
    sources = {
        "a gradient of the sample alone": [trial.own for trial in trials],
        "clients of this plan": [trial.read for trial in trials],
        "the same terms, with blinders that were drawn": [trial.drawn for trial in trials],
    }
    for number, (what, gradients) in enumerate(sources.items()):
        telling = replace(tools, on_progress=partial(_tell, context, 0.5 + number / 6))
        rows = torch.stack([gradient.float() for gradient in gradients])
        observed = Observed(model, parameters.expand(len(rows), -1), rows)
        found[what] = [candidates[0] for candidates in method.invert(observed, telling)]
    ruler = Ruler.of(tools.bounds, copy.deepcopy(around.model), around.graph.head, tools.public.inputs)
    positive, target, negative = (
        condition(what, [ruler.score(guess, trial.sample) for guess, trial in zip(guesses, trials, strict=True)])
        for what, guesses in found.items()
    )
    pictures: tuple[Picture, ...] = ()
    if is_image(trials[0].sample):
        columns = ([trial.sample for trial in trials], *found.values())
        shown = tuple(tuple(tools.bounds.to_unit(one) for one in row) for row in zip(*columns, strict=True))
        names = ("target", "from its gradient", "from the sum, blinders chosen", "from the sum, blinders drawn")
        pictures = (Picture("a sample out of the sum of all clients", names, shown[:NUM_PICTURES]),)
    return [
        with_controls(
            _LINE,
            "dishonest server",
            f"one sample, by blinders of its choice and {method.name}",
            "the same gradient",
            gates_for(trials[0].sample),
            target=target,
            positive=positive,
            negative=negative,
            pictures=pictures,
        )
    ]


def _tell(context: Context, started: float, fraction: float) -> None:
    context.on_progress(started + fraction / 6, "from gradients to samples")


def _apart(one: Tensor, other: Tensor) -> float:
    return float((F.normalize(one, dim=0) - F.normalize(other, dim=0)).norm())


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_line(guarantee, _LINE):
        return "there are no blinders to choose: clients ask the server for no softmax"
    if plan.traits.adds_noise:
        return "uploads carry noise of another kind"
    if has_line(guarantee, 3, 6):
        return "uploads are not hidden from the server anyway (lines 3 and 6)"
    return ""


EXPERIMENT = Experiment(
    "chosen-sample",
    "One sample's gradient out of the sum, by a server that chooses its blinders",
    (_LINE,),
    _applies,
    _run,
    weight=30.0,
)
