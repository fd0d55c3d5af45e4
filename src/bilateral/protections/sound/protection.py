"""Sound distributed noise (docs/decisions/0011-sound-ddp.md) as a protection of a run. Its settings are `[noise]`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import nn

from bilateral.models.layout import ModelLayout
from bilateral.protections.base import NoiseProtection, Rule
from bilateral.protections.groundwork import Groundwork, Plan
from bilateral.protections.sections import NoisePlan
from bilateral.protections.sides import Sides
from bilateral.protections.sound.sides import sound_sides
from bilateral.protections.traits import Traits
from bilateral.protocols.noise.sample_terms import refuse_batch_norm

SOUND: Final = "sound"


class Sound(NoiseProtection):
    """Clients clip and add noise whose epsilon holds against everybody, over the whole run."""

    name = SOUND
    refused = (
        Rule(
            "sound noise without ring masks",
            lambda mix: mix.masks != "ring",
            "each upload carries only its share of the noise that protects the sum, and the server would see it",
            "Use two clients or more a round, and aggregation.masks = 'ring'.",
        ),
        Rule(
            "sound noise with the published exchange of cross entropy",
            lambda mix: mix.asks,
            "it shows the server the softmax of every training sample (ledger line 8), so that no epsilon holds",
            "Use perturbation.softmax = 'local', which asks for nothing, or training.loss = 'mse'.",
        ),
        Rule(
            "sound noise of samples with local steps",
            lambda mix: mix.local_steps and mix.unit == "sample",
            "after the first step a client's change depends on each of its samples in ways that clipping single "
            "gradients does not bound",
            "Use noise.unit = 'client', which bounds the whole change, or leave local steps out.",
        ),
        Rule(
            "sound noise with batch statistics",
            lambda mix: mix.num_statistics > 0,
            "BatchNorm mixes the samples of a batch and uploads statistics that nothing bounds",
            "Use a model with GroupNorm, or without normalisation.",
            lambda mix: mix.batch_norms,
        ),
        Rule(
            "sound noise over uploads that are not clipped",
            lambda mix: not mix.model.can_clip,
            "its epsilon rests on a bound of what one sample or one client adds to a sum",
            "Use a protection whose clients clip, such as 'perturbation' or 'fedsgd'.",
        ),
    )

    def check(self, settings: NoisePlan) -> None:
        if (settings.epsilon is None) == (settings.noise_multiplier is None):
            raise ValueError("expected either `epsilon` or `noise_multiplier`")

    def traits(self, plan: Plan, below: Traits) -> Traits:
        by_sample = plan.noise.unit == "sample"
        return replace(
            below,
            default_masks="ring",
            adds_noise=True,
            spends_budget=True,
            samples_by_chance=by_sample,
            needs_sample_counts=by_sample,
            equal_weights=True,
        )

    def check_network(self, model: nn.Module, layout: ModelLayout) -> None:  # noqa: ARG002
        refuse_batch_norm(model)

    def sides(self, around: Groundwork) -> Sides:
        return sound_sides(around)
