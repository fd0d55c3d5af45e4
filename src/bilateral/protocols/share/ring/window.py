"""The window of a two-dimensional convolution, as the ring products need it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Window:
    """Kernel size, stride, padding, dilation (height, width) and groups, with torch's meaning."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output; not positive if the window is larger than the padded input."""
        return self._output_length(height, 0), self._output_length(width, 1)

    def _output_length(self, length: int, axis: int) -> int:
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return (length + 2 * self.padding[axis] - reach) // self.stride[axis] + 1

    def offsets(self, channels: int, height: int, width: int) -> torch.Tensor:
        """Where the elements of a window lie from its first one, in a padded image of `height` and `width`."""
        plane = torch.arange(channels)[:, None, None] * (height * width)
        down = torch.arange(self.kernel[0])[:, None] * (self.dilation[0] * width)
        along = torch.arange(self.kernel[1]) * self.dilation[1]
        return (plane + down + along).flatten()
