"""A client's own module: filled with the parameters of a round, run on a batch, asked for its batch statistics."""

from __future__ import annotations

import copy
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from bilateral.errors import ModelError, NumericalRangeError, PlanError
from bilateral.models.calls import trace
from bilateral.models.layout import ModelLayout
from bilateral.models.modes import set_training
from bilateral.models.scale_graph import traced
from bilateral.protocols.placement import CPU, Placement
from bilateral.protocols.statistics import batch_statistics, collect_batch_statistics
from bilateral.protocols.workspace import Workspace

_GROUP_NORM: Final = "torch may crash in the backward pass of GroupNorm"
_IN_ORDER: Final = "`view` needs values that lie in order (use `reshape` or `flatten` instead)"
_HAZARDOUS_CALLS: Final = {"group_norm": _GROUP_NORM, "view": _IN_ORDER, "view_as": _IN_ORDER}


def prefers_channels_last(model: nn.Module) -> bool:
    """Whether to run a network in channels-last format: faster than torch's default (`bench client-step` has both).

    Not with BatchNorm, whose channels-last kernel sums in float32 (the default one in float64): twice the error.
    """
    has_images = any(isinstance(m, nn.Conv2d) for m in model.modules())
    normalised = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    return has_images and not normalised and channels_last_is_safe(model)


def channels_last_is_safe(model: nn.Module) -> bool:
    """Whether channels-last format can neither corrupt memory nor fail (docs/decisions/0007)."""
    return not channels_last_hazard(model)


def channels_last_hazard(model: nn.Module) -> str:
    """What in `model` does not bear channels-last format, or an empty text.

    torch's CPU library writes past a buffer in the channels-last backward pass of strided 1x1 convolutions with few
    channels (oneDNN issue 6035); grouped ones have had faults of their own, and gain nothing. GroupNorm's backward pass
    ends the process where its input's gradient is not asked for. `view` fails on what does not lie in order.
    """
    plain = {m.weight for m in model.modules() if isinstance(m, nn.Conv2d) and _is_plain(m)}
    if any(p not in plain for p in model.parameters() if p.dim() == 4):
        return "torch may corrupt memory in strided 1x1, grouped or transposed convolutions"
    if any(t.dim() == 5 for t in (*model.parameters(), *model.buffers())):
        return "torch has no such format for three-dimensional convolutions"
    if any(isinstance(m, nn.GroupNorm) for m in model.modules()):
        return _GROUP_NORM
    try:
        graph, _ = trace(copy.deepcopy(model))
    except ModelError:
        return "its calls cannot be traced"
    called = {str(getattr(node.target, "__name__", node.target)) for node in graph.nodes}
    return next((reason for name, reason in _HAZARDOUS_CALLS.items() if name in called), "")


def _is_plain(layer: nn.Conv2d) -> bool:
    strided_one_by_one = set(layer.kernel_size) == {1} and set(layer.stride) != {1}
    return layer.groups == 1 and (layer.in_channels % 16 == 0 or not strided_one_by_one)


class LocalModel:
    """A copy of an architecture in training mode, in the memory format that `prefers_channels_last` says."""

    def __init__(
        self,
        model: nn.Module,
        layout: ModelLayout,
        *,
        channels_last: bool | None = None,
        workspace: Workspace | None = None,
        keeps_history: bool = False,
        placement: Placement | None = None,
    ) -> None:
        """`keeps_history`: BatchNorm's running statistics are what the layer makes of them, not the last batch's."""
        self.placement = placement or Placement()
        self.module = set_training(copy.deepcopy(model), layout.kept_in_evaluation)
        if not keeps_history:
            collect_batch_statistics(self.module)
        if channels_last is None:
            channels_last = prefers_channels_last(self.module)
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        hazard = channels_last_hazard(self.module) if channels_last else ""
        if hazard:
            raise PlanError(
                f"memory_format = 'channels_last' is not safe for this model: {hazard}.",
                remedy="Use memory_format = 'auto'.",
            )
        if channels_last:
            self.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.placement.device != CPU:
            self.module.to(self.placement.device)
        self._layout = layout
        own = dict(self.module.named_parameters())
        self.parameters = [own[p.name] for p in layout.parameters]
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.zero_()  # a client knows the architecture, not the server's weights
        self._workspace = workspace or Workspace()
        self._workspace.place_weights(self.parameters)
        floats = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        self.dtype = next(floats, torch.get_default_dtype())

    @property
    def head(self) -> nn.Linear:
        """The last layer of a model that was traced."""
        head = self.module.get_submodule(traced(self._layout).head)
        assert isinstance(head, nn.Linear)
        return head

    def load(self, parameters: Tensor) -> None:
        """Take over a flat vector of parameters."""
        self._workspace.claim(self)
        values = self._layout.unflatten(parameters)
        with torch.no_grad():
            for place, parameter in zip(self._layout.parameters, self.parameters, strict=True):
                parameter.copy_(values[place.name])

    def run(self, client: str, round_index: int, inputs: Tensor, *, check: bool = True) -> Any:
        """Outputs with their graph, as the module gives them; NaN and infinities are refused by the client's name.

        Real inputs of another precision are taken in the model's own; whole numbers stay what they are.
        """
        inputs = inputs.to(self.placement.device)
        if inputs.is_floating_point():
            inputs = inputs.to(self.dtype)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=self._format)
        with self.placement.autocast():
            outputs = self.module(inputs)
        if self.placement.precision != "full":  # losses are computed in full
            outputs = tree_map_only(Tensor, lambda found: found.to(self.dtype), outputs)
        tensors = (leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))
        if check and not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            raise NumericalRangeError(
                f"{client}: the model's outputs are NaN or infinite in round {round_index}.",
                remedy="Check the inputs, or lower the learning rate.",
            )
        return outputs

    def expect_loaded(self, client: str) -> None:
        """Refuse to go on if a client that shares the workspace has loaded a model meanwhile."""
        self._workspace.expect(self, client)

    def upload_rows(self, count: int, dtype: torch.dtype) -> Tensor:
        """Memory for `count` terms where the model is, not initialised."""
        if self.placement.device != CPU:
            return torch.empty(count, self._layout.num_parameters, dtype=dtype, device=self.placement.device)
        return self._workspace.rows(count, self._layout.num_parameters, dtype)

    def batch_statistics(self) -> Tensor:
        """On the CPU, as all that is sent."""
        return batch_statistics(self.module, self._layout).cpu()
