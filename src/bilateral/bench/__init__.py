"""Benchmarks behind `bilateral bench`: both sides measured alternately in one process, ratios with their spread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bilateral.bench.accuracy_over_epsilon import measure_accuracy_over_epsilon
from bilateral.bench.aggregation import measure_aggregation
from bilateral.bench.baselines import measure_baselines
from bilateral.bench.client_step import measure_client_step
from bilateral.bench.growth import measure_growth
from bilateral.bench.heterogeneous import measure_heterogeneous
from bilateral.bench.large_uploads import measure_large_uploads
from bilateral.bench.recovery import measure_recovery
from bilateral.bench.round_trip import measure_round_trip
from bilateral.bench.scaling import measure_scaling
from bilateral.bench.sealed_step import measure_sealed_step
from bilateral.bench.secure_prediction import measure_secure_prediction
from bilateral.bench.server_step import measure_server_step

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what comes next)."""

BENCHMARKS: dict[str, Callable[[bool, Progress], list[dict[str, Any]]]] = {
    "recovery": measure_recovery,
    "client-step": measure_client_step,
    "server-step": measure_server_step,
    "scaling": measure_scaling,
    "aggregation": measure_aggregation,
    "large-uploads": measure_large_uploads,
    "growth": measure_growth,
    "accuracy-over-epsilon": measure_accuracy_over_epsilon,
    "round-trip": measure_round_trip,
    "heterogeneous": measure_heterogeneous,
    "secure-prediction": measure_secure_prediction,
    "sealed-step": measure_sealed_step,
    "baselines": measure_baselines,
}
