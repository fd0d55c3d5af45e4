"""Sizes of activations by the querying party: what the hardened comparison leaves (ledger, line 5), the sealed not.

Negative control: the same attack on views of the querying party's shadows, which answer the same queries. It is what
the party could have guessed without any view of the others. Positive: the published comparison; for the sealed one,
which the adaptive attacker alone tries, the hardened: the naive attacker does not read that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bilateral.audit.evidence import Condition, Curve, Evidence, Gate, with_controls
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.shared_truth import compared_numbers
from bilateral.audit.topics.shared.attacks.activation_sizes import (
    BINS_AN_OCTAVE,
    ReadSizes,
    histogram,
    log_sizes,
    read_adaptively,
    read_naively,
)
from bilateral.audit.topics.shared.shared_setting import (
    Progress,
    Seen,
    SharedSetting,
    about_activations,
    ask_again,
    in_place_words,
)
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED, ComparisonStyle

MEAN_SIZE = Metric("error of a layer's mean size, octaves", "low", digits=2)
DISTRIBUTION = Metric("distance of a layer's sizes, octaves", "low", digits=2)
ZEROS = Metric("error of a layer's share of zeros", "low")
_WORST = 10.0
"""Octaves: a layer whose numbers are all zero has no mean size."""


def sizes_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """Naive from one view, adaptive from repeated ones, and what repetition adds."""
    queries, repeats = setting.few_queries, setting.effort.repeats
    truth = _true_sizes(setting.models, queries)
    control = PUBLISHED if setting.style.is_judged else HARDENED
    conditions = {
        "target": (setting.style, setting.models, f"the {setting.style.name} comparison"),
        "positive": (control, setting.models, f"the {control.name} comparison, same queries and networks"),
        "negative": (setting.style, setting.shadows, "views of the attacker's own networks, same architectures"),
    }
    views: dict[str, list[Seen]] = {}
    for step, (name, (style, models, _)) in enumerate(conditions.items()):
        on_progress(step / 8, f"sizes, {name}")
        views[name] = ask_again(setting, style, queries, models, repeats, f"sizes {name}")
    found = []
    for adaptive in (False, True) if setting.style.is_judged else (True,):
        scored = {}
        for step, (name, (style, _, what)) in enumerate(conditions.items()):
            on_progress(0.4 + 0.1 * step + 0.3 * adaptive, f"deconvolution, {name}")
            scored[name] = Condition(what, _scores(views[name], style, setting.models, truth, adaptive=adaptive))
        found.append(
            with_controls(
                about_activations(setting.style),
                "querying party",
                "deconvolution of sizes over repeated queries" if adaptive else "sizes as they are seen",
                in_place_words(setting.style) + (f", of {repeats} times the same queries" if adaptive else ""),
                Gate(MEAN_SIZE, 0.2),
                target=scored["target"],
                positive=scored["positive"],
                negative=scored["negative"],
                adaptive=adaptive,
                curves=(_curve(setting, control, views, truth),) if adaptive else (),
            )
        )
    return found


def _curve(
    setting: SharedSetting,
    control: ComparisonStyle,
    views: Mapping[str, Sequence[Seen]],
    truth: Sequence[list[ReadSizes]],
) -> Curve:
    lines = {}
    styles = {f"{setting.style.name}": ("target", setting.style), f"{control.name}, control": ("positive", control)}
    for line, (name, style) in styles.items():
        points, count = [], 1
        while count <= setting.effort.repeats:
            scores = _scores(views[name][:count], style, setting.models, truth, adaptive=True)[0]
            points.append((float(count), scores.mean, *scores.interval))
            count *= 2
        lines[line] = tuple(points)
    return Curve("How large the numbers of a layer are", "times the same query was asked", MEAN_SIZE.name, lines)


def _scores(
    views: Sequence[Seen],
    style: ComparisonStyle,
    models: Mapping[str, FixedPointModel],
    truth: Sequence[Sequence[ReadSizes]],
    *,
    adaptive: bool,
) -> tuple[Scores, ...]:
    """A value a query: the mean over all comparisons of all answering parties."""
    places = [
        (name, place, compared.fraction_bits)
        for name in models
        for place, compared in enumerate(models[name].circuit.comparisons)
    ]
    rows = []
    for query, true in enumerate(truth):
        guesses = [
            read_adaptively([view[name][place][query] for view in views], style if style.is_judged else HARDENED, bits)
            if adaptive
            else read_naively(views[0][name][place][query], bits)
            for name, place, bits in places
        ]
        rows.append([_errors(guess, sizes) for guess, sizes in zip(guesses, true, strict=True)])
    means = np.array(rows).mean(1)
    return tuple(
        Scores(metric, tuple(float(value) for value in column))
        for metric, column in zip((MEAN_SIZE, DISTRIBUTION, ZEROS), means.T, strict=True)
    )


def _errors(guess: ReadSizes, true: ReadSizes) -> tuple[float, float, float]:
    mean = min(_WORST, abs(guess.mean_log - true.mean_log))
    moved = float(np.abs(np.cumsum(guess.distribution - true.distribution)).sum() / BINS_AN_OCTAVE)
    return mean, moved, abs(guess.zeros - true.zeros)


def _true_sizes(models: Mapping[str, FixedPointModel], queries: Tensor) -> list[list[ReadSizes]]:
    """By query, of every comparison of every answering party."""
    numbers = [numbers for model in models.values() for numbers in compared_numbers(model, queries)]
    return [[true_sizes(part[query]) for part in numbers] for query in range(len(queries))]


def true_sizes(compared: Tensor) -> ReadSizes:
    """What the attack guesses, of the numbers themselves. t and -t - 1 look alike, so -t - 1 is the size of both."""
    sizes = torch.where(compared >= 0, compared, -compared - 1)
    is_zero = sizes <= 1
    others = sizes.clamp_min(1) if bool(is_zero.all()) else sizes[~is_zero]
    logs = log_sizes(others)
    return ReadSizes(float(logs.mean()), histogram(logs), float(is_zero.double().mean()))
