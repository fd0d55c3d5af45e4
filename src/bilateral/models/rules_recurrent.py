"""Rules for recurrent layers: hidden units change places, their gates stay with them; outputs have factor 1.

    gates    weight_ih / s_in, everything else as it is: tanh and sigmoid pin what comes out
    places   a unit's rows in all gates, its columns in weight_hh, and its outputs move together

A layer on top of another, and the second direction, have units of their own.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from bilateral.models.builder import Axis, Binding, GraphBuilder, Parameter, Site, Value
from bilateral.models.identities import Identities, mix
from bilateral.models.rules import module_rule

_GATES: Final = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}


@module_rule(nn.LSTM, nn.GRU, nn.RNN)
def recurrent(
    builder: GraphBuilder, site: Site, module: nn.Module, own: dict[str, Parameter], x: Value, state: Any = None
) -> Any:
    assert isinstance(module, nn.RNNBase)
    if state is not None:
        raise site.refuse("it is given an initial state", "Let it begin with zeros.")
    if getattr(module, "proj_size", 0):
        raise site.refuse("there is no rule for proj_size", "Use a Linear layer behind it.")
    time = 1 if module.batch_first else 0
    if x.meta.dim() != 3 or time in x.batch_dims:
        raise site.refuse(
            "it runs along the samples of a batch", "Give it (batch, time, features) and batch_first=True."
        )
    num_gates, num_directions = _GATES[type(module)], 2 if module.bidirectional else 1
    features = builder.uniform(site, x, [0, 1])
    last: list[Identities] = []
    for layer in range(module.num_layers):
        outputs = [
            _one_direction(builder, site, own, f"_l{layer}{'_reverse' if number else ''}", features, num_gates)
            for number in range(num_directions)
        ]
        last += outputs
        features = Identities(*(torch.cat([getattr(o, part) for o in outputs]) for part in _PARTS))
    return _results(builder, site, features, last, isinstance(module, nn.LSTM))


_PARTS: Final = ("scale", "neuron", "role")


def _one_direction(
    builder: GraphBuilder, site: Site, own: dict[str, Parameter], suffix: str, features: Identities, num_gates: int
) -> Identities:
    size = own[f"weight_hh{suffix}"].meta.shape[1]
    units = builder.fresh_channels(size)
    builder.scales.pin(units.scale, f"output of {site.label}, which is not positively homogeneous")
    of_gates = Axis(units.neuron.repeat(num_gates), torch.arange(num_gates).repeat_interleave(size))
    none = torch.zeros(num_gates * size, 1, dtype=torch.int64)
    inputs = Axis.of(features)
    builder.bind(
        site,
        own[f"weight_ih{suffix}"],
        Binding("recurrent weight", none, features.scale[None, :], of_gates, inputs),
    )
    builder.bind(
        site,
        own[f"weight_hh{suffix}"],
        Binding("recurrent weight", none, none[:1].expand(1, size), of_gates, Axis.of(units)),
    )
    for name in ("bias_ih", "bias_hh"):
        builder.bind(site, own.get(f"{name}{suffix}"), Binding("bias", none[:, 0], outputs=of_gates))
    return Identities(units.scale, units.neuron, units.role.clone())


def _results(
    builder: GraphBuilder, site: Site, features: Identities, last: list[Identities], has_cells: bool
) -> tuple[Any, Any]:
    outputs: Any = site.output
    sequence = _spread(builder, features, outputs[0].shape)
    states = outputs[1] if has_cells else (outputs[1],)
    ends = tuple(
        Identities(
            torch.stack([o.scale for o in last])[:, None, :].expand(state.shape),
            torch.stack([o.neuron for o in last])[:, None, :].expand(state.shape),
            mix(torch.arange(state.shape[0] * state.shape[1]).reshape(*state.shape[:2], 1), builder.token()).expand(
                state.shape
            ),
        )
        for state in states
    )
    return sequence, ends if has_cells else ends[0]


def _spread(builder: GraphBuilder, features: Identities, shape: torch.Size) -> Identities:
    places = torch.arange(shape[0] * shape[1]).reshape(*shape[:2], 1)
    return Identities(
        features.scale.expand(shape),
        features.neuron.expand(shape),
        mix(places, features.role, builder.token()).expand(shape),
    )
