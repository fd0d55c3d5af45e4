"""MLP-3, MLP-5 and MLP-7 (P0, P1): as many Linear layers as the name says, ReLU between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from math import prod
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.zoo.layers import initialize_for_relu, require_count, require_flag


class MLP(nn.Module):
    """Linear layers of the given sizes with ReLU between them; images are flattened first."""

    def __init__(self, sizes: tuple[int, ...], *, bias: bool) -> None:
        super().__init__()
        *hidden, last = [nn.Linear(before, after, bias=bias) for before, after in pairwise(sizes)]
        self.hidden = nn.ModuleList(hidden)
        self.head = last
        initialize_for_relu(self)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(x, 1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        output: Tensor = self.head(x)
        return output


def build_mlp(
    num_layers: int,
    /,
    *,
    input_shape: tuple[int, ...],
    num_outputs: int,
    width: int = 64,
    bias: bool = True,
) -> nn.Module:
    """`num_layers` Linear layers, the head included. `bias=False` is the papers' notation to the letter."""
    hidden = (require_count("width", width),) * (num_layers - 1)
    return MLP((prod(input_shape), *hidden, num_outputs), bias=require_flag("bias", bias))


BUILDERS: Final[Mapping[str, Callable[..., nn.Module]]] = {
    f"mlp-{num_layers}": partial(build_mlp, num_layers) for num_layers in (3, 5, 7)
}
