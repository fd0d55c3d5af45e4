"""The two ablations of P2: noise by a trusted server, and naive noise that the ratios blow up."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from tests.reference.gradients import plain_gradient

from bilateral.errors import ProtocolError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protections.mp_cdp import server as mp_cdp
from bilateral.protections.mp_cdp.server import MpCdpServer, trained_elements
from bilateral.protections.mp_dp_naive import client as mp_dp_naive
from bilateral.protections.mp_dp_naive.client import MpDpNaiveClient
from bilateral.protocols.messages import aggregate
from bilateral.protocols.noise.published_accounting import central_sigma, local_sigma
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
SHAPE, CLIENTS = (8,), 4


class Bench:
    """A model, its server and clients with batches of unequal size."""

    def __init__(self, loss="mse", frozen=None, softmax="local"):
        self.model = build_model("mlp-5", input_shape=SHAPE, num_outputs=3, width=20).double()
        if frozen:
            self.model.get_parameter(frozen).requires_grad_(False)
        self.graph = ScaleGraph.of(self.model, torch.zeros(1, *SHAPE))
        self.settings = PerturbationSettings(loss, softmax=softmax)
        self.server = PerturbServer(self.model, self.graph, self.settings, SeededRandomness(1))
        self.clients = [PerturbClient(f"client-{k}", self.model, self.graph, self.settings) for k in range(CLIENTS)]
        generator = torch.Generator().manual_seed(0)
        self.batches = []
        for k in range(CLIENTS):
            inputs = torch.randn(3 + k, *SHAPE, generator=generator, dtype=torch.float64)
            targets = torch.randn(3 + k, 3, generator=generator, dtype=torch.float64)
            self.batches.append((inputs, targets.argmax(1) if loss == "ce" else targets))

    def uploads(self, clients, server, round_index=0, weight=1):
        message, uploads = server.start_round(round_index), {}
        for client, (inputs, targets) in zip(clients, self.batches, strict=True):
            sent = client.train(message, inputs, targets, weight)
            uploads[client.name] = (
                client.receive(server.answer(client.name, sent)) if self.settings.has_exchange else sent
            )
        return uploads

    def mean_gradient(self):
        parts = [plain_gradient(self.model, self.graph, *data, self.settings.loss) for data in self.batches]
        return sum(parts) / CLIENTS

    def central(self, sigma):
        return MpCdpServer(self.server, self.model, self.graph, sigma, CLIENTS, SeededRandomness(2))

    def naive(self, sigma):
        return [MpDpNaiveClient(c, self.model, self.graph, sigma, SeededRandomness(3, c.name)) for c in self.clients]


@pytest.mark.parametrize(("loss", "softmax"), [("mse", "local"), ("ce", "local"), ("ce", "blinded")])
def test_without_noise_both_ablations_recover_the_equally_weighted_mean(loss, softmax):
    bench = Bench(loss, softmax=softmax)
    server = bench.central(0.0)
    for clients in (bench.clients, bench.naive(0.0)):
        got = server.recover(aggregate(bench.uploads(clients, server), 0)).gradient
        assert float((got - bench.mean_gradient()).norm() / got.norm()) < 1e-11


def test_central_noise_is_normal_with_the_central_sigma_and_fresh_every_round():
    bench = Bench()
    sigma = central_sigma(3.0, 1e-5, CLIENTS)
    server = bench.central(sigma)
    clients, noises = bench.clients, []
    for number in range(5):
        uploads = bench.uploads(clients, server, number)
        noises.append(server.recover(aggregate(uploads, number)).gradient - bench.mean_gradient())
    assert stats.kstest(torch.cat(noises).numpy(), "norm", (0, sigma)).pvalue > 1e-3


def test_naive_noise_is_blown_up_by_the_ratio():
    """Given the round's ratios: noise on element i over ratio_i is normal with sigma / sqrt(K)."""
    bench = Bench()
    sigma = local_sigma(3.0, 1e-5)
    uploads = bench.uploads(bench.naive(sigma), bench.server)
    noise = bench.server.recover(aggregate(uploads, 0)).gradient - bench.mean_gradient()
    ratio = bench.server._secrets.ratio
    assert stats.kstest((noise / ratio).numpy(), "norm", (0, sigma / math.sqrt(CLIENTS))).pvalue > 1e-3
    # The mean square is E ratio^2 times the wanted one, and sqrt(K) more than the central noise to begin with.
    blown_up = float(noise.square().mean()) / (sigma**2 / CLIENTS)
    assert blown_up == pytest.approx(float(ratio.square().mean()), rel=0.25)
    assert blown_up > 1.5
    assert stats.kstest(noise.numpy(), "norm", (0, float(noise.std()))).pvalue < 1e-6


def test_frozen_parameters_get_no_noise():
    bench = Bench(frozen="hidden.1.weight")
    frozen = bench.graph.layout("hidden.1.weight")
    server = bench.central(1.0)
    central = server.recover(aggregate(bench.uploads(bench.clients, server), 0))
    naive = bench.server.recover(aggregate(bench.uploads(bench.naive(1.0), bench.server), 0))
    for update in (central, naive):
        assert not update.gradient[frozen.slice].any()
    assert len(trained_elements(bench.model, bench.graph)) == bench.graph.num_parameters - frozen.numel


def test_central_noise_refuses_weights_other_than_1():
    bench = Bench()
    server = bench.central(1.0)
    uploads = bench.uploads(bench.clients, server, weight=5)
    with pytest.raises(ProtocolError, match=r"weight 20, expected 4"):
        server.recover(aggregate(uploads, 0))


def test_noise_of_naive_clients_is_on_the_first_term_only():
    bench = Bench()
    bare = bench.uploads(bench.clients, bench.server)["client-0"]
    noisy = bench.uploads(bench.naive(1.0), bench.server)["client-0"]  # the same round and seed: the same model
    assert torch.equal(bare.terms[1:], noisy.terms[1:])
    assert bool((bare.terms[0] != noisy.terms[0]).all())
    assert noisy.weight == 1


def test_the_central_servers_state_is_that_of_its_perturbation():
    bench, other = Bench(), Bench()
    bench.central(1.0).start_round(0)
    other.central(1.0).load_state_tensors(bench.central(1.0).state_tensors())
    assert other.server.state_tensors().keys() == bench.server.state_tensors().keys() != set()


@pytest.mark.parametrize("module", [mp_cdp, mp_dp_naive])
def test_the_guarantees_of_the_ablations_are_conditional_and_admit_line_3(module):
    stated = module.guarantee(PerturbationSettings("mse"), 3.0, 1e-5)
    assert "nobody" in stated.claims[-1].assumption
    assert "(3, 1e-05)" in stated.claims[-1].what
    assert [leak.ledger_line for leak in stated.leaks].count(3) == 1
