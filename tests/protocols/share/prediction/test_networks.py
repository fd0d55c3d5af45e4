"""Whole networks: secret-shared logits are those of plaintext fixed point within 2^-12, and close to float's."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from tests.protocols.share.harness import QUERIER, Group, fill, queries_like, secret_and_plain
from torch import nn

from bilateral.errors import ProtocolError
from bilateral.models.zoo import build_model
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.plaintext import PlainArithmetic, linear_map, predict, predict_in_batches
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED, SEALED
from bilateral.protocols.share.prediction.messages import MaskedModel, ServerTurn

TOLERANCE = 2.0**-12
SHAPE = (3, 16, 16)
NETWORKS = [
    ("mlp-3", {}),
    ("lenet", {}),
    ("convnet", {}),
    ("convnet", {"batch_norm": True}),
    ("vgg-7", {"width": 8}),
    ("vgg-7", {"width": 8, "batch_norm": True}),
    ("resnet-8", {"width": 4, "batch_norm": False}),
    ("resnet-8", {"width": 4, "batch_norm": True}),
    ("resnet-8", {"width": 4, "batch_norm": True, "shortcut": "concat"}),
    ("resnet-8", {"width": 4, "batch_norm": False, "shortcut": "concat"}),
    ("resnet-20", {"width": 4, "batch_norm": True}),
    ("resnet-11", {"width": 4}),
    ("densenet", {"growth": 4, "layers": (2, 2)}),
    ("densenet", {"growth": 4, "layers": (2, 2), "batch_norm": False}),
]


def network(name, seed=1, **options):
    """A network of the zoo whose BatchNorm layers have seen data, so that folding them is no identity."""
    model = build_model(name, input_shape=SHAPE, num_outputs=10, seed=seed, **options)
    model.train()
    with torch.no_grad():
        model(queries_like(SHAPE, count=16, seed=seed))
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            fill(module, seed)
    return model.eval()


@pytest.mark.parametrize(("name", "options"), NETWORKS, ids=str)
def test_secret_shared_logits_agree_with_plaintext_and_float(name, options):
    secret, plain, expected = secret_and_plain(network(name, **options), queries_like(SHAPE, count=2))
    assert secret.dtype == torch.float64
    assert (secret - plain).abs().max() < TOLERANCE
    assert (secret - expected).abs().max() < TOLERANCE
    assert bool((secret.argmax(1) == expected.argmax(1)).all())


class LastUnits(PlainArithmetic):
    """In place of numbers, how far two computations can be apart: each truncation is its number rounded up or down."""

    def linear(self, index, step, source, x):
        moved = linear_map(step, self.model.layers[index].weight.abs())(x)
        return -(-moved >> self.model.circuit.values[source].fraction_bits) + 1
        yield


def furthest_apart(model):
    """Of two logits, in float: what the last units of all truncations before them come to, at worst."""
    return predict(model, torch.zeros(1, *model.circuit.input_shape), LastUnits(model))


STYLED = {
    "a layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU()),
    "windows": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    "two layers": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 6)),
    "lenet": lambda: network("lenet"),
    "vgg-7": lambda: network("vgg-7", width=4),
    "resnet-8": lambda: network("resnet-8", width=4),
    "densenet": lambda: network("densenet", growth=4, layers=(2, 2)),
}


@pytest.mark.parametrize("name", STYLED)
def test_every_style_gives_the_same_logits_but_for_the_last_units_of_truncation(name):
    """Comparisons are exact in each of them, so nothing else is left; behind one layer that is one unit of 2^-20."""
    torch.manual_seed(0)
    queries = queries_like(SHAPE, count=4)
    model = compile_model(STYLED[name]().eval(), queries)
    bound, plain = furthest_apart(model), predict(model, queries)
    assert name not in ("a layer", "windows") or bool((bound == 2.0**-20).all())
    found = [Group(style=style).predict(queries, model) for style in (SEALED, HARDENED, PUBLISHED)]
    for one, other in itertools.combinations([*found, plain], 2):
        assert bool(((one - other).abs() <= bound).all())
        assert (one - other).abs().max() < TOLERANCE


@pytest.fixture(scope="module")
def models():
    samples = queries_like(SHAPE, count=8)
    return {
        "lenet": compile_model(network("lenet"), samples),
        "resnet": compile_model(network("resnet-8", width=4), samples),
        "mlp": compile_model(network("mlp-3", seed=4), samples),
    }


def test_answers_of_different_architectures_are_summed(models):
    queries = queries_like(SHAPE, count=3, seed=5)
    group = Group(names=(QUERIER, "anna", "bela", "cleo"))
    found = group.predict(queries, *models.values())
    assert (found - sum(predict(model, queries) for model in models.values())).abs().max() < TOLERANCE


def test_outputs_with_other_fraction_bits_are_summed_too():
    pooled = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    dense = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 16))
    queries = queries_like((3, 6, 6))
    compiled = [compile_model(fill(model), queries) for model in (pooled, dense)]
    assert {model.circuit.output.fraction_bits for model in compiled} == {20, 22}
    for order in (compiled, compiled[::-1]):
        found = Group().predict(queries, *order)
        assert (found - sum(predict(model, queries) for model in compiled)).abs().max() < TOLERANCE


def test_networks_with_different_outputs_cannot_be_summed(models):
    other = build_model("mlp-3", input_shape=SHAPE, num_outputs=7)
    with pytest.raises(ProtocolError, match="different shapes"):
        Group().open(models["mlp"], compile_model(other, queries_like(SHAPE)))


def test_one_session_serves_many_batches_of_different_sizes(models):
    group = Group()
    sessions = group.open(models["lenet"], models["mlp"])
    for size in (1, 4, 2, 1):
        queries = queries_like(SHAPE, count=size, seed=size)
        expected = predict(models["lenet"], queries) + predict(models["mlp"], queries)
        assert (group.predict(queries, sessions=sessions) - expected).abs().max() < TOLERANCE
    assert len(group.replied("anna", MaskedModel)) == 1
    turns = [message for message in group.received("anna", ServerTurn) if message.number == 0]
    masked = torch.cat([turn.parts[0].reshape(-1)[:100] for turn in turns])
    assert len(masked) == 100 * 4
    assert len(masked.unique()) == len(masked)


def test_the_same_query_twice_is_masked_differently(models):
    group = Group()
    sessions = group.open(models["mlp"])
    queries = queries_like(SHAPE)
    answers = [group.predict(queries, sessions=sessions) for _ in range(2)]
    assert (answers[0] - answers[1]).abs().max() < TOLERANCE
    first, second = (e.reply.share for e in group.log if type(e.reply).__name__ == "QueryShare")
    assert not bool((first == second).any())


def test_a_new_model_is_answered_with_in_a_new_session_and_ends_the_old_one(models):
    group, queries = Group(), queries_like(SHAPE)
    old = group.open(models["lenet"])
    group.clients["anna"].offer(models["mlp"])
    with pytest.raises(ProtocolError, match="not open"):
        group.predict(queries, sessions=old)
    found = group.predict(queries, models["mlp"])
    assert (found - predict(models["mlp"], queries)).abs().max() < TOLERANCE


def test_two_querying_parties_may_ask_one_model_in_turn(models):
    group, queries = Group(), queries_like(SHAPE)
    first = group.open(models["mlp"])
    second = group.server.open_sessions("bela", ["anna"])
    group.predict(queries, sessions=first)
    group.clients["bela"].ask(queries)
    group.server.predict(second, len(queries))
    found = group.clients["bela"].take_answers()
    assert (found - predict(models["mlp"], queries)).abs().max() < TOLERANCE


def test_compiling_leaves_the_users_model_as_it_was():
    model = network("convnet", batch_norm=True).train()
    before = copy.deepcopy(model.state_dict())
    compile_model(model, queries_like(SHAPE))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32


def test_prediction_in_batches_is_prediction(models):
    queries = queries_like(SHAPE, count=7)
    assert torch.equal(predict_in_batches(models["lenet"], queries, 3), predict(models["lenet"], queries))


def test_the_device_may_be_named(models):
    queries = queries_like(SHAPE)
    found = Group(device=torch.device("cpu")).predict(queries, models["lenet"])
    assert (found - predict(models["lenet"], queries)).abs().max() < TOLERANCE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_may_be_a_gpu(models):
    queries = queries_like(SHAPE)
    found = Group(device=torch.device("cuda")).predict(queries, models["lenet"])
    assert (found - predict(models["lenet"], queries)).abs().max() < TOLERANCE
