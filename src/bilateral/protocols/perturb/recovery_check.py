"""Before the first round: is what would be recovered the gradient of plain training, on this very model?

The scale graph rests on a trace, and a trace does not see everything that a module does when it trains: hooks, layers
that stay in evaluation mode, the backward pass of an `autograd.Function`, arithmetic with the number of samples. So the
server tries. On a few inputs of its own, with targets and secrets drawn for this alone:

1. plain autograd on a copy of the model as the user built it (its modes, its hooks), in float64
2. both halves of perturbation on copies in float64, for two batch sizes, in the clients' memory format
3. gradients compared parameter by parameter, batch statistics layer by layer, outputs of an export in evaluation mode
4. the same in the model's own precision, loosely: plain rounding there may itself be large

A difference beyond rounding is an error that names the parameter (`RecoveryError`). Dropout is off, since its masks
fall on permuted channels. Kinks are no fault: a first failure is tried twice more with other inputs and secrets, and
two of the three must be right. The run's own random streams are not touched, and neither is the model.

Formal guarantee (tests/protocols/test_recovery_check.py): each way of training something else than the trace shows,
that we know of, is found; models that are recovered exactly pass.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from bilateral.models.integer_inputs import integers_below
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.perturb.check_arithmetic import CheckArithmetic
from bilateral.protocols.perturb.export import perturbed_state
from bilateral.protocols.perturb.recovery_trial import (
    LIMIT,
    LOOSE_LIMIT,
    Finding,
    MakeHalves,
    RecoveryReport,
    Trial,
    is_scaled,
)
from bilateral.protocols.perturb.settings import Loss
from bilateral.randomness import Randomness, SeededRandomness

BATCH_SIZES: Final = (4, 3)
LARGE: Final = 30_000_000
"""Parameters beyond which a check in float64 would take more memory than a round does: the model's precision it is."""


