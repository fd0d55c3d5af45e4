"""Does a view say anything that it must not? Games between two worlds, for all three parties.

The attacker trains on runs that it plays by itself, with networks of its own (`attacks/telling_apart`), and is shown
real ones. Worlds are as far apart as can be: queries t or -t, black or bright ones, weights of zero or large ones; and,
for the querying party, two networks whose answers differ by opposite amounts, so that the sum is the same.

Negative control: both worlds are the same. Positive: the same messages without masks; for the sum, a single answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from bilateral.audit.attacks.telling_apart import describe, guess_worlds
from bilateral.audit.evidence import Condition, Evidence, Gate
from bilateral.audit.experiments.shared_setting import Progress, SharedSetting
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.shared_truth import without_masks
from bilateral.audit.shared_views import (
    SharedParties,
    SharedRun,
    SharedView,
    answering_view,
    helping_view,
    querying_view,
)
from bilateral.protocols.guarantee import Subject
from bilateral.protocols.share import ring
from bilateral.protocols.share.circuit import FRACTION_BITS, Circuit
from bilateral.protocols.share.plaintext import FixedPointModel, PrivateLayer
from bilateral.randomness import Randomness

NEGATED = Metric("queries told from their negatives", "high", is_rate=True)
BRIGHT = Metric("black queries told from bright ones", "high", is_rate=True)
WEIGHTS = Metric("zero weights told from large ones", "high", is_rate=True)
WHO = Metric("answers told apart under one sum", "high", is_rate=True)
_GAMES: Final = {
    NEGATED: ("bright", "negated"),
    BRIGHT: ("black", "bright"),
    WEIGHTS: ("zero weights", "large weights"),
}
_NULL_GAME: Final = ("bright", "the same again")
BATCH = 4
SHIFT = 8
"""By how much one answering party's logits are larger in one world, and smaller in the other."""
_LARGE_WEIGHT = 4.0
"""Of a neuron's weights in sum: activations grow fourfold from layer to layer."""


@dataclass(frozen=True, repr=False)
class World:
    """What is asked and what answers."""

    queries: Tensor
    models: Mapping[str, FixedPointModel]


Look = Callable[[SharedRun], SharedView]
Figures = Mapping[tuple[str, bool, bool], np.ndarray]
"""By (adversary, adaptive, without masks): a row a run."""


