"""A network as people draw it: its layers in the order in which they compute, and which feeds which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch import fx, nn

_JOINS: Final = {"add": "+", "iadd": "+", "add_": "+", "cat": "concatenate", "mul": "x", "matmul": "product"}
_MOST_LAYERS: Final = 2000


@dataclass(frozen=True)
class DrawnLayer:
    """A layer with parameters, or a place where several meet. `inputs`: the layers before it, by name."""

    name: str
    kind: str
    num_elements: int
    num_frozen: int
    inputs: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "elements": self.num_elements,
            "frozen": self.num_frozen,
            "inputs": list(self.inputs),
        }


def drawn_layers(model: nn.Module) -> tuple[DrawnLayer, ...]:
    """What torch.fx sees of the network; where it sees nothing, layers in the order in which they are stored."""
    try:
        graph = fx.Tracer().trace(model)
    except Exception:
        return tuple(_listed(model))[:_MOST_LAYERS]
    return tuple(_traced(model, graph))[:_MOST_LAYERS]


def _listed(model: nn.Module) -> Iterator[DrawnLayer]:
    before: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)):
            yield _layer(name or "the network", module, before)
            before = (name or "the network",)


def _traced(model: nn.Module, graph: fx.Graph) -> Iterator[DrawnLayer]:
    modules = dict(model.named_modules())
    drawn: dict[fx.Node, tuple[str, ...]] = {}
    """Behind which drawn layers a value stands."""
    called: dict[str, int] = {}
    for node in graph.nodes:
        before = tuple(dict.fromkeys(name for one in node.all_input_nodes for name in drawn.get(one, ())))
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        if module is not None and list(module.parameters()):
            name = _free(str(node.target), called)
            yield _layer(name, module, before)
            drawn[node] = (name,)
        elif len(before) > 1:
            kind = _JOINS.get(getattr(node.target, "__name__", str(node.target)), "together")
            name = _free(node.name, called)
            yield DrawnLayer(name, kind, 0, 0, before)
            drawn[node] = (name,)
        else:
            drawn[node] = before


def _free(name: str, called: dict[str, int]) -> str:
    """A module may be called several times."""
    called[name] = called.get(name, 0) + 1
    return name if called[name] == 1 else f"{name} (call {called[name]})"


def _layer(name: str, module: nn.Module, before: tuple[str, ...]) -> DrawnLayer:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in module.parameters()]
    frozen = sum(size for size, learns in sizes if not learns)
    return DrawnLayer(name, _said(module), sum(size for size, _ in sizes), frozen, before)


def _said(module: nn.Module) -> str:
    """`Linear 64 to 10`, `Conv2d 3 to 16, 3x3`, `BatchNorm2d`."""
    kind = type(module).__name__
    match module:
        case nn.Linear():
            return f"{kind} {module.in_features} to {module.out_features}"
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            window = "x".join(map(str, module.kernel_size))
            return f"{kind} {module.in_channels} to {module.out_channels}, {window}"
    return kind
