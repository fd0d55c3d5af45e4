"""Protections as a stack: the model's, then noise, then masks. What holds together, and what does not.

A stack has one guarantee: the claims of its parts, and their leaks except those that another part closes. Mixes whose
claim would not hold are refused by name, before anything is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bilateral.errors import UnsoundPlanError
from bilateral.protections.base import Mix, Rule
from bilateral.protections.registry import LOCAL_STEPS
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.objective import PLAIN_REMEDY

MASKS_ALONE: Final = Rule(
    "masks over a single client",
    lambda mix: mix.masks != "none" and mix.num_participants < 2,
    "the sum over one client is that client's upload",
    "Use two clients or more a round, or aggregation.masks = 'none'.",
)

OTHER_OBJECTIVE: Final = Rule(
    "another loss than mse or ce where only these are computed",
    lambda mix: not mix.objective.is_plain and not mix.model.takes_any_objective,
    "its two sides work out the gradient at the outputs by formulas of their own, which are written for the squared "
    "error and for cross entropy, without weights or smoothing",
    PLAIN_REMEDY,
)

COUNTED_WITHOUT_NOISE: Final = Rule(
    "balanced class weights under noise, or with a baseline",
    lambda mix: mix.objective.balanced and (mix.noise is not None or bool(mix.model.baseline_of)),
    "they are worked out from exact counts of classes, which are told to everybody: no epsilon covers them, and what a "
    "baseline publishes says nothing of them",
    "List the weights, if they are public: training.class_weights = [1.0, 3.0].",
)


def name_of(mix: Mix) -> str:
    """`perturbation + sound noise + ring masks`; checkpoints and plans know it by this. `spoken` is for people."""
    parts = [LOCAL_STEPS if mix.local_steps else mix.model.title]
    if mix.noise is not None:
        parts.append(mix.noise.title)
    if mix.masks != "none":
        parts.append(f"{mix.masks} masks")
    return " + ".join(parts)


def refuse_unsound(mix: Mix) -> None:
    """Raise `UnsoundPlanError` for the first rule that forbids this mix."""
    if mix.local_steps and mix.model.one_gradient_because:
        raise UnsoundPlanError(
            f"Refused, local steps under {mix.model.name}: {mix.model.one_gradient_because}.",
            remedy="Leave training.local_steps and training.local_epochs out (FedSGD, one gradient a round), or choose "
            "protection = 'masks' or 'fedsgd'.",
        )
    of_noise = () if mix.noise is None else mix.noise.refused
    for rule in (MASKS_ALONE, OTHER_OBJECTIVE, COUNTED_WITHOUT_NOISE, *of_noise, *mix.model.refused):
        if rule.applies(mix):
            raise UnsoundPlanError(
                f"Refused, {rule.name}: {rule.reason}{_named(rule.layers(mix))}.", remedy=rule.remedy
            )


def _named(layers: Sequence[str]) -> str:
    """` (`bn1`, `bn2` and 12 more)`"""
    if not layers:
        return ""
    shown = ", ".join(f"`{name}`" for name in layers[:3])
    return f" ({shown} and {len(layers) - 3} more)" if len(layers) > 3 else f" ({shown})"


def combine(name: str, parts: Sequence[Guarantee], closed: Sequence[tuple[int, str]] = ()) -> Guarantee:
    """One guarantee of several parts. `closed`: (ledger line, to whom) of leaks that another part closes."""
    claims = tuple(claim for part in parts for claim in part.claims)
    leaks = tuple(leak for part in parts for leak in part.leaks if (leak.ledger_line, leak.whom) not in closed)
    return Guarantee(name, claims, leaks)
