"""Training a network on soft labels, and asking it for outputs and features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.data import random_flip_crop
from bilateral.errors import ModelError, NumericalRangeError
from bilateral.learning.hetero.settings import LocalTrainingSettings, RetrainingSettings
from bilateral.models.zoo.layers import HEAD
from bilateral.protocols.local_model import channels_last_is_safe

PREDICTION_BATCH = 256
_WARMUP: Final = 0.1
_WARMUP_START: Final = 0.05
"""Without a warm-up, narrow networks without shortcuts sometimes end with all units off."""


@dataclass(frozen=True, eq=False)
class SoftSamples:
    """Inputs, a probability vector for each, and a weight for each in the loss."""

    inputs: Tensor
    probabilities: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def and_then(self, other: SoftSamples) -> SoftSamples:
        return SoftSamples(
            torch.cat([self.inputs, other.inputs]),
            torch.cat([self.probabilities, other.probabilities]),
            torch.cat([self.weights, other.weights]),
        )


@dataclass(frozen=True)
class Course:
    """How a network is fitted: the optimiser, how long, and the learning rate at each share of the way."""

    optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    rate: Callable[[float], float]
    epochs: int
    batch_size: int
    max_steps: int | None = None
    augment: bool = False

    def num_steps(self, num_samples: int) -> int:
        steps = self.epochs * _batches_an_epoch(num_samples, self.batch_size)
        return steps if self.max_steps is None else min(steps, self.max_steps)

    def as_long_as(self, num_samples: int) -> Course:
        """A course of as many steps as this one takes on so many samples, whatever the number there are."""
        steps = self.num_steps(num_samples)
        return replace(self, epochs=steps, max_steps=steps)


def local_course(settings: LocalTrainingSettings) -> Course:
    """SGD with momentum; the rate rises over the first tenth of the steps and then follows a cosine down to 0."""
    rate = settings.learning_rate
    return Course(
        lambda parameters: (
            torch.optim.SGD(
                parameters, lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay, nesterov=True
            )
            if settings.momentum
            else torch.optim.SGD(parameters, lr=rate, weight_decay=settings.weight_decay)
        ),
        lambda progress: (
            rate * min(1.0, _WARMUP_START + progress / _WARMUP) * 0.5 * (1.0 + math.cos(math.pi * progress))
        ),
        settings.epochs,
        settings.batch_size,
        augment=settings.augment,
    )


def retraining_course(settings: RetrainingSettings) -> Course:
    """Adam; a tenth of the learning rate after half of the steps (P4 appendix F)."""
    rate = settings.learning_rate
    return Course(
        lambda parameters: torch.optim.Adam(parameters, lr=rate),
        lambda progress: rate if progress < 0.5 else rate / 10,
        settings.epochs,
        settings.batch_size,
        settings.max_steps,
        settings.augment,
    )


def fit(model: nn.Module, samples: SoftSamples, course: Course, generator: torch.Generator) -> None:
    """Minimise the weighted cross entropy to the samples' probabilities; afterwards the model is in eval mode.

    The result depends on the model, the samples and the generator only: dropout draws from a fork of torch's own
    generator.
    """
    optimiser = course.optimiser([p for p in model.parameters() if p.requires_grad])
    num_steps = course.num_steps(len(samples))
    loss = torch.zeros(())
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        for step, batch in enumerate(_batches(len(samples), course.batch_size, num_steps, generator)):
            for group in optimiser.param_groups:
                group["lr"] = course.rate(step / num_steps)
            inputs = samples.inputs[batch]
            if course.augment:
                inputs = random_flip_crop(inputs, generator)
            logits = model(inputs.contiguous(memory_format=_format_of(model, inputs)))
            losses = -(samples.probabilities[batch] * F.log_softmax(logits, 1)).sum(1)
            weights = samples.weights[batch]
            loss = (weights * losses).sum() / weights.sum()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    model.eval()
    if not torch.isfinite(loss):
        raise NumericalRangeError("The training diverged: its loss is not finite.", remedy="Lower the learning rate.")


def predict(model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's outputs in eval mode, batch by batch; its mode is as before afterwards."""
    with _evaluating(model), torch.no_grad():
        memory = _format_of(model, inputs)
        return torch.cat(
            [model(part.contiguous(memory_format=memory)) for part in torch.split(inputs, PREDICTION_BATCH)]
        )


def logits_and_features(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The model's outputs, and what goes into its output layer: the features that selections look at."""
    features: list[Tensor] = []
    hook = output_layer(model).register_forward_pre_hook(lambda _, args: features.append(args[0].detach()))
    try:
        logits = predict(model, inputs)
    finally:
        hook.remove()
    return logits, torch.cat(features).flatten(1)


def output_layer(model: nn.Module) -> nn.Linear:
    """`head`, as in all networks of the zoo, or else the last Linear layer."""
    layers = dict(model.named_modules())
    candidates = [layers.get(HEAD), *reversed(list(layers.values()))]
    for layer in candidates:
        if isinstance(layer, nn.Linear):
            return layer
    raise ModelError(
        f"Expected a network that ends in a Linear layer, got {type(model).__name__} without one.",
        remedy="Give it a Linear layer named `head`.",
    )


def in_fast_format(model: nn.Module) -> nn.Module:
    """The same model, channels last where that is faster and safe."""
    has_images = any(isinstance(module, nn.Conv2d) for module in model.modules())
    if has_images and channels_last_is_safe(model):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _format_of(model: nn.Module, inputs: Tensor) -> torch.memory_format:
    """The format that the model's convolutions are in."""
    kernels = [p for p in model.parameters() if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    last = bool(kernels) and all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels)
    return torch.channels_last if last and inputs.dim() == 4 else torch.contiguous_format


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _batches_an_epoch(num_samples: int, batch_size: int) -> int:
    return -(-num_samples // batch_size)


def _batches(num_samples: int, batch_size: int, num_steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of like size, so that none is too small for BatchNorm; every epoch has another order."""
    done = 0
    while done < num_steps:
        order = torch.randperm(num_samples, generator=generator)
        for batch in torch.tensor_split(order, _batches_an_epoch(num_samples, batch_size)):
            if done == num_steps:
                return
            yield batch
            done += 1
