"""The ways to invert gradients that experiments try, with one interface: gradients in, candidates for samples out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from bilateral.audit.effort import Effort
from bilateral.audit.evidence import Gate
from bilateral.audit.image_metrics import ValueRange, is_image
from bilateral.audit.scores import INPUT_ERROR, RECONSTRUCTED, SSIM
from bilateral.audit.topics.inversion.attacks.analytic import (
    first_linear,
    has_bias,
    invert_without_bias,
    row_candidates,
)
from bilateral.audit.topics.inversion.attacks.deep_leakage import deep_leakage
from bilateral.audit.topics.inversion.attacks.gradient_matching import (
    GradientModel,
    Heat,
    MatchingSettings,
    Problems,
    match_gradients,
    noise_starts,
    public_starts,
)
from bilateral.audit.topics.inversion.attacks.labels import read_label, read_labels_of_sum
from bilateral.data import Split
from bilateral.randomness import Randomness

IMAGE_GATES = (Gate(RECONSTRUCTED, 0.6), Gate(SSIM, 0.7, "median"))
TABLE_GATES = (Gate(INPUT_ERROR, 0.1, "median"),)
SMALL_STEPS = 60
"""Of L-BFGS on a small image, which has converged or is stuck by then."""
NEARLY_GREY = 0.1
"""Spread of the noise that L-BFGS starts from. From the papers' spread of one, four CIFAR-10 images of seed 100 were
7 to 11 dB worse after 300 steps: presumably the start's fine detail goes last."""
SMALL = (0.05, 1e-3)
"""Step size and total variation for small images, which start from public ones (tuned on digits)."""
LARGE = (0.1, 1e-2)
"""For larger ones, which start from noise, as Geiping et al. do (tuned on CIFAR-10): public ones are too far away."""
MOST_SMALL_PIXELS = 256
NUM_PUBLIC = 400
MOST_CANDIDATES = 64


@dataclass(frozen=True, eq=False)
class InversionTools:
    """What an attacker brings along: public samples of the kind, a budget, and randomness of its own."""

    public: Split = field(repr=False)
    bounds: ValueRange = field(repr=False)
    effort: Effort
    randomness: Randomness
    on_progress: Callable[[float], None] = lambda _fraction: None

    @property
    def labels(self) -> Tensor:
        targets = self.public.targets
        return targets if targets.dim() == 1 and not targets.is_floating_point() else targets.argmax(1)

    @property
    def has_labels(self) -> bool:
        """Whether samples have a class at all; regression sets do not."""
        return not self.public.targets.is_floating_point() or bool((self.public.targets.sum(1) == 1).all())


@dataclass(frozen=True, eq=False)
class Observed:
    """Gradients with the parameters they belong to (problems x parameters), and the number of samples behind each."""

    model: GradientModel
    parameters: Tensor
    gradients: Tensor
    count: int = 1


Invert = Callable[[Observed, InversionTools], list[Tensor]]
"""For every gradient, candidates x sample."""


@dataclass(frozen=True)
class Method:
    """An attack by its name. The first candidate is its guess where one sample is behind the gradient."""

    name: str
    invert: Invert


def read_targets(observed: Observed, tools: InversionTools) -> Tensor:
    """problems x count x outputs: the labels that the head's gradient shows, one-hot."""
    rows = []
    for parameters, gradient in zip(observed.parameters, observed.gradients, strict=True):
        if observed.count == 1:
            labels = torch.tensor([read_label(observed.model, parameters, gradient)])
        else:
            labels = read_labels_of_sum(observed.model, parameters, gradient, observed.count, tools.public.inputs)
        rows.append(F.one_hot(labels, observed.model.graph.num_outputs).to(gradient.dtype))
    return torch.stack(rows)


def _is_small(shape: tuple[int, ...]) -> bool:
    return math.prod(shape[1:]) <= MOST_SMALL_PIXELS


