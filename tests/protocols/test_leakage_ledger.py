"""The ledger's leaks, demonstrated: while these tests pass, no document may claim that the leak is closed.

Every attack sees only its adversary's slice of the transcript.
"""

from __future__ import annotations

import copy
import itertools

import torch
from tests.reference.harness import randomised, relative_error
from torch import nn

from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb import cross_entropy
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
CLASSES = 6


def trained_regressor():
    """A model that fits its labels well: then labels are almost true outputs."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(100, 5, generator=generator, dtype=torch.float64)
    teacher = randomised(nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, CLASSES)).double(), 1)
    with torch.no_grad():
        labels = teacher(inputs) + 0.05 * torch.randn(100, CLASSES, generator=generator, dtype=torch.float64)
    return teacher, inputs, labels


def start(model, settings, shape=(5,)):
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    return PerturbServer(model, graph, settings, SeededRandomness(3)), graph


def test_line_1_a_client_fits_the_group_secrets_with_100_labelled_samples():
    model, inputs, labels = trained_regressor()
    for noise in ("activation", "offset"):
        server, graph = start(model, PerturbationSettings("mse", noise, num_partitions=3))
        message = server.start_round(0)
        # The client's slice: the message, its own inputs and labels.
        mine = copy.deepcopy(model)
        with torch.no_grad():
            for name, value in graph.unflatten(message.parameters).items():
                mine.get_parameter(name).copy_(value)
            noisy = mine(inputs)
            alpha = mine[1](mine[0](inputs)).sum(1) if noise == "activation" else torch.ones(100).double()
        gammas = []
        for group in range(3):
            member = message.partition == group
            regressor = (alpha[:, None] * message.output_directions[member]).reshape(-1)
            gammas.append(float(regressor @ (noisy - labels)[:, member].reshape(-1) / (regressor @ regressor)))
        fitted = torch.tensor(gammas, dtype=torch.float64)
        assert relative_error(fitted, server._secrets.group_secrets) < 0.05
        predicted = noisy - alpha[:, None] * (fitted[message.partition] * message.output_directions)
        with torch.no_grad():
            true = model(inputs)
        noise_before = float((noisy - true).square().mean().sqrt())
        assert float((predicted - true).square().mean().sqrt()) < 0.03 * noise_before


def softmax_round(partitions, samples=12, classes=CLASSES):
    model = randomised(nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, classes)).double(), 1)
    settings = PerturbationSettings("ce", num_partitions=partitions, softmax="blinded")  # as published
    server, graph = start(model, settings)
    client = PerturbClient("anna", model, graph, settings, SeededRandomness(4))
    inputs = torch.randn(samples, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    message = server.start_round(0)
    query = client.train(message, inputs, torch.zeros(samples, dtype=torch.int64), samples)
    with torch.no_grad():
        true = torch.softmax(model(inputs), 1)
    return server, client, message, query, true


def test_line_2_a_client_solves_for_the_group_blinders_and_reads_every_softmax():
    server, client, message, query, true = softmax_round(partitions=3)
    reply = server.answer("anna", query)
    # The client's slice: the message, the reply and its own blinders.
    got = cross_entropy.unblind(reply, client._pending.blinders)
    # sum_i p*_i (1 - xi_s q_i) = 1 for every sample: linear in xi.
    coefficients = torch.stack([got.corrected[:, message.partition == s].sum(1) for s in range(3)], 1)
    xi = torch.linalg.lstsq(coefficients, (got.blinded.sum(1) - 1)[:, None]).solution[:, 0]
    read = got.blinded - xi[message.partition] * got.corrected
    assert relative_error(xi, server._secrets.group_blinders) < 1e-6
    assert float((read - true).abs().max()) < 1e-6


def exponentials_from_query(blinded):
    """z up to a factor, from mu_ij = z_j / z_i + lambda_i alone.

    mu_ij - mu_ik = (z_j - z_k) / z_i has no lambda, so  z_i (mu_ij - mu_ik) - z_j + z_k = 0  for all different
    i, j, k: a homogeneous linear system whose one solution is z.
    """
    classes = len(blinded)
    mu = {(i, j): blinded[i, j - (j > i)] for i in range(classes) for j in range(classes) if i != j}
    rows = []
    for i, j, k in itertools.permutations(range(classes), 3):
        row = torch.zeros(classes, dtype=torch.float64)
        row[i], row[j], row[k] = mu[i, j] - mu[i, k], -1.0, 1.0
        rows.append(row / row.norm())
    solution = torch.linalg.svd(torch.stack(rows)).Vh[-1]
    return solution / solution.sum()


def test_line_8_the_server_reads_every_softmax_from_the_query():
    server, _, _, query, true = softmax_round(partitions=2)
    # The server's slice: the query and its own secrets.
    noise = query.activation_sum[:, None] * server._secrets.output_noise
    noisy = torch.stack([exponentials_from_query(sample) for sample in query.blinded_exponentials])
    read = noisy * torch.exp(-noise)
    read = read / read.sum(1, keepdim=True)
    assert float((read - true).abs().max()) < 1e-6


def test_line_8_holds_for_three_classes_and_tells_the_server_the_clients_blinders():
    server, client, _, query, true = softmax_round(partitions=1, classes=3)
    for number, sample in enumerate(query.blinded_exponentials):
        z = exponentials_from_query(sample)
        lambdas = torch.stack([sample[i, 0] - z[0 if i else 1] / z[i] for i in range(3)])
        assert relative_error(lambdas, client._pending.blinders.values[number]) < 1e-6
        read = z * torch.exp(-query.activation_sum[number] * server._secrets.output_noise)
        assert float((read / read.sum() - true[number]).abs().max()) < 1e-6


def test_line_8_with_two_classes_the_server_brackets_every_logit_difference():
    """One exponential a row: lambda_i is 0.1 to 10 times it, so mu_12 and mu_21 bound it from both sides."""
    server, _, _, query, true = softmax_round(partitions=1, samples=200, classes=2)
    above, below = query.blinded_exponentials[:, 0, 0], query.blinded_exponentials[:, 1, 0]
    # mu_12 = z (1 + u) and mu_21 = (1 + v) / z with u, v in [0.1, 10]:  z lies between these two.
    low, high = (above / 11).maximum(1.1 / below), (above / 1.1).minimum(11 / below)
    estimate = 0.5 * (low.log() + high.log()) - query.activation_sum * (
        server._secrets.output_noise[1] - server._secrets.output_noise[0]
    )
    truth = true[:, 1].log() - true[:, 0].log()
    assert float(torch.corrcoef(torch.stack([estimate, truth]))[0, 1]) > 0.75
    assert float(((estimate > 0) == (truth > 0)).double().mean()) > 0.75


def test_line_3_the_server_reads_a_training_sample_from_one_upload():
    """A batch of one: recovery turns a single upload into that client's gradient, and its first layer is the input."""
    model = randomised(nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, CLASSES)).double(), 1)
    settings = PerturbationSettings("mse")
    server, graph = start(model, settings)
    client = PerturbClient("anna", model, graph, settings, SeededRandomness(4))
    secret_input = torch.randn(1, 5, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    upload = client.train(server.start_round(0), secret_input, torch.zeros(1, CLASSES).double(), 1)
    # The server's slice: one upload, and its own secrets.
    gradient = graph.unflatten(server.recover(aggregate({"anna": upload}, 0)).gradient)
    unit = gradient["0.bias"].abs().argmax()
    assert relative_error(gradient["0.weight"][unit] / gradient["0.bias"][unit], secret_input[0]) < 1e-9


def test_line_7_a_client_follows_first_layer_neurons_from_round_to_round():
    """Inputs are neither scaled nor moved, so the direction of a first-layer row survives scaling and permutation."""
    model = randomised(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)).double(), 1)
    server, graph = start(model, PerturbationSettings("mse"), (20,))

    def rows(message):
        named = graph.unflatten(message.parameters)
        joined = torch.cat([named["0.weight"], named["0.bias"][:, None]], 1)
        return joined / joined.norm(dim=1, keepdim=True), server._secrets.exchange

    before, exchange_before = rows(server.start_round(0))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):  # a training step's worth of change
            step = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            parameter.add_(0.02 * parameter.abs().mean() * step)
    after, exchange_after = rows(server.start_round(1))
    neurons = graph.layout("0.weight").binding.outputs.neuron
    matched = (before @ after.T).argmax(1)
    assert torch.equal(exchange_before[neurons], exchange_after[neurons][matched])
    assert not torch.equal(matched, torch.arange(64))


