"""The querying party copies what the answering networks compute together, from the sums it is entitled to (line 14).

It begins with its own network and goes on training it on its queries: the naive attacker on the class that the sum
prefers, the adaptive one on the sums themselves, which say much more.
"""

from __future__ import annotations

import copy
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BATCH: Final = 64
_RATE: Final = 2e-3


def copy_answers(
    own: nn.Module,
    queries: Tensor,
    summed_logits: Tensor,
    *,
    targets: Literal["classes", "logits"],
    steps: int,
    generator: torch.Generator,
) -> nn.Module:
    """A copy of `own`, trained to say what the sums say; in eval mode."""
    student = copy.deepcopy(own).train()
    centred = summed_logits - summed_logits.mean(1, keepdim=True)
    spread = centred.std().clamp_min(1e-6)
    wanted = centred / spread
    optimiser = torch.optim.Adam(student.parameters(), lr=_RATE)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = _RATE * (1.0 - step / steps)
        batch = torch.randint(len(queries), (_BATCH,), generator=generator)
        logits = student(queries[batch])
        if targets == "classes":
            loss = F.cross_entropy(logits, wanted[batch].argmax(1))
        else:
            loss = F.mse_loss(logits - logits.mean(1, keepdim=True), 3.0 * wanted[batch])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return student.eval()
