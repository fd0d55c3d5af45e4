"""From a plan to the clients of a heterogeneous run: who has which data and which network, and how they are asked.

    shares = deal(plan, data_dir)                                    # a simulation: everyone's data, here
    client = make_client(plan, "client-2", shares.clients["client-2"], shares.num_classes)

A client is built from the plan, its own samples and the number of classes: at a site, nothing else is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bilateral.data import Dataset, Split, load_dataset, partition
from bilateral.data.sampling import shrunk
from bilateral.errors import DataError, PlanError
from bilateral.learning.client import sample_clients
from bilateral.learning.hetero.answers import Answers, PlainAnswers
from bilateral.learning.hetero.client import HeteroClient
from bilateral.models.zoo import build_model
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.share.prediction.guarantee import guarantee
from bilateral.randomness import SeededRandomness
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.secure_answers import SecureAnswers

MIN_SAMPLES = 8
"""The fewest samples of a client in a Dirichlet partition, if there are as many on average."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Everyone's samples, and the test split that all are measured on."""

    dataset: str
    num_classes: int
    clients: Mapping[str, Split] = field(repr=False)
    test: Split = field(repr=False)


def deal(plan: HeteroPlan, data_dir: Path | None = None) -> Shares:
    """The plan's data, dealt to its clients by the seed."""
    dataset = load_dataset(plan.data.name, data_dir, **plan.data.options)
    if dataset.task != "classification" or dataset.num_outputs < 2:
        raise DataError(
            f"Expected classes to learn, got {dataset.name}, a {dataset.task} set with {dataset.num_outputs} outputs.",
            remedy="Clients teach each other by class logits: choose a classification set.",
        )
    train = _drawn(plan, dataset)
    dealt = partition(
        train,
        plan.data.partition,
        plan.clients.number,
        SeededRandomness(plan.seed, "partition"),
        alpha=plan.data.alpha,
        min_samples=max(2, min(MIN_SAMPLES, len(train) // (2 * plan.clients.number))),
    )
    clients = {share.name: _shrunk(train.subset(share.indices), plan.data.shrink) for share in dealt}
    return Shares(dataset.name, dataset.num_outputs, clients, _shrunk(dataset.test, plan.data.shrink))


def _drawn(plan: HeteroPlan, dataset: Dataset) -> Split:
    """The samples to deal: a random choice of the plan's size, or all."""
    if plan.data.samples_per_client == 0:
        return dataset.train
    wanted = plan.data.samples_per_client * plan.clients.number
    if wanted > len(dataset.train):
        raise DataError(
            f"Expected at most {len(dataset.train)} samples (all of {dataset.name}'s train split), got "
            f"{plan.clients.number} clients with {plan.data.samples_per_client} each.",
            remedy="Lower data.samples_per_client or clients.number.",
        )
    order = SeededRandomness(plan.seed, "drawn").permutation(len(dataset.train))
    return dataset.train.subset(order[:wanted].sort().values)


def _shrunk(split: Split, factor: int) -> Split:
    return split if factor == 1 else Split(shrunk(split.inputs, factor, "data.shrink"), split.targets, split.sites)


def make_client(plan: HeteroPlan, name: str, data: Split, num_classes: int) -> HeteroClient:
    """One client, from its own samples. Its initial weights are its own too, drawn from the seed and its name."""
    if name not in plan.clients.names:
        raise PlanError(f"{name!r} is no client of this run; they are {', '.join(plan.clients.names)}.")
    if data.form is not None:
        raise DataError(
            f"The samples have several inputs, {data.form}; different networks answer each other about one.",
            remedy="Give one tensor a sample.",
        )
    architecture = plan.clients.architecture(name)
    randomness = SeededRandomness(plan.seed, "hetero", name)
    model = build_model(
        architecture.name,
        input_shape=tuple(data.inputs.shape[1:]),
        num_outputs=num_classes,
        seed=int.from_bytes(randomness.child("model").random_bytes(7), "little"),
        **architecture.options,
    )
    return HeteroClient(name, data, model, num_classes, plan.settings(), randomness)


def answerers_of(plan: HeteroPlan, querier: str, iteration: int) -> tuple[str, ...]:
    """Who answers `querier` in an iteration: a random `queries.fraction` of the others."""
    others = [name for name in plan.clients.names if name != querier]
    draws = SeededRandomness(plan.seed, "answerers", querier)
    return sample_clients(others, plan.queries.fraction, iteration, draws)


def make_answers(plan: HeteroPlan, on_answered: Callable[[int], None] | None = None, term: int = 0) -> Answers:
    """How clients are asked in this plan, all of them in this process. `on_answered`: so many more queries are done.

    `term` is another one in every process that goes on with a run: no mask is used for two queries.
    """
    if plan.answers == "plain":
        return PlainAnswers()
    randomness = SeededRandomness(plan.seed, "answers")
    return SecureAnswers(
        plan.clients.names,
        randomness.child("term", term) if term else randomness,
        plan.comparisons,
        on_answered=on_answered or (lambda _: None),
    )


def check_secure(plan: HeteroPlan) -> None:
    """Clients at sites ask by secret-shared prediction, or not at all."""
    if plan.answers != "secure":
        raise PlanError(
            f"answers = {plan.answers!r} would show every query to the server.",
            remedy="Use secure answers, or --engine in-process.",
        )


def guarantee_of(plan: HeteroPlan) -> Guarantee:
    """What the plan's way of asking hides, and what it does not."""
    if plan.answers == "plain":
        return Guarantee("plain answers", (), ())
    return guarantee(plan.num_answerers, plan.comparisons)
