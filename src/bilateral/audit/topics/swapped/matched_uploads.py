"""Swapped batches, told by matching in the ring: are masks missing, repeated, related or short anywhere?

A reading of a whole upload misses masks that are weak in places. Here a handful of coordinates is enough
(`ring_matching`). The attacker computes what each world would have made of an upload, so this works where clients'
uploads follow from their batches: not under noise of their own. Under cross entropy with perturbation only the server
can do so.

Weights, where they are claimed to be hidden: is the last word of an upload its weight, or another number? Both
suspects have the same weight in both worlds, so this is a question of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bilateral.audit.evidence import Evidence, Gate, with_controls
from bilateral.audit.experiment import Context
from bilateral.audit.scores import Metric
from bilateral.audit.topics.swapped.attacks.ring_matching import guess_worlds, is_weight, residual_of, seen_upload
from bilateral.audit.topics.swapped.attacks.swapped_worlds import rounds_of
from bilateral.audit.topics.swapped.swapped_attackers import Attacker, asks
from bilateral.audit.topics.swapped.swapped_rounds import Match, Worlds
from bilateral.audit.topics.swapped.swapped_runs import SUCCESS, Runs, condition_of, more_coins

MATCHED: Final = Metric("worlds told by matching", "high", is_rate=True, digits=2)
WEIGHED: Final = Metric("weights told from another", "high", is_rate=True, digits=2)


def matched(context: Context, attacker: Attacker, runs: Runs) -> list[Evidence]:
    """What this adversary finds by matching; nothing where it cannot, or where no claim is about it.

    In sealed training an upload is one of two parts, and follows from no batch: `sealed-worlds` matches what there is.
    """
    if context.plan.traits.computes_on_shares:
        return []
    if not isinstance(attacker.tests, str) or not attacker.sees_uploads or context.plan.traits.adds_noise:
        return []
    if asks(context) and attacker.adversary == "eavesdropper":
        return []
    weighs = not asks(context)
    metrics = (MATCHED, WEIGHED) if weighs else (MATCHED,)
    seen = "uploads minus what each world makes of them, in the ring, masks taken off as far as they are known"
    return [
        with_controls(
            attacker.tests,
            attacker.adversary,
            "matching in the ring",
            seen + ("; and the word of the weight" if weighs else ""),
            tuple(Gate(metric, SUCCESS) for metric in metrics),
            target=condition_of(
                f"batches of {len(runs.real.table.x)} of two of {len(runs.real.table.names)} clients",
                _right(attacker, runs.real, metrics),
            ),
            positive=condition_of("FedSGD, the same batches", _right(attacker, runs.bare, metrics)),
            negative=condition_of(
                "batches that stay where they are, against coins",
                _right(attacker, runs.same, metrics, more_coins(context, runs.same)),
            ),
            paired=False,
            remark="the attacker knows both batches; but for drawn last bits the sum is the same in both worlds",
        )
    ]


def _right(
    attacker: Attacker, match: Match, metrics: Sequence[Metric], coins: Sequence[Worlds] = ()
) -> dict[Metric, list[float]]:
    """Per metric, 1 for each right guess; with `coins` for each guess that is what the coin says."""
    guessing = {MATCHED: _matched, WEIGHED: _weighed}
    truths = {MATCHED: match.worlds, WEIGHED: dict.fromkeys(match.worlds, 1)}
    found = {}
    for metric in metrics:
        guesses = dict(zip(match.worlds, guessing[metric](attacker, match), strict=True))
        found[metric] = [
            float(guesses[number] == truth[number]) for truth in coins or [truths[metric]] for number in guesses
        ]
    return found


def _matched(attacker: Attacker, match: Match) -> list[int]:
    """The world of each round."""
    known = match.suspicion(attacker.clients, ())
    views = rounds_of(attacker.view(match.recording))
    first, second = (
        [residual_of(views[number], number, client, known) for number in match.worlds]
        for client in (known.first, known.second)
    )
    return guess_worlds(first, second)


def _weighed(attacker: Attacker, match: Match) -> list[int]:
    """1 for each round in which the first suspect's weight is taken for its weight, and not for the other number."""
    known = match.suspicion(attacker.clients, ())
    views = rounds_of(attacker.view(match.recording))
    return [
        int(is_weight(seen_upload(views[number], number, known.first, known), known.weight)) for number in match.worlds
    ]
