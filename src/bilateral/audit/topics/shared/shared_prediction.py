"""The audit of secret-shared prediction, for plans of heterogeneous runs.

The first client of the plan asks, the clients that would answer it in the first iteration answer. The context's `style`
says how activations are compared: sealed, which is the default, or judged, ours or as P4 published it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bilateral.audit.evidence import Evidence
from bilateral.audit.experiment import Experiment, HeteroContext
from bilateral.audit.topics.shared.shared_answers import architecture_experiment, copying_experiment
from bilateral.audit.topics.shared.shared_first_layer import first_layer_experiment
from bilateral.audit.topics.shared.shared_games import hiding_experiment, single_answers_experiment
from bilateral.audit.topics.shared.shared_hidden_layer import hidden_layer_experiment
from bilateral.audit.topics.shared.shared_learned import learned_experiment
from bilateral.audit.topics.shared.shared_setting import Progress, SharedSetting, prepare
from bilateral.audit.topics.shared.shared_signs import signs_experiment
from bilateral.audit.topics.shared.shared_sizes import sizes_experiment
from bilateral.audit.topics.shared.shared_sureness import sureness_experiment
from bilateral.protocols.guarantee import Guarantee
from bilateral.runs.hetero.plan import HeteroPlan

_Step = Callable[[SharedSetting, Progress], list[Evidence]]
_SIZES: Final[tuple[tuple[_Step, float], ...]] = (
    (signs_experiment, 5.0),
    (learned_experiment, 12.0),
    (first_layer_experiment, 0.5),
    (sizes_experiment, 13.0),
    (sureness_experiment, 4.0),
    (copying_experiment, 7.0),
    (architecture_experiment, 0.2),
)
_GAMES: Final[tuple[tuple[_Step, float], ...]] = (
    (hiding_experiment, 16.0),
    (hidden_layer_experiment, 14.0),
    (single_answers_experiment, 14.0),
)
"""Steps, with the seconds that each takes on the default plan, roughly: for progress."""
_PREPARATION: Final = 6.0


def _applies(plan: HeteroPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "answers in the clear claim nothing" if plan.answers == "plain" else ""


def _run(context: HeteroContext, steps: Sequence[tuple[_Step, float]]) -> Sequence[Evidence]:
    total = _PREPARATION + sum(weight for _, weight in steps)

    def part(start: float, weight: float) -> Progress:
        return lambda fraction, note: context.on_progress((start + weight * fraction) / total, note)

    draws = context.randomness("shared prediction")
    setting = prepare(
        context.plan, context.style, context.effort.shared, draws, part(0.0, _PREPARATION), context.data_dir
    )
    found: list[Evidence] = []
    start = _PREPARATION
    for step, weight in steps:
        found += step(setting, part(start, weight))
        start += weight
    return found


EXPERIMENTS: Final = (
    Experiment(
        "shared-answers",
        "Secret-shared prediction: what the querying party learns",
        ("activations", "signs of activations", "single answers", 5, 13, 14),
        _applies,
        partial(_run, steps=_SIZES),
        36.0,
        kinds=(HeteroPlan,),
    ),
    Experiment(
        "hidden-queries",
        "Secret-shared prediction: what the other parties learn, and who said what",
        ("shared prediction, server", "shared prediction, answering party", "activations", "single answers", 5),
        _applies,
        partial(_run, steps=_GAMES),
        36.0,
        kinds=(HeteroPlan,),
    ),
)