def _race(effort: Effort) -> tuple[Heat, ...]:
    """Eight starts run a tenth of the steps, the best two four tenths: one start with all the steps gets stuck.

    Tuned on seeds 101 to 106 of the default plan (LeNet on digits), which no stored audit uses.
    """
    return Heat(8 * effort.restarts, effort.steps // 10), Heat(2 * effort.restarts, effort.steps * 4 // 10)


def _by_matching(observed: Observed, tools: InversionTools) -> list[Tensor]:
    problems = Problems(observed.parameters, observed.gradients, read_targets(observed, tools))
    draws, shape = tools.randomness.child("starts"), tuple(tools.public.inputs.shape[1:])
    small, effort = _is_small(shape), tools.effort
    heats = _race(effort) if small else (Heat(effort.restarts, effort.steps),)
    settings = MatchingSettings(heats, *(SMALL if small else LARGE))
    if small:
        starts = public_starts(observed.model, problems, tools.public.inputs, tools.labels, settings.num_starts, draws)
    else:
        starts = noise_starts(problems, shape, settings.num_starts, draws)
    found = match_gradients(observed.model, problems, starts, tools.bounds, settings, tools.on_progress)
    return list(found.samples)


def _by_deep_leakage(observed: Observed, tools: InversionTools, *, reads_labels: bool) -> list[Tensor]:
    targets = read_targets(observed, tools)
    problems = Problems(observed.parameters, observed.gradients, targets)
    shape, num_starts = tuple(tools.public.inputs.shape[1:]), tools.effort.restarts
    starts = noise_starts(problems, shape, num_starts, tools.randomness.child("starts"), NEARLY_GREY)
    labels = None
    if not reads_labels:
        labels = tools.randomness.child("labels").normal(len(targets), num_starts, *targets.shape[1:])
    steps = min(SMALL_STEPS, tools.effort.steps) if _is_small(shape) else tools.effort.steps
    found = deep_leakage(
        observed.model, problems, starts, tools.bounds, steps, label_starts=labels, on_progress=tools.on_progress
    )
    return list(found.samples)


def _by_first_layer(observed: Observed, tools: InversionTools) -> list[Tensor]:
    shape = tuple(tools.public.inputs.shape[1:])
    layer = first_linear(observed.model.network, shape)
    assert layer is not None, "this attack is for networks that begin with a Linear"
    graph = observed.model.graph
    found = []
    for parameters, gradient in zip(observed.parameters, observed.gradients, strict=True):
        if has_bias(graph, layer):
            rows = row_candidates(graph, layer, gradient)[:MOST_CANDIDATES]
        else:
            lengths = tools.public.inputs.flatten(1).norm(dim=1)
            span = (max(1e-3, float(lengths.min()) / 2), 2 * float(lengths.max()))
            label = torch.tensor(read_label(observed.model, parameters, gradient))
            target = F.one_hot(label, graph.num_outputs).to(gradient.dtype)
            rows = invert_without_bias(observed.model, layer, parameters, gradient, target, span, shape)[None]
        if len(rows) == 0:  # a gradient of zeros
            rows = torch.zeros(1, tools.public.inputs[0].numel(), dtype=torch.float64)
        found.append(tools.bounds.clamp(rows.view(len(rows), *shape).to(tools.public.inputs.dtype)))
    return found


MATCHING = Method("gradient matching, cosine and total variation (Geiping)", _by_matching)
DLG = Method("DLG", lambda observed, tools: _by_deep_leakage(observed, tools, reads_labels=False))
IDLG = Method("iDLG", lambda observed, tools: _by_deep_leakage(observed, tools, reads_labels=True))
ANALYTIC = Method("inversion of the first layer", _by_first_layer)


def best_method(model: GradientModel, tools: InversionTools) -> Method | None:
    """What works best on a network: exactly where it begins with a Linear, by matching on images; None for others."""
    shape = tuple(tools.public.inputs.shape[1:])
    layer = first_linear(model.network, shape)
    if layer is not None and (tools.has_labels or has_bias(model.graph, layer)):
        return ANALYTIC
    return MATCHING if is_image(tools.public.inputs[0]) and tools.has_labels else None


def gates_for(sample: Tensor) -> tuple[Gate, ...]:
    return IMAGE_GATES if is_image(sample) else TABLE_GATES
