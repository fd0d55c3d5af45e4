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


HANDLES_CONSTANTS: set[FunctionRule] = set()
"""Rules that know themselves what may change places beside a constant tensor."""
TAKES_PARAMETERS: set[FunctionRule] = set()
"""Rules of layers: they are handed parameters as such, and not as values."""


def handles_constants(function: _Rule) -> _Rule:
    """Mark a rule as one of `HANDLES_CONSTANTS`."""
    HANDLES_CONSTANTS.add(function)
    return function


def takes_parameters(function: _Rule) -> _Rule:
    """Mark a rule as one of `TAKES_PARAMETERS`."""
    TAKES_PARAMETERS.add(function)
    return function


def function_rule(function: Any) -> FunctionRule | None:
    """The rule of a function, if there is one."""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"
    return FUNCTION_RULES.get(function) or NAMED_FUNCTION_RULES.get(name)


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
