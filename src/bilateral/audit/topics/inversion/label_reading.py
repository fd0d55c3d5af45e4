"""Labels from the head's gradient, under the same conditions as samples (see `gradient_inversion`)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bilateral.audit.evidence import Evidence, Gate, Tried, with_controls
from bilateral.audit.experiment import Context, has_line
from bilateral.audit.scores import LABEL
from bilateral.audit.threat import eavesdropper_view, server_view
from bilateral.audit.topics.inversion.attacks.labels import read_label, read_labels_of_sum
from bilateral.audit.topics.inversion.attacks.uploads import (
    client_model,
    naive_gradient,
    own_gradient,
    sent_parameters,
    sum_gradient,
    true_model,
    upload_of,
)
from bilateral.audit.topics.inversion.inversion_methods import Observed
from bilateral.audit.topics.inversion.one_sample_rounds import Rounds, Trial, observe, random_gradients, tools_of
from bilateral.audit.views import View
from bilateral.protocols.guarantee import Subject
from bilateral.protocols.messages import Upload

ATTACK = "labels from the head's gradient"
GATE = Gate(LABEL, 0.9)
DRAWS = 10
"""Random gradients for each observed one: labels are guessed right by chance, and how often must be known."""


def label_evidence(context: Context, target: Rounds, control: Rounds, tests: Subject | int) -> list[Evidence]:
    """Naive and adaptive rows on single uploads, and one on the sum."""
    plain = _own(server_view(control.recording), control)
    positive = _condition("FedSGD, the same samples", control.trials, _read(plain))
    found = [_naive(context, target, positive, tests), _adaptive(context, target, positive, tests)]
    if has_line(target.recording.guarantee, 12):
        found.append(_of_sum(context, target, positive))
    return found


def _naive(context: Context, target: Rounds, positive: Tried, tests: Subject | int) -> Evidence:
    observed = _as_sent(target)
    return with_controls(
        tests,
        "curious server",
        ATTACK,
        "the first term of each upload, read as a gradient",
        GATE,
        target=_condition(target.recording.protection, target.trials, _read(observed)),
        positive=positive,
        negative=_by_chance(context, target, observed),
        adaptive=False,
        paired=False,
    )


def _adaptive(context: Context, target: Rounds, positive: Tried, tests: Subject | int) -> Evidence:
    """With the secrets; under ring masks the labels of the sum, dealt out by the uploads without their self masks."""
    view = server_view(target.recording)
    first = target.trials[0]
    if isinstance(upload_of(view, first.round_index, first.client), Upload):
        observed = _own(view, target)
        seen, trials = "each upload by itself, with the round's secrets", list(target.trials)
        guesses = _read(observed)
        negative, paired = _by_chance(context, target, observed), False
    else:
        sums = _labels_of_sums(context, view, target)
        hints = dict(zip(target.trials, _own(view, target).gradients, strict=True))
        trials = [trial for trial in target.trials if trial.others]
        guesses = [_deal_out(sums[t.round_index], hints[t], view) for t in trials]
        seen = "the labels of the round's sum, dealt out by what each upload suggests without its self mask"
        negative = _condition("the same guess, another participant", [t.others[0] for t in trials], guesses)
        paired = True
    return with_controls(
        tests,
        "curious server",
        ATTACK,
        seen,
        GATE,
        target=_condition(target.recording.protection, trials, guesses),
        positive=positive,
        negative=negative,
        paired=paired,
    )


def _of_sum(context: Context, target: Rounds, positive: Tried) -> Evidence:
    """Whether each label is among those read in its round's sum; the control is another round's sum."""
    sums = _labels_of_sums(context, server_view(target.recording), target)
    indices = target.round_indices
    following = dict(zip(indices, indices[1:] + indices[:1], strict=True))

    def hits(what: str, chosen: dict[int, int]) -> Tried:
        return what, [float(t.label in sums[chosen[t.round_index]].tolist()) for t in target.trials]

    return with_controls(
        12,
        "curious server",
        ATTACK,
        "the round's sum over one sample a client: which labels are in it",
        GATE,
        target=hits(target.recording.protection, {index: index for index in indices}),
        positive=positive,
        negative=hits("the sum of another round", following),
    )


def _by_chance(context: Context, target: Rounds, observed: Observed) -> Tried:
    kits = [tools_of(context, target.recording, ATTACK, str(number)) for number in range(DRAWS)]
    guesses = [guess for tools in kits for guess in _read(random_gradients(observed, tools))]
    return _condition("random gradients", [*target.trials] * DRAWS, guesses)


def _deal_out(labels: Tensor, hint: Tensor, view: View) -> int:
    """Of the sum's labels the one that the upload's own head speaks for most."""
    graph = view.facts.graph
    values = graph.unflatten(hint)
    head = values[graph.head_bias.name] if graph.head_bias is not None else values[graph.head_weight.name].sum(1)
    return int(labels[int(head[labels].argmin())])


def _labels_of_sums(context: Context, view: View, rounds: Rounds) -> dict[int, Tensor]:
    public = tools_of(context, rounds.recording, ATTACK).public.inputs
    model = true_model(view.facts)
    result = {}
    for index in rounds.round_indices:
        gradient, honest = sum_gradient(view, index)
        parameters = view.server_round(index).parameters.float()
        result[index] = read_labels_of_sum(model, parameters, gradient.float(), len(honest), public)
    return result


def _as_sent(rounds: Rounds) -> Observed:
    view = eavesdropper_view(rounds.recording)
    return observe(
        client_model(view.facts),
        [(trial.round_index, trial.client) for trial in rounds.trials],
        lambda index: sent_parameters(view, index),
        lambda index, client: naive_gradient(view, index, client),
    )


def _own(view: View, rounds: Rounds) -> Observed:
    return observe(
        true_model(view.facts),
        [(trial.round_index, trial.client) for trial in rounds.trials],
        lambda index: view.server_round(index).parameters,
        lambda index, client: own_gradient(view, index, client),
    )


def _read(observed: Observed) -> list[int]:
    pairs = zip(observed.parameters, observed.gradients, strict=True)
    return [read_label(observed.model, parameters, gradient) for parameters, gradient in pairs]


def _condition(what: str, trials: Sequence[Trial], guesses: Sequence[int]) -> Tried:
    return what, [float(guess == trial.label) for guess, trial in zip(guesses, trials, strict=True)]
