"""Membership in a batch: against gradients whose make-up is known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bilateral.audit.membership_metrics import as_values, auc
from bilateral.audit.recording import record
from bilateral.audit.threat import server_view
from bilateral.audit.topics.membership.attacks.upload_membership import (
    Bench,
    decomposition,
    likelihood_ratio,
    match_rows,
    read_sum,
    read_upload,
    sample_gradients,
)
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError
from bilateral.randomness import SeededRandomness

DRAWS = SeededRandomness(2, "test")


def run(**settings):
    base = {
        "model.name": "mlp-3",
        "training.rounds": 1,
        "training.dtype": "float64",
        "training.batch_size": 8,
        "federation.clients": 3,
    }
    plan = RunPlan().with_settings({**base, **settings})
    recording = record(plan, load_federation(plan))
    return recording, server_view(recording)


def gradient_of(recording, view, batch):
    """The slow way."""
    network = view.facts.network(recording.server_round(0).parameters)
    outputs = network(batch.inputs)
    lost = (
        F.mse_loss(outputs, batch.targets)
        if batch.targets.is_floating_point()
        else F.cross_entropy(outputs, batch.targets)
    )
    lost.backward()
    return torch.cat([network.get_parameter(p.name).grad.reshape(-1) for p in view.facts.graph.parameters])


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_gradients_of_samples_have_the_batch_gradient_for_their_mean(loss):
    recording, view = run(**{"training.loss": loss, "protection": "fedavg"})
    batch = recording.batches["client-1", 0]
    network = view.facts.network(recording.server_round(0).parameters)
    every = torch.arange(view.facts.graph.num_parameters)
    found = sample_gradients(view.facts.graph, network, batch, every)
    assert found.shape == (len(batch), len(every))
    assert torch.allclose(found.mean(0), gradient_of(recording, view, batch), atol=1e-12)


def test_a_bare_upload_is_its_clients_gradient_to_whoever_has_the_secrets():
    recording, view = run(**{"aggregation.masks": "none"})
    true = gradient_of(recording, view, recording.batches["client-2", 0])
    assert torch.allclose(read_upload(view, 0, "client-2", adaptive=True), true, atol=1e-9)
    naive = read_upload(view, 0, "client-2", adaptive=False)
    assert abs(float(F.cosine_similarity(naive, true, dim=0))) < 0.6


def test_of_masked_uploads_the_server_has_nothing_but_the_sum():
    recording, view = run()
    weights = torch.tensor([float(len(share)) for share in recording.shares.values()], dtype=torch.float64)
    gradients = torch.stack([gradient_of(recording, view, recording.batches[name, 0]) for name in recording.shares])
    mean = (weights[:, None] * gradients).sum(0) / weights.sum()
    read = [read_upload(view, 0, name, adaptive=True) for name in recording.shares]
    assert all(torch.allclose(one, mean, atol=1e-9) for one in read)
    assert torch.allclose(read_sum(view, 0, adaptive=True), mean, atol=1e-9)


def test_a_round_that_was_not_kept_is_refused():
    _, view = run()
    with pytest.raises(DataError, match="sent no upload"):
        read_upload(view, 0, "client-9", adaptive=False)


def made_up(batch_size=20, width=300, seed=0):
    """Candidates whose first `batch_size` make the upload."""
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(60, width, generator=generator)
    own = torch.randn(120, width, generator=generator)
    return gradients[:batch_size].mean(0), gradients, own


def auc_of(scores, count=20):
    return auc(as_values(scores[:count]), as_values(scores[count:]))


def test_decomposition_reads_the_weight_of_every_candidate():
    upload, gradients, own = made_up()
    weights = decomposition(upload[None], gradients, own)[0]
    expected = torch.cat([torch.full((20,), 1 / 20), torch.zeros(40)]).double()
    assert torch.allclose(weights, expected, atol=1e-4)


def test_the_likelihood_ratio_finds_members_and_is_positive_for_them():
    upload, gradients, own = made_up()
    scores = likelihood_ratio(upload[None], gradients, own, 20, DRAWS)[0]
    assert auc_of(scores) > 0.95
    assert float(scores[:20].median()) > 0 > float(scores[20:].median())


def test_the_filter_sees_through_noise_that_drowns_the_plain_alignment():
    generator = torch.Generator().manual_seed(5)
    loud = torch.randn(3, 300, generator=generator) * 30  # directions that all samples share, with their own sizes
    gradients, own = (
        torch.randn(n, 300, generator=generator) + torch.randn(n, 3, generator=generator) @ loud for n in (60, 120)
    )
    upload = gradients[:20].mean(0)
    assert auc_of(gradients @ upload) < 0.75
    assert auc_of(likelihood_ratio(upload[None], gradients, own, 20, DRAWS)[0]) > 0.95


@pytest.mark.parametrize("seed", range(3))
def test_an_upload_of_other_samples_tells_nothing(seed):
    _, gradients, own = made_up(seed=seed)
    other = torch.randn(20, 300, generator=torch.Generator().manual_seed(99 + seed)).mean(0)
    for scores in (
        decomposition(other[None], gradients, own),
        likelihood_ratio(other[None], gradients, own, 20, DRAWS),
    ):
        assert 0.25 < auc_of(scores[0]) < 0.75


def test_a_bench_looks_at_a_random_part_of_a_large_model():
    recording, view = run(**{"model.name": "mlp-3", "model.options": {"width": 80}, "protection": "fedavg"})
    batch = recording.batches["client-1", 0]
    network = view.facts.network(recording.server_round(0).parameters)
    bench = Bench.of(view.facts.graph, network, batch, recording.batches["client-2", 0], DRAWS)
    assert view.facts.graph.num_parameters > len(bench.coordinates) == 8000
    assert torch.allclose(bench.gradients.mean(0), gradient_of(recording, view, batch)[bench.coordinates], atol=1e-12)


def test_rows_match_their_own_sample_best():
    rows = torch.rand(10, 4).softmax(1)
    candidates = torch.cat([rows + 1e-9, torch.rand(10, 4).softmax(1)])
    scores = match_rows(rows, candidates)
    assert float(scores[:10].min()) > float(scores[10:].max())
