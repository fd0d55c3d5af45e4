"""Model perturbation end to end: what the server recovers is the weighted mean of plain gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.reference.equations import mse_gradients_by_loops, mse_terms_by_loops
from tests.reference.gradients import plain_gradient
from tests.reference.harness import randomised, relative_error, run_round
from torch import nn

from bilateral.errors import PlanError
from bilateral.models.scale_graph import ScaleGraph, positions
from bilateral.models.zoo import build_model
from bilateral.protocols.perturb.server import PerturbServer, guarantee
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
EXCHANGES = (("mse", "local"), ("ce", "local"), ("ce", "blinded"))
NOISES = ("activation", "offset")


def mlp(outputs=4, dtype=torch.float64, bias=True, seed=0):
    body = nn.Sequential(nn.Linear(6, 9, bias=bias), nn.ReLU(), nn.Linear(9, 7, bias=bias), nn.ReLU())
    body.add_module("head", nn.Linear(7, outputs, bias=bias))
    return randomised(body.to(dtype), seed)


def batch(count, outputs, loss, seed, shape=(6,), dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, *shape, generator=generator, dtype=dtype)
    targets = torch.randn(count, outputs, generator=generator, dtype=dtype)
    return inputs, targets.argmax(1) if loss == "ce" else targets


def graph_of(model, shape=(6,)):
    return ScaleGraph.of(model, torch.zeros(1, *shape))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("loss", "softmax"), EXCHANGES)
def test_recovered_gradient_is_the_weighted_mean_over_unequal_clients(loss, softmax, noise):
    model = mlp()
    batches = [batch(count, 4, loss, seed) for seed, count in enumerate((3, 8, 1))]
    update, _ = run_round(model, PerturbationSettings(loss, noise, 2, softmax=softmax), batches, (6,))
    graph = graph_of(model)
    gradients = [len(x) * plain_gradient(model, graph, x, t, loss) for x, t in batches]
    assert relative_error(update.gradient, sum(gradients) / 12) < 1e-12


@pytest.mark.parametrize("partitions", range(1, 6))
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("loss", "softmax"), EXCHANGES)
def test_recovery_is_exact_for_every_number_of_partitions(loss, softmax, noise, partitions):
    model = mlp(outputs=5)
    data = batch(6, 5, loss, 1)
    update, _ = run_round(
        model, PerturbationSettings(loss, noise, partitions, softmax=softmax), [data], (6,), seed=partitions
    )
    assert relative_error(update.gradient, plain_gradient(model, graph_of(model), *data, loss)) < 1e-12


@pytest.mark.parametrize("noise", NOISES)
def test_one_output_regression_is_recovered(noise):
    model = mlp(outputs=1)
    data = batch(6, 1, "mse", 1)
    update, _ = run_round(model, PerturbationSettings("mse", noise), [data], (6,))
    assert relative_error(update.gradient, plain_gradient(model, graph_of(model), *data, "mse")) < 1e-12


@pytest.mark.parametrize(("loss", "softmax"), EXCHANGES)
def test_recovery_is_exact_without_permutation_and_without_biases(loss, softmax):
    model = mlp(bias=False)
    data = batch(6, 4, loss, 1)
    update, server = run_round(model, PerturbationSettings(loss, permute=False, softmax=softmax), [data], (6,))
    assert relative_error(update.gradient, plain_gradient(model, graph_of(model), *data, loss)) < 1e-12
    assert torch.equal(server._secrets.source, torch.arange(len(server._secrets.source)))


ZOO = [
    ("mlp-7", {}, (12,)),
    ("resnet-20", {"width": 4}, (3, 8, 8)),
    ("resnet-20", {"width": 4, "batch_norm": False}, (3, 8, 8)),
    ("resnet-20", {"width": 4, "shortcut": "concat"}, (3, 8, 8)),
    ("densenet", {"growth": 4, "layers": [2, 2]}, (3, 16, 16)),
]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("loss", "softmax"), EXCHANGES)
@pytest.mark.parametrize(("name", "options", "shape"), ZOO)
def test_zoo_gradient_is_recovered_to_1e_12_in_float64_and_5e_6_in_float32(name, options, shape, loss, softmax, noise):
    settings = PerturbationSettings(loss, noise, num_partitions=3, softmax=softmax)
    exact = build_model(name, input_shape=shape, num_outputs=5, **options).double().train()
    data = batch(8, 5, loss, 3, shape)
    update, _ = run_round(copy.deepcopy(exact), settings, [data], shape)
    graph = graph_of(exact, shape)
    assert relative_error(update.gradient, plain_gradient(copy.deepcopy(exact), graph, *data, loss)) < 1e-12

    narrow = copy.deepcopy(exact).float()
    narrow_data = tuple(t.float() if t.is_floating_point() else t for t in data)
    update, _ = run_round(copy.deepcopy(narrow), settings, [narrow_data], shape)
    wide_data = tuple(t.double() if t.is_floating_point() else t for t in narrow_data)
    expected = plain_gradient(narrow.double(), graph, *wide_data, loss)
    assert float((update.gradient - expected).norm() / expected.norm()) < 5e-6


def test_terms_and_recovery_equal_the_equations_written_out_by_loops():
    model = mlp(outputs=4)
    inputs, targets = batch(3, 4, "mse", 7)
    graph = graph_of(model)
    settings = PerturbationSettings("mse", "activation", 2)
    server = PerturbServer(model, graph, settings, SeededRandomness(3))
    message = server.start_round(0)
    named = graph.unflatten(message.parameters)
    layers = ["0", "2", "head"]
    terms = mse_terms_by_loops(
        [named[f"{n}.weight"].tolist() for n in layers],
        [named[f"{n}.bias"].tolist() for n in layers],
        inputs.tolist(),
        targets.tolist(),
        message.output_directions.tolist(),
        message.partition.tolist(),
        2,
    )
    gammas = server._secrets.group_secrets.tolist()
    noise = server._secrets.output_noise.tolist()
    coefficients = [1.0, *(-g for g in gammas), sum(r * r for r in noise)]
    combined = {
        f"{name}.{kind}": sum(
            c * torch.tensor(term[which][number], dtype=torch.float64)
            for c, term in zip(coefficients, terms, strict=True)
        )
        for number, name in enumerate(layers)
        for which, kind in enumerate(("weight", "bias"))
    }
    vector = graph.flatten(combined, torch.float64)
    unmoved = torch.empty_like(vector)
    unmoved[server._secrets.source] = vector
    by_loops = graph.unflatten(unmoved * server._secrets.ratio)
    plain_w, plain_b = mse_gradients_by_loops(
        [model.get_submodule(n).weight.tolist() for n in layers],
        [model.get_submodule(n).bias.tolist() for n in layers],
        inputs.tolist(),
        targets.tolist(),
    )
    for number, name in enumerate(layers):
        expected = torch.tensor(plain_w[number], dtype=torch.float64)
        assert relative_error(by_loops[f"{name}.weight"], expected) < 1e-12
        assert relative_error(by_loops[f"{name}.bias"], torch.tensor(plain_b[number], dtype=torch.float64)) < 1e-12
    update, _ = run_round(model, settings, [(inputs, targets)], (6,), seed=3)
    assert relative_error(update.gradient, unmoved * server._secrets.ratio) < 1e-9


def test_every_round_has_fresh_secrets():
    model = mlp()
    graph = graph_of(model)
    server = PerturbServer(model, graph, PerturbationSettings(), SeededRandomness(0))
    messages, secrets = [], []
    for round_index in range(3):
        messages.append(server.start_round(round_index))
        secrets.append(server._secrets)
    for name in ("scale_factors", "group_secrets", "group_blinders", "output_directions"):
        first, second = getattr(secrets[0], name), getattr(secrets[1], name)
        start = 1 if name == "scale_factors" else 0
        assert bool((first[start:] != second[start:]).all())
    assert not torch.equal(secrets[0].exchange, secrets[1].exchange)
    assert not torch.equal(messages[0].parameters, messages[1].parameters)


def test_head_input_places_do_not_matter_to_the_noise():
    model = mlp()
    graph = graph_of(model)
    server = PerturbServer(model, graph, PerturbationSettings("mse"), SeededRandomness(0))
    head = graph.unflatten(server.start_round(0).parameters)["head.weight"]
    secrets = server._secrets
    order = positions(graph.head_weight.binding.inputs, secrets.exchange)
    scale = secrets.scale_factors[graph.head_input_classes]
    expected = (model.head.weight.detach() / scale)[:, order] + secrets.output_noise[:, None]
    assert relative_error(head, expected) < 1e-14


def test_noise_has_the_size_of_the_spread_of_the_logits():
    model = mlp(outputs=10)
    for noise in NOISES:
        for ratio in (0.3, 3.0):
            settings = PerturbationSettings("mse", noise, 10, noise_ratio=ratio)
            calibration = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
            server = PerturbServer(model, graph_of(model), settings, SeededRandomness(1), calibration)
            message = server.start_round(0)
            noisy = copy.deepcopy(model)
            with torch.no_grad():
                for name, value in server._graph.unflatten(message.parameters).items():
                    noisy.get_parameter(name).copy_(value)
                added = noisy(calibration.double()) - model(calibration.double())
                spread = model(calibration.double()).var(0).mean().sqrt()
            assert 0.5 * ratio < float(added.square().mean().sqrt() / spread) < 2 * ratio


@pytest.mark.parametrize("noise", NOISES)
def test_the_size_of_a_single_group_secret_is_not_a_known_number(noise):
    model = mlp()
    server = PerturbServer(model, graph_of(model), PerturbationSettings("mse", noise), SeededRandomness(0))
    sizes = []
    for round_index in range(9):  # within one calibration interval
        server.start_round(round_index)
        secrets = server._secrets
        alpha = secrets.scale_factors[server._graph.head_input_classes].sum() if noise == "activation" else 1.0
        spread = secrets.output_directions.square().mean().sqrt()
        sizes.append(float(secrets.group_secrets.abs()[0] * spread * alpha))
    assert max(sizes) / min(sizes) > 1.5


def test_noise_is_sized_by_batch_statistics_even_before_the_running_ones_are_any_good():
    shape = (3, 8, 8)
    model = build_model("resnet-20", input_shape=shape, num_outputs=5, width=4, shortcut="concat").train()
    graph = graph_of(model, shape)
    server = PerturbServer(model, graph, PerturbationSettings("mse"), SeededRandomness(0))
    noisy = copy.deepcopy(model)
    inputs = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, value in graph.unflatten(server.start_round(0).parameters).items():
            noisy.get_parameter(name).copy_(value)
        plain = copy.deepcopy(model)(inputs)
        added = noisy(inputs) - plain
    assert 0.4 < float(added.square().mean().sqrt() / plain.var(0).mean().sqrt()) < 2.5


def test_noise_stays_bounded_when_head_inputs_sum_to_zero():
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 3)).double()
    server = PerturbServer(model, graph_of(model), PerturbationSettings("mse"), SeededRandomness(1))
    server.start_round(0)
    assert float(server._secrets.output_noise.abs().max()) < 100


def test_offset_noise_without_a_head_bias_is_refused():
    model = mlp(bias=False)
    with pytest.raises(PlanError, match=r"bias in the head `head`.*activation"):
        PerturbServer(model, graph_of(model), PerturbationSettings(noise="offset"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_partitions": 0}, "between 1 and 4"),
        ({"num_partitions": 5}, "between 1 and 4"),
    ],
)
def test_partitions_outside_the_outputs_are_refused(options, text):
    model = mlp()
    with pytest.raises(PlanError, match=text):
        PerturbServer(model, graph_of(model), PerturbationSettings(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"scale_range": (0.0, 1.0)},
        {"scale_range": (2.0, 1.0)},
        {"scale_range": (1.0, float("inf"))},
        {"scale_range": (float("nan"), 1.0)},
        {"noise_ratio": 0.0},
        {"noise_ratio": float("nan")},
        {"noise_ratio": float("inf")},
    ],
)
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(PlanError):
        PerturbationSettings(**options)


def test_cross_entropy_with_one_output_is_refused():
    model = mlp(outputs=1)
    with pytest.raises(PlanError, match="at least 2 outputs"):
        PerturbServer(model, graph_of(model), PerturbationSettings("ce"))


def test_secrets_never_appear_in_a_repr():
    model = mlp()
    server = PerturbServer(model, graph_of(model), PerturbationSettings(), SeededRandomness(0))
    server.start_round(0)
    for text in (repr(server._secrets), str(server._secrets), repr(server)):
        assert "tensor" not in text
        assert len(text) < 200


def test_calibration_leaves_the_model_as_it_was():
    model = build_model("resnet-20", input_shape=(3, 8, 8), num_outputs=4, width=4)
    model.get_submodule("head").eval()  # an odd mixture of modes must survive
    modes = [m.training for m in model.modules()]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    PerturbServer(model, graph_of(model, (3, 8, 8)), PerturbationSettings()).start_round(0)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize(("loss", "softmax"), EXCHANGES)
def test_the_guarantee_admits_its_leaks(loss, softmax):
    lines = {leak.ledger_line for leak in guarantee(PerturbationSettings(loss, softmax=softmax)).leaks}
    of_softmax = {2} if loss == "ce" else set()
    of_exchange = {8, 10, 16} if loss == "ce" and softmax == "blinded" else set()
    assert lines == {1, 3, 7, 9, 15} | of_softmax | of_exchange


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_a_partition_that_is_not_whole_numbers_is_refused(dtype):
    """Clients use it as indices."""
    from dataclasses import replace

    from bilateral.errors import ProtocolError
    from bilateral.protocols.perturb.client import PerturbClient
    from bilateral.protocols.perturb.messages import PerturbedModel

    model = mlp()
    graph, told = graph_of(model), PerturbationSettings("ce", "activation", 1, softmax="local")
    client = PerturbClient("anna", model, graph, told, SeededRandomness(0))
    ones = torch.ones(4, dtype=torch.float64)
    weights = graph.flatten(dict(model.named_parameters()), torch.float64)
    message = PerturbedModel(0, weights, ones, torch.zeros(4).long(), ones[:1])
    client.train(message, *batch(6, 4, "ce", 1), 6)
    with pytest.raises(ProtocolError, match="output groups"):
        client.train(replace(message, partition=message.partition.to(dtype)), *batch(6, 4, "ce", 1), 6)
