"""Swapped worlds: readings and learned figures, where uploads are bare, where one message tells, where nothing does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.threat import client_view, eavesdropper_view, server_view
from bilateral.audit.topics.swapped.attacks.swapped_worlds import (
    DIFFERENCE,
    adaptive_reading,
    compared,
    describe,
    naive_reading,
    rounds_of,
    tell_worlds,
)
from bilateral.audit.topics.swapped.swapped_rounds import play, table_of
from bilateral.engine.plan import RunPlan
from bilateral.protocols.mask.messages import MaskedUpload, RangeRefusal, RoutedShares

SMALL = {"model.name": "mlp-3", "federation.clients": 4, "training.batch_size": 8, "training.loss": "mse"}
COINS = (0, 1, 1, 0, 1, 0, 0, 1)


def played(seed=1, coins=COINS, **settings):
    context = Context(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"])
    table = table_of(context)
    return play(table.plan.with_settings({"seed": seed}), table, coins, lambda _done, _all: None, swap=True)


def readings(match, view, read, clients=()):
    known = match.suspicion(clients, ())
    views = rounds_of(view)
    return [read(views[number], number, known) for number in match.worlds]


def guesses(values):
    return tuple(int(value <= 0) for value in values)


@pytest.fixture(scope="module")
def masked():
    return [played(seed) for seed in (1, 2, 3)]


def test_bare_uploads_are_read_by_the_server_and_on_the_wire():
    match = played(protection="fedavg")
    assert guesses(readings(match, server_view(match.recording), adaptive_reading)) == COINS
    wire = readings(match, eavesdropper_view(match.recording), naive_reading)
    assert guesses(wire) == COINS
    assert min(map(abs, wire)) > 0.9


def test_the_server_undoes_its_perturbation_before_it_reads():
    match = played(**{"aggregation.masks": "none"})
    found = readings(match, server_view(match.recording), adaptive_reading)
    assert guesses(found) == COINS
    assert min(map(abs, found)) > 0.99


def test_ring_masks_leave_readings_no_larger_than_those_of_random_numbers(masked):
    match = masked[0]
    colluding = match.table.names[3:]
    for read in (naive_reading, adaptive_reading):
        found = readings(match, server_view(match.recording, colluding), read, colluding)
        assert max(map(abs, found)) < 5 / match.recording.graph.num_parameters**0.5


def test_ring_masks_do_not_help_if_all_partners_collude(masked):
    match = masked[0]
    # Beyond what is claimed: the second suspect tells too, so that of the first nothing is masked.
    colluding = match.table.names[1:]
    found = readings(match, server_view(match.recording, colluding), adaptive_reading, colluding)
    assert guesses(found) == COINS


def test_a_client_that_sees_no_upload_reads_nothing(masked):
    view = client_view(masked[0].recording, masked[0].table.names[2])
    assert set(readings(masked[0], view, naive_reading)) == {0.0}
    assert set(readings(masked[0], view, adaptive_reading)) == {0.0}


def described(match, view):
    known = match.suspicion((), ())
    return [describe(part, number, known, adaptive=True) for number, part in rounds_of(view).items() if number < 8]


def with_leak(match, view):
    """The first suspect's sealed bytes carry its world in their first byte: a leak that only clients could see."""
    first = match.table.names[0]

    def leaking(entry):
        message = entry.message
        if not isinstance(message, RoutedShares) or first not in message.senders:
            return entry
        place = message.senders.index(first)
        world = match.worlds.get(entry.round_index, 0)
        told = bytes([255 * world] * 16) + message.sealed[place][16:]
        sealed = (*message.sealed[:place], told, *message.sealed[place + 1 :])
        return replace(entry, message=replace(message, sealed=sealed))

    return replace(view, entries=tuple(leaking(entry) for entry in view.entries))


def test_a_leak_in_a_message_that_clients_see_is_learned(masked):
    views = [with_leak(match, client_view(match.recording, match.table.names[2])) for match in masked]
    rows = [described(match, view) for match, view in zip(masked, views, strict=True)]
    found = tell_worlds(rows[:2], [COINS, COINS], rows[2])
    assert np.mean(np.equal(found, COINS)) >= 0.9


def test_learning_tells_nothing_where_nothing_differs():
    draws = np.random.default_rng(0)
    runs = [[{"a": draws.normal(size=300)} for _ in range(10)] for _ in range(3)]
    worlds = [draws.integers(0, 2, 10).tolist() for _ in range(3)]
    shown = [{"a": draws.normal(size=300)} for _ in range(400)]
    truth = draws.integers(0, 2, 400)
    assert 0.4 < np.mean(np.equal(tell_worlds(runs, worlds, shown), truth)) < 0.6


def test_learning_prefers_what_holds_in_every_run():
    """A figure whose sign changes from run to run must not outvote one that tells in all of them."""
    draws = np.random.default_rng(0)
    worlds = draws.integers(0, 2, (4, 12))
    signs = (1.0, 1.0, -1.0, -1.0)

    def figures(run, world):
        fickle = signs[run] * (2 * world - 1) + 0.001 * draws.normal(size=20)
        true = np.array([2 * world - 1 + 0.1 * draws.normal()])
        return {DIFFERENCE + "fickle": fickle, DIFFERENCE + "true": true, "constant": np.ones(1)}

    runs = [[figures(run, world) for world in worlds[run]] for run in range(4)]
    assert tell_worlds(runs[:3], worlds[:3].tolist(), runs[3]) == worlds[3].tolist()


def test_figures_of_another_model_are_compared_with_their_mean():
    runs = [[{"a": np.array([float(offset + world)])} for world in COINS] for offset in (0, 100, -7)]
    assert tell_worlds(runs[:2], [COINS, COINS], runs[2]) == list(COINS)


def test_with_one_known_world_the_guess_is_that_world():
    assert tell_worlds([[{"a": np.zeros(1)}] * 2], [[1, 1]], [{"a": np.ones(1)}]) == [1]


def test_what_the_two_clients_have_both_is_compared():
    one, two = np.array([3.0]), np.array([1.0])
    found = compared({"first M.a": one, "second M.a": two, "other M.a": two, "first M.b second": one})
    assert {name: float(value[0]) for name, value in found.items()} == {
        DIFFERENCE + "first M.a": 2.0,
        "other M.a": 1.0,
        "first M.b second": 3.0,
    }


def test_only_the_last_attempt_of_a_round_is_looked_at(masked):
    view = server_view(masked[0].recording)
    first = next(entry for entry in view.entries if isinstance(entry.message, MaskedUpload))
    refused = replace(first, message=RangeRefusal(0, 0, (0,), (9,)))
    again = replace(first, message=replace(first.message, attempt=1))
    found = rounds_of(replace(view, entries=(refused, again)))[0]
    assert [entry.message for entry in found.entries] == [again.message]


def test_messages_that_are_left_out_are_in_no_round(masked):
    view = rounds_of(server_view(masked[0].recording), (MaskedUpload,))[0]
    assert not any(isinstance(entry.message, MaskedUpload) for entry in view.entries)
