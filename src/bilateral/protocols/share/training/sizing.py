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

from bilateral.errors import DataError
from bilateral.protocols.share.circuit.description import Shape
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.bounds import limits_for
from bilateral.protocols.share.training.following import fraction_bits_of
from bilateral.protocols.share.training.parties import encode_batch
from bilateral.protocols.share.training.plain import Plain
from bilateral.protocols.share.training.roles import FirstModel
from bilateral.protocols.share.training.script import run, step
from bilateral.protocols.share.training.terms import ONE, StepTerms
from bilateral.protocols.share.training.watching import group_size

_MOST_EXAMPLES: Final = 16


def sized(
    terms: StepTerms, model: FirstModel, layers: Sequence[PrivateLayer], examples: Tensor, num_clients: int
) -> FirstModel:
    """`model` with limits for steps on these terms. `examples`: a few inputs as clients have, behind the front."""
    limits = limits_for(terms, layers, expected_norms(terms, model, examples), num_clients)
    return replace(model, limits=limits.encode(terms))


def expected_norms(terms: StepTerms, model: FirstModel, examples: Tensor) -> dict[str, float]:
    """The largest norms of channels and of groups, on these inputs with targets at random: then deltas are as large as
    ever."""
    if not len(examples):
        raise DataError("No example to size the limits of sealed training by.", remedy="Give the server some inputs.")
    count = min(terms.batch_size, _MOST_EXAMPLES)
    generator = torch.Generator().manual_seed(0)
    largest = terms.circuit.largest_input
    inputs = examples[torch.arange(count) % len(examples)].double().clamp(-largest, largest)
    small = replace(terms, batch_size=count, factor=ONE)
    role = Plain(small, model)
    run(step(role, *encode_batch(small, inputs, _targets(small, generator))))
    norms = {label: norm * math.sqrt(terms.batch_size / count) for label, norm in role.norms.items()}
    for label, shape in terms.shape_of_step.watched:
        larger = _size_of_group(shape, terms.batch_size) / _size_of_group(shape, count)
        norms[label] = role.group_norms[label] * 2.0 ** -fraction_bits_of(label) * math.sqrt(larger)
    return norms


def _size_of_group(shape: Shape, batch_size: int) -> int:
    return group_size(shape[0], batch_size * math.prod(shape[1:]))


def _targets(terms: StepTerms, generator: torch.Generator) -> Tensor:
    num_outputs = terms.circuit.output.size
    if terms.loss == "ce":
        return torch.randint(0, num_outputs, (terms.batch_size,), generator=generator)
    return torch.randn(terms.batch_size, num_outputs, generator=generator)
