"""The registry of layer rules. A rule says what a call of the network does to the identities of its elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

FunctionRule = Callable[..., Any]
_Rule = TypeVar("_Rule", bound=FunctionRule)

FUNCTION_RULES: dict[Any, FunctionRule] = {}
NAMED_FUNCTION_RULES: dict[str, FunctionRule] = {}
"""For functions of packages that need not be installed, by `module.name`."""
METHOD_RULES: dict[str, FunctionRule] = {}
MODULE_RULES: dict[type[nn.Module], FunctionRule] = {}


def rule(*functions: Callable[..., Any], methods: tuple[str, ...] = ()) -> Callable[[_Rule], _Rule]:
    """Register `f(builder, site, *arguments of the call)` for functions and tensor methods."""

    def register(function: _Rule) -> _Rule:
        FUNCTION_RULES.update(dict.fromkeys(functions, function))
        METHOD_RULES.update(dict.fromkeys(methods, function))
        return function

    return register


def module_rule(*types: type[nn.Module]) -> Callable[[_Rule], _Rule]:
    """Register `f(builder, site, module, own parameters, *arguments of the call)` for module types."""

    def register(function: _Rule) -> _Rule:
        MODULE_RULES.update(dict.fromkeys(types, function))
        return function

    return register
