"""Worlds that differ in a hidden layer alone, told apart by the querying party (ledger, line 5).

One answering party's last hidden layer ignores the query, and its output ignores the layer, so that the sum of the
logits is the same in all worlds. What the layer holds is as far apart as can be: active or not, large or small, zero or
not, large in one half or in the other. A querying party that tells any of these worlds apart sees activations.

Negative control: coins. Positive: for signs and places the published comparison, for sizes and zeros the hardened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.shared_recording import querying_view
from bilateral.audit.topics.shared.shared_games import Played, Words, play, world_guesses
from bilateral.audit.topics.shared.shared_setting import Progress, SharedSetting
from bilateral.audit.topics.shared.shared_worlds import (
    HIDDEN_NAMES,
    Asked,
    HiddenName,
    has_hidden_layer,
    varied,
    with_hidden,
)
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED, SEALED, ComparisonStyle
from bilateral.randomness import Randomness

ACTIVE = Metric("active layers told from inactive ones", "high", is_rate=True)
PLACES = Metric("places of large numbers told apart", "high", is_rate=True)
SIZES = Metric("large layers told from small ones", "high", is_rate=True)
ZEROS = Metric("layers of zeros told from small ones", "high", is_rate=True)
_GAMES: Final[Mapping[Metric, tuple[tuple[HiddenName, HiddenName], ComparisonStyle]]] = {
    ACTIVE: (("up", "down"), PUBLISHED),
    PLACES: (("up", "exchanged"), PUBLISHED),
    SIZES: (("large", "small"), HARDENED),
    ZEROS: (("zero", "small"), HARDENED),
}
"""Two worlds, and the comparison where they are surely told apart."""
_KEY: Final[tuple[str, bool, Words]] = ("querying", True, "masked")


def hidden_layer_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """Of the sealed comparison; the others admit what these games find. Nothing if no network has such a layer."""
    queries = setting.few_queries[:2]
    names = [name for name, model in setting.models.items() if has_hidden_layer(model, queries)]
    if setting.style is not SEALED or not names:
        return []
    needed: dict[ComparisonStyle, set[HiddenName]] = {SEALED: set(HIDDEN_NAMES)}
    for worlds, style in _GAMES.values():
        needed.setdefault(style, set()).update(worlds)
    played: dict[str, dict[HiddenName, Played]] = {}
    for step, (style, worlds_of_it) in enumerate(needed.items()):
        on_progress(step / len(needed), f"hidden layers, {style.name}")
        played[style.name] = _play_all(setting, style, names[0], [one for one in HIDDEN_NAMES if one in worlds_of_it])

    def condition(what: str, *, is_control: bool = False, coins: Randomness | None = None) -> Condition:
        found = []
        for metric, (worlds, control) in _GAMES.items():
            of_style = played[control.name if is_control else SEALED.name]
            keyed = [(of_style[world], _KEY) for world in worlds]
            found.append(Scores(metric, world_guesses(keyed, coins and coins.child(metric.name))))
        return Condition(what, tuple(found))

    return [
        with_controls(
            "activations",
            "querying party",
            "classifier on every bit of the view, hidden layers of two worlds",
            "all messages, its masks and bits of every comparison, the sum",
            tuple(Gate(metric, 0.9) for metric in _GAMES),
            target=condition(f"the sealed comparison, the network of {names[0]}"),
            positive=condition(
                "the published comparison (signs, places), the hardened (sizes, zeros)", is_control=True
            ),
            negative=condition(
                "worlds by the toss of a coin", coins=setting.randomness.child("coins of hidden layers")
            ),
            paired=False,
        )
    ]


def _play_all(
    setting: SharedSetting, style: ComparisonStyle, name: str, worlds: list[HiddenName]
) -> dict[HiddenName, Played]:
    own, real = (setting.parties(style, label) for label in ("hidden layers", "shown hidden layers"))
    queries, found = setting.few_queries[:2], {}
    for world in worlds:
        drawn = setting.randomness.child("hidden layers", style.name, world)
        made_up = [varied(setting.shadows[name], drawn.child(i)) for i in range(setting.effort.examples)]
        simulated = [[Asked(queries, {name: with_hidden(model, world)})] for model in made_up]
        repeated = [[Asked(queries, {name: with_hidden(setting.models[name], world)})]] * (setting.effort.trials // 2)
        looks = {"querying": querying_view}
        found[world] = Played(
            play(setting.querier, own, simulated, looks, ("masked",), drawn),
            play(setting.querier, real, repeated, looks, ("masked",), drawn),
        )
    return found
