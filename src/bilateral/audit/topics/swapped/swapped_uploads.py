"""Two clients' batches, swapped or not: whoever tells the worlds apart has read single uploads, not their sum.

Tests "single uploads" (hidden from the server, also with as many colluding clients as the claim allows) and "other
clients' uploads" (hidden from clients, alone and pooled, and from an eavesdropper). Where uploads are not claimed to be
hidden, ledger lines 0, 3 or 6, by the server.

Three ways (`swapped_evidence`, `matched_uploads`): the uploads are read; every message of a round is learned from runs
that the attacker plays by itself; and, against ring masks, uploads are matched in the ring with what each world would
have made of them, which finds masks that are weak in places.

Positive control: the same attacker where uploads are bare; clients, who see nobody's upload, are given the wire.
Negative control: a run in which the batches stay where they are, against coins.
"""

from __future__ import annotations

from typing import Final

from bilateral.audit.evidence import Evidence
from bilateral.audit.experiment import ON_UPLOADS, Context, Experiment
from bilateral.audit.topics.swapped.matched_uploads import matched
from bilateral.audit.topics.swapped.swapped_attackers import attackers_of
from bilateral.audit.topics.swapped.swapped_evidence import evidence_of
from bilateral.audit.topics.swapped.swapped_rounds import num_players, table_of
from bilateral.audit.topics.swapped.swapped_runs import PLAYING, play_all
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee


def run(context: Context) -> list[Evidence]:
    """Play the plan and its controls, and let every adversary guess."""
    table, guarantee = table_of(context), context.guarantee()
    attackers = attackers_of(context, table, guarantee)
    runs = play_all(context, table)
    evidence: list[Evidence] = []
    for number, attacker in enumerate(attackers):
        done = PLAYING + (1.0 - PLAYING) * number / len(attackers)
        context.on_progress(done, f"swapped uploads: {attacker.adversary}")
        evidence += evidence_of(context, attacker, runs)
        evidence += matched(context, attacker, runs)
    context.on_progress(1.0, "swapped uploads: done")
    return evidence


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    if plan.traits.adds_noise and not plan.traits.spends_budget:
        return "P2's scheme does not claim to hide single uploads; lines 3 and 4 have attacks of their own"
    count = len(plan.data.sites) or plan.federation.num_clients
    if count is not None and num_players(plan, count) < 2:
        return "a round with a single client has no batches to swap"
    return ""


EXPERIMENT: Final = Experiment(
    "swapped-uploads",
    "Two clients' batches, swapped or not: told apart by single uploads",
    (*ON_UPLOADS, "other clients' uploads"),
    _applies,
    run,
    weight=15.0,
)
