"""The softmax exchange: equal to softmax, equal to the loops, and loud outside its range."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.equations import exchange_by_loops, softmax

from bilateral.errors import NumericalRangeError
from bilateral.protocols.perturb import cross_entropy
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)


def exchange(true_outputs, noise, alpha, follows, seed=0, group_blinders=None):
    """(softmax values, query, reply, client blinders, sample blinders)"""
    carrier = alpha if follows else torch.ones_like(alpha)
    noisy = true_outputs + carrier[:, None] * noise
    query, blinders = cross_entropy.query(0, noisy, alpha, SeededRandomness(seed))
    xi = group_blinders if group_blinders is not None else torch.ones(len(noise)).double()
    drawn = cross_entropy.draw_sample_blinders(query, SeededRandomness(seed + 1))
    reply = cross_entropy.reply(query, noise, xi, follows, drawn)
    return cross_entropy.unblind(reply, blinders), query, reply, blinders, drawn


@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from([0.1, 1.0, 10.0, 40.0]), st.booleans())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_exchange_equals_softmax(seed, classes, size, follows):
    generator = torch.Generator().manual_seed(seed)
    outputs = size * torch.randn(4, classes, generator=generator, dtype=torch.float64)
    noise = torch.randn(classes, generator=generator, dtype=torch.float64)
    alpha = torch.randn(4, generator=generator, dtype=torch.float64)
    got, _, _, _, blinders = exchange(outputs, noise, alpha, follows, seed)
    expected = torch.softmax(outputs, 1)
    torch.testing.assert_close(got.blinded * torch.exp(blinders), expected, rtol=1e-11, atol=1e-300)


def test_exchange_equals_the_loops():
    outputs = torch.tensor([[0.3, -1.2, 2.0], [0.0, 0.5, -0.5]], dtype=torch.float64)
    noise = torch.tensor([0.4, -0.7, 1.1], dtype=torch.float64)
    alpha = torch.tensor([0.8, -1.3], dtype=torch.float64)
    xi = torch.tensor([0.7, -1.4, 0.7], dtype=torch.float64)
    got, query, reply, lambdas, d = exchange(outputs, noise, alpha, True, group_blinders=xi)
    noisy = outputs + alpha[:, None] * noise
    for n in range(2):
        mu, denominators, coefficients, q, blinded, corrected = exchange_by_loops(
            noisy[n].tolist(), float(alpha[n]), noise.tolist(), lambdas.values[n].tolist(), d[n].tolist(), xi.tolist()
        )
        off_diagonal = [[v for v in row if v is not None] for row in mu]
        for values, expected in (
            (query.blinded_exponentials[n], off_diagonal),
            (reply.blinded_denominators[n], denominators),
            (reply.blinder_coefficients[n], coefficients),
            (reply.corrections[n], q),
            (got.blinded[n], blinded),
            (got.corrected[n], corrected),
        ):
            torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-14)
        assert [p * d_i for p, d_i in zip(blinded, d[n].exp().tolist(), strict=True)] == pytest.approx(
            softmax(outputs[n].tolist()), rel=1e-12
        )


def test_large_logits_are_exact_up_to_the_stated_bound():
    outputs = torch.tensor([[0.0, 299.0, 100.0]], dtype=torch.float64)
    got, _, _, _, d = exchange(outputs, torch.zeros(3).double(), torch.ones(1).double(), True)
    torch.testing.assert_close(got.blinded * d.exp(), torch.softmax(outputs, 1), rtol=1e-11, atol=0)


@pytest.mark.parametrize("value", [1e3, 1e300, float("inf"), float("nan")])
def test_outputs_out_of_range_are_refused_loudly(value):
    outputs = torch.tensor([[0.0, value, 1.0]], dtype=torch.float64)
    with pytest.raises(NumericalRangeError, match="lower the learning rate"):
        cross_entropy.query(0, outputs, torch.ones(1), SeededRandomness(0))


@pytest.mark.parametrize("alpha", [1e4, float("nan")])
def test_noise_out_of_range_is_refused_loudly(alpha):
    query, _ = cross_entropy.query(0, torch.zeros(1, 3).double(), torch.tensor([alpha]), SeededRandomness(0))
    with pytest.raises(NumericalRangeError, match="noise"):
        cross_entropy.reply(query, torch.tensor([1.0, -1.0, 0.5]).double(), torch.ones(3), True, torch.zeros(1, 3))


def test_a_reply_that_gives_negative_probabilities_is_refused():
    _, _, reply, blinders, _ = exchange(
        torch.zeros(1, 3).double(), torch.zeros(3).double(), torch.ones(1).double(), True
    )
    broken = type(reply)(0, -reply.blinded_denominators, reply.blinder_coefficients, reply.corrections)
    with pytest.raises(NumericalRangeError, match="negative probability"):
        cross_entropy.unblind(broken, blinders)


def test_client_blinders_do_not_show_in_a_repr():
    _, blinders = cross_entropy.query(0, torch.zeros(1, 3).double(), torch.ones(1), SeededRandomness(0))
    assert "tensor" not in repr(blinders)


def test_server_blinders_differ_between_samples_and_classes():
    d = exchange(torch.zeros(5, 4).double(), torch.zeros(4).double(), torch.ones(5).double(), True)[4]
    assert len(d.unique()) == 20
    assert float(d.abs().max()) < cross_entropy.LARGEST_BLINDER
