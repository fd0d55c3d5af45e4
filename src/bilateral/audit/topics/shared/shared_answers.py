"""What is open by nature: the sums teach a copy (ledger, line 14), and circuits are written in messages (line 13)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from bilateral.audit.evidence import Condition, Curve, Evidence, Gate, with_controls
from bilateral.audit.scores import Metric, Scores, rate_interval
from bilateral.audit.shared_recording import helping_view, listening_view, querying_view
from bilateral.audit.shared_views import SharedView, circuits_read
from bilateral.audit.topics.shared.attacks.answer_copying import copy_answers
from bilateral.audit.topics.shared.shared_setting import Progress, SharedSetting
from bilateral.learning.hetero.answers import PlainAnswers
from bilateral.learning.hetero.fitting import predict
from bilateral.protocols.share.circuit.description import Circuit

COPIED = Metric("agreement with the answering networks' sum", "high", is_rate=True)
LAYERS = Metric("layers of others' networks read", "high", is_rate=True)
_MAX_TEST = 300
_GATE = 0.7


def copying_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """A copy of what the answering networks say together, by the number of queries.

    Negative control: the querying party's own network, before it asked. Positive: sums in the clear.
    """
    run = setting.parties(setting.style, "copying").ask(setting.querier, setting.queries, setting.models)
    view = querying_view(run)
    plain = PlainAnswers()
    for name, network in setting.networks.items():
        plain.offer(name, network, setting.queries)
    names = list(setting.networks)
    inputs = setting.test.inputs[:_MAX_TEST]
    truth = plain.summed_logits(setting.querier, inputs, names).argmax(1)
    sums = {
        "secret-shared": _answers(view),
        "in the clear": plain.summed_logits(setting.querier, setting.queries, names),
    }

    def scores(network: nn.Module) -> Scores:
        return Scores(COPIED, tuple((predict(network, inputs).argmax(1) == truth).double().tolist()))

    def copied(count: int, answers: Tensor, targets: Literal["classes", "logits"]) -> Scores:
        generator = setting.randomness.child("copying", count).torch_generator()
        return scores(
            copy_answers(
                setting.own,
                setting.queries[:count],
                answers[:count],
                targets=targets,
                steps=setting.effort.copies,
                generator=generator,
            )
        )

    found, curve, everything = [], {}, len(setting.queries)
    own = scores(copy.deepcopy(setting.own).eval())
    kinds: tuple[tuple[Literal["classes", "logits"], bool], ...] = (("classes", False), ("logits", True))
    for step, (targets, adaptive) in enumerate(kinds):
        on_progress(step / 2, f"copying {targets}")
        by_count = {count: copied(count, sums["secret-shared"], targets) for count in _counts(everything)}
        curve[f"trained on {targets}"] = tuple(
            (float(count), one.mean, *rate_interval(one.values)) for count, one in by_count.items()
        )
        in_the_clear = copied(everything, sums["in the clear"], targets)
        shown = Curve("A copy of the answering networks", "queries", COPIED.name, dict(curve))
        found.append(
            with_controls(
                14,
                "querying party",
                f"copying, trained on {targets}",
                "the sums of the logits",
                Gate(COPIED, _GATE),
                target=(f"{everything} queries, {len(names)} answering parties", by_count[everything]),
                positive=("the same queries, answered in the clear", in_the_clear),
                negative=("the querying party's own network", own),
                adaptive=adaptive,
                curves=(shown,) if adaptive else (),
            )
        )
    return found


def architecture_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """Who can read the circuits. Negative control: a guess among the plan's architectures by one who saw nothing."""
    on_progress(0.0, "reading circuits")
    parties = setting.parties(setting.style, "architectures")
    run = parties.ask(setting.querier, setting.few_queries[:1], setting.models)
    truth = {name: model.circuit for name, model in setting.models.items()}
    drawn = setting.randomness.child("architectures")
    choices = list(truth.values())
    guessed = {name: choices[drawn.integer_below(len(choices))] for name in truth}
    bare = Condition("the networks themselves", (_layer_scores(truth, truth),))
    nothing = Condition("an architecture of the plan at random", (_layer_scores(guessed, truth),))
    views: Sequence[SharedView] = (querying_view(run), helping_view(run), listening_view(run))
    return [
        with_controls(
            13,
            view.adversary,
            "reading circuits",
            "what a session begins with",
            Gate(LAYERS, 0.99),
            target=Condition("the descriptions in the messages", (_layer_scores(circuits_read(view), truth),)),
            positive=bare,
            negative=nothing,
        )
        for view in views
    ]


def _layer_scores(read: dict[str, Circuit], truth: dict[str, Circuit]) -> Scores:
    """A value a layer of every answering network, and one for the range of its samples."""
    values: list[float] = []
    for name, circuit in truth.items():
        guess = read.get(name)
        steps = guess.steps if guess is not None else ()
        for place, step in enumerate(circuit.steps):
            values.append(float(place < len(steps) and steps[place] == step))
        values.append(float(guess is not None and guess.largest_input == circuit.largest_input))
    return Scores(LAYERS, tuple(values))


def _answers(view: SharedView) -> Tensor:
    assert view.answers is not None, "only the querying party has answers"
    return view.answers.float()


def _counts(everything: int) -> list[int]:
    """An eighth of all queries, a quarter, a half, all."""
    return sorted({max(2, everything >> shift) for shift in range(4)})
