"""FedSGD, masks and sound noise take any module: small networks of many kinds, in `benchmarks/module_families.py`."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import module_table
from bilateral.engine.federation import load_federation
from bilateral.engine.setup import make_blueprint
from bilateral.errors import ModelError, UnsoundPlanError
from bilateral.models.layout import ModelLayout
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protocols.noise.clipping import ClipSettings
from module_families import FAMILIES

NETWORKS = dict(module_table.networks(torchvision=False))
EXACT = {"fedavg": 1e-13, "masks": 1e-11}


def network(name):
    torch.manual_seed(3)
    return FAMILIES[name].build(module_table.CLASSES)


def batch(name, count):
    split = module_table.samples(FAMILIES[name].kind).train
    return split.inputs[:count], split.targets[:count]


@pytest.mark.parametrize("protection", EXACT)
@pytest.mark.parametrize("name", FAMILIES)
def test_any_module_is_trained_by_the_gradient_of_plain_autograd(name, protection):
    cell = module_table.measure(NETWORKS[name], protection)
    assert cell.refusal == ""
    assert cell.error <= EXACT[protection]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "BatchNorm"])
def test_a_sample_of_any_module_is_clipped_by_itself_to_the_last_bit(name):
    model, (inputs, targets) = network(name), batch(name, 5)
    layout, clip = ModelLayout.of_module(model, inputs[:2]), ClipSettings(1e9, "sample", 1.0)
    client = FedAvgClient("c", model, layout, "ce", clip=clip)
    message = FedAvgServer(model, layout).start_round(0)

    def rows(order):
        torch.manual_seed(0)
        client._model.load(message.parameters)
        return dict(zip(order, client._samples.chunks(inputs[order], targets[order], client.objective), strict=True))

    together, alone, backwards = rows([0, 1, 2, 3, 4]), rows([3]), rows([4, 3, 0])
    assert torch.equal(together[3], alone[3])
    assert all(torch.equal(together[number], backwards[number]) for number in backwards)
    own = copy.deepcopy(client._model.module)
    F.cross_entropy(own(inputs[3:4]), targets[3:4]).backward()
    expected = torch.cat(
        [module_table._gradient(dict(own.named_parameters())[p.name]).reshape(-1) for p in layout.parameters]
    )
    torch.testing.assert_close(together[3][0, 0], expected, rtol=1e-4, atol=1e-6)


def test_batch_norm_is_refused_by_name_under_sound_noise():
    with pytest.raises(UnsoundPlanError, match="`1`"):
        make_blueprint(plan := module_table.plan_for(NETWORKS["BatchNorm"], "sound noise"), load_federation(plan))


def test_what_is_frozen_does_not_travel_and_is_the_same_everywhere():
    plan = module_table.plan_for(NETWORKS["LoRA on a Transformer"], "fedavg")
    blueprint = make_blueprint(plan, load_federation(plan))
    training = blueprint.server()
    named = dict(training.model.named_parameters())
    assert {p.name for p in blueprint.layout.parameters} == {name for name, p in named.items() if p.requires_grad}
    assert blueprint.layout.num_parameters < sum(p.numel() for p in named.values()) / 3
    own = dict(blueprint.client("client-1").half._model.module.named_parameters())
    assert all(torch.equal(own[name], p) for name, p in named.items() if not p.requires_grad)


@pytest.mark.parametrize("protection", ["perturbation", "sealed"])
@pytest.mark.parametrize("name", ["weight normalisation", "two heads"])
def test_a_refusal_names_the_layer_the_reason_and_who_takes_it(name, protection):
    plan = module_table.plan_for(NETWORKS[name], protection)
    with pytest.raises(ModelError, match="Or choose protection = 'masks' or 'fedsgd', which take any module") as raised:
        make_blueprint(plan, load_federation(plan))
    assert {"weight normalisation": "`0`", "two heads": "`cat`"}[name] in str(raised.value)


def test_what_no_protection_takes_is_not_sent_to_another():
    plan = module_table.plan_for({"model.name": "module_families:tabular_mlp"}, "perturbation")
    wrong = plan.with_settings({"model.name": "tests.benchmarks.test_module_families:three_outputs"})
    with pytest.raises(ModelError) as raised:
        make_blueprint(wrong, load_federation(wrong))
    assert "Or choose" not in str(raised.value)


def three_outputs(input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape.numel() if hasattr(input_shape, "numel") else 64, 3))


class Remembers(nn.Module):
    """Its forward pass writes a buffer that no round brings together."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(x).flatten(1))


def test_memory_that_would_not_travel_is_refused_by_name():
    with pytest.raises(ModelError, match=r"`layer\.running_mean`"):
        ModelLayout.of_module(Remembers(nn.InstanceNorm1d(2, track_running_stats=True)), torch.randn(2, 2, 4))


def test_without_values_a_model_is_refused_by_name():
    with pytest.raises(ModelError, match=r"`0\.weight` has no values"):
        ModelLayout.of_module(nn.Sequential(nn.LazyLinear(3)), torch.zeros(2, 4))
    with pytest.raises(ModelError, match="has no values"):
        ModelLayout.of_module(nn.Linear(4, 3, device="meta"), torch.zeros(2, 4))


def test_a_layout_lays_out_a_traced_model_as_its_scale_graph_does():
    model, example = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3)),
        torch.randn(2, 3, 4, 4),
    )
    graph, layout = ScaleGraph.of(model, example), ModelLayout.of_module(model, example)
    assert [(p.name, p.shape, p.offset) for p in graph.parameters] == [
        (p.name, p.shape, p.offset) for p in layout.parameters
    ]
    assert [(s.module, s.num_channels, s.tracked) for s in graph.statistics] == [("1", 4, True)]
    assert layout.statistics[0] == type(layout.statistics[0])("1", 4, True)
    assert (graph.num_outputs, graph.input_shape, graph.num_statistics) == (3, (3, 4, 4), 8)
    assert (layout.num_outputs, layout.input_shape, layout.num_statistics) == (3, (3, 4, 4), 8)


def test_sparse_gradients_and_hooks_on_parameters_are_as_autograd_has_them():
    from bilateral.protocols.flat_gradients import DIRECT_VALUES, FlatGradients

    words, wide = nn.Embedding(30, 8, sparse=True), nn.Linear(8, DIRECT_VALUES // 8)
    wide.weight.register_hook(lambda gradient: gradient * 2)
    root = wide(words(torch.tensor([1, 1, 4]))).sum()
    parameters = [words.weight, *wide.parameters()]
    row = torch.empty(sum(p.numel() for p in parameters))
    FlatGradients(root, parameters).write(row, None, {}, last=False)
    root.backward()
    found = [(p.grad.to_dense() if p.grad.is_sparse else p.grad).reshape(-1) for p in parameters]
    torch.testing.assert_close(row, torch.cat(found))
