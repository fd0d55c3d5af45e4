"""Before the first round: is what would be recovered the gradient of plain training, on this very model?

The scale graph rests on a trace, and a trace does not see everything that a module does when it trains: hooks, layers
that stay in evaluation mode, the backward pass of an `autograd.Function`, arithmetic with the number of samples. So the
server tries. On a few inputs of its own, with targets and secrets drawn for this alone:

1. plain autograd on a copy of the model as the user built it (its modes, its hooks), in float64
2. both halves of perturbation on copies in float64, for two batch sizes, in the clients' memory format
3. gradients compared parameter by parameter, batch statistics layer by layer, outputs of an export in evaluation mode
4. the same in the model's own precision, loosely: plain rounding there may itself be large

A difference beyond rounding is an error that names the parameter (`RecoveryError`). Dropout is off, since its masks fall
on permuted channels. Kinks are no fault: a first failure is tried twice more with other inputs and secrets, and two of
the three must be right. The run's own random streams are not touched, and neither is the model.

Formal guarantee (tests/protocols/test_recovery_check.py): each way of training something else than the trace shows,
that we know of, is found; models that are recovered exactly pass.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.errors import BilateralError, ModelError, RecoveryError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate, Upload, aggregate
from bilateral.protocols.perturb.check_arithmetic import CheckArithmetic
from bilateral.protocols.perturb.export import perturbed_state
from bilateral.protocols.perturb.settings import Loss
from bilateral.protocols.statistics import batch_statistics, collect_batch_statistics
from bilateral.randomness import Randomness, SeededRandomness

BATCH_SIZES: Final = (4, 3)
LIMIT: Final = 1e-8
"""Of |difference| / (|gradient of the parameter| + SHARE |whole gradient|), in float64."""
SHARE: Final = 1e-3
SCALED_LIMIT: Final = 1e-4
"""With `norm_inputs = "scaled"`, where normalisation layers have a tiny eps for the check."""
LOOSE_LIMIT: Final = 0.02
"""Of the whole gradient in the model's own precision, or 10 times what plain autograd is off by, if that is more."""
_HIDDEN = (
    "Something acts in training that the trace of the model does not show: a hook, a layer kept in evaluation mode, an "
    "autograd.Function with a backward pass of its own, arithmetic with the batch size. Take it out, or train with "
    "protection = 'fedavg'."
)
_ROUNDING = "Lower perturbation.noise_ratio, use perturbation.noise = 'offset', or train in float64 (training.dtype)."


class CheckedServer(Protocol):
    """The server's half, as far as the check needs it."""

    def start_round(self, round_index: int) -> Any: ...

    def answer(self, sender: str, message: Any) -> Any: ...

    def recover(self, total: Aggregate) -> RecoveredUpdate: ...


class CheckedClient(Protocol):
    """The client's half."""

    def train(self, message: Any, inputs: Tensor, targets: Tensor, weight: int) -> Message: ...

    def receive(self, message: Any) -> Upload: ...


MakeHalves = Callable[[nn.Module, Tensor, Randomness], tuple[CheckedServer, CheckedClient]]
"""Both halves around a model, from inputs for sizing noise and a source of secrets."""


