"""Loops of one's own: FedAvg under masks, and perturbation under masks. No plan, no engine, no directory.

Here all parties are in one process, and a function hands bytes from one to the other. Elsewhere it brings them over the
network: a site's `answer` takes the bytes that came and returns those that go back (docs/how-to/own-loop.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bilateral import (
    Cohort,
    CohortServer,
    CohortSite,
    Identity,
    PerturbationSettings,
    PerturbClient,
    PerturbServer,
    ScaleGraph,
    check_recovery,
)

Share = tuple[Tensor, Tensor]


def masked_fedavg(network: nn.Module, shares: Mapping[str, Share], rounds: int = 8) -> nn.Module:
    """Sites train in plain PyTorch; the server gets the mean of what they made of the model, and of no site more."""
    identities = {name: Identity.generate() for name in shares}
    cohort = Cohort({name: identity.public_bytes for name, identity in identities.items()})

    def training(inputs: Tensor, targets: Tensor) -> Callable[[dict[str, Tensor]], tuple[dict[str, Tensor], int]]:
        def train(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], int]:
            local = copy.deepcopy(network)
            local.load_state_dict(tensors)
            optimiser = torch.optim.SGD(local.parameters(), lr=0.2)
            for batch in torch.randperm(len(targets)).split(25):
                optimiser.zero_grad()
                F.cross_entropy(local(inputs[batch]), targets[batch]).backward()
                optimiser.step()
            return local.state_dict(), len(targets)

        return train

    sites = {name: CohortSite(cohort, identities[name], training(*share)) for name, share in shares.items()}
    server = CohortServer(cohort, lambda packets: {name: sites[name].answer(data) for name, data in packets.items()})
    for _ in range(rounds):
        network.load_state_dict(server.mean(network.state_dict()))
    return network


def masked_perturbation(network: nn.Module, shares: Mapping[str, Share], rounds: int = 40) -> nn.Module:
    """Sites train a model in disguise; the server recovers plain training's gradient from the sum of their uploads."""
    example = next(iter(shares.values()))[0][:2]
    graph, settings = ScaleGraph.of(network, example), PerturbationSettings(loss="ce")
    check_recovery(network, graph, settings, example)
    identities = {name: Identity.generate() for name in shares}
    cohort = Cohort({name: identity.public_bytes for name, identity in identities.items()})
    sites = {}
    for name, share in shares.items():
        half = PerturbClient(name, network, graph, settings)  # has a copy of its own, without the weights
        sites[name] = CohortSite.with_half(cohort, identities[name], half, lambda _, share=share: share)
    server = CohortServer(cohort, lambda packets: {name: sites[name].answer(data) for name, data in packets.items()})
    disguise = PerturbServer(network, graph, settings)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(rounds):
        gradients = graph.unflatten(server.update(disguise).gradient)
        for name, parameter in network.named_parameters():
            parameter.grad = gradients[name].to(parameter.dtype)
        optimiser.step()
    return network


def main() -> dict[str, float]:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    inputs, targets = torch.as_tensor(found.data).float()[order] / 16, torch.as_tensor(found.target).long()[order]
    parts = zip(inputs[:1500].split(500), targets[:1500].split(500), strict=True)
    shares = dict(zip(("north", "south", "west"), parts, strict=True))
    accuracies = {}
    for loop in (masked_fedavg, masked_perturbation):
        torch.manual_seed(0)
        network = loop(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), shares)
        with torch.no_grad():
            accuracies[loop.__name__] = float((network(inputs[1500:]).argmax(1) == targets[1500:]).float().mean())
        print(f"{loop.__name__}: accuracy {accuracies[loop.__name__]:.3f}")
    return accuracies


if __name__ == "__main__":
    main()
