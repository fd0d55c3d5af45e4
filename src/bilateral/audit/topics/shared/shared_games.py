"""Does a view say anything that it must not? Games between two worlds, for all three parties.

The attacker trains on runs that it plays by itself, with networks of its own (`attacks/telling_apart`), and is shown
real ones. Worlds (`shared_worlds`) are as far apart as can be: queries t or -t, black or bright ones, repeated or
changing ones, weights of zero or large ones; and, for the querying party, two networks whose answers differ by opposite
amounts, so that the sum is the same. In the last game of server and answering party one world has random words in place
of those that are masked (packed bits stay): to this classifier the view should look like that.

Negative control: which world a run belongs to is a coin that nobody has seen, so its chance is one half whatever the
masks are. Positive: the same messages without masks; for the sum, a single answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.shared_recording import SharedParties, SharedRun, answering_view, helping_view, querying_view
from bilateral.audit.shared_truth import with_random_words, without_masks
from bilateral.audit.shared_views import SharedView
from bilateral.audit.topics.shared.attacks.telling_apart import describe, guess_worlds
from bilateral.audit.topics.shared.shared_setting import Progress, SharedSetting
from bilateral.audit.topics.shared.shared_worlds import (
    WORLD_NAMES,
    Asked,
    World,
    answering,
    has_hidden_layer,
    make_world,
    random_network,
    varied,
)
from bilateral.protocols.guarantee import Subject
from bilateral.protocols.share.circuit.plaintext import FixedPointModel
from bilateral.protocols.share.gates.styles import PUBLISHED
from bilateral.randomness import Randomness

NEGATED = Metric("queries told from their negatives", "high", is_rate=True)
BRIGHT = Metric("black queries told from bright ones", "high", is_rate=True)
CHANGING = Metric("repeated queries told from changing ones", "high", is_rate=True)
WEIGHTS = Metric("zero weights told from large ones", "high", is_rate=True)
RANDOM = Metric("masked words told from random ones", "high", is_rate=True)
WHO = Metric("answers told apart under one sum", "high", is_rate=True)
Words = Literal["masked", "bare", "random"]
"""What a run's messages hold: what was sent, the same without masks, random words."""
_GAMES: Final[Mapping[str, tuple[tuple[str, Words], tuple[str, Words]]]] = {
    NEGATED.name: (("bright", "masked"), ("negated", "masked")),
    BRIGHT.name: (("black", "masked"), ("bright", "masked")),
    CHANGING.name: (("bright", "masked"), ("changing", "masked")),
    WEIGHTS.name: (("zero weights", "masked"), ("large weights", "masked")),
    RANDOM.name: (("bright", "masked"), ("negated", "random")),
}
_WHO_GAMES: Final = {True: ("up and down", "down and up"), False: ("up", "down")}
"""With the sum of two, and of one alone."""
_COINS: Final = 5
"""Tosses for every run of the negative control: they are cheap, and chance is known the better."""

Look = Callable[[SharedRun], SharedView]
Figures = Mapping[tuple[str, bool, Words], np.ndarray]
"""By (adversary, adaptive, words): a row a run."""


@dataclass(frozen=True, repr=False)
class Played:
    """Runs of one world: those that the attacker made up, and those that it is shown."""

    examples: Figures
    shown: Figures


