"""The second rung of the ladder: FedSGD under masks, by one word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bilateral.protections.base import Rule, Vocabulary
from bilateral.protections.fedavg.protection import FEDAVG, FedSgd
from bilateral.protections.groundwork import Plan
from bilateral.protections.traits import Traits

MASKS: Final = "masks"
"""The name of this protection."""


class Masks(FedSgd):
    """Everyone sees the model, and the server sees sums alone. What `fedavg` with ring masks is, it is."""

    name = MASKS
    aliases: tuple[str, ...] = ()
    vocabulary = Vocabulary()  # what it speaks is FedSGD's
    refused = (
        Rule(
            "masks without masks",
            lambda mix: mix.masks == "none",
            "nothing would be masked",
            "Leave aggregation.masks out and use two clients or more, or choose protection = 'fedsgd'.",
        ),
    )

    @property
    def title(self) -> str:
        return FEDAVG

    def traits(self, plan: Plan) -> Traits:  # noqa: ARG002
        return Traits(needs_trace=False, default_masks="ring")

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield "Masks hide uploads; every site sees the whole model, every round."
