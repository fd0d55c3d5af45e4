"""Where and how a client that computes plain gradients does so: device, precision, and how much of a batch at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from bilateral.errors import PlanError

Precision = Literal["full", "bf16"]
CPU: Final = torch.device("cpu")
DEVICE_PATTERN: Final = r"^(auto|cpu|mps|cuda(:\d{1,3})?)$"


@dataclass(frozen=True)
class Placement:
    """Messages are on the CPU whatever is chosen here: an upload is computed on `device` and comes back.

    `precision`    bf16: forward and backward passes under torch's autocast; parameters, losses and uploads stay as
                   they are
    `micro_batch`  so many samples at once; 0 is the whole batch
    """

    device: torch.device = CPU
    precision: Precision = "full"
    micro_batch: int = 0

    @property
    def is_plain(self) -> bool:
        return self == Placement()

    def autocast(self) -> AbstractContextManager[None]:
        """Around a forward pass."""
        if self.precision == "full":
            return nullcontext()
        found: AbstractContextManager[None] = torch.autocast(self.device.type, dtype=torch.bfloat16)
        return found

    def parts(self, inputs: Tensor, targets: Tensor) -> Iterator[tuple[float, Tensor, Tensor]]:
        """The micro-batches of a batch, and the part of the batch that each is."""
        size, count = self.micro_batch or len(inputs), len(inputs)
        for start in range(0, count, size):
            taken = slice(start, start + size)
            yield len(inputs[taken]) / count, inputs[taken], targets[taken].to(self.device)


def device_named(name: str) -> torch.device:
    """The device that a plan names, if this machine has it; `auto` is the best that it has."""
    if not re.match(DEVICE_PATTERN, name):
        raise PlanError(f"There is no device {name!r}.", remedy="Choose auto, cpu, cuda, cuda:1 or mps.")
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
    device = torch.device(name)
    has_it = {"cpu": True, "mps": has_mps, "cuda": has_cuda and (device.index or 0) < torch.cuda.device_count()}
    if not has_it[device.type]:
        raise PlanError(
            f"training.device is {name!r}, and torch {torch.__version__} finds no such device on this machine.",
            remedy="Use training.device = 'auto', which takes what a machine has, or 'cpu'.",
        )
    return device
