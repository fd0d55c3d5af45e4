"""What sites tell the server of models that they measured on samples of their own, where the plan asks for it.

1. `MetricsRequest`  server -> client   after a round whose model the sites measured before they trained on it
2. `MetricsReport`   client -> server   the metrics by name, and on how many samples

A client answers only if its own plan says `evaluation.site_metrics = "share"`. The figures are told as they are, to the
server alone, by each site for itself: neither masks nor noise cover them (ledger, line 20).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from bilateral.errors import ProtocolError
from bilateral.protocols.guarantee import Leak
from bilateral.protocols.messages import Message

STAGE: Final = "telling its metrics"
TOLD: Final = (
    Leak(
        "each site's metrics of the model on the samples that it keeps back, and their number, as often as the model "
        "is measured",
        "server",
        20,
    ),
)


@dataclass(frozen=True)
class MetricsRequest(Message):
    """Asks for the metrics of the model that the round began with."""

    round_index: int


@dataclass(frozen=True)
class MetricsReport(Message):
    """One site's. `values` (float64) are in the order of `names`."""

    round_index: int
    num_samples: int
    names: tuple[str, ...]
    values: Tensor


def metrics_in(report: Message, sender: str, round_index: int, known: Collection[str]) -> dict[str, float]:
    """What a site told, checked; its number of samples among it."""
    if not isinstance(report, MetricsReport) or report.round_index != round_index:
        raise ProtocolError(f"{sender} sent {type(report).__name__} where metrics of round {round_index} are told.")
    if len(set(report.names)) != len(report.names) or not set(report.names) <= set(known):
        raise ProtocolError(f"{sender} told metrics that the plan does not have, or one of them twice.")
    if report.num_samples < 1 or report.values.dtype != torch.float64:
        raise ProtocolError(f"{sender} told metrics of {report.num_samples} samples in {report.values.dtype}.")
    report.expect_shape(sender, "values", (len(report.names),))
    report.check_finite(sender)
    told = dict(zip(report.names, report.values.tolist(), strict=True))
    return {"samples": float(report.num_samples), **told}
