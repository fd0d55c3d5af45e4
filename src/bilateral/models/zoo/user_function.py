"""A user's own network by the name of the function that builds it: `package.module:function`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from bilateral.errors import ModelError


def import_builder(path: str) -> Callable[..., object]:
    """The function that `path` names; ModelError if there is none."""
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ModelError(
            f"Expected a model as 'package.module:function', got {path!r}.",
            remedy="Write the module with dots, then a colon, then the function.",
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ModelError(
            f"Could not import {module_name!r} for the model {path!r}: {type(error).__name__}: {error}.",
            remedy="Install the package, or add the folder that holds it to PYTHONPATH.",
        ) from error
    builder = getattr(module, attribute, None)
    if builder is None:
        public = ", ".join(name for name, value in vars(module).items() if _is_own_function(value, module_name))
        raise ModelError(
            f"{module_name!r} has no {attribute!r}, which the model {path!r} names.",
            remedy=f"Functions and classes defined there: {public or 'none'}.",
        )
    if not callable(builder):
        raise ModelError(
            f"Expected {path!r} to be a function that builds a model, got {type(builder).__name__}.",
            remedy="Name a function (or nn.Module class) that returns the model.",
        )
    function: Callable[..., object] = builder
    return function


def _is_own_function(value: object, module_name: str) -> bool:
    return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == module_name


def call_builder(path: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> nn.Module:
    """Call the function with those of `given` that it takes, and all `options`; it must return a module."""
    builder = import_builder(path)
    arguments = {**{name: value for name, value in given.items() if accepts(builder, name)}, **options}
    try:
        signature = inspect.signature(builder)
    except ValueError:  # a function written in C may have no signature: its own errors have to do
        pass
    else:
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise ModelError(
                f"Cannot call {path}{signature} with {', '.join(arguments) or 'no arguments'}: {error}.",
                remedy=f"The arguments are passed by name: {', '.join(given)}, whichever the function takes. "
                "Give others as model options, or a default in the function.",
            ) from error
    try:
        model = builder(**arguments)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"The model function {path!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"Expected {path!r} to return a torch.nn.Module, got {type(model).__name__}.",
            remedy="Return the network itself.",
        )
    return model


def accepted_names(builder: Callable[..., object]) -> tuple[tuple[str, ...], bool]:
    """The keyword arguments that `builder` names, and whether it takes any others besides."""
    try:
        parameters = inspect.signature(builder).parameters.values()
    except ValueError:
        return (), False
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return tuple(parameter.name for parameter in parameters if parameter.kind in by_keyword), takes_any


def accepts(builder: Callable[..., object], name: str) -> bool:
    """Whether `builder` can be called with the keyword argument `name`."""
    names, takes_any = accepted_names(builder)
    return takes_any or name in names
