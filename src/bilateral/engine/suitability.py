"""Which protections take a network, and why others do not: the answer of `bilateral inspect` to any module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import layout_of
from bilateral.errors import BilateralError
from bilateral.learning.problem import Problem
from bilateral.models.layout import ModelLayout
from bilateral.protections.fedavg.protection import FEDAVG
from bilateral.protections.sound.protection import SOUND
from bilateral.protocols.objective import make_objective

_BESIDES: dict[str, dict[str, object]] = {
    f"fedsgd + {SOUND} noise": {"protection": FEDAVG, "noise.mechanism": SOUND, "noise.epsilon": 8.0}
}


@dataclass(frozen=True)
class Suitability:
    """Of one stack of protections: `refusal` is empty if it takes the network."""

    protection: str
    refusal: str

    @property
    def takes_it(self) -> bool:
        return not self.refusal


def suitability(model: nn.Module, examples: Tensor, num_outputs: int) -> tuple[Suitability, ...]:
    """What each rung of the ladder, and sound noise over the plain model, says to this network on such inputs."""
    return tuple(_asked(model, examples, num_outputs))


def _asked(model: nn.Module, examples: Tensor, num_outputs: int) -> Iterator[Suitability]:
    rungs: dict[str, dict[str, object]] = {
        "fedsgd": {"protection": FEDAVG},
        "masks": {"protection": "masks"},
        **_BESIDES,
        "perturbation": {"protection": "perturbation"},
        "sealed": {"protection": "sealed"},
    }
    objective, input_shape = make_objective("ce", "classification"), tuple(examples.shape[1:])
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