@dataclass(frozen=True)
class RecoveryReport:
    """How far the recovered gradient is from plain autograd's, both in float64, and the parameter where it is most."""

    error: float
    parameter: str
    dtype: str = "float64"

    def __str__(self) -> str:
        return f"recovery checked: {self.error:.0e} against plain autograd in {self.dtype}"


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

    def _attempt(self, model: nn.Module, number: int) -> _Finding:
        randomness = SeededRandomness(number, "recovery check")
        worst: _Finding | None = None
        for size in BATCH_SIZES:
            found = self._with_batch(model, size, randomness.child(size))
            if not found.is_fine:
                return found
            if worst is None or found.report.error > worst.report.error:
                worst = found
        assert worst is not None
        return worst

    def _with_batch(self, model: nn.Module, size: int, randomness: Randomness) -> _Finding:
        dtype = next(model.parameters()).dtype
        inputs, targets = self._batch(model, size, dtype, randomness)
        trial = _Trial(self.graph, self.loss, self.make_halves, model, inputs, targets, randomness)
        try:
            plain = trial.plain(torch.float64)
        except RuntimeError as error:  # a constant in another precision, for one
            return trial.in_own_precision(_explained(error, trial, dtype))
        found = trial.against(plain)
        if not found.is_fine or size != BATCH_SIZES[0]:
            return found
        own = trial.in_own_precision(plain.gradient) if self._compares_own(dtype) else found
        outputs = self._export(model, inputs, randomness)
        return next((f for f in (own, outputs) if f is not None and not f.is_fine), found)

    def _compares_own(self, dtype: torch.dtype) -> bool:
        return dtype != torch.float64 and not _is_scaled(self.graph)

    def _batch(self, model: nn.Module, size: int, dtype: torch.dtype, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """Inputs like the examples in the first batch; in the second normal ones of their size, if the model takes them.

        In the model's precision, so that every arithmetic gets the same ones.
        """
        known = self.examples.double()
        spread = known.square().mean().sqrt() if len(known) else torch.zeros(())
        scale = float(spread) or 1.0
        normal = randomness.normal(size, *self.examples.shape[1:])
        inputs = scale * normal
        if float(spread) > 0 and (size == BATCH_SIZES[0] or not _takes(model, inputs.to(dtype))):
            places = torch.arange(size) % len(known)
            inputs = known[places] * (1 + 0.1 * normal)
        wanted = randomness.normal(size, self.graph.num_outputs)
        return inputs.to(dtype), wanted.argmax(1) if self.loss == "ce" else wanted.to(dtype)

    def _export(self, model: nn.Module, inputs: Tensor, randomness: Randomness) -> _Finding | None:
        """Outputs of an export in evaluation mode; None where BatchNorm keeps no statistics to export."""
        if any(not layout.tracked for layout in self.graph.statistics):
            return None
        error = export_error(model, self.graph, inputs, randomness.child("export"))
        return _Finding("the outputs of an export in evaluation mode", RecoveryReport(error, ""), LIMIT)


def export_error(model: nn.Module, graph: ScaleGraph, inputs: Tensor, randomness: Randomness) -> float:
    """How far outputs of a perturbed export are from the model's own in evaluation mode, relatively, in float64."""
    plain = copy.deepcopy(model).double().eval()
    exported = copy.deepcopy(plain)
    exported.load_state_dict(perturbed_state(plain, graph, randomness))
    with torch.no_grad(), CheckArithmetic():
        expected, got = plain(inputs.double()), exported(inputs.double())
    size = float(expected.norm())
    return float((got - expected).norm()) / (size or 1.0) if math.isfinite(size) else 0.0


@dataclass(frozen=True)
class _Gradient:
    gradient: Tensor
    statistics: Tensor


@dataclass(frozen=True)
class _Finding:
    """A comparison: what of, how far off, and how far it may be."""

    what: str
    report: RecoveryReport
    limit: float
    remedy: str = _HIDDEN

    @property
    def is_fine(self) -> bool:
        return self.report.error <= self.limit  # not so for NaN

    def as_error(self) -> RecoveryError:
        return RecoveryError(
            f"Perturbed training would not be plain training: {self.what} differ by {self.report.error:.2g} of their "
            f"size from what plain autograd finds in float64; rounding explains {self.limit:.0e}.",
            remedy=self.remedy,
        )


@dataclass(frozen=True)
class _Trial:
    """One batch, and what plain autograd and the two halves make of it."""

    graph: ScaleGraph
    loss: Loss
    make_halves: MakeHalves
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    randomness: Randomness

    def plain(self, dtype: torch.dtype, inputs: Tensor | None = None) -> _Gradient:
        """The user's model as it is: forward, loss, backward."""
        model = _copy_with_hooks(self.model, dtype)
        if not model.training:
            model.train()
        collect_batch_statistics(model)
        inputs, targets = self._in(dtype)[0] if inputs is None else inputs, self._in(dtype)[1]
        torch.manual_seed(0)
        with self._arithmetic(dtype):
            outputs = model(inputs)
            lost = F.cross_entropy(outputs, targets) if self.loss == "ce" else F.mse_loss(outputs, targets)
            lost.backward()
        found = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
        return _Gradient(self.graph.flatten(found, torch.float64), batch_statistics(model, self.graph).double())

    def recovered(self, dtype: torch.dtype) -> _Gradient:
        """By both halves, each with a copy of its own."""
        inputs, targets = self._in(dtype)
        model = copy.deepcopy(self.model).to(dtype)
        torch.manual_seed(0)
        try:
            with self._arithmetic(dtype):
                server, client = self.make_halves(model, inputs, self.randomness)
                sent: Any = client.train(server.start_round(0), inputs, targets, 1)
                if not isinstance(sent, Upload):
                    sent = client.receive(server.answer("the recovery check", sent))
                update = server.recover(aggregate({"the recovery check": sent}, 0))
        except BilateralError:
            raise
        except Exception as error:  # whatever the model's own code raises where plain autograd goes through
            raise ModelError(
                f"The model trains as it is, but a client could not train it: {type(error).__name__}: {error}",
                remedy="Use memory_format = 'default', and write its `forward` for any batch and memory format.",
            ) from error
        return _Gradient(update.gradient.double(), update.statistics.double())

    def against(self, plain: _Gradient) -> _Finding:
        """Parameter by parameter, and batch statistics layer by layer."""
        recovered = self.recovered(torch.float64)
        worst = self._worst(recovered.gradient, plain.gradient)
        limit = SCALED_LIMIT if _is_scaled(self.graph) else LIMIT
        if worst.error > limit:  # a badly conditioned network: how far does rounding alone move its gradient?
            wiggle = 1 + 1e-13 * self.randomness.child("wiggle").normal(*self.inputs.shape)
            moved = self.plain(torch.float64, self.inputs.double() * wiggle)
            limit = min(max(limit, 10 * self._worst(moved.gradient, plain.gradient).error), 1e-3)
        found = _Finding(f"the gradients of `{worst.parameter}`", worst, limit)
        if not found.is_fine:
            return found
        layer, error = self._worst_statistics(recovered.statistics, plain.statistics)
        statistics = _Finding(f"the batch statistics of `{layer}`", RecoveryReport(error, layer), limit)
        return found if statistics.is_fine else statistics

    def in_own_precision(self, true: Tensor) -> _Finding:
        """Against the gradient in float64, and beside plain autograd in the model's own precision."""
        dtype = self.inputs.dtype
        name = str(dtype).removeprefix("torch.")
        size = true.norm().clamp_min(1e-300)
        recovered, plain = self.recovered(dtype), self.plain(dtype)
        error = float((recovered.gradient - true).norm() / size)
        allowed = max(LOOSE_LIMIT, 10 * float((plain.gradient - true).norm() / size))
        worst = self._worst(recovered.gradient, true).parameter
        report = RecoveryReport(error, worst, name)
        return _Finding(f"gradients in {name} (most that of `{worst}`)", report, allowed, _ROUNDING)

    def _worst(self, found: Tensor, true: Tensor) -> RecoveryReport:
        floor = SHARE * float(true.norm())
        worst = RecoveryReport(0.0, self.graph.parameters[0].name)
        for layout in self.graph.parameters:
            size = float(true[layout.slice].norm()) + floor
            difference = float((found[layout.slice] - true[layout.slice]).norm())
            error = difference / size if size > 0 else float(difference > 0)
            if not error <= worst.error:
                worst = RecoveryReport(error, layout.name)
        return worst

    def _worst_statistics(self, found: Tensor, true: Tensor) -> tuple[str, float]:
        worst, offset = ("", 0.0), 0
        for layout in self.graph.statistics:
            if not layout.tracked:
                continue
            count = len(layout.scale_classes)
            (mean, variance), (mean_true, variance_true) = (
                (v[offset : offset + count], v[offset + count : offset + 2 * count]) for v in (found, true)
            )
            size = float(mean_true.norm() + variance_true.clamp_min(0).sqrt().norm())
            of_mean = float((mean - mean_true).norm()) / (size or 1.0)
            of_variance = float((variance - variance_true).norm()) / (float(variance_true.norm()) or 1.0)
            worst = max(worst, (layout.module, max(of_mean, of_variance)), key=lambda pair: pair[1])
            offset += 2 * count
        return worst

    def _in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.inputs.to(dtype), self.targets if self.loss == "ce" else self.targets.to(dtype)

    def _arithmetic(self, dtype: torch.dtype) -> CheckArithmetic:
        return CheckArithmetic(in_float64=dtype == torch.float64, tiny_eps=_is_scaled(self.graph))


def _is_scaled(graph: ScaleGraph) -> bool:
    return graph.norm_inputs == "scaled" and len(graph.normalised_classes) > 0


def _takes(model: nn.Module, inputs: Tensor) -> bool:
    """Whether the model's outputs are finite: one that was written for positive inputs may not take normal ones."""
    tried = copy.deepcopy(model)
    with torch.no_grad(), CheckArithmetic(in_float64=False):
        return bool(torch.isfinite(tried(inputs)).all())


def _copy_with_hooks(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy that trains as the original would: hooks of modules are copied by torch, those of parameters here."""
    copied = copy.deepcopy(model).to(dtype)
    own = dict(copied.named_parameters())
    for name, parameter in model.named_parameters():
        for hook in (getattr(parameter, "_backward_hooks", None) or {}).values():
            own[name].register_hook(hook)
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            own[name].register_post_accumulate_grad_hook(hook)
    return copied


def _explained(error: RuntimeError, trial: _Trial, dtype: torch.dtype) -> Tensor:
    """The gradient in the model's own precision, if the model trains at all."""
    try:
        return trial.plain(dtype).gradient
    except RuntimeError:
        raise ModelError(
            f"The model does not train, protected or not: {error}", remedy="Try a forward and a backward pass on it."
        ) from error
