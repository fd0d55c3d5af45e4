"""Small secret-shared predictions for tests."""

from __future__ import annotations

import torch
from torch import nn

from bilateral.audit.shared_recording import SharedParties
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.gates.styles import HARDENED
from bilateral.randomness import SeededRandomness

NAMES = ("quentin", "anna", "bela")


def small_network(seed=0):
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 4))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return network.eval()


def some_queries(count=12, seed=1):
    return torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


def asked(style=HARDENED, *, answerers=("anna", "bela"), queries=None, repeats=1, seed=0):
    """Runs of the same queries."""
    queries = some_queries() if queries is None else queries
    models = {name: compile_model(small_network(len(name) + ord(name[0])), some_queries()) for name in answerers}
    parties = SharedParties(NAMES, SeededRandomness(seed, "tests of views"), style)
    return [parties.ask("quentin", queries, models) for _ in range(repeats)]
