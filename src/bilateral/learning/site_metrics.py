"""A site looks how good the models are that it is sent, on data that it keeps back.

What it finds stays at the site, unless the plan says that it is told to the server (`protocols.site_reports`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bilateral.data import Split
from bilateral.errors import PlanError, ProtocolError
from bilateral.learning.evaluation import Measures, measure
from bilateral.learning.training import predict_with
from bilateral.models.layout import ModelLayout
from bilateral.protocols.messages import RoundModel
from bilateral.protocols.objective import Objective
from bilateral.protocols.site_reports import MetricsReport, MetricsRequest
from bilateral.protocols.statistics import replace_running_statistics


class SiteMetrics:
    """Measures every `every`-th model that comes, before it is trained on. `tell`: takes a row, by the site alone."""

    def __init__(
        self,
        network: nn.Module,
        layout: ModelLayout,
        held: Split,
        objective: Objective,
        measures: Measures,
        every: int,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self._network = copy.deepcopy(network)
        self._layout, self._held, self._objective = layout, held, objective
        self._measures, self._every, self._tell = measures, every, tell
        self._last: tuple[int, dict[str, float]] | None = None

    def look(self, model: RoundModel) -> None:
        """Called with each round's model."""
        if model.round_index % self._every:
            return
        with torch.no_grad():
            values = self._layout.unflatten(model.parameters)
            for name, parameter in self._network.named_parameters():
                if name in values:
                    parameter.copy_(values[name])
        self._take_statistics(getattr(model, "statistics", None))
        measured = measure(predict_with(self._network), self._held, self._objective, self._measures)
        found = measured.metrics("site")
        self._last = model.round_index, found
        self._tell({"round": model.round_index, "samples": len(self._held), **found})

    def report(self, request: MetricsRequest) -> MetricsReport:
        """What was found of that round's model, for the server."""
        if self._last is None or self._last[0] != request.round_index:
            raise ProtocolError(f"The model of round {request.round_index} was not measured here.")
        names = tuple(self._last[1])
        values = torch.tensor([self._last[1][name] for name in names], dtype=torch.float64)
        return MetricsReport(request.round_index, len(self._held), names, values)

    def _take_statistics(self, statistics: Tensor | None) -> None:
        """Of BatchNorm layers, which come with the model where clients take local steps, and else not at all."""
        if not self._layout.num_statistics:
            return
        if statistics is None:
            raise PlanError(
                "Sites cannot measure this model: the running statistics of its BatchNorm layers are at the server.",
                remedy="Leave evaluation.site_holdout out, use training.local_steps, or a model with GroupNorm.",
            )
        replace_running_statistics(self._network, self._layout, statistics)
