"""Privacy settings of model perturbation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bilateral.errors import PlanError
from bilateral.models.builder import NormInputs

Loss = Literal["mse", "ce"]
Noise = Literal["activation", "offset"]
Softmax = Literal["local", "blinded"]


@dataclass(frozen=True)
class PerturbationSettings:
    """How a model is perturbed.

    `loss`            mse (mean squared error) or ce (cross entropy over classes)
    `noise`           activation: additive noise in the head's weights, as published (P0);
                      offset: in the head's bias, our cheaper variant
    `num_partitions`  number of output groups with a secret of their own, 1..number of outputs
    `permute`         exchange hidden channels afresh every round
    `scale_range`     scale factors are log-uniform in this range (shifted to start at 1 before normalisation layers)
    `softmax`         cross entropy: local, ours: the noise on the outputs comes with the model, and clients compute the
                      softmax themselves (docs/decisions/0017); blinded, as published (P0), by an exchange
    `norm_inputs`     exact: what enters a normalisation layer has factor 1, and recovery is exact; scaled: a secret
                      factor of at least 1 there too, with which the layer's eps acts as eps / scale^2, and gradients
                      are those of another network every round (docs/decisions/0003: off by 5e-3 on ResNet-20, by more
                      than the gradient itself on some deep ones). The scale graph must be made with the same.
    `noise_ratio`     additive noise over the spread of the logits; near 1 float32 recovers as well as without noise
    """

    loss: Loss = "ce"
    noise: Noise = "activation"
    num_partitions: int = 1
    permute: bool = True
    scale_range: tuple[float, float] = (0.25, 4.0)
    noise_ratio: float = 1.0
    softmax: Softmax = "local"
    norm_inputs: NormInputs = "exact"

    def __post_init__(self) -> None:
        low, high = self.scale_range
        if not 0 < low <= high < math.inf:
            raise PlanError(f"Expected a scale range 0 < low <= high, got ({low}, {high}).", remedy="Try (0.25, 4).")
        if not 0 < self.noise_ratio < math.inf:
            raise PlanError(f"Expected a noise ratio above 0, got {self.noise_ratio}.", remedy="Try 1.")

    @property
    def tells_noise(self) -> bool:
        """Whether the noise on the outputs comes with the model: then one term is enough, and nobody is asked."""
        return self.loss == "ce" and self.softmax == "local"

    @property
    def has_exchange(self) -> bool:
        """Whether clients ask the server for a softmax in the middle of a round."""
        return self.loss == "ce" and self.softmax == "blinded"

    def check_outputs(self, num_outputs: int) -> None:
        """Refuse what does not fit a model with `num_outputs` outputs."""
        if not 1 <= self.num_partitions <= num_outputs:
            raise PlanError(
                f"Expected partitions between 1 and {num_outputs} (the number of outputs), got {self.num_partitions}."
            )
        if self.loss == "ce" and num_outputs < 2:
            raise PlanError(
                f"Cross entropy needs at least 2 outputs, the model has {num_outputs}.",
                remedy="Use loss = 'mse', or a model with one output per class.",
            )
