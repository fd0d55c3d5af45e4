"""Benchmarks behind `bilateral bench`: both sides measured alternately in one process, ratios with their spread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bilateral.bench.client_step import client_step
from bilateral.bench.recovery import recovery
from bilateral.bench.scaling import scaling
from bilateral.bench.server_step import server_step

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what comes next)."""

BENCHMARKS: dict[str, Callable[[bool, Progress], list[dict[str, Any]]]] = {
    "recovery": recovery,
    "client-step": client_step,
    "server-step": server_step,
    "scaling": scaling,
}
