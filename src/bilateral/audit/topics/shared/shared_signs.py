"""Signs of activations, their places, and exact readings, by the querying party.

Negative control: the same attack on random numbers in place of those that were seen. Positive: the published comparison
on the same queries and networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, Gate, Tried, with_controls
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.shared_truth import compared_numbers
from bilateral.audit.topics.shared.attacks.activation_factors import read_exactly
from bilateral.audit.topics.shared.attacks.activation_signs import ReadActivations, read_by_vote, read_once
from bilateral.audit.topics.shared.shared_blinding import blinding_evidence, made_views
from bilateral.audit.topics.shared.shared_setting import (
    Progress,
    Seen,
    SharedSetting,
    about_activations,
    ask_again,
    in_place_words,
    random_like,
)
from bilateral.protocols.guarantee import Subject
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED
from bilateral.randomness import Randomness

SIGNS = Metric("signs read in place, balanced", "high")
PLACES = Metric("rank correlation of sizes in place", "high")
EXACT = Metric("activations read exactly", "high")


def signs_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """Naive and adaptive reading of signs and places, factoring, and patterns."""
    queries, repeats = setting.few_queries, setting.effort.repeats
    truth = {name: compared_numbers(model, queries) for name, model in setting.models.items()}
    views: dict[str, list[Seen]] = {}
    for step, style in enumerate(dict.fromkeys((setting.style, PUBLISHED))):
        on_progress(0.1 + 0.3 * step, f"{repeats} times the same queries, {style.name} comparison")
        views[style.name] = ask_again(setting, style, queries, setting.models, repeats, "signs", a_session=2)
    target, positive = views[setting.style.name], views[PUBLISHED.name]
    negative = [_random_numbers(seen, setting.randomness.child("noise", i)) for i, seen in enumerate(target)]
    shown = (
        (f"the {setting.style.name} comparison", target),
        ("the published comparison, same queries and networks", positive),
        ("random numbers in place of the view", negative),
    )
    on_progress(0.7, "reading signs, and factoring")
    found = []
    for adaptive in (False, True):
        conditions = [Condition(what, _sign_scores(_read(seen, adaptive), truth, len(queries))) for what, seen in shown]
        attack = "votes on signs over repeated queries" if adaptive else "signs as they are seen"
        found.append(_evidence(setting, attack, conditions, Gate(SIGNS, 0.95), adaptive=adaptive))
    exact = [(what, _exact_scores(seen, truth, len(queries))) for what, seen in shown]
    found.append(_evidence(setting, "greatest common divisors of blinded numbers", exact, Gate(EXACT, 0.5)))
    if not setting.style.is_judged:
        return found
    drawn = setting.randomness.child("made blinding")
    spoilt = made_views(setting.models, truth, repeats, drawn.child("spoilt"), spoilt=True)
    ideal = made_views(setting.models, truth, repeats, drawn.child("ideal"))
    against_ideal = (
        shown[0],
        ("the same numbers with one factor a query, in all views, and no flips", spoilt),
        ("the same numbers, blinded anew as the hardened comparison says", ideal),
    )
    found.append(blinding_evidence(_subject(setting), against_ideal, truth, _seen(setting)))
    return found


def _read(views: Sequence[Seen], adaptive: bool) -> dict[str, list[ReadActivations]]:
    found = {}
    for name, comparisons in views[0].items():
        places = range(len(comparisons))
        if adaptive:
            found[name] = [read_by_vote([view[name][place] for view in views]) for place in places]
        else:
            found[name] = [read_once(comparisons[place]) for place in places]
    return found


def _sign_scores(
    read: Mapping[str, Sequence[ReadActivations]], truth: Mapping[str, Sequence[Tensor]], num_queries: int
) -> tuple[Scores, ...]:
    signs, places = [], []
    for query in range(num_queries):
        pairs = [(r, t) for name in truth for r, t in zip(read[name], truth[name], strict=True)]
        active = torch.cat([r.active[query] for r, _ in pairs])
        true = torch.cat([t[query] for _, t in pairs])
        signs.append(balanced(active, true >= 0))
        places.append(float(np.mean([correlation(r.log_size[query], t[query]) for r, t in pairs])))
    return Scores(SIGNS, tuple(signs)), Scores(PLACES, tuple(places))


def balanced(guess: Tensor, truth: Tensor) -> float:
    """The mean of the share of ones and the share of zeros that are right: guessing all ones gives one half."""
    shares = [
        float((guess[truth == value] == value).double().mean()) for value in (True, False) if (truth == value).any()
    ]
    return float(np.mean(shares))


def correlation(log_size: Tensor, true: Tensor) -> float:
    """Of what is constant, or too short: none."""
    if len(true) <= 2 or log_size.min() == log_size.max() or true.abs().min() == true.abs().max():
        return 0.0
    return float(stats.spearmanr(log_size.numpy(), true.abs().numpy()).statistic)


def _exact_scores(views: Sequence[Seen], truth: Mapping[str, Sequence[Tensor]], num_queries: int) -> Scores:
    """Give or take the unit by which truncation rounds. Numbers below 2^8 are left out: chance would hit them."""
    hits: list[list[Tensor]] = [[] for _ in range(num_queries)]
    for name, comparisons in truth.items():
        for place, true in enumerate(comparisons):
            right = (read_exactly([view[name][place] for view in views]) - true).abs() <= 1
            for query in range(num_queries):
                hits[query].append(right[query][true[query].abs() >= 256])
    return Scores(EXACT, tuple(float(torch.cat(one).double().mean()) for one in hits))


def _random_numbers(seen: Seen, randomness: Randomness) -> Seen:
    return {name: [random_like(u, randomness.child(name, i)) for i, u in enumerate(us)] for name, us in seen.items()}


def _subject(setting: SharedSetting) -> Subject | int:
    """The hardened comparison claims to hide signs and places; the published one nothing (ledger, line 5)."""
    return "signs of activations" if setting.style is HARDENED else about_activations(setting.style)


def _seen(setting: SharedSetting) -> str:
    return f"{in_place_words(setting.style)}, of {setting.effort.repeats} times the same queries"


def _evidence(
    setting: SharedSetting, attack: str, conditions: Sequence[Tried], gate: Gate, *, adaptive: bool = True
) -> Evidence:
    target, positive, negative = conditions
    seen = _seen(setting) if adaptive else in_place_words(setting.style)
    return with_controls(
        _subject(setting),
        "querying party",
        attack,
        seen,
        gate,
        target=target,
        positive=positive,
        negative=negative,
        adaptive=adaptive,
    )
