"""Lines 3 and 4 of the ledger for P2's scheme: while these tests pass, its claim does not hold against the server.

Every attack sees only the server's slice: single uploads and the server's own secrets.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from tests.protocols.noise.published_federation import Federation
from tests.reference.harness import randomised, relative_error
from torch import nn

from bilateral.protocols.noise.published_accounting import satisfies, solve_noise, theta_complete

torch.set_num_threads(1)
EPSILON, DELTA, CLIENTS = 3.0, 1e-5, 10
"""Epsilon as in the tables of P2."""


def network():
    body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    return randomised(body.double(), 1)


def federation(count=1):
    return Federation(network(), (6,), CLIENTS, solve_noise(EPSILON, DELTA, CLIENTS), count=count)


def test_line_3_the_noise_terms_are_bare_and_invert_to_the_sample():
    """Batch of one: in each bare term the first layer's weight gradient is an outer product with the input."""
    run = federation()
    noisy = run.add_noise(run.bare_uploads(run.server.start_round(0)), 0)
    graph = run.published.graph
    for name in run.names[:3]:
        sample = run.batches[name][0][0]
        errors = []
        for term in noisy[name].terms:  # what the server holds of this client: the noisy gradient, then the noise terms
            rows, biases = graph.unflatten(term)["0.weight"], graph.unflatten(term)["0.bias"]
            unit = biases.abs().argmax()
            errors.append(relative_error(rows[unit] / biases[unit], sample))
        assert errors[0] > 0.1
        assert max(errors[1:]) < 1e-9


def quietest_weight(run):
    """The weight with the smallest ratio, by its place in the expanded vector: the server knows all ratios."""
    whole = run.published.trained[run.published.missing_halves[run.published.trained] == 0]
    return int(whole[run.secrets.ratio[whole].argmin()])


def test_line_4_given_the_factors_the_noise_of_every_weight_is_bounded():
    run = federation()
    levels = solve_noise(EPSILON, DELTA, CLIENTS)
    bare = run.bare_uploads(run.server.start_round(0))
    noisy = run.add_noise(bare, 0)
    whole = run.published.trained[run.published.missing_halves[run.published.trained] == 0]
    bound = math.sqrt(2) * (levels.independent + (CLIENTS - 1) * levels.pairwise)
    for name in run.names:
        assert float((noisy[name].terms[0] - bare[name].terms[0])[whole].abs().max()) <= bound
    summed = sum(noisy[n].terms[0] - bare[n].terms[0] for n in run.names)[whole]
    assert float(summed.abs().max()) <= math.sqrt(2) * CLIENTS * levels.independent + 1e-9


def test_line_4_the_server_tells_two_neighbouring_gradients_apart_far_beyond_epsilon_and_delta():
    """Two true gradients of one client that differ by the assumed sensitivity, 1, in a single weight.

    (epsilon, delta) says: an event that never happens with one happens with the other with probability delta at most.
    The event here: the sum's noise, if the first gradient is assumed, lies outside its support. The noise is what the
    accountant asks for, and the pairwise part of it does not help at all: it is not in the sum.
    """
    run = federation()
    levels = solve_noise(EPSILON, DELTA, CLIENTS)
    assert satisfies(EPSILON * (1 + 1e-9), DELTA, theta_complete(CLIENTS, *levels))
    outside = {"first": 0, "second": 0}
    num_rounds = 15
    for number in range(num_rounds):
        bare = run.bare_uploads(run.server.start_round(number))
        place, ratio = quietest_weight(run), run.secrets.ratio
        noisy = run.add_noise(bare, number)
        support = float(ratio[place]) * math.sqrt(2) * CLIENTS * levels.independent
        truth = run.recover(bare, number)[run.published.original_place[place]] * CLIENTS
        for which, moved in (("first", 0.0), ("second", 1.0)):
            terms = noisy["client-0"].terms.clone()
            terms[0, place] += moved / ratio[place]  # what the client would have sent with the other true gradient
            uploads = {**noisy, "client-0": replace(noisy["client-0"], terms=terms)}
            seen = run.recover(uploads, number)[run.published.original_place[place]] * CLIENTS
            outside[which] += abs(float(seen - truth)) > support * (1 + 1e-9)
    assert outside["first"] == 0
    assert outside["second"] / num_rounds > 0.5  # delta is 1e-5
