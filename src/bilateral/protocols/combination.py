"""Protections as a stack: perturbation, then noise, then masks. What holds together, and what does not.

A stack has one guarantee: the claims of its parts, and their leaks except those that another part closes. Mixes whose
claim would not hold are refused by name, before anything is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bilateral.errors import UnsoundPlanError
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.perturb.settings import Loss

Masks = Literal["ring", "float", "none"]
Mechanism = Literal["none", "sound", "published", "mp-cdp", "mp-dp-naive"]


def spoken(identifier: str) -> str:
    """An identifier of ours as people read it: `fedavg` averages one gradient a round, and that is FedSGD."""
    return identifier.replace("fedavg", "FedSGD")


@dataclass(frozen=True)
class Combination:
    """A stack as it was chosen."""

    perturbed: bool
    loss: Loss
    masks: Masks
    mechanism: Mechanism
    num_participants: int
    num_statistics: int = 0

    @property
    def name(self) -> str:
        """`perturbation + sound noise + ring masks`; checkpoints and plans know it by this. `spoken` is for people."""
        parts = ["perturbation" if self.perturbed else "fedavg"]
        if self.mechanism != "none":
            parts.append(self.mechanism if self.mechanism.startswith("mp-") else f"{self.mechanism} noise")
        if self.masks != "none":
            parts.append(f"{self.masks} masks")
        return " + ".join(parts)

    def refuse_unsound(self) -> None:
        """Raise `UnsoundPlanError` for the first rule that forbids this mix."""
        for rule in UNSOUND:
            if rule.applies(self):
                raise UnsoundPlanError(f"Refused, {rule.name}: {rule.reason}.", remedy=rule.remedy)


@dataclass(frozen=True)
class Rule:
    """A mix that is refused, and why."""

    name: str
    applies: Callable[[Combination], bool]
    reason: str
    remedy: str


UNSOUND: Final = (
    Rule(
        "masks over a single client",
        lambda c: c.masks != "none" and c.num_participants < 2,
        "the sum over one client is that client's upload",
        "Use two clients or more a round, or aggregation.masks = 'none'.",
    ),
    Rule(
        "sound noise without ring masks",
        lambda c: c.mechanism == "sound" and c.masks != "ring",
        "each upload carries only its share of the noise that protects the sum, and the server would see it",
        "Use two clients or more a round, and aggregation.masks = 'ring'.",
    ),
    Rule(
        "sound noise with cross entropy under perturbation",
        lambda c: c.mechanism == "sound" and c.perturbed and c.loss == "ce",
        "the published exchange shows the server the softmax of every training sample (ledger line 8), so that no "
        "epsilon holds, and without it clipping is written for the squared error alone",
        "Use training.loss = 'mse', or protection = 'fedsgd'.",
    ),
    Rule(
        "sound noise with batch statistics",
        lambda c: c.mechanism == "sound" and c.num_statistics > 0,
        "BatchNorm mixes the samples of a batch and uploads statistics that nothing bounds",
        "Use a model with GroupNorm, or without normalisation.",
    ),
    Rule(
        "published noise without perturbation",
        lambda c: c.mechanism in ("published", "mp-cdp", "mp-dp-naive") and not c.perturbed,
        "P2's noise is Gaussian only as a product with the server's scale factors",
        "Use protection = 'perturbation', or noise.mechanism = 'sound'.",
    ),
    Rule(
        "published noise with cross entropy",
        lambda c: c.mechanism in ("published", "mp-cdp", "mp-dp-naive") and c.loss == "ce",
        "P2 is defined for the squared error, and the exchange would show every softmax (ledger line 8)",
        "Use training.loss = 'mse'.",
    ),
    Rule(
        "published noise under masks",
        lambda c: c.mechanism in ("published", "mp-cdp", "mp-dp-naive") and c.masks != "none",
        "P2's uploads are not masked; its claim is about what the server sees of them",
        "Use aggregation.masks = 'none' for the published scheme, or noise.mechanism = 'sound'.",
    ),
    Rule(
        "central noise with batch statistics",
        lambda c: c.mechanism == "mp-cdp" and c.num_statistics > 0,
        "BatchNorm's statistics go into the released model without noise",
        "Use a model without BatchNorm.",
    ),
    Rule(
        "published noise of a single client",
        lambda c: c.mechanism == "published" and c.num_participants < 2,
        "there is no neighbour to share noise with",
        "Use two clients or more a round.",
    ),
)


def combine(name: str, parts: Sequence[Guarantee], closed: Sequence[tuple[int, str]] = ()) -> Guarantee:
    """One guarantee of several parts. `closed`: (ledger line, to whom) of leaks that another part closes."""
    claims = tuple(claim for part in parts for claim in part.claims)
    leaks = tuple(leak for part in parts for leak in part.leaks if (leak.ledger_line, leak.whom) not in closed)
    return Guarantee(name, claims, leaks)
