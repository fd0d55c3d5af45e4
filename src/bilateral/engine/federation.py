"""Who takes part in a run, what is learned, and the data that live in this process.

A simulation holds every client's data. On many machines the server holds its own test data alone, a site its own share
alone, and both build from the same public facts: the `Problem` and the `Member`s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bilateral.data import Dataset, Split, load_dataset, partition
from bilateral.data.dataset import LazySplit
from bilateral.data.partition import ClientShare
from bilateral.data.task import Task
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError, PlanError
from bilateral.learning.client import prepare_targets
from bilateral.learning.problem import LazyShare, Member, Problem, Share
from bilateral.protocols.objective import Objective, make_objective
from bilateral.protocols.transport import SERVER
from bilateral.randomness import SeededRandomness

NUM_CALIBRATION_SAMPLES = 4


@dataclass(frozen=True)
class Federation:
    """A run as one process sees it."""

    problem: Problem
    members: tuple[Member, ...]
    shares: Mapping[str, Share] = field(default_factory=dict, repr=False)
    """Training data that live here: all of a simulation's, one site's, or none at a server."""
    test: Split | None = field(default=None, repr=False)
    """The server's."""
    validation: Split | None = field(default=None, repr=False)
    """The server's too: what the best model is chosen by. None of it is in `test`."""
    network: Callable[[Any, int], nn.Module] | None = field(default=None, repr=False)
    """Builds the model from the shape of a sample and the number of outputs, if it came as an object of Python."""

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.members]

    @property
    def test_data(self) -> Split:
        """The test data, where they must be here."""
        if self.test is None:
            raise DataError("The test data are at the server.", remedy="Evaluate there.")
        return self.test

    def with_members(self, counts: Mapping[str, int]) -> Federation:
        """The same with these members and the numbers of samples that they told (0: not told)."""
        return replace(self, members=tuple(Member(name, count) for name, count in counts.items()))


def needs_sample_counts(plan: RunPlan) -> bool:
    """Whether every client must tell everyone how many samples it has: the accounting of samples rests on it."""
    return plan.traits.needs_sample_counts


def load_federation(plan: RunPlan, data_dir: Path | None = None) -> Federation:
    """A simulation: everyone's data, here."""
    if plan.data.sites:
        view = load_server_view(plan, data_dir)
        shares = {name: load_site_share(plan, name, data_dir) for name in view.names}
    else:
        dataset = load_dataset(plan.data.name, data_dir, **plan.data.options)
        view = _server_view(plan, dataset)
        shares = {share.name: _prepared(plan, share.name, dataset, share) for share in _dealt(plan, dataset)}
    counts = {name: len(share) for name, share in shares.items()}
    return replace(view.with_members(counts), shares=shares)


def federation_of(plan: RunPlan, server: Dataset, sites: Mapping[str, Dataset]) -> Federation:
    """A simulation whose parties' data are here already, whatever the plan calls them."""
    view = _server_view(plan, server)
    shares = {name: _prepared(plan, name, dataset, None) for name, dataset in sites.items()}
    counts = {name: len(share) for name, share in shares.items()}
    return replace(view.with_members(counts), shares=shares)


def load_server_view(
    plan: RunPlan, data_dir: Path | None = None, settings: Mapping[str, Any] | None = None
) -> Federation:
    """What the server opens: its own data, for the problem and the test. `settings`: loader options of this machine.

    The data of the plan's sites are not touched. (A plan without sites deals one dataset to all: that is a simulation,
    wherever it runs.)
    """
    options = {**plan.data.options, **plan.data.server, **(settings or {})}
    return _server_view(plan, load_dataset(plan.data.name, data_dir, **options))