def hiding_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """The server's and an answering party's view of extreme inputs."""
    name = _richest(setting.models)
    looks: dict[str, Look] = {"server": helping_view, "answering": lambda run: answering_view(run, name)}
    circuit, real = setting.models[name].circuit, _worlds(name, setting.models[name])
    played: dict[str, tuple[Figures, Figures]] = {}
    labels = [*real, "the same again"]
    for step, label in enumerate(labels):
        on_progress(step / len(labels), f"playing {label}")
        world = label if label in real else "bright"
        drawn = setting.randomness.child("networks of the attacker", label)
        made_up = [_random_network(circuit, drawn.child(i)) for i in range(setting.effort.examples)]
        simulated = [_worlds(name, network)[world] for network in made_up]
        shown = [real[world]] * (setting.effort.trials // 2)
        played[label] = (
            _play(setting.querier, setting.parties(setting.style, "simulated", label), simulated, looks),
            _play(setting.querier, setting.parties(setting.style, "shown", label), shown, looks),
        )
    server: Subject = "shared prediction, server"
    answerer: Subject = "shared prediction, answering party"
    whole = f"{setting.style.name}, the network of {name}"
    return [
        _hiding_evidence(played, subject, who, metrics, whole, adaptive)
        for subject, who, metrics in (
            (server, "server", (NEGATED, BRIGHT, WEIGHTS)),
            (answerer, "answering", (NEGATED, BRIGHT)),  # it knows the weights
        )
        for adaptive in (False, True)
    ]


def _hiding_evidence(
    played: Mapping[str, tuple[Figures, Figures]],
    subject: Subject,
    who: str,
    metrics: Sequence[Metric],
    whole: str,
    adaptive: bool,
) -> Evidence:
    target, positive, negative = (
        Condition(
            what,
            tuple(
                Scores(metric, _guesses(played, _GAMES[metric] if is_real else _NULL_GAME, (who, adaptive, bare)))
                for metric in metrics
            ),
        )
        for what, is_real, bare in (
            (whole, True, False),
            ("the same messages without masks", True, True),
            ("two runs of the same", False, False),
        )
    )
    return Evidence(
        tests=subject,
        adversary="curious server" if who == "server" else "answering party",
        attack=_attack_name(adaptive),
        adaptive=adaptive,
        seen=_seen(adaptive),
        target=target,
        positive=positive,
        negative=negative,
        gates=tuple(Gate(metric, 0.9) for metric in metrics),
    )


def single_answers_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """Two answering parties: who said more, when the sum says nothing?"""
    first, second = list(setting.models)[:2]
    queries = setting.few_queries[:BATCH]
    looks: dict[str, Look] = {"querying": querying_view}
    worlds = {
        "up and down": {first: SHIFT, second: -SHIFT},
        "down and up": {first: -SHIFT, second: SHIFT},
        "up": {first: SHIFT},
        "down": {first: -SHIFT},
        "the same again": {first: SHIFT, second: -SHIFT},
    }
    played: dict[str, tuple[Figures, Figures]] = {}
    for step, (label, shifts) in enumerate(worlds.items()):
        on_progress(step / len(worlds), f"answers {label}")
        drawn = setting.randomness.child("shadows of sums", label)
        shown = World(queries, {name: _shifted(setting.models[name], by) for name, by in shifts.items()})
        simulated = [
            World(
                queries,
                {
                    name: _shifted(_varied(setting.shadows[name], drawn.child(name, i)), by)
                    for name, by in shifts.items()
                },
            )
            for i in range(setting.effort.examples)
        ]
        played[label] = (
            _play(setting.querier, setting.parties(setting.style, "sums", label), simulated, looks, bare=False),
            _play(
                setting.querier,
                setting.parties(setting.style, "shown sums", label),
                [shown] * (setting.effort.trials // 2),
                looks,
                bare=False,
            ),
        )
    found = []
    for adaptive in (False, True):
        key = ("querying", adaptive, False)
        target, positive, negative = (
            Condition(what, (Scores(WHO, _guesses(played, pair, key)),))
            for what, pair in (
                (f"the sum of {first} and {second}", ("up and down", "down and up")),
                (f"the answer of {first} alone", ("up", "down")),
                ("two runs of the same", ("up and down", "the same again")),
            )
        )
        found.append(
            Evidence(
                tests="single answers",
                adversary="querying party",
                attack=_attack_name(adaptive),
                adaptive=adaptive,
                seen=_seen(adaptive),
                target=target,
                positive=positive,
                negative=negative,
                gates=(Gate(WHO, 0.9),),
            )
        )
    return found


def _play(
    querier: str, parties: SharedParties, worlds: Sequence[World], looks: Mapping[str, Look], *, bare: bool = True
) -> Figures:
    """A run in each of these worlds, described as every adversary sees it, with its masks and (`bare`) without."""
    rows: dict[tuple[str, bool, bool], list[np.ndarray]] = {}
    for world in worlds:
        run = parties.ask(querier, world.queries, world.models)
        for without, shown in ((False, run), (True, without_masks(run))) if bare else ((False, run),):
            for who, look in looks.items():
                view = look(shown)
                for adaptive in (False, True):
                    rows.setdefault((who, adaptive, without), []).append(describe(view, adaptive=adaptive))
    return {key: np.stack(values) for key, values in rows.items()}


def _guesses(
    played: Mapping[str, tuple[Figures, Figures]], worlds: tuple[str, str], key: tuple[str, bool, bool]
) -> tuple[float, ...]:
    """1 for every run that was put into the right world."""
    (example_0, shown_0), (example_1, shown_1) = (tuple(part[key] for part in played[name]) for name in worlds)
    known = [0] * len(example_0) + [1] * len(example_1)
    guesses = guess_worlds(np.concatenate([example_0, example_1]), known, np.concatenate([shown_0, shown_1]))
    right = [0] * len(shown_0) + [1] * len(shown_1)
    return tuple(float(guess == truth) for guess, truth in zip(guesses, right, strict=True))


def _worlds(name: str, model: FixedPointModel) -> dict[str, World]:
    bright = torch.full((BATCH, *model.circuit.input_shape), float(model.circuit.largest_input))
    large = _with_weights(model, lambda weight: torch.full_like(weight, _large(weight)))
    return {
        "bright": World(bright, {name: model}),
        "negated": World(-bright, {name: model}),
        "black": World(torch.zeros_like(bright), {name: model}),
        "zero weights": World(bright, {name: _with_weights(model, torch.zeros_like)}),
        "large weights": World(bright, {name: large}),
    }


def _large(weight: Tensor) -> int:
    return max(1, round(_LARGE_WEIGHT * 2**FRACTION_BITS / weight[0].numel()))


def _with_weights(model: FixedPointModel, change: Callable[[Tensor], Tensor]) -> FixedPointModel:
    """The same circuit with other weights, which need not be sensible; without biases."""
    layers = (PrivateLayer(change(layer.weight), torch.zeros_like(layer.bias)) for layer in model.layers)
    return FixedPointModel(model.circuit, tuple(layers))


def _random_network(circuit: Circuit, randomness: Randomness) -> FixedPointModel:
    """A network that whoever knows the circuit can make up."""
    layers = []
    for index, step in enumerate(circuit.linear_steps):
        shape = step.weight_shape(circuit.values[step.sources[0]])
        drawn = randomness.child("weight", index).normal(*shape) * (2.0 / np.prod(shape[1:])) ** 0.5
        bias = randomness.child("bias", index).normal(shape[0]) * 0.3
        layers.append(PrivateLayer(ring.encode(drawn, FRACTION_BITS), ring.encode(bias, _bias_bits(circuit, index))))
    return FixedPointModel(circuit, tuple(layers))


def _varied(model: FixedPointModel, randomness: Randomness) -> FixedPointModel:
    """A network like this one: all weights of a layer larger or smaller by one factor."""
    layers = []
    for index, layer in enumerate(model.layers):
        factor = float(randomness.child(index).log_uniform(1, low=0.5, high=2.0))
        layers.append(PrivateLayer((layer.weight * factor).round().long(), layer.bias))
    return FixedPointModel(model.circuit, tuple(layers))


def _shifted(model: FixedPointModel, by: int) -> FixedPointModel:
    """All logits larger by `by`: it is in the last layer's bias."""
    *layers, last = model.layers
    bits = _bias_bits(model.circuit, len(layers))
    return FixedPointModel(model.circuit, (*layers, PrivateLayer(last.weight, last.bias + (by << bits))))


def _bias_bits(circuit: Circuit, index: int) -> int:
    """A bias has the fraction bits of a product: the weights' and the input's."""
    return FRACTION_BITS + circuit.values[circuit.linear_steps[index].sources[0]].fraction_bits


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
