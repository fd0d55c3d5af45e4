"""Membership inference by a curious client that has the model of the last round (ledger line 1; line 0 for FedSGD).

Members are OTHER clients' training samples, strangers unseen samples of the same source. Target: the plan's own
protection, run by its real parties. Positive control: the same client against FedSGD, with the same seeds and samples.
Negative control: strangers against strangers under the same models, split at random again and again.
The naive client takes the model's outputs as they come, the adaptive one fits the group secrets to its own samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line, undefended
from bilateral.audit.membership_metrics import as_values, auc, bootstrap_interval, membership_scores
from bilateral.audit.recording import record
from bilateral.audit.scores import AUC, TPR_AT_1
from bilateral.audit.threat import client_view
from bilateral.audit.topics.membership.attacks.lira import (
    Shadows,
    balanced_assignment,
    offline_scores,
    online_scores,
    train_shadows,
)
from bilateral.audit.topics.membership.attacks.membership import (
    ModelReading,
    attack_network,
    loss_threshold,
    read_model,
)
from bilateral.audit.topics.membership.attacks.rmia import rmia_scores
from bilateral.audit.topics.membership.membership_game import NUM_NULL_SPLITS, Dealt, Game, make_game, public_facts
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee
from bilateral.randomness import Randomness

GATE: Final = (Gate(AUC, 0.85),)
LIRA_GATES: Final = (Gate(AUC, 0.85), Gate(TPR_AT_1, 0.2))


@dataclass(frozen=True, eq=False)
class _Trial:
    """One run, read in one way: scores of all candidates by attack."""

    dealt: Dealt
    scores: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class _Attack:
    name: str
    gates: tuple[Gate, ...]
    score: Callable[[ModelReading, Randomness], Tensor]


def run(context: Context) -> list[Evidence]:
    """All attacks, naive and adaptive."""
    game = make_game(context)
    attacks = _attacks(game, _train_shadows(game, context))
    bare = undefended(game.plan)
    protected = context.plan.traits.hides_model
    plans = [game.plan] if game.plan == bare else [game.plan, bare]
    trials: dict[tuple[str, bool], list[_Trial]] = {}
    steps = [(number, plan) for number in range(context.effort.seeds) for plan in plans]
    for done, (number, plan) in enumerate(steps):
        name = "target" if plan is game.plan else "positive"
        ways = (False, True) if protected and name == "target" else (True,)
        progress = partial(_tell, context, 0.2 + 0.8 * done / len(steps), 0.8 / len(steps))
        for adaptive, trial in _play(game, plan, number, ways, attacks, context, progress):
            trials.setdefault((name, adaptive), []).append(trial)
    context.on_progress(1.0, "membership by clients: done")
    positive = trials.get(("positive", True)) or trials["target", True]
    ways = (False, True) if protected else (True,)
    found = [(attack, way, trials["target", way]) for way in ways for attack in attacks]
    return [_evidence(context, game, attack, way, target, positive) for attack, way, target in found]


def _tell(context: Context, start: float, length: float, done: int, of: int) -> None:
    if done % 20 == 0:
        context.on_progress(start + length * done / of, "membership by clients: training the models under attack")


def _train_shadows(game: Game, context: Context) -> Shadows:
    randomness, effort = context.randomness("membership", "shadows"), context.effort
    inside = balanced_assignment(len(game.pool), effort.shadows, 1 / 3, randomness.child("assignment"))

    def tell(number: int) -> None:
        context.on_progress(0.02 + 0.18 * number / effort.shadows, "membership by clients: shadow models")

    unseen = game.known.strangers
    return train_shadows(public_facts(game), game.for_shadows, game.pool, inside, randomness, tell, unseen)


def _attacks(game: Game, shadows: Shadows) -> list[_Attack]:
    def network(depth: int) -> Callable[[ModelReading, Randomness], Tensor]:
        return lambda reading, draws: attack_network(reading, game.known, game.pool, depth, draws.child(depth))

    def threshold(reading: ModelReading, _: Randomness) -> Tensor:
        return loss_threshold(reading, game.pool)

    def pairwise(reading: ModelReading, draws: Randomness) -> Tensor:
        unseen, are_classes = loss_threshold(reading, game.known.strangers), not game.pool.targets.is_floating_point()
        return rmia_scores(threshold(reading, draws), shadows, unseen, are_classes=are_classes)

    depths = ((1, "last layer"), (2, "last two layers"), (3, "last three layers"))
    return [
        _Attack("loss threshold", GATE, threshold),
        *(_Attack(f"attack network, {words}", GATE, network(depth)) for depth, words in depths),
        _Attack("LiRA offline", LIRA_GATES, lambda r, d: offline_scores(threshold(r, d), shadows)),
        _Attack("LiRA online", LIRA_GATES, lambda r, d: online_scores(threshold(r, d), shadows)),
        _Attack("RMIA offline", LIRA_GATES, pairwise),
    ]


def _play(
    game: Game,
    plan: RunPlan,
    number: int,
    ways: Sequence[bool],
    attacks: Sequence[_Attack],
    context: Context,
    on_round: Callable[[int, int], None],
) -> Iterator[tuple[bool, _Trial]]:
    """One run of a plan, attacked by its first client in each of the ways."""
    dealt = game.deal(context.randomness("membership", "run", number))
    last = plan.training.rounds - 1
    seeded = plan.with_settings({"seed": (context.plan.seed + 1 + number) % 2**63})
    recording = record(seeded, game.federation_of(dealt), keep={last}, on_round=on_round)
    view = client_view(recording, game.attacker)
    for adaptive in ways:
        reading = read_model(view, last, game.own_labelled, adaptive=adaptive)
        draws = context.randomness("membership", "attack", number, int(adaptive))
        yield adaptive, _Trial(dealt, {attack.name: attack.score(reading, draws) for attack in attacks})


def _evidence(
    context: Context, game: Game, attack: _Attack, adaptive: bool, target: Sequence[_Trial], positive: Sequence[_Trial]
) -> Evidence:
    perturbed = context.plan.traits.hides_model
    fitted = f"the group secrets fitted to its {len(game.own_labelled)} labelled samples" if perturbed else ""
    reads = fitted if adaptive else "outputs as they come"
    first = target[0]
    pair = first.scores[attack.name][first.dealt.members], first.scores[attack.name][first.dealt.strangers]
    low, high = bootstrap_interval(auc, as_values(pair[0]), as_values(pair[1]))
    return with_controls(
        context.plan.traits.model_line,
        "curious client",
        f"membership by {attack.name}",
        ", ".join(filter(None, ["the model of the last round", reads, "its own samples"])),
        attack.gates,
        target=Condition(f"other clients' samples; {game.kind}", membership_scores(_pairs(attack, target))),
        positive=Condition("the same client against FedSGD", membership_scores(_pairs(attack, positive))),
        negative=Condition("strangers against strangers", membership_scores(_null_pairs(attack, target, context))),
        adaptive=adaptive,
        paired=False,
        remark=f"AUC inside the first run: {low:.3f} to {high:.3f} (bootstrap)"
        + ("; canaries stand for samples that a model memorises" if game.canaries else ""),
    )


def _pairs(attack: _Attack, trials: Sequence[_Trial]) -> list[tuple[Tensor, Tensor]]:
    return [(t.scores[attack.name][t.dealt.members], t.scores[attack.name][t.dealt.strangers]) for t in trials]


def _null_pairs(attack: _Attack, trials: Sequence[_Trial], context: Context) -> list[tuple[Tensor, Tensor]]:
    """Samples that the models never saw, told apart by the same scores."""
    pairs = []
    for number in range(max(NUM_NULL_SPLITS, context.effort.null_seeds)):
        trial = trials[number % len(trials)]
        members, strangers = trial.dealt.null_split(context.randomness("membership", "null", number))
        pairs.append((trial.scores[attack.name][members], trial.scores[attack.name][strangers]))
    return pairs


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if len(plan.data.sites) == 1 or (not plan.data.sites and plan.federation.clients == 1):
        return "a single client has no other clients"
    return "" if has_line(guarantee, 0, 1) else "no client is sent a model"


EXPERIMENT: Final = Experiment(
    "membership-by-clients",
    "Membership of other clients' samples, by a curious client",
    (0, 1),
    _applies,
    run,
    weight=75.0,
)
