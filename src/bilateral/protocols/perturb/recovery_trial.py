"""One batch of the recovery check: plain autograd, both halves of perturbation, and how far they are apart."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.errors import BilateralError, ModelError, RecoveryError
from bilateral.models.modes import kept_in_evaluation, set_training
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import Aggregate, Message, RecoveredUpdate, Upload, aggregate
from bilateral.protocols.perturb.check_arithmetic import CheckArithmetic
from bilateral.protocols.perturb.settings import Loss
from bilateral.protocols.statistics import batch_statistics, collect_batch_statistics
from bilateral.randomness import Randomness

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
    "protection = 'fedsgd'."
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
class Gradient:
    gradient: Tensor
    statistics: Tensor


@dataclass(frozen=True)
class Finding:
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
            f"size from what plain autograd finds; rounding explains {self.limit:.0e}.",
            remedy=self.remedy,
        )


@dataclass(frozen=True)
class Trial:
    """One batch, and what plain autograd and the two halves make of it."""

    graph: ScaleGraph
    loss: Loss
    make_halves: MakeHalves
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    randomness: Randomness

    def plain(self, dtype: torch.dtype, inputs: Tensor | None = None) -> Gradient:
        """The user's model as it is: forward, loss, backward."""
        model = _copy_with_hooks(self.model, dtype)
        set_training(model, kept_in_evaluation(self.model))
        collect_batch_statistics(model)
        inputs, targets = self._in(dtype)[0] if inputs is None else inputs, self._in(dtype)[1]
        torch.default_generator.manual_seed(0)
        with self._arithmetic(dtype):
            outputs = model(inputs)
            lost = F.cross_entropy(outputs, targets) if self.loss == "ce" else F.mse_loss(outputs, targets)
            lost.backward()  # type: ignore[no-untyped-call]
        found = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
        return Gradient(self.graph.flatten(found, torch.float64), batch_statistics(model, self.graph).double())

    def recovered(self, dtype: torch.dtype) -> Gradient:
        """By both halves, each with a copy of its own."""
        inputs, targets = self._in(dtype)
        model = copy.deepcopy(self.model).to(dtype)
        torch.default_generator.manual_seed(0)
        try:
            with self._arithmetic(dtype):
                server, client = self.make_halves(model, inputs, self.randomness)
                sent: Any = client.train(server.start_round(0), inputs, targets, 1)
                if not isinstance(sent, Upload):
                    sent = client.receive(server.answer("the recovery check", sent))
                del client  # of a large network every piece counts: this is in float64
                total = aggregate({"the recovery check": sent}, 0)
                del sent
                update = server.recover(total)
        except BilateralError:
            raise
        except Exception as error:  # whatever the model's own code raises where plain autograd goes through
            raise ModelError(
                f"The model trains as it is, but a client could not train it: {type(error).__name__}: {error}",
                remedy="Use memory_format = 'default', and write its `forward` for any batch and memory format.",
            ) from error
        return Gradient(update.gradient.double(), update.statistics.double())

    def against(self, plain: Gradient) -> Finding:
        """Parameter by parameter, and batch statistics layer by layer."""
        recovered = self.recovered(torch.float64)
        worst = self._worst(recovered.gradient, plain.gradient)
        limit = SCALED_LIMIT if is_scaled(self.graph) else LIMIT
        if worst.error > limit:  # a badly conditioned network: how far does rounding alone move its gradient?
            moved = self._moved(torch.float64, 1e-13)
            limit = min(max(limit, 10 * self._worst(moved.gradient, plain.gradient).error), 1e-3)
        found = Finding(f"the gradients of `{worst.parameter}`", worst, limit)
        if not found.is_fine:
            return found
        layer, error = self._worst_statistics(recovered.statistics, plain.statistics)
        statistics = Finding(f"the batch statistics of `{layer}`", RecoveryReport(error, layer), limit)
        return found if statistics.is_fine else statistics

    def in_own_precision(self, true: Tensor) -> Finding:
        """Against the gradient in float64, and beside plain autograd in the model's own precision."""
        dtype = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        name = str(dtype).removeprefix("torch.")
        size = true.norm().clamp_min(1e-300)
        recovered, plain = self.recovered(dtype), self.plain(dtype)
        error = float((recovered.gradient - true).norm() / size)
        allowed = max(LOOSE_LIMIT, 10 * float((plain.gradient - true).norm() / size))
        worst = self._worst(recovered.gradient, true).parameter
        report = RecoveryReport(error, worst, name)
        return Finding(f"gradients in {name} (most that of `{worst}`)", report, allowed, _ROUNDING)

    def in_own_precision_alone(self) -> Finding:
        """Where float64 is not possible: both in the own precision, beside what rounding does to the plain one."""
        dtype = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        name = str(dtype).removeprefix("torch.")
        try:
            plain = self.plain(dtype).gradient
        except RuntimeError as error:
            raise ModelError(
                f"The model does not train, protected or not: {error}",
                remedy="Try a forward and a backward pass on it.",
            ) from error
        difference, size = self.recovered(dtype).gradient.sub_(plain), plain.norm().clamp_min(1e-300)
        found, allowed = float(difference.norm() / size), LOOSE_LIMIT
        if found > allowed:
            moved = self._moved(dtype, 1e-6).gradient
            allowed = min(max(allowed, 10 * float((moved - plain).norm() / size)), 0.5)
        worst = self._worst(difference.add_(plain), plain).parameter
        return Finding(f"gradients in {name} (most that of `{worst}`)", RecoveryReport(found, worst, name), allowed)

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

    def _moved(self, dtype: torch.dtype, size: float) -> Gradient:
        """The plain gradient with inputs that differ by rounding; integers have none, so parameters do."""
        if not self.inputs.is_floating_point():
            model = copy.deepcopy(self.model)
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1 + size * self.randomness.child("wiggle").normal(*p.shape).to(p.dtype))
            return replace(self, model=model).plain(dtype)
        wiggle = 1 + size * self.randomness.child("wiggle").normal(*self.inputs.shape)
        return self.plain(dtype, (self.inputs.double() * wiggle).to(dtype))

    def _in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        inputs = self.inputs.to(dtype) if self.inputs.is_floating_point() else self.inputs
        return inputs, self.targets if self.loss == "ce" else self.targets.to(dtype)

    def _arithmetic(self, dtype: torch.dtype) -> CheckArithmetic:
        return CheckArithmetic(in_float64=dtype == torch.float64, tiny_eps=is_scaled(self.graph))


def is_scaled(graph: ScaleGraph) -> bool:
    return graph.norm_inputs == "scaled" and len(graph.normalised_classes) > 0


def _copy_with_hooks(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy that trains as the original would: hooks of modules are copied by torch, those of parameters here."""
    copied = copy.deepcopy(model).to(dtype)
    own = dict(copied.named_parameters())
    for name, parameter in model.named_parameters():
        for hook in (getattr(parameter, "_backward_hooks", None) or {}).values():
            own[name].register_hook(hook)  # type: ignore[no-untyped-call]
        for hook in (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values():
            own[name].register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return copied