def test_line_9_known_parameters_tell_a_client_their_factors():
    """A fresh BatchNorm has weight 1: what the client receives for it in the first round is the factor itself."""
    model = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, CLASSES)).double()
    server, graph = start(model, PerturbationSettings("mse"))
    received = graph.unflatten(server.start_round(0).parameters)["1.weight"]
    factors = server._secrets.scale_factors[graph.layout("1.weight").binding.numerator]
    assert relative_error(received.sort().values, factors.sort().values) < 1e-12


def test_line_7_path_products_of_weights_survive_scaling():
    """What a client can compute from two rounds without knowing any secret: products along paths, up to order."""
    model = randomised(nn.Sequential(nn.Linear(1, 6, bias=False), nn.ReLU(), nn.Linear(6, 2)).double(), 1)
    server, graph = start(model, PerturbationSettings("mse", "offset"), (1,))

    def path_products(message):
        named = graph.unflatten(message.parameters)
        return torch.sort(named["2.weight"][0] * named["0.weight"][:, 0]).values

    first, second = path_products(server.start_round(0)), path_products(server.start_round(1))
    assert relative_error(first, second) < 1e-12


class Attending(nn.Module):
    """A table, one head of attention, a head."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.q, self.k, self.v = (nn.Linear(6, 4, bias=False) for _ in range(3))
        self.o, self.head = nn.Linear(4, 6, bias=False), nn.Linear(6, 3)

    def forward(self, tokens):
        x = self.words(tokens)
        return self.head(self.o(torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)).mean(1).relu())


def test_line_7_the_products_of_a_heads_weights_are_left_alone_by_factors_and_places():
    """What is left is only what stands around them: factors and places of the table's channels."""
    model = randomised(Attending().double(), 0)
    graph = ScaleGraph.of(model, torch.zeros(1, 5, dtype=torch.int64))
    server = PerturbServer(model, graph, PerturbationSettings("ce"), SeededRandomness(3))
    sent = graph.unflatten(server.start_round(0).parameters)
    words, inner = sent["words.weight"], sent["q.weight"].T @ sent["k.weight"]
    true = {name: p.detach() for name, p in model.named_parameters()}
    assert not torch.allclose(sent["q.weight"].sort().values, true["q.weight"].sort().values, rtol=0.1)
    # Scores between all words, which a client computes with what it is sent, are the true ones.
    expected = true["words.weight"] @ true["q.weight"].T @ true["k.weight"] @ true["words.weight"].T
    assert relative_error(words @ inner @ words.T, expected) < 1e-12


def test_line_12_a_sum_says_which_rows_of_a_table_were_looked_up():
    model = randomised(Attending().double(), 0)
    graph = ScaleGraph.of(model, torch.zeros(1, 5, dtype=torch.int64))
    settings = PerturbationSettings("ce")
    server = PerturbServer(model, graph, settings, SeededRandomness(3))
    message = server.start_round(0)
    batches = {"a": torch.tensor([[1, 1, 4, 1, 4]]), "b": torch.tensor([[4, 7, 7, 7, 7]])}
    uploads = {
        name: PerturbClient(name, model, graph, settings, SeededRandomness(4)).train(message, x, torch.tensor([1]), 1)
        for name, x in batches.items()
    }
    summed = server.recover(aggregate(uploads, 0)).gradient  # what masks leave to the server
    rows = graph.unflatten(summed)["words.weight"].abs().sum(1)
    assert torch.nonzero(rows).flatten().tolist() == [1, 4, 7]
