"""From an `nn.Module` to a circuit that is trained on shares; its weights as ring elements, and gradients back.

    trainable = compile_trainable(model, (1, 28, 28))
    layers = trainable.encode(model)                    every round: what the circuit's linear layers hold now
    trainable.gradients(model, layer_gradients)         from gradients of those to gradients of the model's parameters

A layer of the circuit is a function of the model's parameters: BatchNorm that is frozen is folded into the layer before
it, a module that is called twice is two layers. Autograd goes back through that function, in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor, fx, nn

from bilateral.arguments import checked
from bilateral.errors import ModelError, NumericalRangeError
from bilateral.models import calls
from bilateral.models.modes import training_copy
from bilateral.protocols.share.circuit.description import VALUE_BITS, AvgPool, Circuit, Scale
from bilateral.protocols.share.circuit.front import PublicFront, end_of_front, front_of
from bilateral.protocols.share.circuit.graph_compiler import (
    TRACED_BATCH,
    FloatLayer,
    GraphCompiler,
    Purpose,
    encoded_layers,
)
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, PrivateLayer, predict
from bilateral.protocols.share.circuit.training_rules import (
    TRAINING,
    TRAINING_FUNCTION_RULES,
    TRAINING_MODULE_RULES,
)

_AGREEMENT: Final = 2.0**-6
LayerGradient = tuple[Tensor | None, Tensor | None]
"""Of a linear layer's weight and bias; None where they do not train."""


@dataclass(frozen=True, repr=False)
class TrainableModel:
    """One architecture, whatever its parameters are."""

    circuit: Circuit
    """Public: what is computed on shares, behind the front. No value of it is still to be divided by anything."""
    trains: tuple[tuple[bool, bool], ...]
    """Of each linear layer of the circuit, whether its weight and its bias train."""
    front: PublicFront | None
    """What comes before the circuit, in the clear, in the model's own precision."""
    _module: nn.Module
    _layers: tuple[FloatLayer, ...]

    def encode(self, model: nn.Module) -> tuple[PrivateLayer, ...]:
        """What the linear layers hold with the parameters that `model` has now."""
        self._load(model)
        with torch.no_grad():
            return encoded_layers(self.circuit, self._layers)

    def gradients(self, model: nn.Module, layer_gradients: Sequence[LayerGradient]) -> dict[str, Tensor]:
        """Gradients (float64) of all parameters of `model` that train, by name, from those of the layers."""
        self._load(model)
        wanted = {name: p for name, p in self._module.named_parameters() if p.requires_grad}
        if len(layer_gradients) != len(self._layers):
            raise ModelError(f"Expected gradients of {len(self._layers)} layers, got {len(layer_gradients)}.")
        outputs, given = [], []
        with torch.enable_grad():
            for place, (layer, found) in enumerate(zip(self._layers, layer_gradients, strict=True)):
                for name, part, gradient in zip(("weight", "bias"), layer.parameters(), found, strict=True):
                    if part.requires_grad:
                        outputs.append(part)
                        given.append(_expected_like(part, gradient, f"gradient of the {name} of layer {place}"))
            gradients = torch.autograd.grad(outputs, list(wanted.values()), given, allow_unused=True)
        return {
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for (name, parameter), gradient in zip(wanted.items(), gradients, strict=True)
        }

    def _load(self, model: nn.Module) -> None:
        own = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        found = dict(model.named_parameters()) | dict(model.named_buffers())
        if {name: tensor.shape for name, tensor in own.items()} != {name: t.shape for name, t in found.items()}:
            raise ModelError(
                f"This {type(model).__name__} has other parameters than the network that was compiled.",
                remedy="Give the same network, with the parameters that it has now.",
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(found[name])


def _expected_like(part: Tensor, gradient: Tensor | None, what: str) -> Tensor:
    if gradient is None or gradient.shape != part.shape:
        found = None if gradient is None else tuple(gradient.shape)
        raise ModelError(f"Expected a {what} of shape {tuple(part.shape)}, got {found}.")
    return gradient.to(part)


@checked
def compile_trainable(
    model: nn.Module, input_shape: tuple[int, ...], *, value_bits: int = VALUE_BITS
) -> TrainableModel:
    """The network as it is trained on shares. `input_shape`: of one sample.

    What cannot be trained so is refused by name (`UnsupportedLayerError`), and so is a network whose circuit computes
    something else than the network does (`NumericalRangeError`).
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"No parameter of {type(model).__name__} trains.", remedy="Set `requires_grad` of some.")
    recorded = calls.record(model)
    calls.check_record(model, recorded, calls.check_inputs(model, input_shape))
    compiler = _TrainingCompiler(model, input_shape, TRAINING_MODULE_RULES, TRAINING_FUNCTION_RULES)
    circuit = replace(compiler.compile(), value_bits=value_bits)
    circuit.expect_trainable()
    front = None if compiler.front_end is None else front_of(copy.deepcopy(model), compiler.front_end)
    with torch.enable_grad():
        found = [layer.parameters() for layer in compiler.layers]
    trains = tuple((weight.requires_grad, bias.requires_grad) for weight, bias in found)
    trainable = TrainableModel(circuit, trains, front, compiler.copied, tuple(compiler.layers))
    _check_agreement(model, trainable, input_shape)
    return trainable


@dataclass
class _TrainingCompiler(GraphCompiler):
    purpose: Purpose = TRAINING
    copied: nn.Module = field(default_factory=nn.Module)
    front_end: int | None = None

    def _copied(self) -> nn.Module:
        self.copied = training_copy(self.model).cpu().double()
        return self.copied

    def _start(self, graph: fx.GraphModule) -> int:
        self.front_end = end_of_front(graph, TRACED_BATCH)
        if self.front_end is None:
            return super()._start(graph)
        self.input_shape = tuple(list(graph.graph.nodes)[self.front_end].meta["tensor_meta"].shape[1:])
        return self.front_end

    def append_average(self, step: AvgPool) -> int:
        value = self.append(step)
        averaged = Circuit(self.input_shape, tuple(self.steps)).output
        return value if averaged.is_whole else self.append(Scale.of(value, averaged.divisor))


def _check_agreement(model: nn.Module, trainable: TrainableModel, input_shape: tuple[int, ...]) -> None:
    """What was overwritten in place, and read later, gives other outputs than the network itself."""
    whole = copy.deepcopy(model).cpu().double().eval()
    samples = torch.randn(TRACED_BATCH, *input_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = whole(samples)
        behind = samples if trainable.front is None else copy.deepcopy(trainable.front).cpu().double()(samples)
        found = predict(FixedPointModel(trainable.circuit, trainable.encode(model)), behind)
    difference = float((found - expected).abs().max())
    if not difference <= _AGREEMENT * (1 + float(expected.abs().max())):
        raise NumericalRangeError(
            f"{type(model).__name__} in fixed point differs from itself by {difference:.3g} on random samples.",
            remedy="Use smaller weights, and do not read a tensor after an in-place operation has changed it.",
        )
