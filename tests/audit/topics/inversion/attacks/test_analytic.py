"""The first layer's gradient gives its input away."""

from __future__ import annotations

import torch
from tests.audit.topics.inversion.attacks.inversion_bed import Bed, mlp, rectified

from bilateral.audit.topics.inversion.attacks.analytic import (
    first_linear,
    has_bias,
    invert_row,
    invert_without_bias,
    row_candidates,
)

torch.set_num_threads(1)


def test_the_first_linear_is_found_where_it_sees_the_input_and_only_there():
    assert first_linear(mlp(), (6,)) == "0"
    assert first_linear(torch.nn.Sequential(torch.nn.Flatten(), mlp()), (2, 3)) == "1.0"
    assert first_linear(rectified(), (1, 8, 8)) is None


def test_a_batch_of_one_is_found_up_to_rounding_with_a_bias():
    bed = Bed(mlp(), (6,))
    for gradient, sample in zip(bed.gradients, bed.samples, strict=True):
        torch.testing.assert_close(invert_row(bed.graph, "0", gradient).float(), sample, rtol=1e-4, atol=1e-5)


def test_a_batch_of_one_is_found_without_a_bias_too():
    bed = Bed(mlp(bias=False), (6,))
    assert not has_bias(bed.graph, "0")
    for number, sample in enumerate(bed.samples):
        found = invert_without_bias(
            bed.model, "0", bed.parameters, bed.gradients[number], bed.targets[number], (0.1, 10.0), (6,)
        )
        torch.testing.assert_close(found, sample, rtol=1e-2, atol=1e-2)


def test_a_random_gradient_shows_nothing_and_zeros_are_no_error():
    bed = Bed(mlp(), (6,))
    found = invert_row(bed.graph, "0", torch.randn(bed.graph.num_parameters))
    assert min(float((found.float() - sample).norm() / sample.norm()) for sample in bed.samples) > 0.3
    assert invert_row(bed.graph, "0", torch.zeros(bed.graph.num_parameters)).tolist() == [0.0] * 6


def test_a_unit_that_one_sample_alone_switches_on_shows_that_sample_in_the_sum():
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
        layer.bias.zero_()
    bed = Bed(torch.nn.Sequential(layer, torch.nn.ReLU(), torch.nn.Linear(2, 3)), (2,), count=2)
    bed.samples = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    candidates = row_candidates(bed.graph, "0", bed.gradient(slice(None))).float()
    for sample in bed.samples:
        assert float((candidates - sample).norm(dim=1).min()) < 1e-4
