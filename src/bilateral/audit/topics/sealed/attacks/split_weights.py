"""Servers of sealed training that do not follow the protocol: nobody can look into what is masked, or compare it.

`CraftingServer` sets limits that no number leaves, whatever model it trains: limits are its own secret. `SplitServer`
sends one client its weights, and all others weights of zero.

Clients of sealed training are shown the same `SealedModel`, which has no parameters; what they compute on is theirs
alone. All others' gradients vanish but for the head's bias, and the sum is the victim's gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Self

import torch

from bilateral.learning.halves import ServerHalf
from bilateral.protections.sealed.messages import SealedWeights
from bilateral.protections.sealed.server import SealedServer
from bilateral.protocols.share.circuit.plaintext import PrivateLayer
from bilateral.protocols.share.training.roles import FirstModel
from bilateral.protocols.share.training.terms import StepTerms

_NO_LIMIT: Final = 1 << 57
_TINY: Final = 1
"""In units of the last place: a layer of zeros has no bits to be applied by."""


class CraftingServer(SealedServer):
    """The real server's half, but for the limits that it begins steps with."""

    @classmethod
    def of(cls, half: ServerHalf) -> Self:
        """The same half, which no longer follows the protocol."""
        made = cls.__new__(cls)
        made.__dict__.update(half.__dict__)
        return made

    def _begin(self, name: str, index: int, dealt: Any, model: FirstModel) -> SealedWeights:
        return super()._begin(name, index, dealt, replace(model, limits=dict.fromkeys(model.limits, _NO_LIMIT)))


class SplitServer(CraftingServer):
    """The same, with weights for one client alone."""

    victim: str = ""

    @classmethod
    def against(cls, half: ServerHalf, victim: str) -> Self:
        """The half, against one client."""
        made = cls.of(half)
        made.victim = victim
        return made

    def _begin(self, name: str, index: int, dealt: Any, model: FirstModel) -> SealedWeights:
        begun = model if name == self.victim else _of_zeros(self._terms.step(name, index), model)
        return super()._begin(name, index, dealt, begun)


def _of_zeros(terms: StepTerms, model: FirstModel) -> FirstModel:
    layers = []
    for layer in model.layers:
        weight = torch.zeros_like(layer.weight)
        weight.reshape(-1)[0] = _TINY
        layers.append(PrivateLayer(weight, torch.zeros_like(layer.bias)))
    return FirstModel.of(terms, layers, model.limits)
