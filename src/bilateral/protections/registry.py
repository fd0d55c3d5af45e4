"""Protections by the names that plans call them.

    register(Toy())                 # a class of `base.Protection`, from inside or outside of this package

An installed package registers one by an entry point of the group `bilateral.protections`, which names such a class (or
a function that returns one). All of them are loaded together when a name is first asked for: which code is imported
depends on what is installed here, and never on what a plan says.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from bilateral.errors import PlanError

if TYPE_CHECKING:  # they are built from what asks for names here
    from pydantic import BaseModel

    from bilateral.protections.base import AnyModelProtection, NoiseProtection, Protection

GROUP: Final = "bilateral.protections"
NO_NOISE: Final = "none"
"""What `noise.mechanism` says where there is none."""
LOCAL_STEPS: Final = "local-steps"
"""What stands in the names of trainings whose clients take steps of their own, in place of `fedavg`."""

_PROTECTIONS: Final[dict[str, AnyModelProtection]] = {}
_MECHANISMS: Final[dict[str, NoiseProtection]] = {}


def register(protection: Protection) -> None:
    """Make a protection known to plans, by its name; a name that is taken is refused."""
    taken = {NO_NOISE, *_PROTECTIONS, *_MECHANISMS, *(alias for one in _PROTECTIONS.values() for alias in one.aliases)}
    if clash := taken.intersection((protection.name, *protection.aliases)):
        raise PlanError(f"There is a protection called {min(clash)!r} already.", remedy="Choose another name.")
    protection.enter(_PROTECTIONS, _MECHANISMS)


def unregister(name: str) -> None:
    """Forget a protection."""
    if _PROTECTIONS.pop(name, None) is None and _MECHANISMS.pop(name, None) is None:
        raise PlanError(f"There is no protection called {name!r}.")


def make_known(protections: Iterable[Protection]) -> None:
    """Register those that are not known in this process, as they were in the one that started it."""
    known = {one.name for one in everyone()}
    for one in protections:
        if one.name not in known:
            register(one)


def protection_names() -> tuple[str, ...]:
    """What a plan's `protection` may be."""
    _load_installed()
    return tuple(_PROTECTIONS)


def mechanism_names() -> tuple[str, ...]:
    """What a plan's `noise.mechanism` may be."""
    _load_installed()
    return (NO_NOISE, *_MECHANISMS)


def protection_words() -> tuple[str, ...]:
    """The same as people say them (`fedsgd` where plans store `fedavg`), without the baselines."""
    _load_installed()
    return tuple(word_of(one.name) for one in _PROTECTIONS.values() if not one.baseline_of)


def word_of(name: str) -> str:
    """What people say for a protection's stored name, and plans may."""
    one = protection_named(name)
    return one.aliases[0] if one.aliases else one.name


def baseline_names() -> tuple[str, ...]:
    """Schemes of others, here to be measured against."""
    _load_installed()
    return tuple(one.name for one in _PROTECTIONS.values() if one.baseline_of)


def protection_named(name: str) -> AnyModelProtection:
    _load_installed()
    return _PROTECTIONS[name]


def mechanism_named(name: str) -> NoiseProtection | None:
    """None for `none`."""
    _load_installed()
    return None if name == NO_NOISE else _MECHANISMS[name]


def unaliased(name: str) -> str:
    """The name that is stored, of one that a plan may use for it."""
    return next((one.name for one in _PROTECTIONS.values() if name in one.aliases), name)


def everyone() -> tuple[Protection, ...]:
    """All protections, in the order in which they were registered."""
    _load_installed()
    return (*_PROTECTIONS.values(), *_MECHANISMS.values())


def own_sections() -> dict[str, type[BaseModel]]:
    """Sections that a plan may have besides its own: settings of protections, under their names."""
    return {one.name: one.settings for one in everyone() if one.settings is not None}


def spoken(identifier: str) -> str:
    """An identifier of ours as people read it: `fedavg` averages one gradient a round, and that is FedSGD.

    With local steps it is FedAvg.
    """
    for one in everyone():
        identifier = identifier.replace(one.name, one.vocabulary.spoken or one.name)
    return identifier.replace(LOCAL_STEPS, "FedAvg")


def in_words(names: tuple[str, ...]) -> str:
    """`a, b or c`, for help texts."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


@cache
def _load_installed() -> None:
    for found in entry_points(group=GROUP):
        try:
            register(found.load()())
        except Exception as error:  # one broken package must not take the others down
            warnings.warn(f"The protection {found.name!r} ({found.value}) was left out: {error}", stacklevel=2)