def hiding_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """The server's and an answering party's view of extreme inputs."""
    name = _richest(setting.models)
    looks: dict[str, Look] = {"server": helping_view, "answering": lambda run: answering_view(run, name)}
    model, drawn = setting.models[name], setting.randomness.child("worlds")
    # The same keys in all worlds: a world must not be known by its parties.
    own, real = (setting.parties(setting.style, label) for label in ("simulated", "shown"))
    played: dict[str, Played] = {}
    for step, label in enumerate(WORLD_NAMES):
        on_progress(step / len(WORLD_NAMES), f"playing {label}")
        draws = [drawn.child(label, i) for i in range(setting.effort.examples)]
        simulated = [make_world(label, name, random_network(model.circuit, one), one) for one in draws]
        shown = [
            make_world(label, name, model, drawn.child("shown", label, i)) for i in range(setting.effort.trials // 2)
        ]
        words: tuple[Words, ...] = ("masked", "bare", "random") if label == "negated" else ("masked", "bare")
        played[label] = Played(
            play(setting.querier, own, simulated, looks, words, drawn.child("words")),
            play(setting.querier, real, shown, looks, words, drawn.child("shown words")),
        )
    whole = f"{setting.style.name}, the network of {name}"
    return [
        _hiding_evidence(played, who, adaptive, whole, setting.randomness.child("coins", who, int(adaptive)))
        for who in looks
        for adaptive in (False, True)
    ]


def _hiding_evidence(
    played: Mapping[str, Played], who: str, adaptive: bool, whole: str, randomness: Randomness
) -> Evidence:
    is_server = who == "server"
    # The answering party knows the weights. Random words have no mean that a naive attacker could learn.
    metrics = [NEGATED, BRIGHT, CHANGING, *([WEIGHTS] if is_server else []), *([RANDOM] if adaptive else [])]

    def condition(what: str, *, bare: bool = False, coins: Randomness | None = None) -> Condition:
        found = []
        for metric in metrics:
            first, second = ((label, "bare" if bare and w == "masked" else w) for label, w in _GAMES[metric.name])
            keyed = [(played[label], (who, adaptive, words)) for label, words in (first, second)]
            found.append(Scores(metric, world_guesses(keyed, coins and coins.child(metric.name))))
        return Condition(what, tuple(found))

    subject: Subject = "shared prediction, server" if is_server else "shared prediction, answering party"
    return with_controls(
        subject,
        "curious server" if is_server else "answering party",
        _attack_name(adaptive),
        _seen(adaptive),
        tuple(Gate(metric, 0.9) for metric in metrics),
        target=condition(whole),
        positive=condition("the same messages without masks", bare=True),
        negative=condition("worlds by the toss of a coin", coins=randomness),
        adaptive=adaptive,
        paired=False,
    )


def single_answers_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """Two answering parties: who said more, when the sum says nothing?"""
    first, second = list(setting.models)[:2]
    queries = setting.few_queries[:2]
    directions: Mapping[str, Mapping[str, Literal[1, -1]]] = {
        "up and down": {first: 1, second: -1},
        "down and up": {first: -1, second: 1},
        "up": {first: 1},
        "down": {first: -1},
    }
    hidden = {name: has_hidden_layer(setting.models[name], queries) for name in (first, second)}
    looks: dict[str, Look] = {"querying": querying_view}
    own, real = (setting.parties(setting.style, label) for label in ("sums", "shown sums"))
    played: dict[str, Played] = {}
    for step, (label, way) in enumerate(directions.items()):
        on_progress(step / len(directions), f"answers {label}")
        drawn = setting.randomness.child("shadows of sums", label)
        shown = {name: answering(setting.models[name], by, hidden=hidden[name]) for name, by in way.items()}
        simulated = []
        for i in range(setting.effort.examples):
            made_up = {name: varied(setting.shadows[name], drawn.child(name, i)) for name in way}
            models = {name: answering(made_up[name], by, hidden=hidden[name]) for name, by in way.items()}
            simulated.append([Asked(queries, models)])
        repeated = [[Asked(queries, shown)]] * (setting.effort.trials // 2)
        played[label] = Played(
            play(setting.querier, own, simulated, looks, ("masked",), drawn),
            play(setting.querier, real, repeated, looks, ("masked",), drawn),
        )

    def condition(what: str, *, summed: bool, adaptive: bool, coins: Randomness | None = None) -> Condition:
        key: tuple[str, bool, Words] = ("querying", adaptive, "masked")
        keyed = [(played[label], key) for label in _WHO_GAMES[summed]]
        return Condition(what, (Scores(WHO, world_guesses(keyed, coins)),))

    return [
        with_controls(
            5 if setting.style is PUBLISHED else "single answers",
            "querying party",
            _attack_name(adaptive),
            _seen(adaptive),
            Gate(WHO, 0.9),
            target=condition(f"the sum of {first} and {second}", summed=True, adaptive=adaptive),
            positive=condition(f"the answer of {first} alone", summed=False, adaptive=adaptive),
            negative=condition(
                "worlds by the toss of a coin",
                summed=True,
                adaptive=adaptive,
                coins=setting.randomness.child("coins of sums", int(adaptive)),
            ),
            adaptive=adaptive,
            paired=False,
        )
        for adaptive in (False, True)
    ]


def play(
    querier: str,
    parties: SharedParties,
    worlds: Sequence[World],
    looks: Mapping[str, Look],
    words: Sequence[Words],
    randomness: Randomness,
) -> Figures:
    """A run in each of these worlds, described as every adversary sees it. `randomness` is for random words."""
    rows: dict[tuple[str, bool, Words], list[np.ndarray]] = {}
    for number, world in enumerate(worlds):
        runs = [parties.ask(querier, asked.queries, asked.models, num_parts=len(asked.queries)) for asked in world]
        for which in words:
            held = [_holding(run, which, randomness.child(number, i)) for i, run in enumerate(runs)]
            for who, look in looks.items():
                views = [look(run) for run in held]
                for adaptive in (False, True):
                    rows.setdefault((who, adaptive, which), []).append(describe(views, adaptive=adaptive))
    return {key: np.stack(values) for key, values in rows.items()}


def _holding(run: SharedRun, words: Words, randomness: Randomness) -> SharedRun:
    match words:
        case "masked":
            return run
        case "bare":
            return without_masks(run)
        case "random":
            return with_random_words(run, randomness)


def world_guesses(
    worlds: Sequence[tuple[Played, tuple[str, bool, Words]]], coins: Randomness | None = None
) -> tuple[float, ...]:
    """1 for every run that was put into the right world; which is right, in examples too, the coins say, if any."""
    examples, shown = ([getattr(played, part)[key] for played, key in worlds] for part in ("examples", "shown"))
    known, right = ([0] * len(one) + [1] * len(other) for one, other in (examples, shown))
    if coins is not None:
        known = [known[i] for i in coins.child("examples").permutation(len(known))]
        right = [int(sign > 0) for sign in coins.child("shown").signs(_COINS * len(right))]
    guesses = guess_worlds(np.concatenate(examples), known, np.concatenate(shown)) * (1 if coins is None else _COINS)
    return tuple(float(guess == truth) for guess, truth in zip(guesses, right, strict=True))


def _richest(models: Mapping[str, FixedPointModel]) -> str:
    """The network with most kinds of layers, hence of messages; among equals the smallest."""
    return max(
        models,
        key=lambda name: (
            len({step.kind for step in models[name].circuit.steps}),
            -sum(value.size for value in models[name].circuit.values),
        ),
    )


def _attack_name(adaptive: bool) -> str:
    return "classifier on every bit of the view, trained on simulated runs" if adaptive else "means of what is received"


def _seen(adaptive: bool) -> str:
    return "all messages, unblinded as far as its seeds go" if adaptive else "all messages as they are"
