"""What is not claimed: a querying party that deals wrongly on purpose reads activations from how its sum changes."""

from __future__ import annotations

import torch
from tests.audit.shared_samples import asked, some_queries

from bilateral.audit.shared_truth import compared_numbers
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.gates import planes
from bilateral.protocols.share.gates.styles import SEALED

NEURON = 5
"""Of the last hidden layer, which has 12."""


def test_a_dealer_that_deals_one_beta_wrong_reads_that_activation_in_the_sum(monkeypatch):
    """With beta too large by one, and r beta by r, the positive part is off by the number itself, active or not."""
    queries = some_queries(6)
    (honest,) = asked(SEALED, answerers=("anna",), queries=queries)
    real = planes.deal_selection

    def misdealt(blind, r, beta_share, r_beta_share):
        dealt = real(blind, r, beta_share, r_beta_share)
        if len(r) == 12 * len(queries):
            dealt[0, NEURON::12] += 1
            dealt[1, NEURON::12] += r[NEURON::12]
        return dealt

    monkeypatch.setattr(planes, "deal_selection", misdealt)
    (dishonest,) = asked(SEALED, answerers=("anna",), queries=queries)
    model = honest.models["anna"]
    numbers = compared_numbers(model, queries)[1][:, NEURON].double() / 2**FRACTION_BITS
    weights = model.layers[-1].weight[:, NEURON].double() / 2**FRACTION_BITS
    change = dishonest.answers - honest.answers
    assert torch.allclose(change.abs(), (numbers[:, None] * weights).abs(), atol=1e-4)
    assert change.abs().max() > 0.1
