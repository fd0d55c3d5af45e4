"""What P2's scheme and its two ablations have in common as protections: noise as the paper has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bilateral.protections.base import NoiseProtection, Rule
from bilateral.protections.groundwork import Plan
from bilateral.protections.sections import NoisePlan
from bilateral.protections.traits import Traits


class AsPublished(NoiseProtection):
    """Noise whose epsilon is of one round, under conditions that the protocol does not meet."""

    refused: tuple[Rule, ...] = (
        Rule(
            "published noise without perturbation",
            lambda mix: mix.model.name != "perturbation",
            "P2's noise is Gaussian only as a product with the server's scale factors",
            "Use protection = 'perturbation', or noise.mechanism = 'sound'.",
        ),
        Rule(
            "published noise with cross entropy",
            lambda mix: mix.loss == "ce",
            "P2 is defined for the squared error, and the exchange would show every softmax (ledger line 8)",
            "Use training.loss = 'mse'.",
        ),
        Rule(
            "published noise under masks",
            lambda mix: mix.masks != "none",
            "P2's uploads are not masked; its claim is about what the server sees of them",
            "Use aggregation.masks = 'none' for the published scheme, or noise.mechanism = 'sound'.",
        ),
    )

    def check(self, settings: NoisePlan) -> None:
        if settings.epsilon is None or settings.noise_multiplier is not None:
            raise ValueError(f"expected `epsilon` (and no `noise_multiplier`) with mechanism {self.name!r}")
        if settings.adaptive_clip or settings.colluders:
            raise ValueError("`adaptive_clip` and `colluders` belong to mechanism 'sound'")

    def traits(self, plan: Plan, below: Traits) -> Traits:
        by_sample = plan.noise.unit == "sample"
        return replace(
            below,
            needs_trace=True,
            default_masks="none",
            adds_noise=True,
            needs_sample_counts=by_sample,
            equal_weights=True,
        )

    def warnings(self, plan: Plan) -> Iterator[str]:  # noqa: ARG002
        yield "The published noise is there to be studied: its epsilon does not bind the server (lines 3 and 4)."
