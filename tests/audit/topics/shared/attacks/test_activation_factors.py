"""Factoring reads activations and weights in the published comparison, and nothing in the hardened one."""

from __future__ import annotations

import torch
from tests.audit.shared_samples import asked

from bilateral.audit.shared_recording import querying_view
from bilateral.audit.shared_views import blinded_numbers
from bilateral.audit.topics.shared.attacks.activation_factors import dotted_queries, first_layer, read_exactly
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED


def test_two_views_of_a_number_under_odd_factors_give_it_away():
    t = torch.tensor([1234, -99, 3])
    views = [k * t + (k + 1) // 2 for k in (1009, 2003, 3001)]
    assert read_exactly(views).tolist() == t.tolist()


def layer_error(style):
    runs = asked(style, answerers=("anna",), queries=dotted_queries((1, 4, 4)), repeats=8)
    views = [blinded_numbers(querying_view(run), run.sessions[0])[0] for run in runs]
    layer = runs[0].models["anna"].layers[0]
    true = torch.cat([layer.weight / 2**FRACTION_BITS, layer.bias[:, None] / 2 ** (2 * FRACTION_BITS)], dim=1)
    return (first_layer(views) - true).norm(dim=1) / true.norm(dim=1)


def test_the_published_comparison_gives_the_first_layer_away():
    assert layer_error(PUBLISHED).median() < 1e-4


def test_the_hardened_comparison_does_not():
    assert layer_error(HARDENED).min() > 0.5
