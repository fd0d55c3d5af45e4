"""A network as sealed training sees it: a circuit, its layers' weights as ring elements, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.learning.problem import Problem
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.circuit.graph_compiler import GraphCompiler
from bilateral.protocols.share.circuit.layer_rules import FUNCTION_RULES, MODULE_RULES
from bilateral.protocols.share.training.roles import FirstModel
from bilateral.protocols.share.training.terms import StepTerms


@dataclass(frozen=True, eq=False)
class SealedNetwork:
    graph: ScaleGraph
    circuit: Circuit
    trains: tuple[tuple[bool, bool], ...]
    layer_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    drops: bool = False

    @classmethod
    def of(cls, model: nn.Module, graph: ScaleGraph, problem: Problem) -> SealedNetwork:
        compiled = GraphCompiler(model, problem.input_shape, MODULE_RULES, FUNCTION_RULES).run()
        names = tuple(name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d))
        return cls(graph, compiled.circuit, ((True, True),) * len(names), names, problem.input_shape)

    def front_parameters(self, model: nn.Module) -> Tensor:
        return torch.zeros(0, dtype=next(model.parameters()).dtype)

    def through_front(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        del parameters
        return inputs

    def first_model(self, model: nn.Module, terms: StepTerms) -> FirstModel:
        compiled = GraphCompiler(model, self.input_shape, MODULE_RULES, FUNCTION_RULES).run()
        return FirstModel.of(terms, compiled.layers, {label: 1 << 52 for label, _ in terms.shape_of_step.watched})

    def gradient(self, model: nn.Module, terms: StepTerms, words: Tensor) -> Tensor:
        named = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in model.named_parameters()}
        for name, (weight, bias) in zip(self.layer_names, terms.decode(words), strict=True):
            if weight is not None:
                named[f"{name}.weight"] = weight.reshape(named[f"{name}.weight"].shape)
            if bias is not None and f"{name}.bias" in named:
                named[f"{name}.bias"] = bias
        return self.graph.flatten(named, torch.float64)
