"""Write a network, a batch with targets and the gradients of the loss to the npz that the peers read.

Formal guarantee (tested under this name): the exported gradients are those of torch's mean loss in float64.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from network_export import layers_of

LOSSES: Final = ("mse", "ce")
_GRADIENT: Final = "gradient:"  # as in peers/step_task.py, which stands in another folder


def export_step(model: nn.Module, inputs: Tensor, targets: Tensor, loss: str, path: Path) -> None:
    """Refuses by name what the format cannot say; it is described in `benchmarks/peers/step_task.py`."""
    arrays: dict[str, Any] = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    arrays |= {
        _GRADIENT + name: gradient.numpy() for name, gradient in gradients_of(model, inputs, targets, loss).items()
    }
    np.savez(
        path,
        architecture=np.array(json.dumps(layers_of(model.eval()))),
        inputs=inputs.numpy(),
        targets=targets.numpy(),
        loss=np.array(loss),
        mean_over=np.array(targets.numel() if loss == "mse" else len(targets)),
        **arrays,
    )


def gradients_of(model: nn.Module, inputs: Tensor, targets: Tensor, loss: str) -> dict[str, Tensor]:
    """Of torch's mean loss, by every parameter, computed in float64. `targets` are one-hot for cross entropy."""
    exact = copy.deepcopy(model).double().eval()
    measure = F.cross_entropy if loss == "ce" else F.mse_loss
    measure(exact(inputs.double()), targets.double()).backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in exact.named_parameters() if parameter.grad is not None}
