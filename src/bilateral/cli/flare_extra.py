"""NVIDIA FLARE comes with the extra `bilateral[flare]`: a clear word if it is not there."""

from __future__ import annotations

import importlib
from typing import Any

from bilateral.errors import PlanError


def import_flare(module: str) -> Any:
    """A module of `bilateral.engine.flare`; slow to import, so only when it is wanted."""
    try:
        return importlib.import_module(f"bilateral.engine.flare.{module}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in ("nvflare", "psutil", "yaml"):
            raise PlanError(
                "This needs NVIDIA FLARE, which is not installed.", remedy="Run: pip install 'bilateral[flare]'"
            ) from error
        raise
