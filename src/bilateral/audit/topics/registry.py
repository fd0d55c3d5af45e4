"""All experiments: those of the topics, those of installed packages, and those that were registered by a call.

A topic is a folder with a list of its experiments (`experiments.py`) and a line here. From outside of this package:

    register(MY_EXPERIMENT)                        # for as long as the process lives; `unregister` takes it back

    [project.entry-points."bilateral.experiments"]
    mine = "my_package.attacks:EXPERIMENTS"        # one experiment, or several; for good
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from typing import Final

from bilateral.audit.experiment import AnyPlan, Experiment
from bilateral.errors import PlanError
from bilateral.protocols.guarantee import Subject

GROUP: Final = "bilateral.experiments"
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_REGISTERED: Final[dict[str, Experiment]] = {}


def all_experiments() -> tuple[Experiment, ...]:
    """Every experiment that is known here, in the order in which audits show them."""
    return (*_of_topics(), *_of_packages(), *_REGISTERED.values())


def experiments_for(plan: AnyPlan) -> tuple[Experiment, ...]:
    """The experiments on plans of this kind, whether they apply to this one or not."""
    return tuple(one for one in all_experiments() if isinstance(plan, one.kinds))


def about_of(name: str) -> tuple[Subject | int, ...]:
    """What an experiment can test; nothing is known of one that is not installed here (stored audits name them)."""
    return next((one.about for one in all_experiments() if one.name == name), ())


def register(experiment: Experiment) -> None:
    """Add an experiment from outside of this package."""
    _expect_new(experiment, all_experiments())
    try:
        pickle.dumps(experiment)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PlanError(
            f"The experiment {experiment.name!r} cannot be handed to the processes of an audit: {error}.",
            remedy="Make `applies` and `run` functions of a module.",
        ) from error
    _REGISTERED[experiment.name] = experiment


def unregister(name: str) -> None:
    """Take back what `register` added."""
    if name not in _REGISTERED:
        raise PlanError(f"No experiment {name!r} was registered.", remedy="`register` adds one.")
    del _REGISTERED[name]


def registered() -> tuple[Experiment, ...]:
    """What a process that an audit starts does not know by itself."""
    return tuple(_REGISTERED.values())


@cache
def _of_topics() -> tuple[Experiment, ...]:
    # ruff: noqa: PLC0415 (slow: scipy, scikit-learn, scikit-image)
    from bilateral.audit.topics.ciphers import experiments as ciphers
    from bilateral.audit.topics.dishonest import experiments as dishonest
    from bilateral.audit.topics.inversion import experiments as inversion
    from bilateral.audit.topics.masks import experiments as masks
    from bilateral.audit.topics.membership import experiments as membership
    from bilateral.audit.topics.model import experiments as model
    from bilateral.audit.topics.noise import experiments as noise
    from bilateral.audit.topics.sealed import experiments as sealed
    from bilateral.audit.topics.shared import experiments as shared
    from bilateral.audit.topics.swapped import experiments as swapped

    topics = (inversion, swapped, membership, model, noise, masks, dishonest, sealed, ciphers, shared)
    return tuple(one for topic in topics for one in topic.EXPERIMENTS)


@cache
def _of_packages() -> tuple[Experiment, ...]:
    found: list[Experiment] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        loaded = entry.load()
        for one in loaded if isinstance(loaded, Iterable) else (loaded,):
            if not isinstance(one, Experiment):
                raise PlanError(
                    f"Expected experiments behind the entry point {entry.value!r} of {GROUP}, got "
                    f"{type(one).__name__}.",
                    remedy="Name an `Experiment`, or a list of them, or uninstall that package.",
                )
            _expect_new(one, (*_of_topics(), *found))
            found.append(one)
    return tuple(found)


def _expect_new(experiment: Experiment, known: Iterable[Experiment]) -> None:
    """A name is a file of the audit's directory, and says whose figures they are."""
    if not _NAME.fullmatch(experiment.name):
        raise PlanError(f"Expected a name like 'my-attack' for an experiment, got {experiment.name!r}.")
    if any(one.name == experiment.name for one in known):
        raise PlanError(f"There is an experiment {experiment.name!r} already.", remedy="Give this one another name.")
