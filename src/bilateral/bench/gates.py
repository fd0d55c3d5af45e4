"""Which ReLUs were open and which pixels won a max pooling: recorded in one run, imposed on another.

The gradient of a ReLU network jumps where a pre-activation crosses 0. Among millions of them some lie within the
rounding of float32, and open in one arithmetic and close in another: a jump of 1e-3 that says nothing about recovery,
and that plain float32 has too. To tell the two apart, `bench recovery` also evaluates its float64 oracle with the
client's gates.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_RELUS = {F.relu, torch.relu}


class RecordGates(TorchFunctionMode):
    """While active, remember the gates of every ReLU and max pooling, in the order of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _RELUS:
            self.gates.append(result.detach() > 0)
        elif func is F.max_pool2d:
            winners = F.max_pool2d_with_indices(
                *args, **{k: v for k, v in (kwargs or {}).items() if k != "return_indices"}
            )
            self.gates.append(winners[1])
        return result


class ImposeGates(TorchFunctionMode):
    """While active, ReLU and max pooling take the given gates instead of looking at their inputs."""

    def __init__(self, gates: list[Tensor]) -> None:
        super().__init__()
        self._gates = iter(gates)
        self.num_flipped = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _RELUS:
            gate = next(self._gates)
            self.num_flipped += int(((args[0] > 0) != gate).sum())
            return args[0] * gate
        if func is F.max_pool2d:
            winners, x = next(self._gates), args[0]
            own = F.max_pool2d_with_indices(*args, **{k: v for k, v in (kwargs or {}).items() if k != "return_indices"})
            self.num_flipped += int((own[1] != winners).sum())
            return x.flatten(2).gather(2, winners.flatten(2)).view(winners.shape)
        return func(*args, **(kwargs or {}))
