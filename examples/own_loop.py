"""Both halves of perturbation under both halves of masks, in a loop of your own: no plan, no engine, no directory."""

from __future__ import annotations

import copy
import secrets

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bilateral import (
    Identity,
    KeyRing,
    MaskClient,
    MaskServer,
    MaskSettings,
    PerturbationSettings,
    PerturbClient,
    PerturbServer,
    ScaleGraph,
    SecureRandomness,
)
from bilateral.protocols.wire import digest

ROUNDS = 40
RATE = 0.5


def data() -> tuple[Tensor, Tensor]:
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    return torch.as_tensor(found.data).float()[order] / 16, torch.as_tensor(found.target).long()[order]


def main() -> float:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    inputs, targets = data()
    names = ("north", "south", "west")
    shares = dict(zip(names, zip(inputs[:1500].split(500), targets[:1500].split(500), strict=True), strict=True))

    # Once: identities that everybody has pinned, keys of this run, and the two halves of each protocol.
    identities = {name: Identity.generate(SecureRandomness()) for name in names}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    run_id = secrets.token_bytes(32)
    graph, masks = ScaleGraph.of(network, inputs[:2]), MaskSettings()
    perturbation = PerturbationSettings(loss="ce")
    server = PerturbServer(network, graph, perturbation, (64,))
    summing = MaskServer(run_id, names, masks, pinned=pinned)
    rings = {name: KeyRing(name, run_id, identities[name], pinned, SecureRandomness()) for name in names}
    halves = {name: PerturbClient(name, copy.deepcopy(network), graph, perturbation) for name in names}
    for name, ring in rings.items():
        summing.register(name, ring.announce())
    for ring in rings.values():
        ring.accept(summing.roster())
    masking = {name: MaskClient(rings[name], masks) for name in names}

    for number in range(ROUNDS):
        opening = summing.open_round(number, names, 2, graph.num_parameters + 1)  # one term, and the weight
        for name in names:  # 1. every client shares its seeds among the others
            summing.collect_shares(name, masking[name].open(opening))
        for name, routed in summing.route().items():
            masking[name].receive_shares(routed)
        model = server.start_round(number)  # 2. the model in disguise; masks are bound to it
        for name, (samples, labels) in shares.items():  # 3. each client trains, and masks what it uploads
            upload = halves[name].train(model, samples, labels, weight=len(labels))
            summing.collect_upload(name, masking[name].mask(upload, context=digest(model)))
        listed = summing.close_uploads(context=digest(model))  # 4. who is in the sum, signed by all
        for name in names:
            summing.collect_signature(name, masking[name].sign(listed))
        request = summing.request_shares()
        for name in names:
            summing.collect_reveal(name, masking[name].reveal(request))
        update = server.recover(summing.unmask((1, graph.num_parameters), 0))  # 5. plain training's gradient, exactly
        gradients = graph.unflatten(update.gradient)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.sub_(gradients[name].to(parameter.dtype), alpha=RATE)

    with torch.no_grad():
        accuracy = float((network(inputs[1500:]).argmax(1) == targets[1500:]).float().mean())
    print(f"accuracy {accuracy:.3f} after {ROUNDS} rounds; the server saw sums, the clients a disguised model")
    return accuracy


if __name__ == "__main__":
    main()
