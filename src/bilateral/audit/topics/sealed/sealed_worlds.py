"""Does anybody's view of sealed steps say which model the server trains, or which batch a client has?

| adversary                                  | guesses          | tests                             |
|--------------------------------------------|------------------|-----------------------------------|
| a client, alone and with another one       | the model        | "sealed model"                    |
| the server, alone and with another's dealer| the batch        | "sealed batch"                    |
| a dealer                                   | both             | "sealed dealing"                  |
| a client with its dealer                   | the model        | line 17: it knows                 |
| the server with a client's dealer          | the batch        | line 17: it knows                 |

By matching (`step_matching`), and by a classifier that learned from rounds which the attacker played by itself
(`step_figures`). Positive control: the same words without masks. Negative control: worlds by coins that nobody saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_subject
from bilateral.audit.ledger import SEALED_LINE
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.sealed_views import SealedView
from bilateral.audit.topics.sealed.attacks.step_figures import figures_of
from bilateral.audit.topics.sealed.attacks.step_matching import guess_worlds
from bilateral.audit.topics.sealed.sealed_adversaries import Adversary, adversaries
from bilateral.audit.topics.sealed.sealed_rounds import SealedMatch, play_sealed
from bilateral.audit.topics.shared.attacks.telling_apart import guess_worlds as guess_by_figures
from bilateral.audit.topics.swapped.swapped_rounds import num_players, table_of
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee

MODELS: Final = Metric("models told apart", "high", is_rate=True, digits=2)
BATCHES: Final = Metric("batches told apart", "high", is_rate=True, digits=2)
SUCCESS: Final = 0.9
COINS_A_ROUND: Final = 10
"""In the negative control: each toss is a fair guess of its own."""
_PLAYING: Final = 0.8


def run(context: Context) -> Sequence[Evidence]:
    """Play the plan, and let everybody guess."""
    table, trials = table_of(context), context.effort.swapped_rounds
    own, real = (
        play_sealed(context, table, seed, trials, _telling(context, seed, "sealed worlds: playing")) for seed in (1, 0)
    )
    every = adversaries(table.names[0], table.names, context.plan.named_dealer)
    evidence: list[Evidence] = []
    for number, adversary in enumerate(every):
        context.on_progress(_PLAYING + (1 - _PLAYING) * number / len(every), f"sealed worlds: {adversary.name}")
        if adversary.tests != SEALED_LINE:  # those who collude need not learn
            evidence += [learned(context, adversary, own, real, adaptive=adaptive) for adaptive in (False, True)]
        evidence.append(matched(context, adversary, real))
    context.on_progress(1.0, "sealed worlds: done")
    return evidence


def _telling(context: Context, seed: int, note: str) -> Callable[[int, int], None]:
    start = _PLAYING * 0.5 * (1 - seed)
    return lambda done, rounds: context.on_progress(start + 0.5 * _PLAYING * done / rounds, note)


def matched(context: Context, adversary: Adversary, real: SealedMatch) -> Evidence:
    """Guesses by matching."""
    draws = context.randomness("sealed worlds", "ties", *_labels(adversary))

    def guess(view: SealedView) -> list[int]:
        rounds = tuple(real.truth(adversary))
        return guess_worlds(view, real.suspect, rounds, real.worlds, draws, of_batches=adversary.of_batches)

    seen = "masked words less what each world predicts, signs, corrections; all masks that its seeds give"
    return _evidence(context, adversary, real, guess, ("matching in the ring", seen), adaptive=True)


def learned(context: Context, adversary: Adversary, own: SealedMatch, real: SealedMatch, *, adaptive: bool) -> Evidence:
    """Guesses by a classifier that learned from rounds whose worlds the attacker knows, for it played them."""

    def guess(view: SealedView) -> list[int]:
        is_bare = view is not real.view(adversary)
        taught = own.bare_view(adversary) if is_bare else own.view(adversary)
        examples, shown = (
            figures_of(one, match.suspect, tuple(match.truth(adversary)), adaptive=adaptive)
            for one, match in ((taught, own), (view, real))
        )
        return guess_by_figures(examples, list(own.truth(adversary).values()), shown)

    words = ("means of what is received", "all messages as they are")
    if adaptive:
        words = (
            "classifier on every bit of the view, trained on rounds of its own",
            "all messages of two rounds, with its own masks taken off",
        )
    return _evidence(context, adversary, real, guess, words, adaptive=adaptive)


def _evidence(
    context: Context,
    adversary: Adversary,
    real: SealedMatch,
    guess: Callable[[SealedView], list[int]],
    words: tuple[str, str],
    *,
    adaptive: bool,
) -> Evidence:
    metric = BATCHES if adversary.of_batches else MODELS
    truth = list(real.truth(adversary).values())
    coins = context.randomness("sealed worlds", "coins", *_labels(adversary))
    tossed = [[int(v) for v in coins.child(n).uniform(len(truth)) < 0.5] for n in range(COINS_A_ROUND)]
    guesses, bare = guess(real.view(adversary)), guess(real.bare_view(adversary))
    others = len(real.sealed.recording.shares) - 1
    return with_controls(
        adversary.tests,
        adversary.name,
        *words,
        Gate(metric, SUCCESS),
        target=_condition(metric, f"a client among {others} others", _right(guesses, [truth])),
        positive=_condition(metric, "the same words without masks", _right(bare, [truth])),
        negative=_condition(metric, "worlds by the toss of a coin", _right(guesses, tossed)),
        adaptive=adaptive,
        paired=False,
        remark="a trial is a round; the attacker knows both models and both batches",
    )


def _right(guesses: Sequence[int], truths: Sequence[Sequence[int]]) -> tuple[float, ...]:
    return tuple(float(a == b) for truth in truths for a, b in zip(guesses, truth, strict=True))


def _labels(adversary: Adversary) -> tuple[str, int]:
    return adversary.name, int(adversary.of_batches)


def _condition(metric: Metric, what: str, values: tuple[float, ...]) -> Condition:
    return Condition(what, (Scores(metric, values),))


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_subject(guarantee, "sealed model"):
        return "the plan claims nothing about sealed steps"
    count = len(plan.data.sites) or plan.federation.num_clients
    return (
        "a round with a single client has no batches to swap"
        if count is not None and num_players(plan, count) < 2
        else ""
    )


EXPERIMENT: Final = Experiment(
    "sealed-worlds",
    "Two models, two batches: told apart by sealed steps, alone and together",
    ("sealed model", "sealed batch", "sealed dealing", SEALED_LINE),
    _applies,
    run,
    weight=60.0,
)
