"""Planted neurons read samples out of sums, sealed or masked; weights of one's own single out a client, if sealed."""

import pytest
from tests.audit.topics.sealed.harness import context_for

from bilateral.audit.topics.sealed import crafted_models
from bilateral.audit.topics.sealed.crafted_models import _Bench, _planted, _split
from bilateral.audit.verdict import judge


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(crafted_models, "ROUNDS", 2)
    monkeypatch.setattr(crafted_models, "LARGER", (1,))
    settings = {"data.name": "digits", "training.loss": "ce", "model.options": {"width": 32}, "federation.clients": 3}
    return _Bench.of(context_for(**settings))


def test_planted_neurons_read_samples_out_of_sealed_and_of_masked_sums(bench):
    sealed, masked = (judge(one) for one in _planted(bench, "bins", (None,)))
    assert sealed.verdict == masked.verdict == "broken"
    found = [one.evidence.target.scores[0].mean for one in (sealed, masked)]
    assert min(found) > 0.25
    assert sealed.evidence.negative.scores[0].mean < 0.1
    (curve,) = sealed.evidence.curves
    ((_, masked_share, _, _),), ((_, noisy_share, _, _),) = curve.lines["masked sum"], curve.lines["with sound noise"]
    assert masked_share > 0.25
    assert noisy_share < 0.1


def test_a_server_that_gives_one_client_weights_and_the_others_zeros_has_that_clients_gradient(bench):
    found = judge(_split(bench))
    assert found.verdict == "broken"
    assert found.evidence.target.scores[0].mean == 1.0
    assert found.evidence.negative.scores[0].mean == 0.0
