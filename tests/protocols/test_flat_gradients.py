"""What a client's step costs in memory, and that gradients written in place are autograd's, bit for bit."""

import gc

import pytest
import torch
from torch import nn

from bilateral.bench.bed import make_batch, make_bed
from bilateral.errors import ProtocolError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protocols import flat_gradients
from bilateral.protocols.flat_gradients import FlatGradients
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.protocols.workspace import Workspace


def _wide():
    """Large Linear layers with and without a bias, before and after a ReLU that overwrites its input."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(768, 1500),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(1500, 1000, bias=False),
        nn.ReLU(),
        nn.Linear(1000, 10),
    )


class _UsedTwice(nn.Module):
    """One weight in two layers, and one that is also added to the loss as it is."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(1100, 1100)
        self.head = nn.Linear(1100, 3)

    def forward(self, x):
        return self.head(torch.relu(self.shared(torch.relu(self.shared(x)))))


def _by_autograd(root, parameters, cotangent):
    found = torch.autograd.grad(root, parameters, cotangent, retain_graph=True, allow_unused=True)
    return torch.cat(
        [torch.zeros(p.numel()) if g is None else g.reshape(-1) for p, g in zip(parameters, found, strict=True)]
    )


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("make", [_wide, _UsedTwice])
def test_gradients_written_in_place_are_autograds_bit_for_bit(make, batch_size):
    model = make()
    x = torch.randn(batch_size, *((3, 16, 16) if make is _wide else (1100,)))
    outputs = model(x)
    parameters = list(model.parameters())
    cotangent = torch.randn_like(outputs)
    row = torch.full((sum(p.numel() for p in parameters),), torch.nan)
    FlatGradients(outputs, parameters).write(row, cotangent, {}, last=False)
    assert torch.equal(row, _by_autograd(outputs, parameters, cotangent))


def _products(outputs, parameters):
    return flat_gradients._large_products(outputs, parameters)


def test_only_a_weight_with_a_single_use_is_taken_from_autograd():
    model = _wide()
    found = _products(model(torch.randn(2, 3, 16, 16)), list(model.parameters()))
    assert set(found) == {model[1].weight, model[4].weight, model[6].weight}
    twice = _UsedTwice()
    assert set(_products(twice(torch.randn(2, 1100)), list(twice.parameters()))) == {twice.head.weight}
    beside = model(torch.randn(2, 3, 16, 16)).sum() + model[4].weight.square().sum()
    assert model[4].weight not in _products(beside, list(model.parameters()))


def test_frozen_and_unused_parameters_have_gradient_zero():
    model = _wide()
    model[1].weight.requires_grad_(False)
    unused = nn.Parameter(torch.ones(7))
    parameters = [*model.parameters(), unused]
    outputs = model(torch.randn(2, 3, 16, 16))
    row = torch.full((sum(p.numel() for p in parameters),), torch.nan)
    FlatGradients(outputs, parameters).write(row, torch.ones_like(outputs), {}, last=True)
    assert not row[: 768 * 1500].any()
    assert not row[-7:].any()
    assert row[768 * 1500 : -7].any()


def _client(noise="activation"):
    model, batch = _wide(), make_batch(4, torch.float32, (3, 16, 16))
    graph = ScaleGraph.of(model, batch.inputs)
    bed = make_bed(model, graph, PerturbationSettings(loss="mse", noise=noise), batch)
    return bed, bed.server.start_round(0), batch


def test_an_upload_takes_the_memory_of_one_that_nobody_holds_any_more():
    bed, opening, batch = _client()
    first = bed.client_step(opening, batch)
    place = first.terms.data_ptr()
    second = bed.client_step(opening, batch)
    assert second.terms.data_ptr() != place  # the first is still held
    view = first.terms[1, 5:9].numpy()
    kept = view.copy()
    del first
    gc.collect()
    third = bed.client_step(opening, batch)
    assert third.terms.data_ptr() not in (place, second.terms.data_ptr())  # a part of the first is still held
    assert (view == kept).all()
    del view
    gc.collect()
    assert bed.client_step(opening, batch).terms.data_ptr() == place
    assert place % 64 == 0


@pytest.mark.parametrize("kind", ["fedavg", "perturbation"])
def test_a_step_allocates_no_gradient_of_a_large_weight(kind):
    """Counted by torch's own profiler of allocations: what a step takes beside its upload is far below one model."""
    bed, opening, batch = _client()
    plain = FedAvgClient("plain", bed.model, bed.graph, "mse")
    plain_model = FedAvgServer(bed.model, bed.graph).start_round(0)

    def step():
        if kind == "perturbation":
            return bed.client_step(opening, batch)
        return plain.train(plain_model, batch.inputs, batch.targets("mse", 10), 4)

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    taken = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
    assert taken < bed.graph.num_parameters * 4 / 2


def _pair(shared):
    from bilateral.protocols.perturb.client import PerturbClient

    bed, _, batch = _client()
    settings = PerturbationSettings(loss="ce", softmax="blinded")
    server = make_bed(bed.model, bed.graph, settings, batch).server
    spaces = [shared, shared] if shared else [None, None]
    clients = [PerturbClient(n, bed.model, bed.graph, settings, workspace=w) for n, w in zip("ab", spaces, strict=True)]
    return clients, server, batch


def test_clients_of_one_process_share_one_set_of_weights():
    clients, _, _ = _pair(Workspace())
    places = [[p.data_ptr() for p in client._model.parameters] for client in clients]
    assert places[0] == places[1]
    apart, _, _ = _pair(None)
    places = [[p.data_ptr() for p in client._model.parameters] for client in apart]
    assert not set(places[0]).intersection(places[1])


def test_a_step_whose_weights_another_client_overwrote_is_refused():
    (a, b), server, batch = _pair(Workspace())
    opening = server.start_round(0)
    question = a.train(opening, batch.inputs, batch.labels, 4)
    b.train(opening, batch.inputs, batch.labels, 4)
    with pytest.raises(ProtocolError, match="another client of this process"):
        a.receive(server.answer("a", question))
    (a, b), server, batch = _pair(None)
    opening = server.start_round(0)
    question = a.train(opening, batch.inputs, batch.labels, 4)
    b.train(opening, batch.inputs, batch.labels, 4)
    assert a.receive(server.answer("a", question)).terms.shape[0] == 4
