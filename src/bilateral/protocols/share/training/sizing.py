"""How large the first party expects numbers to get, from examples of its own: what its limits are set by.

Nothing of it leaves the first party. Limits that are too small stop a step that was right; limits that are too large
are refused (`bounds`), so that none is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.bounds import limits_for
from bilateral.protocols.share.training.parties import encode_batch
from bilateral.protocols.share.training.plain import plain_step
from bilateral.protocols.share.training.roles import FirstModel
from bilateral.protocols.share.training.terms import ONE, StepTerms

_MOST_EXAMPLES: Final = 16


def sized(
    terms: StepTerms, model: FirstModel, layers: Sequence[PrivateLayer], examples: Tensor, num_clients: int
) -> FirstModel:
    """`model` with limits for steps on these terms. `examples`: a few inputs as clients have them, behind the front."""
    limits = limits_for(terms, layers, expected_norms(terms, model, examples), num_clients)
    return replace(model, limits=limits.encode(terms))


def expected_norms(terms: StepTerms, model: FirstModel, examples: Tensor) -> dict[str, float]:
    """The largest norms of channels, on these inputs with targets at random: then deltas are as large as ever."""
    count = min(terms.batch_size, _MOST_EXAMPLES)
    generator = torch.Generator().manual_seed(0)
    largest = terms.circuit.largest_input
    inputs = examples[torch.arange(count) % len(examples)].double().clamp(-largest, largest)
    small = replace(terms, batch_size=count, factor=ONE)
    _, norms = plain_step(small, model, *encode_batch(small, inputs, _targets(small, generator)))
    return {label: norm * math.sqrt(terms.batch_size / count) for label, norm in norms.items()}


def _targets(terms: StepTerms, generator: torch.Generator) -> Tensor:
    num_outputs = terms.circuit.output.size
    if terms.loss == "ce":
        return torch.randint(0, num_outputs, (terms.batch_size,), generator=generator)
    return torch.randn(terms.batch_size, num_outputs, generator=generator)
