"""Data and models that come as objects of Python, and not by the names that a plan has for them.

    bilateral.run(model=network, data={"clinic-a": dataset_a, "clinic-b": dataset_b}, test=held_out)

Everything else is as in any run. The plan that is stored calls both `given`: who resumes gives the same objects again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset

from bilateral.data.conversion import described
from bilateral.data.dataset import Dataset, LazySplit, Split, validate
from bilateral.data.mapped import MappedSamples, is_mapped
from bilateral.data.registry import GIVEN
from bilateral.data.task import Task
from bilateral.engine.federation import Federation, federation_of
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError, ModelError, PlanError
from bilateral.models.zoo.user_function import accepts
from bilateral.randomness import SeededRandomness

Network = nn.Module | Callable[..., nn.Module]
HELD_OUT: Final = 0.2
_OPTIONS: Final = ("task", "num_outputs", "class_names", "columns")


def plan_for(plan: RunPlan, model: Network | None, data: Mapping[str, Any] | None) -> RunPlan:
    """The plan with the names of what is given: its sites are the keys of `data`."""
    settings: dict[str, Any] = {}
    if data is not None:
        if not data or not all(isinstance(name, str) and name for name in data):
            raise DataError(
                f"Expected data by the names of sites, got {described(data)}.",
                remedy='Write `data={"clinic-a": dataset_a, "clinic-b": dataset_b}`.',
            )
        options = plan.data.options if plan.data.name == GIVEN else {}
        settings |= {"data.name": GIVEN, "data.sites": {name: {} for name in data}, "data.options": options}
    if model is not None:
        settings |= {"model.name": GIVEN, "model.options": {}}
    return plan.with_settings(settings)


def given_federation(
    plan: RunPlan,
    data: Mapping[str, Any],
    test: Any,
    options: Mapping[str, Any],
    model: Network | None,
) -> Federation:
    """All sites' data as they were given. Without `test` a fifth of each site's is held out for the server."""
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise PlanError(f"Expected options among {', '.join(_OPTIONS)}, got {', '.join(unknown)}.")
    first = next(iter(data.values()))
    task = options.get("task") or (first.task if isinstance(first, Dataset) else _task_of(first, plan))
    if task not in get_args(Task):
        raise DataError(f"Expected the task to be one of {', '.join(get_args(Task))}, got {task!r}.")
    trains, tests = {}, []
    for name, given in data.items():
        train, own_test = _split_of(given, task, f"the data of {name}"), None
        if isinstance(given, Dataset):
            own_test = given.test
        elif test is None:
            train, own_test = _held_out(train, name, plan)
        trains[name] = train
        if own_test is not None:
            tests.append(own_test)
    held = _together(tests) if test is None else _split_of(test, task, "the test data")
    count = options.get("num_outputs") or _num_outputs(first, task, trains, model)
    names, columns = tuple(options.get("class_names", ())), tuple(options.get("columns", ()))
    if not names and isinstance(first, Dataset):
        names, columns = first.class_names, first.columns

    def described_as(given: Any, split: Split) -> Dataset:
        own = given if isinstance(given, Dataset) else None
        kind = (count, names, columns) if own is None else (own.num_outputs, own.class_names, own.columns)
        return validate(Dataset(GIVEN, task, split, split, *kind))

    server = described_as(None, held)
    federation = federation_of(plan, server, {name: described_as(data[name], train) for name, train in trains.items()})
    return replace(federation, network=network_of(model)) if model is not None else federation


def network_of(model: Network) -> Callable[[Any, int], nn.Module]:
    """How the run gets its model: a copy of a module, or what a function returns."""

    def build(input_shape: Any, num_outputs: int) -> nn.Module:
        if isinstance(model, nn.Module):
            return copy.deepcopy(model)
        known = {"input_shape": input_shape, "num_outputs": num_outputs}
        built = model(**{name: value for name, value in known.items() if accepts(model, name)})
        if not isinstance(built, nn.Module):
            raise ModelError(f"Expected `model` to return a torch.nn.Module, got {type(built).__name__}.")
        return built

    return build


def _split_of(given: Any, task: Task, what: str) -> Split:
    if isinstance(given, Dataset):
        return given.train
    if is_mapped(given):
        return LazySplit(MappedSamples(given, task, what))
    if isinstance(given, Split):
        return _paired(given, what)
    if isinstance(given, tuple | list) and len(given) == 2:
        return _paired(Split(*given), what)
    raise DataError(
        f"Expected {what} to be a map-style torch Dataset, a bilateral.Dataset, a Split or (inputs, targets), got "
        f"{described(given)}.",
        remedy="A torch Dataset has `__len__` and `__getitem__`, and `dataset[0]` is (input, target). Give the "
        "dataset, not a DataLoader: batches are the plan's.",
    )


def _paired(split: Split, what: str) -> Split:
    """Before a part of it is held out: what is beyond the shorter of the two has no pair."""
    inputs, targets = split.inputs, split.targets
    if isinstance(inputs, Tensor) and isinstance(targets, Tensor) and len(inputs) != len(targets):
        raise DataError(
            f"Expected a target for each of the {len(inputs)} inputs of {what}, got {len(targets)}.",
            remedy="Give both for the same samples, in the same order.",
        )
    return split


def _held_out(split: Split, name: str, plan: RunPlan) -> tuple[Split, Split]:
    count = round(HELD_OUT * len(split))
    if not 0 < count < len(split):
        raise DataError(
            f"{name} has {len(split)} samples, too few to hold a fifth out for testing.", remedy="Give `test=...`."
        )
    order = SeededRandomness(plan.seed, "held out", name).permutation(len(split))
    return split.part(order[count:].sort().values), split.part(order[:count].sort().values)


def _together(tests: list[Split]) -> Split:
    """All that are like the first; a site whose data are not is refused when it is compared."""
    first = tests[0]
    tests = [part for part in tests if (part.sample_shape, part.form) == (first.sample_shape, first.form)]
    if all(isinstance(part, LazySplit) for part in tests):
        samples = [part.samples for part in tests if isinstance(part, LazySplit)]
        chosen, offset = [], 0
        for own in samples:
            chosen.append(own.chosen + offset)
            offset += len(own.source)
        whole: ConcatDataset[Any] = ConcatDataset([own.source for own in samples])
        return LazySplit(MappedSamples(whole, samples[0].task, "the test data", chosen=torch.cat(chosen)))
    inputs, targets = (torch.cat([getattr(part, name) for part in tests]) for name in ("inputs", "targets"))
    return Split(inputs, targets, form=first.form)


def _task_of(given: Any, plan: RunPlan) -> Task:
    """What the first target looks like."""
    target = given.targets[0] if isinstance(given, Split) else given[1][0] if _is_pair(given) else _first_target(given)
    value = torch.as_tensor(target)
    if value.is_floating_point():
        return "multi-label" if plan.training.loss == "bce" else "regression"
    return "classification" if value.numel() == 1 else "segmentation"


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[1], Tensor)


def _first_target(given: Any) -> Any:
    if not is_mapped(given) or len(given) == 0:
        return 0  # refused, with its own words, by whoever makes a split of it
    try:
        sample = given[0]
        torch.as_tensor(sample[1])
    except Exception:  # what a user's dataset raises is told when it is read
        return 0
    return sample[1]


def _num_outputs(first: Any, task: Task, trains: Mapping[str, Split], model: Network | None) -> int:
    """What a dataset says, what a module gives, or what the targets hold."""
    if isinstance(first, Dataset):
        return first.num_outputs
    split = next(iter(trains.values()))
    if task in ("regression", "multi-label"):
        return int(split.subset(torch.zeros(1, dtype=torch.int64)).targets.shape[1])
    if isinstance(classes := getattr(first, "classes", None), list | tuple):
        return len(classes)
    if isinstance(model, nn.Module):
        with torch.no_grad():
            tried = copy.deepcopy(model).eval()
            if split.form is not None:
                split.form.attach(tried)
            outputs = tried(split.examples(2))
        if isinstance(outputs, Tensor) and outputs.dim() >= 2:
            return int(outputs.shape[1])
    known = [part.known_targets for part in trains.values()]
    if any(part is None for part in known):
        raise DataError(
            "The number of classes is not known without reading all data.",
            remedy="Say it: `bilateral.run(..., options={'num_outputs': 10})`.",
        )
    return max(int(part.max()) for part in known if part is not None) + 1
