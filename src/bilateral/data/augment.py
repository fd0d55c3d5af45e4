"""Random crops and mirror images for training on small colour images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.errors import DataError


def random_flip_crop(inputs: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Shift every image by up to `padding` pixels either way, and mirror half of them, each on its own.

    The border is filled with zeros, which is the mean colour of normalised images. Crop and mirror are one
    gather over the padded batch: a mirrored image simply reads its columns backwards.
    """
    if inputs.ndim != 4:
        raise DataError(
            f"Expected images of shape [samples, channels, height, width], got {list(inputs.shape)}.",
            remedy="Switch augmentation off for data that are not images.",
        )
    if padding < 0:
        raise DataError(f"Expected padding of at least 0 pixels, got {padding}.", remedy="4 is the usual choice.")
    count, channels, height, width = inputs.shape
    top = torch.randint(0, 2 * padding + 1, (count, 1), generator=generator)
    left = torch.randint(0, 2 * padding + 1, (count, 1), generator=generator)
    mirrored = torch.rand((count, 1), generator=generator) < 0.5
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    columns = torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(inputs, (padding, padding, padding, padding))
    return padded[
        torch.arange(count).view(-1, 1, 1, 1),
        torch.arange(channels).view(1, -1, 1, 1),
        rows.view(count, 1, height, 1),
        columns.view(count, 1, 1, width),
    ]
