"""The packages of the extra `baselines`, imported where they are needed, and asked for where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bilateral.errors import PlanError


def gmpy2() -> Any:
    return _imported("gmpy2")


def tenseal() -> Any:
    return _imported("tenseal")


def nacl_bindings() -> Any:
    return _imported("nacl.bindings")


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise PlanError(
            f"This protection needs the package {name.partition('.')[0]!r}, which is not installed here.",
            remedy="pip install 'bilateral[baselines]'",
        ) from error
