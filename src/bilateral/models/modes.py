"""Which layers stay in evaluation mode while a network is trained: the user decides, in one of two usual ways.

    def train(self, mode=True):             model.train()
        super().train(mode)                 model.bn.eval()
        self.bn.eval()

A model that is in evaluation mode as a whole says nothing about its layers: it is trained as `train()` sets it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

from torch import nn

_KEPT: Final = "bilateral_kept_in_evaluation"


def kept_in_evaluation(model: nn.Module) -> tuple[str, ...]:
    """Names of the modules that stay in evaluation mode in training."""
    noted = getattr(model, _KEPT, None)
    if noted is not None:
        return tuple(noted)
    by_hand = {name for name, m in _named(model) if not m.training} if model.training else set()
    return tuple(sorted(by_hand | {name for name, m in _named(copy.deepcopy(model).train()) if not m.training}))


def note_kept_in_evaluation(model: nn.Module, names: Collection[str]) -> None:
    """Make `model`, a rewritten network whose class has lost the user's `train`, remember what it kept."""
    setattr(model, _KEPT, tuple(names))


def set_training(model: nn.Module, kept: Collection[str]) -> nn.Module:
    """Training mode, except for the modules in `kept`."""
    model.train()
    for name, module in _named(model):
        if name in kept:
            module.training = False
    return model


def training_copy(model: nn.Module) -> nn.Module:
    """A copy of `model` as it is trained."""
    return set_training(copy.deepcopy(model), kept_in_evaluation(model))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; then every module's own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield from model.named_modules(remove_duplicate=False)
