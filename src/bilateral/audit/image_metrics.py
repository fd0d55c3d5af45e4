"""How alike two samples are: PSNR and SSIM of images on the scale 0 to 1, relative error of anything else.

Datasets come standardised. `ValueRange` is the range that values of each channel (or feature) take in public samples;
images are put back on 0 to 1 by it, and attackers keep their guesses inside. Test MSE is that of standardised pixels,
as in P2; feature MSE that of what the true network's head sees, standardised too: 2 means unrelated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from skimage.metrics import structural_similarity
from torch import Tensor, nn

from bilateral.audit.evidence import Condition
from bilateral.audit.perception import Perception
from bilateral.audit.scores import (
    FEATURE_MSE,
    INPUT_ERROR,
    PERCEPTUAL,
    PSNR,
    RECONSTRUCTED,
    SSIM,
    TEST_MSE,
    Metric,
    Scores,
)

SUCCESS_DB = 20.0
"""From here on a reconstruction shows what the image is of."""
LARGEST_PSNR = 100.0
"""Of equal images; it must be finite to be averaged."""
LARGEST_WINDOW = 7
_DEAD = 1e-3
"""A feature whose spread is no more than this share of all features' is left out: its unit would be arbitrary."""


@dataclass(frozen=True, eq=False)
class ValueRange:
    """Lowest and highest value of each channel, shaped to broadcast over one sample."""

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, samples: Tensor) -> ValueRange:
        """Of images (NCHW) a channel, of tables (NF) a feature."""
        dims = (0, *range(2, samples.dim()))
        return cls(samples.amin(dims, keepdim=True)[0], samples.amax(dims, keepdim=True)[0])

    def to_unit(self, samples: Tensor) -> Tensor:
        """The range becomes 0 to 1; a constant channel becomes 0. Values outside are clamped."""
        width = self.high - self.low
        width = torch.where(width > 0, width, torch.ones_like(width))
        return ((samples - self.low) / width).clamp(0.0, 1.0)

    def clamp(self, samples: Tensor) -> Tensor:
        """Into the range; what is no number goes to the middle of it."""
        middle = ((self.low + self.high) / 2).expand_as(samples)
        return torch.clamp(torch.where(torch.isfinite(samples), samples, middle), self.low, self.high)


def psnr(guess: Tensor, truth: Tensor) -> float:
    """Peak signal to noise ratio in dB of two images on the scale 0 to 1."""
    error = float(torch.mean((guess.double() - truth.double()) ** 2))
    return LARGEST_PSNR if error <= 10 ** (-LARGEST_PSNR / 10) else float(-10 * torch.log10(torch.tensor(error)))


def ssim(guess: Tensor, truth: Tensor) -> float:
    """Structural similarity of two images (CHW) on the scale 0 to 1, with the largest window up to 7 that fits."""
    smallest = min(truth.shape[-2:])
    window = min(LARGEST_WINDOW, smallest - (smallest + 1) % 2)
    if window < 3:
        return 0.0  # there is no structure in so few pixels
    measure: Callable[..., float] = structural_similarity
    images = guess.double().numpy(), truth.double().numpy()
    return float(measure(*images, win_size=window, data_range=1.0, channel_axis=0))


def relative_error(guess: Tensor, truth: Tensor) -> float:
    """Distance over the truth's length; no more than 10, so that a mean says something."""
    length = float(truth.double().norm())
    return min(10.0, float((guess.double() - truth.double()).norm()) / max(length, 1e-12))


def is_image(sample: Tensor) -> bool:
    return sample.dim() == 3


@dataclass(frozen=True, eq=False)
class Ruler:
    """Scores guesses. `features`: of samples (batch x features), standardised over public ones."""

    bounds: ValueRange
    features: Callable[[Tensor], Tensor]
    perception: Perception | None = None
    """A distance of its own, where somebody trained one."""

    @classmethod
    def of(cls, bounds: ValueRange, network: nn.Module, head: str, public: Tensor) -> Ruler:
        """`network`: the true one; its features are the inputs of `head`."""
        network = network.eval()
        found = head_inputs(network, head, public)
        middle, spread = found.mean(0), found.std(0)
        spread[spread <= _DEAD * float(found.std())] = torch.inf
        return cls(bounds, lambda samples: (head_inputs(network, head, samples) - middle) / spread)

    def score(self, guess: Tensor, truth: Tensor) -> dict[Metric, float]:
        """One guess in every metric of its kind; the first is the one that tables show."""
        if not is_image(truth):
            return {INPUT_ERROR: relative_error(guess, truth)}
        inside = self.bounds.clamp(guess)
        shown, real = self.bounds.to_unit(inside), self.bounds.to_unit(truth)
        value = psnr(shown, real)
        ours, true = self.features(torch.stack([inside, truth]))
        found = {
            PSNR: value,
            SSIM: ssim(shown, real),
            RECONSTRUCTED: float(value > SUCCESS_DB),
            TEST_MSE: float((inside.double() - truth.double()).square().mean()),
            FEATURE_MSE: float((ours - true).square().mean()),
        }
        return found if self.perception is None else {**found, PERCEPTUAL: self.perception(inside, truth)}

    def score_best(self, candidates: Tensor, truth: Tensor) -> dict[Metric, float]:
        """The candidate nearest to the truth: what somebody who looks through them all would find."""
        distances = (candidates.double() - truth.double()).flatten(1).norm(dim=1)
        return self.score(candidates[int(distances.argmin())], truth)


def head_inputs(network: nn.Module, head: str, samples: Tensor) -> Tensor:
    """What the last layer sees, in double precision."""
    captured: list[Tensor] = []
    hook = network.get_submodule(head).register_forward_pre_hook(lambda _, args: captured.append(args[0]))
    try:
        with torch.no_grad():
            network(samples.to(next(network.parameters()).dtype))
    finally:
        hook.remove()
    return captured[0].double()


def condition(what: str, found: Sequence[dict[Metric, float]]) -> Condition:
    """Scores of several trials, metric by metric."""
    return Condition(what, tuple(Scores(metric, tuple(one[metric] for one in found)) for metric in found[0]))
