"""A client's upload, computed again by whoever knows its batch."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.recording import record
from bilateral.audit.threat import eavesdropper_view, server_view
from bilateral.audit.topics.swapped.attacks.recomputed_uploads import Rehearsal, needs_answers
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.protocols.messages import Upload

SMALL = {
    "model.name": "mlp-3",
    "training.rounds": 2,
    "training.batch_size": 4,
    "federation.clients": 2,
    "aggregation.masks": "none",
}


@pytest.mark.parametrize(
    "settings",
    [
        {"training.loss": "mse"},
        {"training.loss": "mse", "perturbation.noise": "offset", "perturbation.partitions": 3},
        {"training.loss": "ce"},
        {"training.loss": "ce", "perturbation.softmax": "blinded"},
        {"protection": "fedavg"},
    ],
)
def test_the_clients_upload_is_recomputed_bit_for_bit(settings):
    plan = RunPlan().with_settings({**SMALL, **settings})
    recording = record(plan, load_federation(plan))
    view, rehearsal = server_view(recording), Rehearsal()
    if not needs_answers(view.facts):
        view = eavesdropper_view(recording)
    for entry, sent in view.messages(Upload):
        batch = recording.batches[entry.sender, entry.round_index]
        found = rehearsal.upload(view, entry.round_index, entry.sender, batch, sent.weight)
        scale = sent.terms.abs().amax(1, keepdim=True)
        exact = 0.0 if not needs_answers(view.facts) else 1e-6
        assert float(((found.terms - sent.terms).abs() / scale).max()) <= exact
        assert torch.equal(found.statistics, sent.statistics)
        assert found.weight == sent.weight
        other = rehearsal.upload(view, entry.round_index, entry.sender, batch.subset(torch.tensor([0, 0, 1, 1])), 1)
        assert float(((other.terms - sent.terms).abs() / scale).max()) > 1e-2
