"""Canaries in sums (line 12): samples that are in a run or not, by fair coins, and a server that sees sums alone.

Half of the candidates are *mislabelled* (real inputs, wrong labels), half are *crafted* (inputs of independent noise,
random labels): their gradients are as good as orthogonal to each other and to everybody else's. A coin decides of each
whether it is among a client's samples; the real parties run some rounds, with the plan's masks and batches, and the
server asks every sum for every canary (`attacks/canaries_of_sums`). `membership-by-server` asks one round's sum for the
samples of its batches; here a whole run is asked, and most canaries are in few of its batches.

Positive control: FedSGD with the same seeds, coins and canaries. Negative control: the same scores, and coins that were
never used. Under sound noise the same is asked; what the claim of such noise is worth says `one-run-epsilon`, where
canaries are as large as clipping allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line, undefended
from bilateral.audit.membership_metrics import membership_scores
from bilateral.audit.recording import record
from bilateral.audit.scores import AUC, TPR_AT_1
from bilateral.audit.threat import server_view
from bilateral.audit.topics.membership.attacks.canaries_of_sums import canary_scores
from bilateral.audit.topics.membership.attacks.lira import joined
from bilateral.audit.topics.membership.membership_game import with_random_targets
from bilateral.audit.topics.membership.upload_scene import MAX_OWN, Pair
from bilateral.data import Split
from bilateral.engine.federation import Federation
from bilateral.engine.plan import RunPlan
from bilateral.learning.client import prepare_targets
from bilateral.learning.problem import Share
from bilateral.protocols.guarantee import Guarantee
from bilateral.randomness import Randomness

GATES: Final = (Gate(AUC, 0.75), Gate(TPR_AT_1, 0.2))
"""A canary that is in no batch of the run is not there to be found."""
NUM_ROUNDS: Final = 3
MOST_NATURAL: Final = 32
"""Of a client, beside its canaries: what is in few batches takes many rounds to be seen."""
MOST_CANARIES: Final = 120
NUM_NULL: Final = 60
KINDS: Final = ("mislabelled", "crafted")


@dataclass(frozen=True, eq=False)
class CanaryRun:
    """Canaries of a run (kinds one after the other), their coins, and who trains on what."""

    canaries: Split
    coins: Tensor
    federation: Federation

    def pair(self, scores: Tensor, kind: int, coins: Tensor) -> Pair:
        """Scores of a kind's canaries that are in, and that are not."""
        half = len(self.canaries) // 2
        part = slice(kind * half, (kind + 1) * half)
        return scores[part][coins[part]], scores[part][~coins[part]]

    def other_coins(self, randomness: Randomness) -> Tensor:
        """As many of each kind in, by chance."""
        order = randomness.permutation(len(self.coins) // 2)
        return self.coins.view(2, -1)[:, order].flatten()


def make_run(context: Context, number: int) -> CanaryRun:
    """Every client has some samples of its own, and the canaries that coins give it."""
    federation, draws = context.federation(), context.randomness("canaries in sums", number)
    everything = joined(*federation.shares.values())
    everything = everything.subset(draws.child("deal").permutation(len(everything)))
    clients = len(federation.names)
    half = min(MOST_CANARIES, len(everything) // 4) // 2
    natural = min(MOST_NATURAL * clients, len(everything) - half)
    outputs = federation.problem.num_outputs
    mislabelled = with_random_targets(everything.subset(torch.arange(half)), outputs, draws.child("labels"))
    inputs, sources = everything.inputs, everything.subset(torch.arange(half, 2 * half))
    noise = draws.child("noise").normal(half, *inputs.shape[1:]).to(inputs.dtype) * inputs.std() + inputs.mean()
    crafted = with_random_targets(Split(noise, sources.targets), outputs, draws.child("other labels"))
    canaries = joined(mislabelled, crafted)
    coins = draws.child("coins").uniform(len(canaries)) < 0.5
    for of_kind in coins.view(2, -1):  # some on each side, however few there are
        of_kind[:2], of_kind[2:4] = True, False
    order, places = coins.nonzero()[:, 0], torch.arange(half, half + natural)
    shares = {}
    for place, name in enumerate(federation.names):
        own, given = everything.subset(places[place::clients]), canaries.subset(order[place::clients])
        both = joined(own, given)
        task = federation.problem.task
        shares[name] = Share(both.inputs, both.targets, task=task, num_outputs=outputs)
    counts = {name: len(share) for name, share in shares.items()}
    return CanaryRun(canaries, coins, replace(federation.with_members(counts), shares=shares))


def _scores(context: Context, plan: RunPlan, run: CanaryRun, number: int) -> dict[bool, Tensor]:
    recording = record(plan, run.federation)
    outputs, loss = recording.problem.num_outputs, recording.problem.loss
    own = prepare_targets(recording.test, outputs, loss)
    own = own.subset(torch.arange(min(MAX_OWN, len(own))))
    rounds = [kept.round_index for kept in recording.server_rounds]
    draws = context.randomness("canaries in sums", "attack", number)
    return canary_scores(server_view(recording), rounds, prepare_targets(run.canaries, outputs, loss), own, draws)


def _run(context: Context) -> list[Evidence]:
    plan = context.plan.with_settings({"training.rounds": NUM_ROUNDS, "federation.participation": 1.0})
    bare, runs = undefended(plan), [make_run(context, number) for number in range(context.effort.seeds)]
    target, positive = [], []
    for number, run in enumerate(runs):
        context.on_progress(number / len(runs), "canaries in sums")
        seed = {"seed": (plan.seed + 1 + number) % 2**63}
        target.append(_scores(context, plan.with_settings(seed), run, number))
        positive.append(_scores(context, bare.with_settings(seed), run, number)[True])
    context.on_progress(1.0, "canaries in sums: done")
    return [
        _evidence(context, runs, kind, [scores[adaptive] for scores in target], positive, adaptive=adaptive)
        for kind in range(len(KINDS))
        for adaptive in (False, True)
    ]


def _evidence(
    context: Context,
    runs: Sequence[CanaryRun],
    kind: int,
    target: Sequence[Tensor],
    positive: Sequence[Tensor],
    *,
    adaptive: bool,
) -> Evidence:
    draws = context.randomness("canaries in sums", "unused coins", kind, int(adaptive))
    null = []
    for number in range(NUM_NULL):
        run, scores = runs[number % len(runs)], target[number % len(runs)]
        null.append(run.pair(scores, kind, run.other_coins(draws.child(number))))
    count = len(runs[0].canaries) // 2
    return with_controls(
        12,
        "curious server",
        f"presence of {KINDS[kind]} canaries in the sums of a run",
        f"the sums of {NUM_ROUNDS} rounds" + (", their secrets" if adaptive else " as they come"),
        GATES,
        target=_condition(f"{count} canaries, in or out by coins", runs, kind, target),
        positive=_condition("FedSGD, the same canaries and coins", runs, kind, positive),
        negative=Condition("the same scores, by coins that were never used", membership_scores(null)),
        adaptive=adaptive,
        paired=False,
        remark="the server has the canaries, as in every membership game",
    )


def _condition(what: str, runs: Sequence[CanaryRun], kind: int, found: Sequence[Tensor]) -> Condition:
    pairs = [run.pair(scores, kind, run.coins) for run, scores in zip(runs, found, strict=True)]
    return Condition(what, membership_scores(pairs))


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_line(guarantee, 12):
        return "the plan admits nothing about sums (line 12)"
    if plan.traits.sums_ciphertexts:
        return "so many sums of ciphertexts take too long, and open to the same sums as under masks"
    return "clients hold data of sites, which the audit does not deal anew" if plan.data.sites else ""


EXPERIMENT: Final = Experiment(
    "canaries-in-sums",
    "Canaries in the sums of a run, by the curious server",
    (12,),
    _applies,
    _run,
    weight=12.0,
)
