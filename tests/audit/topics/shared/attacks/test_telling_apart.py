"""The classifier tells worlds apart where messages are bare, and does not where they are masked."""

from __future__ import annotations

import numpy as np
import torch
from tests.audit.shared_samples import NAMES, small_network, some_queries

from bilateral.audit.shared_recording import SharedParties, answering_view, helping_view
from bilateral.audit.shared_truth import without_masks
from bilateral.audit.topics.shared.attacks.telling_apart import describe, guess_worlds
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.randomness import SeededRandomness


def test_a_figure_that_differs_is_found_and_coin_flips_are_not():
    drawn = np.random.default_rng(0).normal(size=(200, 50))
    worlds = [i % 2 for i in range(100)]
    guesses = guess_worlds(drawn[:100], worlds, drawn[100:])
    assert 30 < sum(guess == i % 2 for i, guess in enumerate(guesses)) < 70
    drawn[1::2, 7] += 6
    guesses = guess_worlds(drawn[:100], worlds, drawn[100:])
    assert sum(guess == world for guess, world in zip(guesses, worlds, strict=True)) >= 95


def rows(strip):
    """Runs with queries of ones and of minus ones, as server and answering party see them."""
    model, found = compile_model(small_network(), some_queries()), {}
    parties = SharedParties(NAMES, SeededRandomness(3, "telling"))
    for i in range(60):
        queries = torch.full((4, 1, 4, 4), 1.0 if i % 2 else -1.0)
        run = parties.ask("quentin", queries, {"anna": model})
        run = without_masks(run) if strip else run
        for name, view in (("server", helping_view(run)), ("anna", answering_view(run, "anna"))):
            found.setdefault(name, []).append(describe([view], adaptive=True))
    return {name: np.stack(values) for name, values in found.items()}


def accuracy(figures):
    worlds = [i % 2 for i in range(30)]
    guesses = guess_worlds(figures[:30], worlds, figures[30:])
    return sum(guess == world for guess, world in zip(guesses, worlds, strict=True)) / 30


def test_bare_messages_tell_queries_from_their_negatives():
    assert {name: accuracy(figures) for name, figures in rows(strip=True).items()} == {"server": 1.0, "anna": 1.0}


def test_masked_messages_do_not():
    for figures in rows(strip=False).values():
        assert 0.2 < accuracy(figures) < 0.8
