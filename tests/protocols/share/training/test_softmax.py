"""The loss on shares: every probability is within 2^-12 of the softmax of the outputs, whatever they are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.harness import generator
from tests.protocols.share.training.stepping import by_gates, tiny_terms

from bilateral.errors import ModelError
from bilateral.protocols.share.circuit.description import Circuit, Dense
from bilateral.protocols.share.training.loss import (
    SOFTMAX_BITS,
    _exponential,
    _inverse,
    num_factors,
    softmax,
)
from bilateral.protocols.share.training.tape import LARGEST
from bilateral.protocols.share.training.terms import MOST_CLASSES, StepTerms

ERROR = 2.0**-12
END = LARGEST - 2.0**-10


def encoded(values, bits=20):
    return (values.double() * 2.0**bits).round().long()


def softmax_error(outputs):
    """The largest, of outputs (rows) with 20 fraction bits; and probabilities add up to one."""
    found = by_gates(softmax, outputs).words.double() * 2.0**-SOFTMAX_BITS
    expected = torch.softmax(outputs.double() * 2.0**-20, dim=1)
    return float((found - expected).abs().max())


def adversarial(classes):
    """Rows of outputs: equal, close, one ahead, all far behind, at both ends of the range, and spread out."""
    rows = [
        torch.zeros(classes, dtype=torch.float64),
        torch.full((classes,), END, dtype=torch.float64),
        torch.full((classes,), -END, dtype=torch.float64),
        torch.full((classes,), 1 / 3, dtype=torch.float64),
        torch.arange(classes, dtype=torch.float64) * 2.0**-20,
    ]
    for gap in (2.0**-20, 0.5, 1.0, 3.0, 8.0, 15.9, 16.0, 16.1, 40.0, 2 * END):
        for winner in (0, classes - 1):
            row = torch.full((classes,), END - gap, dtype=torch.float64)
            row[winner] = END
            rows.append(row)
        row = torch.full((classes,), END, dtype=torch.float64)
        row[0] = END - gap
        rows.append(row)
    ends = torch.full((classes,), -END, dtype=torch.float64)
    ends[::2] = END
    random = generator(1)
    spread = torch.randn(40, classes, generator=random) * torch.tensor([0.1, 1, 5, 20]).repeat(10)[:, None]
    return encoded(torch.cat([torch.stack([*rows, ends]), spread]))


@pytest.mark.parametrize("classes", [1, 2, 3, 7, 10, 100, MOST_CLASSES])
def test_probabilities_are_within_2_to_the_minus_12(classes):
    assert softmax_error(adversarial(classes)) < ERROR


@settings(max_examples=30)
@given(st.integers(2, 12).flatmap(lambda n: st.lists(st.floats(-END, END), min_size=n, max_size=n)), st.booleans())
def test_probabilities_of_any_outputs_are_within_2_to_the_minus_12(row, is_close):
    outputs = torch.tensor([row], dtype=torch.float64)
    assert softmax_error(encoded(outputs / 300 if is_close else outputs)) < ERROR


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_probabilities_add_up_to_one(classes):
    found = by_gates(softmax, adversarial(classes)).words.double() * 2.0**-SOFTMAX_BITS
    assert (found.sum(1) - 1).abs().max() < ERROR
    assert found.min() > -(2.0**-20)


def test_the_exponential_is_within_2_to_the_minus_14_from_minus_16_to_0():
    x = torch.cat([torch.linspace(-16, 0, 4001, dtype=torch.float64), torch.tensor([-16.0, -(2.0**-20), 0.0])])
    found = by_gates(_exponential, encoded(x)[:, None]).words.double()[:, 0] * 2.0**-SOFTMAX_BITS
    assert (found - x.exp()).abs().max() < 2.0**-14


@pytest.mark.parametrize("classes", [1, 2, 3, 10, 100, MOST_CLASSES])
def test_the_inverse_is_exact_enough_from_1_to_the_number_of_classes(classes):
    """Times the total, which is up to the number of classes, it is one."""
    x = torch.cat([torch.linspace(1, classes, 500, dtype=torch.float64), torch.linspace(1, 1 + 2.0**-10, 50)])
    total = encoded(x, SOFTMAX_BITS)[:, None]
    found = by_gates(lambda role, share: _inverse(role, share, classes), total).words.double()[:, 0] * 2.0**-28
    assert (found - 1 / x).abs().max() < 2.0**-16


def test_factors_of_the_inverse_are_as_many_as_their_error_asks_for():
    for classes in (2, 3, 10, 100, MOST_CLASSES):
        error = (classes - 1) / (classes + 1)
        left = error ** (2 ** num_factors(classes))
        assert left <= 2.0**-20 * (1 + 1e-9)
        assert num_factors(classes) == 1 or error ** (2 ** (num_factors(classes) - 1)) > 2.0**-20
    assert num_factors(1) == 1


def test_outputs_far_behind_add_up_to_less_than_the_error():
    """Each has e^-16 of the largest one's probability, at most as many as there may be classes."""
    assert MOST_CLASSES * math.exp(-16) < ERROR
    terms = tiny_terms()
    too_many = Circuit((1,), (Dense((0,), MOST_CLASSES + 1),))
    with pytest.raises(ModelError, match=f"up to {MOST_CLASSES} classes"):
        StepTerms(too_many, "ce", 2, terms.trains)
    StepTerms(too_many, "mse", 2, terms.trains)
