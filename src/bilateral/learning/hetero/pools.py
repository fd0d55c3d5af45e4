"""Queries made from private samples (P4 section 3.2 and appendix B.1).

Formal guarantee: a pool is a function of the given samples and of the randomness. Nothing here hides the samples
(P4 appendix G shows what can be recovered from a mixup): queries leave a client only as secret shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from bilateral.errors import DataError
from bilateral.learning.hetero.settings import PoolName

_Generator = torch.Generator
_CUTOUT_FRACTION: Final = 0.5
_MIXUP_TENTHS: Final = range(1, 10)


def build_pool(
    name: PoolName, samples: Tensor, count: int, generator: torch.Generator, mixup_weight: float | None = None
) -> Tensor:
    """`count` queries of the kind `name`; `private` gives each sample once, in random order, and at most `count`.

    `mixup_weight`: of every mixup's first sample, where it is not drawn.
    """
    if name == "private":
        return samples[torch.randperm(len(samples), generator=generator)[:count]]
    if name in _ON_IMAGES and samples.ndim != 4:
        raise DataError(
            f"Expected images of shape [samples, channels, height, width] for {name} queries, "
            f"got {list(samples.shape)}.",
            remedy="Use the pool mixup, gaussian or private for data that are not images.",
        )
    if name in _OF_PAIRS and len(samples) < 2:
        raise DataError(
            f"Expected at least 2 samples to make {name} queries of, got {len(samples)}.",
            remedy="Give every client more data.",
        )
    if name == "mixup":
        return mixup(samples, count, generator, mixup_weight)
    return _POOLS[name](samples, count, generator)


def mixup(samples: Tensor, count: int, generator: _Generator, fixed: float | None = None) -> Tensor:
    """Weighted means of two different samples; the weight is one of 0.1, 0.2 ... 0.9 (P4 equation 1), or `fixed`."""
    first, second = _pairs(len(samples), count, generator)
    tenths = torch.randint(_MIXUP_TENTHS.start, _MIXUP_TENTHS.stop, (count,), generator=generator)
    weights = tenths / 10 if fixed is None else torch.full((count,), fixed)
    weight = weights.to(samples.dtype).view(-1, *[1] * (samples.ndim - 1))
    return weight * samples[first] + (1 - weight) * samples[second]


def cutmix(samples: Tensor, count: int, generator: _Generator) -> Tensor:
    """A rectangle of one sample in another (Yun et al. 2019); its area is uniform before the border cuts it off."""
    first, second = _pairs(len(samples), count, generator)
    side = torch.rand(count, generator=generator).sqrt()
    inside = _boxes(samples, side, generator)
    return torch.where(inside, samples[second], samples[first])


def cutout(samples: Tensor, count: int, generator: _Generator) -> Tensor:
    """A sample with a square of half its size set to 0 (DeVries & Taylor 2017), the mean of normalised images."""
    chosen = torch.randint(len(samples), (count,), generator=generator)
    inside = _boxes(samples, torch.full((count,), _CUTOUT_FRACTION), generator)
    return samples[chosen].masked_fill(inside, 0.0)


def flips(samples: Tensor, count: int, generator: _Generator) -> Tensor:
    """A sample mirrored left to right, top to bottom, or both; never unchanged."""
    chosen = samples[torch.randint(len(samples), (count,), generator=generator)]
    kind = torch.randint(3, (count,), generator=generator).view(-1, 1, 1, 1)
    return torch.where(kind == 0, chosen.flip(3), torch.where(kind == 1, chosen.flip(2), chosen.flip(2, 3)))


def gaussian(samples: Tensor, count: int, generator: _Generator) -> Tensor:
    """A sample plus Gaussian noise as large as the samples' own standard deviation."""
    chosen = samples[torch.randint(len(samples), (count,), generator=generator)]
    noise = torch.randn(chosen.shape, generator=generator, dtype=samples.dtype)
    return chosen + samples.std(correction=0) * noise


def _pairs(num_samples: int, count: int, generator: _Generator) -> tuple[Tensor, Tensor]:
    """`count` uniform pairs of different indices."""
    first = torch.randint(num_samples, (count,), generator=generator)
    offset = torch.randint(1, num_samples, (count,), generator=generator)
    return first, (first + offset) % num_samples


def _boxes(samples: Tensor, side: Tensor, generator: _Generator) -> Tensor:
    """Masks [count, 1, height, width] of rectangles around uniform centres, with `side` of the image's sides."""
    height, width = samples.shape[2:]
    rows = _within(height, side, generator)
    columns = _within(width, side, generator)
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1)


def _within(length: int, side: Tensor, generator: _Generator) -> Tensor:
    centre = torch.randint(length, (len(side), 1), generator=generator)
    half = (side * length / 2).unsqueeze(1)
    position = torch.arange(length)
    return (position >= centre - half) & (position < centre + half)


_POOLS: Final[Mapping[str, Callable[[Tensor, int, _Generator], Tensor]]] = {
    "mixup": mixup,
    "cutmix": cutmix,
    "cutout": cutout,
    "flips": flips,
    "gaussian": gaussian,
}
_ON_IMAGES: Final = frozenset({"cutmix", "cutout", "flips"})
_OF_PAIRS: Final = frozenset({"mixup", "cutmix"})
