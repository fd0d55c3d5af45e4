"""A whole first layer, weight by weight, by the querying party (ledger, line 5).

Negative control: random numbers in place of the view. Positive: the published comparison, which can be factored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bilateral.audit.evidence import Evidence, Gate, with_controls
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.topics.shared.attacks.activation_factors import dotted_queries, first_layer
from bilateral.audit.topics.shared.shared_setting import (
    Progress,
    SharedSetting,
    about_activations,
    ask_again,
    in_place_words,
    random_like,
)
from bilateral.protocols.share.circuit.description import FRACTION_BITS, Circuit, Dense, Relu, Reshape
from bilateral.protocols.share.gates.styles import PUBLISHED

NEURON_ERROR = Metric("relative error of a first-layer neuron", "low")
_WORST = 1.0
"""A guess that is worse than zeros counts as zeros."""


def first_layer_experiment(setting: SharedSetting, on_progress: Progress) -> list[Evidence]:
    """A dense first layer, weight by weight, from a black image and dots. Nothing if no answering network begins so."""
    name = next((name for name, model in setting.models.items() if _begins_dense(model.circuit)), None)
    if name is None:
        return []
    model = setting.models[name]
    queries = dotted_queries(model.circuit.input_shape)
    layer = model.layers[0]
    weights = layer.weight.double() / 2**FRACTION_BITS
    true = torch.cat([weights, layer.bias.double()[:, None] / 2 ** (2 * FRACTION_BITS)], dim=1)
    views: dict[str, list[Tensor]] = {}
    for step, style in enumerate(dict.fromkeys((setting.style, PUBLISHED))):
        on_progress(0.4 * step, f"dots, {style.name} comparison")
        asked = ask_again(setting, style, queries, {name: model}, setting.effort.repeats, "dots", first_only=True)
        views[style.name] = [one[name][0] for one in asked]
    target, positive = views[setting.style.name], views[PUBLISHED.name]
    randomness = setting.randomness.child("noise of dots")
    negative = [random_like(seen, randomness.child(i)) for i, seen in enumerate(target)]

    def scores(seen: list[Tensor]) -> Scores:
        return _neuron_scores(first_layer(seen), true)

    return [
        with_controls(
            about_activations(setting.style),
            "querying party",
            "first layer from dotted images, by factoring",
            f"{in_place_words(setting.style)}, first comparison, {len(queries)} queries {setting.effort.repeats} times",
            Gate(NEURON_ERROR, 0.1),
            target=(f"the {setting.style.name} comparison", scores(target)),
            positive=("the published comparison, same queries and network", scores(positive)),
            negative=("random numbers in place of the view", scores(negative)),
            remark=f"the network of {name}; trials are the {len(true)} neurons of its first layer",
        )
    ]


def _neuron_scores(read: Tensor, true: Tensor) -> Scores:
    errors = (read - true).norm(dim=1) / true.norm(dim=1).clamp_min(1e-12)
    return Scores(NEURON_ERROR, tuple(min(_WORST, float(error)) for error in errors))


def _begins_dense(circuit: Circuit) -> bool:
    """The query, perhaps reshaped, a dense layer, a ReLU."""
    steps = [step for step in circuit.steps if not isinstance(step, Reshape)]
    return len(steps) > 1 and isinstance(steps[0], Dense) and isinstance(steps[1], Relu)
