"""A federation that runs P2's scheme in memory: key agreement is played by a hash of the two names."""

from __future__ import annotations

import hashlib

import torch

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import aggregate
from bilateral.protocols.noise.published import PublishedNoiseClient
from bilateral.protocols.noise.published_model import PublishedModel, published_settings
from bilateral.protocols.noise.published_server import PublishedServer
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.randomness import SeededRandomness


class NamedSecrets:
    """Both ends of a pair get the same bytes, for each purpose, round and attempt others."""

    def __init__(self, name):
        self._name = name

    def round_secret(self, other, purpose, round_index, attempt, opening_digest):
        pair = sorted((self._name, other))
        return hashlib.sha256(repr((pair, purpose, round_index, attempt)).encode()).digest()


def everyone_else(name):
    """Neighbours on the complete graph."""
    return lambda round_index, participants: [p for p in participants if p != name]


def ring_of(name):
    """Neighbours on a ring of the participants in the order of their names."""

    def neighbours(round_index, participants):
        order = sorted(participants)
        place = order.index(name)
        return sorted({order[place - 1], order[(place + 1) % len(order)]} - {name})

    return neighbours


def batch(shape, outputs, seed, count=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=generator, dtype=dtype)
    return inputs, torch.randn(count, outputs, generator=generator, dtype=dtype)


class Federation:
    """A server and clients with one batch each."""

    def __init__(self, model, shape, num_clients, levels, *, seed=0, graph=everyone_else, partitions=1, count=4):
        example = torch.zeros(1, *shape)
        dtype = next(model.parameters()).dtype
        self.model = model
        self.graph = ScaleGraph.of(model, example)
        self.published = PublishedModel.of(model, self.graph, example)
        self.server = PublishedServer(self.published, num_clients, partitions, SeededRandomness(seed, "server"))
        self.names = [f"client-{k}" for k in range(num_clients)]
        outputs = self.graph.num_outputs
        self.batches = {n: batch(shape, outputs, seed + k, count, dtype) for k, n in enumerate(self.names)}
        settings = published_settings(partitions)
        self.trainers = {n: PerturbClient(n, self.published.model, self.published.graph, settings) for n in self.names}
        self.noises = {
            n: PublishedNoiseClient(
                n, self.published, levels, NamedSecrets(n), graph(n), SeededRandomness(seed, "client", n)
            )
            for n in self.names
        }

    @property
    def secrets(self):
        return self.server._inner._secrets

    def bare_uploads(self, message):
        return {n: self.trainers[n].train(message, *self.batches[n], 1) for n in self.names}

    def add_noise(self, uploads, round_index):
        return {n: self.noises[n].add_noise(u, round_index, self.names) for n, u in uploads.items()}

    def recover(self, uploads, round_index):
        return self.server.recover(aggregate(uploads, round_index)).gradient

    def round(self, round_index):
        """(recovered gradient with noise, without noise)"""
        bare = self.bare_uploads(self.server.start_round(round_index))
        noisy = self.add_noise(bare, round_index)
        return self.recover(noisy, round_index), self.recover(bare, round_index)
