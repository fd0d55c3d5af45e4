"""Activations learned from everything that the querying party has, for the sealed comparison.

Asked are the plan's queries, and chosen ones: flat images, which put a first-layer bias at every pixel, and dots, which
put a weight there. Positive control: the published comparison on the same queries and networks. Negative: the
same attacker with the same sums, to which it is entitled, and all else of sessions with its own networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.shared_truth import compared_numbers
from bilateral.audit.topics.shared.attacks.activation_factors import dotted_queries
from bilateral.audit.topics.shared.attacks.everything_seen import LearnedNumbers, hints, learn_numbers, with_sum_of
from bilateral.audit.topics.shared.shared_setting import Progress, Seen, SharedSetting, ask_again
from bilateral.audit.topics.shared.shared_signs import PLACES, SIGNS, balanced, correlation
from bilateral.protocols.share.gates.styles import PUBLISHED, SEALED, ComparisonStyle

ZEROS = Metric("zeros read in place, balanced", "high")
_LEVELS = (0.0, 0.25, 1.0)
"""Of flat images, as parts of the largest allowed input."""


def learned_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """Nothing for judged comparisons, whose numbers have attacks of their own."""
    if setting.style is not SEALED:
        return []
    asked = {"the plan's queries": setting.few_queries, "flat and dotted images": _chosen_queries(setting)}
    found = []
    for step, (what, queries) in enumerate(asked.items()):
        truth = {name: compared_numbers(model, queries) for name, model in setting.models.items()}
        own = {name: compared_numbers(model, queries) for name, model in setting.shadows.items()}
        guesses: dict[str, Mapping[str, Sequence[LearnedNumbers]]] = {}
        for part, style in enumerate((SEALED, PUBLISHED)):
            on_progress((2 * step + part) / 4, f"learning from {what}, {style.name}")
            examples = _asked(setting, style, queries, "own", is_own=True)
            shown = _asked(setting, style, queries, "shown")
            guesses[style.name] = _learned(examples, own, shown)
            if style is SEALED:
                again = _asked(setting, style, queries, "own again", is_own=True)
                with_sums = [
                    {name: [with_sum_of(*pair) for pair in zip(one[name], other[name], strict=True)] for name in one}
                    for one, other in zip(again, shown, strict=True)
                ]
                guesses["negative"] = _learned(examples, own, with_sums)
        target, positive, negative = (
            Condition(words, _scores(guesses[key], truth, len(queries)))
            for key, words in (
                (SEALED.name, "the sealed comparison"),
                (PUBLISHED.name, "the published comparison, same queries and networks"),
                ("negative", "the same sums, all else from sessions with the attacker's own networks"),
            )
        )
        found.append(
            with_controls(
                "activations",
                "querying party",
                f"learning from everything it has, {what}",
                "its masks and bits of every comparison, all that it received, the sum of the logits; "
                f"{setting.effort.repeats} times the same queries",
                Gate(SIGNS, 0.95),
                target=target,
                positive=positive,
                negative=negative,
            )
        )
    return found


def _chosen_queries(setting: SharedSetting) -> Tensor:
    """Flat images, then dots spread over the image: as many as the plan's queries in this experiment."""
    shape = setting.queries.shape[1:]
    largest = min(model.circuit.largest_input for model in setting.models.values())
    flat = torch.stack([torch.full(shape, level * largest) for level in _LEVELS])
    dots = dotted_queries(tuple(shape))[1:] * largest
    places = np.linspace(0, len(dots) - 1, max(1, setting.effort.queries - len(flat))).astype(np.int64)
    return torch.cat([flat, dots[np.unique(places)]])


def _asked(
    setting: SharedSetting, style: ComparisonStyle, queries: Tensor, label: str, *, is_own: bool = False
) -> list[Seen]:
    models = setting.shadows if is_own else setting.models
    return ask_again(setting, style, queries, models, setting.effort.repeats, f"learned {label}", read=hints)


def _learned(
    examples: Sequence[Seen], numbers: Mapping[str, Sequence[Tensor]], shown: Sequence[Seen]
) -> dict[str, list[LearnedNumbers]]:
    return {
        name: [
            learn_numbers([view[name][place] for view in examples], t, [view[name][place] for view in shown])
            for place, t in enumerate(comparisons)
        ]
        for name, comparisons in numbers.items()
    }


def _scores(
    read: Mapping[str, Sequence[LearnedNumbers]], truth: Mapping[str, Sequence[Tensor]], num_queries: int
) -> tuple[Scores, ...]:
    """A value a query: the mean over all comparisons of all answering parties. Layers are no places: each by itself."""
    pairs = [(r, t) for name in truth for r, t in zip(read[name], truth[name], strict=True)]
    signs, zeros, places = [], [], []
    for query in range(num_queries):
        signs.append(float(np.mean([balanced(r.active[query], t[query] >= 0) for r, t in pairs])))
        zeros.append(_zeros_read([(r.is_zero[query], t[query].abs() <= 1) for r, t in pairs]))
        places.append(float(np.mean([correlation(r.log_size[query], t[query]) for r, t in pairs])))
    return Scores(SIGNS, tuple(signs)), Scores(PLACES, tuple(places)), Scores(ZEROS, tuple(zeros))


def _zeros_read(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Over the comparisons where some numbers are zero and some are not; one half where there is none."""
    found = [balanced(guess, truth) for guess, truth in pairs if truth.any() and not truth.all()]
    return float(np.mean(found)) if found else 0.5
