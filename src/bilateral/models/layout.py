"""What every protection needs of a model, whatever it is made of: which numbers travel, and where each of them lies.

`ModelLayout.of(model, examples)` takes any `nn.Module`. It looks at names and shapes and runs the module once on a few
inputs; how the module computes is nobody's business here. A protection that has to know that (`Traits.needs_trace`)
asks for a `ScaleGraph`, which is a layout and more.

Only parameters with `requires_grad` travel. What is frozen, and buffers, every party has from the plan's own model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from bilateral.errors import ModelError
from bilateral.models.modes import kept_in_evaluation, set_training

_COUNTER: Final = "num_batches_tracked"


@dataclass(frozen=True)
class FlatParameter:
    """One parameter, and where it lies in the flat vector."""

    name: str
    shape: torch.Size
    offset: int

    @property
    def numel(self) -> int:
        return self.shape.numel()

    @property
    def slice(self) -> slice:
        return slice(self.offset, self.offset + self.numel)


@dataclass(frozen=True)
class BatchNormLayer:
    """A BatchNorm layer that normalises by its batch in training; `tracked`: it keeps running statistics."""

    module: str
    num_channels: int
    tracked: bool


@dataclass(frozen=True)
class ModelLayout:
    """What travels of a model, in order. Immutable; holds no values."""

    parameters: tuple[FlatParameter, ...]
    statistics: tuple[BatchNormLayer, ...]
    num_outputs: int
    """0 if a forward pass returns anything else than one tensor."""
    input_shape: tuple[int, ...]
    """Of one sample."""
    kept_in_evaluation: tuple[str, ...]
    """Modules that stay in evaluation mode in training (docs/decisions/0021)."""

    @classmethod
    def of_module(cls, model: nn.Module, examples: Tensor) -> ModelLayout:
        """The layout of any module that takes `examples`, which have a batch dimension. One alone is tried twice."""
        _refuse_odd_parameters(model)
        kept = kept_in_evaluation(model)
        tried = torch.cat([examples, examples]) if len(examples) == 1 else examples  # BatchNorm refuses a batch of one
        layers, outputs = _tried(set_training(copy.deepcopy(model), kept), tried)
        return ModelLayout(_laid_out(model), layers, outputs, tuple(examples.shape[1:]), kept)

    @property
    def num_parameters(self) -> int:
        return sum(p.numel for p in self.parameters)

    @property
    def num_statistics(self) -> int:
        """Length of the vector of batch statistics: a mean and a variance per normalised channel."""
        return sum(2 * layer.num_channels for layer in self.statistics if layer.tracked)

    def flatten(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Named tensors -> one vector in the order of `parameters`."""
        return torch.cat([tensors[p.name].detach().reshape(-1) for p in self.parameters]).to(dtype)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """The inverse of `flatten`; the tensors are views of `vector`."""
        return {p.name: vector[p.slice].view(p.shape) for p in self.parameters}


def adopt_what_stays(model: nn.Module, plan_model: nn.Module, layout: ModelLayout) -> None:
    """Give `model` what does not travel from `plan_model`: frozen parameters and buffers are the same everywhere."""
    travels = {p.name for p in layout.parameters}
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    others = {**dict(plan_model.named_parameters()), **dict(plan_model.named_buffers())}
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in travels:
                tensor.copy_(others[name])


def _laid_out(model: nn.Module) -> tuple[FlatParameter, ...]:
    """Shared parameters once, by their first name, as `named_parameters` has them."""
    found: list[FlatParameter] = []
    offset = 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found.append(FlatParameter(name, parameter.shape, offset))
            offset += parameter.numel()
    return tuple(found)


def _refuse_odd_parameters(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta or is_lazy(tensor):
            raise ModelError(
                f"`{name}` has no values.",
                remedy="Build the model on the CPU, with its numbers (no meta device), and run lazy modules once.",
            )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not parameter.is_floating_point():
            raise ModelError(
                f"`{name}` holds {parameter.dtype}, and gradients travel as real numbers.",
                remedy="Use real parameters (torch.view_as_real), or freeze it.",
            )


def _tried(model: nn.Module, examples: Tensor) -> tuple[tuple[BatchNormLayer, ...], int]:
    """The BatchNorm layers that one forward pass in training mode ran, and how many outputs it gave."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    called: set[str] = set()
    for name, module in _batch_norms(model):
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        try:
            outputs: Any = model(examples)
        except Exception as error:  # the user's own code, which raises what it likes
            shape = list(examples.shape[1:])
            raise ModelError(
                f"{type(model).__name__} does not take samples of shape {shape}: {error}.",
                remedy="Check the model against the shape of the data.",
            ) from error
    layers = tuple(
        BatchNormLayer(name, module.num_features, module.running_mean is not None)
        for name, module in _batch_norms(model)
        if name in called and (module.training or module.running_mean is None)
    )
    _refuse_other_memory(model, before)
    one_tensor = isinstance(outputs, Tensor) and outputs.dim() > 1
    return layers, int(outputs.shape[1]) if one_tensor else 0


def _batch_norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield name, module


def _refuse_other_memory(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """What a forward pass writes into buffers, other than BatchNorm's, no round would bring together."""
    normed = {f"{name}." if name else "" for name, _ in _batch_norms(model)}
    for name, buffer in model.named_buffers():
        path, _, last = name.rpartition(".")
        known = last == _COUNTER or (f"{path}." if path else "") in normed
        if not known and not torch.equal(buffer, before[name]):
            raise ModelError(
                f"The forward pass writes the buffer `{name}`, which does not travel: it would stay as the model came.",
                remedy="Use layers without memory (GroupNorm, LayerNorm, or InstanceNorm without running statistics).",
            )
