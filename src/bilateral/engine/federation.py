"""A plan's data, dealt out to clients, and its model, checked against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bilateral.data import Dataset, Split, load_dataset, partition
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError, ModelError
from bilateral.learning.client import prepare_targets
from bilateral.learning.exchange import SERVER
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.perturb.settings import Loss
from bilateral.randomness import SeededRandomness


@dataclass(frozen=True)
class ClientData:
    """A client's name and its share of the training data."""

    name: str
    data: Split


@dataclass(frozen=True)
class Federation:
    """A plan's data, loaded and dealt out."""

    dataset: Dataset
    loss: Loss
    clients: tuple[ClientData, ...]
    test: Split


def load_federation(plan: RunPlan, data_dir: Path | None = None) -> Federation:
    """Load the plan's data and deal them to the clients."""
    dataset = load_dataset(plan.data.name, data_dir, **plan.data.options)
    loss: Loss = "ce" if dataset.task == "classification" else "mse"
    if plan.training.loss != "auto":
        loss = plan.training.loss
    shares = partition(
        dataset.train,
        plan.federation.partition,
        plan.federation.num_clients,
        SeededRandomness(plan.seed, "partition"),
        proportions=plan.federation.proportions,
        alpha=plan.federation.alpha,
    )
    dtype = getattr(torch, plan.training.dtype)
    train = prepare_targets(dataset.train, dataset.num_outputs, loss)
    train = Split(train.inputs.to(dtype), train.targets, train.sites)
    clients = tuple(ClientData(share.name, train.subset(share.indices)) for share in shares)
    if any(client.name == SERVER for client in clients):
        raise DataError(f"A site is called {SERVER!r}, as the server is.", remedy="Rename the site.")
    if dataset.task == "classification" and not plan.federation.allow_single_class:
        _refuse_single_class(clients, dataset)
    return Federation(dataset, loss, clients, Split(dataset.test.inputs.to(dtype), dataset.test.targets))


def _refuse_single_class(clients: Sequence[ClientData], dataset: Dataset) -> None:
    if dataset.num_outputs < 2:
        return
    for client in clients:
        labels = client.data.targets if client.data.targets.dim() == 1 else client.data.targets.argmax(1)
        if len(torch.unique(labels)) < 2:
            raise DataError(
                f"{client.name} has samples of class {int(labels[0])} only ({len(labels)} of them).",
                remedy="Use fewer clients, a larger federation.alpha, or set federation.allow_single_class = true.",
            )


def analyse(plan: RunPlan, federation: Federation) -> ScaleGraph:
    """The scale graph of the plan's model, checked against the plan's data."""
    model = initial_model(plan, federation)
    graph = ScaleGraph.of(model, federation.test.inputs[:2])
    if graph.num_outputs != federation.dataset.num_outputs:
        raise ModelError(
            f"The model has {graph.num_outputs} outputs, {federation.dataset.name} needs "
            f"{federation.dataset.num_outputs}.",
            remedy="Give its last Linear that many outputs.",
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise ModelError("All parameters of the model are frozen.", remedy="Leave requires_grad=True on some of them.")
    for client in federation.clients:
        count = min(len(client.data), plan.training.batch_size or len(client.data))
        if graph.statistics and count < 2:
            raise DataError(
                f"{client.name}: a batch of one sample cannot train a model with BatchNorm.",
                remedy="Use a batch size of 2 or more, give the client more data, or use GroupNorm.",
            )
    return graph


def initial_model(plan: RunPlan, federation: Federation) -> nn.Module:
    """The plan's model with the initial weights of its seed."""
    return build_model(
        plan.model.name,
        input_shape=federation.dataset.input_shape,
        num_outputs=federation.dataset.num_outputs,
        seed=plan.seed,
        **plan.model.options,
    ).to(getattr(torch, plan.training.dtype))
