"""Public functions refuse arguments of another type than their signature says, before anything is done with them.

    @checked
    def run(plan: RunPlan, *, output: str | Path | None = None) -> RunResult: ...

    run("plan.toml")
    ArgumentError: run: expected `plan` to be a RunPlan, got str ('plan.toml').

Only what a signature can say is looked at: classes, `None`, literals, containers and what is in them; no ranges. Of a
protocol (a class that need not be derived from) only what can be none is refused: numbers, texts, containers.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Callable as CallableClass
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, TypeVar

from bilateral.errors import ArgumentError, BilateralError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")
_MAX_SHOWN: Final = 40
_IN_WORDS: Final[dict[Any, str]] = {
    types.NoneType: "None",
    str: "text",
    bytes: "bytes",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    Path: "a path",
    CallableClass: "a function",
    Any: "anything",
}
_REMEDIES: Final[dict[str, str]] = {
    "RunPlan": 'Read a file with `load_plan("plan.toml")`, or start from `RunPlan()`.',
    "HeteroPlan": "Start from `HeteroPlan()`.",
    "Tensor": "Convert numbers with `torch.as_tensor(...)`.",
    "Module": 'Build one with torch, or by name with `build_model("lenet", input_shape=..., num_outputs=...)`.',
    "ScaleGraph": "Make one with `ScaleGraph.of(model, example_input)`.",
    "Randomness": "Take `SecureRandomness()` for secrets, `SeededRandomness(seed, label)` in simulations.",
}


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, with its arguments checked against its annotations. For constructors: decorate `__init__`."""
    signature = inspect.signature(function)
    named = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ArgumentError(f"{named}: {error}.", remedy=f"It is called as {named}{_shown(signature)}.") from None
        hints = _hints(function)
        for name, value in given.items():
            kind = signature.parameters[name].kind
            if name in hints and kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                require(value, hints[name], f"{named}: expected `{name}` to be")
        return function(*args, **kwargs)

    return call


def explained(remedy: str) -> Callable[[type[_T]], type[_T]]:
    """For classes whose arguments are checked elsewhere: those that are missing or unknown are named, with `remedy`."""

    def decorate(kind: type[_T]) -> type[_T]:
        build: Callable[..., None] = kind.__init__
        signature = inspect.signature(build)
        needed = [name for name, one in signature.parameters.items() if one.default is one.empty and name != "self"]

        @functools.wraps(build)
        def call(self: object, *args: Any, **kwargs: Any) -> None:
            try:
                signature.bind(self, *args, **kwargs)
            except TypeError as error:
                missing = [name for name in needed[len(args) :] if name not in kwargs]
                said = f"without {', '.join(missing)}" if missing else f"wrongly: {error}"
                raise ArgumentError(f"{kind.__name__} was called {said}.", remedy=remedy) from None
            build(self, *args, **kwargs)

        type.__setattr__(kind, "__init__", call)
        return kind

    return decorate


def check_fields(settings: object, error: type[BilateralError]) -> None:
    """The same for a dataclass, with an error of its own kind: called first in `__post_init__`."""
    kind: Any = type(settings)
    for name, hint in _hints(kind).items():
        if name in kind.__dataclass_fields__:
            require(getattr(settings, name), hint, f"{kind.__name__}: expected `{name}` to be", error)


def require(value: object, hint: Any, expected: str, error: type[BilateralError] = ArgumentError) -> None:
    """Raise an error that begins with `expected` unless `value` is what the annotation `hint` says."""
    if fits(value, hint):
        return
    remedy = next((_REMEDIES[name] for name in _class_names(hint) if name in _REMEDIES), "")
    raise error(f"{expected} {_described(hint)}, got {_came(value)}.", remedy=remedy)


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of the kind that an annotation names, containers with what is in them."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is CallableClass:
        return callable(value)
    if origin is not None:
        return isinstance(value, origin) and not isinstance(value, str | bytes) and _holds(value, origin, parts)
    return not isinstance(hint, type) or _is_instance(value, hint)


def _holds(value: Any, origin: type, parts: tuple[Any, ...]) -> bool:
    """Whether everything in a container is of the kinds that its annotation names."""
    if issubclass(origin, Mapping):
        return all(fits(key, parts[0]) and fits(item, parts[1]) for key, item in value.items())
    if issubclass(origin, tuple) and parts[-1] is not Ellipsis:
        return len(value) == len(parts) and all(map(fits, value, parts))
    return not issubclass(origin, Sequence) or all(fits(item, parts[0]) for item in value)


def _is_instance(value: object, kind: type) -> bool:
    if getattr(kind, "_is_protocol", False):
        return value is not None and not isinstance(value, str | bytes | int | float | Sequence | Mapping)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


@functools.cache
def _hints(function: Any) -> dict[str, Any]:
    return typing.get_type_hints(function)


def _class_names(hint: Any) -> list[str]:
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return [getattr(part, "__name__", "") for part in parts]


def _described(hint: Any) -> str:
    """`a RunPlan`, `'ce' or 'mse'`, `a whole number or None`."""
    origin, parts = typing.get_origin(hint), [part for part in typing.get_args(hint) if part is not Ellipsis]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_described(part) for part in parts)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if parts and origin is not CallableClass:
        return f"a {origin.__name__.lower()} of {', '.join(_described(part).removeprefix('a ') for part in parts)}"
    kind = origin or hint
    if kind in _IN_WORDS:
        return _IN_WORDS[kind]
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def _came(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, str | bytes | int | float):
        text = repr(value)
        return f"{type(value).__name__} ({text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'})"
    if isinstance(value, tuple | list | dict):
        return f"{type(value).__name__} of {', '.join(sorted({type(item).__name__ for item in value})) or 'nothing'}"
    return type(value).__name__


def _shown(signature: inspect.Signature) -> str:
    return f"({', '.join(name for name in signature.parameters if name != 'self')})"