def load_site_share(
    plan: RunPlan,
    name: str,
    data_dir: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Share:
    """What `name` trains on, ready for it. Other sites' data are not touched if the plan names its sites.

    `settings`: loader options of this machine.
    """
    if plan.data.sites:
        if name not in plan.data.sites:
            raise PlanError(f"Expected a site among {', '.join(plan.data.sites)}, got {name!r}.")
        options = {**plan.data.options, **plan.data.sites[name], **(settings or {})}
        dataset, share = load_dataset(plan.data.name, data_dir, **options), None
    else:
        dataset = load_dataset(plan.data.name, data_dir, **{**plan.data.options, **(settings or {})})
        dealt = {share.name: share for share in _dealt(plan, dataset)}
        if name not in dealt:
            raise PlanError(f"Expected a client among {', '.join(dealt)}, got {name!r}.")
        share = dealt[name]
    return _prepared(plan, name, dataset, share)


def member_names(plan: RunPlan, data_dir: Path | None = None) -> tuple[str, ...]:
    """Who takes part. Only a partition by site without `data.sites` has to look into the data for it."""
    if plan.data.sites:
        names = tuple(plan.data.sites)
    elif plan.federation.num_clients is not None:
        names = tuple(f"client-{number}" for number in range(1, plan.federation.num_clients + 1))
    else:
        names = _names_in(plan, load_dataset(plan.data.name, data_dir, **plan.data.options))
    return _checked_names(names)


def objective_of(plan: RunPlan, task: Task) -> Objective:
    """The plan's loss: what it says, or what `auto` means for this task."""
    chosen = plan.training
    return make_objective(
        chosen.loss,
        task,
        class_weights=chosen.class_weights,
        label_smoothing=chosen.label_smoothing,
        huber_delta=chosen.huber_delta,
    )


def _server_view(plan: RunPlan, dataset: Dataset) -> Federation:
    test = _working(plan, dataset.test)
    test, validation = _held_out(plan, test)
    problem = Problem(
        dataset.name,
        dataset.task,
        dataset.input_shape,
        dataset.num_outputs,
        objective_of(plan, dataset.task),
        test.examples(NUM_CALIBRATION_SAMPLES),
        tuple(dataset.class_names),
        tuple(dataset.columns),
        form=dataset.train.form,
    )
    by_site = not plan.data.sites and plan.federation.partition == "site"
    names = _names_in(plan, dataset) if by_site else member_names(plan)
    return Federation(problem, tuple(Member(name) for name in _checked_names(names)), {}, test, validation)


def _held_out(plan: RunPlan, test: Split) -> tuple[Split, Split | None]:
    """The server's test data without what choosing takes, and that; of each class its part in both."""
    share = plan.evaluation.validation
    if not share:
        return test, None
    order = SeededRandomness(plan.seed, "validation").permutation(len(test))
    labels = test.known_targets
    if labels is not None and labels.dim() == 1:  # by class, each in its random order
        order = order[labels[order].argsort(stable=True)]
    places = torch.arange(len(test))
    chosen = ((places + 1) * share).floor() > (places * share).floor()
    if not 0 < int(chosen.sum()) < len(test):
        raise DataError(
            f"evaluation.validation = {share:g} of {len(test)} test samples leaves nothing to validate on, or to test.",
            remedy="Choose a share between, or give the server more test data.",
        )
    return test.part(order[~chosen].sort().values), test.part(order[chosen].sort().values)


def _kept_back(plan: RunPlan, name: str, own: Split) -> tuple[Split, Split | None]:
    """A site's samples without those that it measures on, and these."""
    count = round(plan.evaluation.site_holdout * len(own))
    if not plan.evaluation.site_holdout:
        return own, None
    if not 0 < count < len(own):
        raise DataError(
            f"{name} has {len(own)} samples, too few to keep {plan.evaluation.site_holdout:g} of them back.",
            remedy="Lower evaluation.site_holdout, or give the site more data.",
        )
    order = SeededRandomness(plan.seed, "site holdout", name).permutation(len(own))
    return own.part(order[count:].sort().values), _working(plan, own.part(order[:count].sort().values))


def _working(plan: RunPlan, split: Split) -> Split:
    """In the plan's precision, and with its workers where samples are loaded when they are needed."""
    cast = split.cast(_dtype(plan))
    return cast.with_workers(plan.data.workers) if isinstance(cast, LazySplit) else cast


def _names_in(plan: RunPlan, dataset: Dataset) -> tuple[str, ...]:
    return tuple(share.name for share in _dealt(plan, dataset))


def _dealt(plan: RunPlan, dataset: Dataset) -> list[ClientShare]:
    """The seeded partition: the same wherever it is computed."""
    chosen = plan.federation
    return partition(
        dataset.train,
        chosen.partition,
        chosen.num_clients,
        SeededRandomness(plan.seed, "partition"),
        proportions=chosen.proportions,
        alpha=chosen.alpha,
    )


def _prepared(plan: RunPlan, name: str, dataset: Dataset, dealt: ClientShare | None) -> Share:
    """A client's samples with targets as the loss wants them, in the plan's precision."""
    own = dataset.train if dealt is None else dataset.train.part(dealt.indices)
    own, held = _kept_back(plan, name, own)
    kind: dict[str, Any] = {
        "held": held,
        "task": dataset.task,
        "num_outputs": dataset.num_outputs,
        "class_names": tuple(dataset.class_names),
        "columns": tuple(dataset.columns),
    }
    working, objective = _working(plan, own), objective_of(plan, dataset.task)
    if isinstance(working, LazySplit):
        train: Share = LazyShare(working, objective, **kind)
    else:
        ready = prepare_targets(own, dataset.num_outputs, objective)
        train = Share(working.inputs, ready.targets, own.sites, own.form, **kind)
    if dataset.task == "classification" and dataset.num_outputs > 1 and not plan.federation.allow_single_class:
        _refuse_single_class(name, train)
    return train


def _refuse_single_class(name: str, data: Split) -> None:
    targets = data.known_targets
    if targets is None:  # to be known only by loading all of it
        return
    labels = targets if targets.dim() == 1 else targets.argmax(1)
    if len(torch.unique(labels)) < 2:
        raise DataError(
            f"{name} has samples of class {int(labels[0])} only ({len(labels)} of them).",
            remedy="Use fewer clients, a larger federation.alpha, or set federation.allow_single_class = true.",
        )


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    if SERVER in names:
        raise DataError(f"A site is called {SERVER!r}, as the server is.", remedy="Rename the site.")
    return tuple(names)


def _dtype(plan: RunPlan) -> torch.dtype:
    dtype = getattr(torch, plan.training.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype
