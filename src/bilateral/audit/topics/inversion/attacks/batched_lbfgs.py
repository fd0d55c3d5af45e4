"""L-BFGS on many small problems at once, each with its own curvature and its own steps.

torch's L-BFGS takes one step length for everything it is given; problems that share it hold each other up.

Formal guarantee (test_gradient_matching.py): a problem's path does not depend on those beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

MEMORY = 100
"""As torch has it. Matching is badly conditioned: with 20 a third more steps are needed (CIFAR-10)."""
HALVINGS = 12
SUFFICIENT_DECREASE = 1e-4

Objective = Callable[[Tensor], Tensor]
"""problems x variables -> problems, differentiable; a row's value depends on that row alone."""


@dataclass
class _Memory:
    """The last steps and changes of the gradient, problems x variables each; a row of zeros is a pair left out."""

    steps: list[Tensor] = field(default_factory=list)
    changes: list[Tensor] = field(default_factory=list)

    def add(self, step: Tensor, change: Tensor) -> None:
        curvature = (step * change).sum(1, keepdim=True)
        good = curvature > 1e-10 * (change * change).sum(1, keepdim=True)
        self.steps.append(torch.where(good, step, torch.zeros_like(step)))
        self.changes.append(torch.where(good, change, torch.zeros_like(change)))
        del self.steps[:-MEMORY], self.changes[:-MEMORY]

    def forget(self, rows: Tensor) -> None:
        for kept in (*self.steps, *self.changes):
            kept[rows] = 0.0

    def direction(self, gradient: Tensor) -> Tensor:
        """Downhill: the two-loop recursion, row by row. Without memory, a step of length one at most."""
        result = -gradient
        pairs = list(zip(self.steps, self.changes, strict=True))
        inverses = [_inverse((s * c).sum(1, keepdim=True)) for s, c in pairs]
        projections = []
        for (step, change), inverse in zip(reversed(pairs), reversed(inverses), strict=True):
            projection = inverse * (step * result).sum(1, keepdim=True)
            result = result - projection * change
            projections.append(projection)
        result = result * self._scale(gradient, pairs)
        for (step, change), inverse, projection in zip(pairs, inverses, reversed(projections), strict=True):
            result = result + step * (projection - inverse * (change * result).sum(1, keepdim=True))
        return result

    @staticmethod
    def _scale(gradient: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
        scale = 1.0 / torch.clamp(gradient.norm(dim=1, keepdim=True), min=1.0)
        for step, change in pairs:
            curvature = (step * change).sum(1, keepdim=True)
            scale = torch.where(curvature > 0, curvature * _inverse((change * change).sum(1, keepdim=True)), scale)
        return scale


def minimise(
    objective: Objective, start: Tensor, steps: int, on_progress: Callable[[float], None] = lambda _fraction: None
) -> tuple[Tensor, Tensor]:
    """The variables after `steps` iterations, and the objective there."""
    point = start.detach().clone()
    value, gradient = _with_gradient(objective, point)
    memory = _Memory()
    for number in range(steps):
        direction = memory.direction(gradient)
        slope = (direction * gradient).sum(1)
        uphill = slope >= 0
        memory.forget(uphill)
        direction[uphill] = -gradient[uphill]
        slope = torch.where(uphill, -(gradient * gradient).sum(1), slope)
        moved = _search(objective, point, value, direction, slope)
        stuck = moved.eq(0)
        memory.forget(stuck)
        step = moved[:, None] * direction
        new_value, new_gradient = _with_gradient(objective, point + step)
        memory.add(step, new_gradient - gradient)
        point, value, gradient = point + step, new_value, new_gradient
        on_progress((number + 1) / steps)
    return point, value


def _search(objective: Objective, point: Tensor, value: Tensor, direction: Tensor, slope: Tensor) -> Tensor:
    """Each row's step length: the first of 1, 1/2, 1/4, ... that lowers its objective enough; 0 if none does."""
    length = torch.ones_like(value)
    waiting = torch.ones_like(value, dtype=torch.bool)
    for _ in range(HALVINGS):
        with torch.no_grad():
            tried = objective(point + length[:, None] * direction)
        waiting = ~(tried <= value + SUFFICIENT_DECREASE * length * slope)  # NaN waits too
        if not bool(waiting.any()):
            return length
        length = torch.where(waiting, length / 2, length)
    return torch.where(waiting, torch.zeros_like(length), length)


def _with_gradient(objective: Objective, point: Tensor) -> tuple[Tensor, Tensor]:
    variables = point.detach().requires_grad_()
    value = objective(variables)
    (gradient,) = torch.autograd.grad(value.sum(), variables)
    return value.detach(), torch.nan_to_num(gradient)


def _inverse(values: Tensor) -> Tensor:
    return torch.where(values > 0, 1.0 / torch.where(values > 0, values, torch.ones_like(values)), values * 0.0)