@dataclass(frozen=True)
class RecoveryCheck:
    """Recovery of one model under one setting."""

    graph: ScaleGraph
    loss: Loss
    make_halves: MakeHalves
    examples: Tensor
    """A few inputs of the server's own."""

    def run(self, model: nn.Module) -> RecoveryReport:
        """Raises `RecoveryError` where the recovered gradient is not plain autograd's. `model` is not changed."""
        with torch.random.fork_rng(devices=[]):
            reports = [self._attempt(model, 0)]
            if reports[0].is_fine:
                return reports[0].report
            reports += [self._attempt(model, number) for number in (1, 2)]
            fine = [found for found in reports if found.is_fine]
            if len(fine) < 2:
                raise next(found for found in reports if not found.is_fine).as_error()
            return fine[0].report

    def _attempt(self, model: nn.Module, number: int) -> Finding:
        randomness = SeededRandomness(number, "recovery check")
        worst: Finding | None = None
        for size in BATCH_SIZES:
            found = self._with_batch(model, size, randomness.child(size))
            if not found.is_fine:
                return found
            if worst is None or found.report.error > worst.report.error:
                worst = found
        assert worst is not None
        return worst

    def _with_batch(self, model: nn.Module, size: int, randomness: Randomness) -> Finding:
        dtype = next(model.parameters()).dtype
        inputs, targets = self._batch(model, size, dtype, randomness)
        trial = Trial(self.graph, self.loss, self.make_halves, model, inputs, targets, randomness)
        if dtype != torch.float64 and self.graph.num_parameters > LARGE:
            return trial.in_own_precision_alone()
        try:
            plain = trial.plain(torch.float64)
        except RuntimeError:  # a constant in another precision, for one
            return trial.in_own_precision_alone()
        found = trial.against(plain)
        if not found.is_fine or size != BATCH_SIZES[0]:
            return found
        own = trial.in_own_precision(plain.gradient) if self._compares_own(dtype) else found
        outputs = self._export(model, inputs, randomness)
        return next((f for f in (own, outputs) if f is not None and not f.is_fine), found)

    def _compares_own(self, dtype: torch.dtype) -> bool:
        return dtype != torch.float64 and not is_scaled(self.graph)

    def _batch(self, model: nn.Module, size: int, dtype: torch.dtype, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """Inputs like the examples in the first batch; in the second normal ones, if the model takes them.

        In the model's precision, so that every arithmetic gets the same ones. Integers: examples, then any that the
        model's tables have rows for.
        """
        if self.graph.vocabulary is not None:
            return self._integers(size, randomness), self._targets(size, dtype, randomness.child("targets"))
        known = self.examples.double()
        spread = known.square().mean().sqrt() if len(known) else torch.zeros(())
        scale = float(spread) or 1.0
        normal = randomness.normal(size, *self.examples.shape[1:])
        inputs = scale * normal
        if float(spread) > 0 and (size == BATCH_SIZES[0] or not _takes(model, inputs.to(dtype))):
            places = torch.arange(size) % len(known)
            inputs = known[places] * (1 + 0.1 * normal)
        return inputs.to(dtype), self._targets(size, dtype, randomness)

    def _targets(self, size: int, dtype: torch.dtype, randomness: Randomness) -> Tensor:
        wanted = randomness.normal(size, self.graph.num_outputs)
        return wanted.argmax(1) if self.loss == "ce" else wanted.to(dtype)

    def _integers(self, size: int, randomness: Randomness) -> Tensor:
        assert self.graph.vocabulary is not None
        if size == BATCH_SIZES[0] and bool(self.examples.any()):
            return self.examples[torch.arange(size) % len(self.examples)]
        uniform = randomness.uniform(size, *self.graph.input_shape, low=0.0, high=1.0)
        return integers_below(self.graph.vocabulary, uniform)

    def _export(self, model: nn.Module, inputs: Tensor, randomness: Randomness) -> Finding | None:
        """Outputs of an export in evaluation mode; None where BatchNorm keeps no statistics to export."""
        if any(not layout.tracked for layout in self.graph.statistics):
            return None
        return _export_finding(model, self.graph, inputs, randomness.child("export"))


def check_export(model: nn.Module, graph: ScaleGraph, inputs: Tensor) -> None:
    """Refuse to export a model whose perturbed parameters predict something else than its own do."""
    found = _export_finding(model, graph, inputs, SeededRandomness(0, "recovery check", "export"))
    if not found.is_fine:
        raise found.as_error()


def _export_finding(model: nn.Module, graph: ScaleGraph, inputs: Tensor, randomness: Randomness) -> Finding:
    own = next(model.parameters()).dtype
    wide = graph.num_parameters <= LARGE or own == torch.float64
    error = export_error(model, graph, inputs, randomness, torch.float64 if wide else own)
    what = "the outputs of an export in evaluation mode"
    return Finding(what, RecoveryReport(error, ""), LIMIT if wide else LOOSE_LIMIT)


def export_error(
    model: nn.Module, graph: ScaleGraph, inputs: Tensor, randomness: Randomness, dtype: torch.dtype = torch.float64
) -> float:
    """How far outputs of a perturbed export are from the model's own in evaluation mode, relatively."""
    plain = copy.deepcopy(model).to(dtype).eval()
    exported = copy.deepcopy(plain)
    exported.load_state_dict(perturbed_state(plain, graph, randomness))
    with torch.no_grad(), CheckArithmetic(in_float64=dtype == torch.float64):
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        expected, got = plain(inputs), exported(inputs)
    size = float(expected.norm())
    return float((got - expected).norm()) / (size or 1.0) if math.isfinite(size) else 0.0


def _takes(model: nn.Module, inputs: Tensor) -> bool:
    """Whether the model's outputs are finite: one that was written for positive inputs may not take normal ones."""
    tried = copy.deepcopy(model)
    with torch.no_grad(), CheckArithmetic(in_float64=False):
        return bool(torch.isfinite(tried(inputs)).all())
