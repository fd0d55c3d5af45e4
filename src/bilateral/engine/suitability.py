"""Which protections take a network, and why others do not: the answer of `bilateral inspect` to any module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import layout_of
from bilateral.errors import BilateralError
from bilateral.learning.problem import Problem
from bilateral.models.layout import ModelLayout
from bilateral.protections.fedavg.protection import FEDAVG
from bilateral.protections.sound.protection import SOUND
from bilateral.protocols.objective import make_objective

_BESIDES: dict[str, dict[str, object]] = {
    f"{FEDAVG} + {SOUND} noise": {"protection": FEDAVG, "noise.mechanism": SOUND, "noise.epsilon": 8.0}
}


@dataclass(frozen=True)
class Suitability:
    """Of one stack of protections: `refusal` is empty if it takes the network."""

    protection: str
    refusal: str

    @property
    def takes_it(self) -> bool:
        return not self.refusal


def suitability(model: nn.Module, input_shape: tuple[int, ...], num_outputs: int) -> tuple[Suitability, ...]:
    """What each rung of the ladder, and sound noise over the plain model, says to this network."""
    return tuple(_asked(model, input_shape, num_outputs))


def _asked(model: nn.Module, input_shape: tuple[int, ...], num_outputs: int) -> Iterator[Suitability]:
    rungs: dict[str, dict[str, object]] = {
        FEDAVG: {"protection": FEDAVG},
        "masks": {"protection": "masks"},
        **_BESIDES,
        "perturbation": {"protection": "perturbation"},
        "sealed": {"protection": "sealed"},
    }
    objective, examples = make_objective("ce", "classification"), torch.zeros(2, *input_shape)
    problem = Problem("the data", "classification", input_shape, num_outputs, objective, examples)
    for name, settings in rungs.items():
        plan = RunPlan().with_settings(settings)
        try:
            layout: ModelLayout = layout_of(plan, model, problem)
            for protection in plan.chosen.each:
                protection.check_network(model, layout)
        except BilateralError as error:
            yield Suitability(name, str(error))
        else:
            yield Suitability(name, "")
