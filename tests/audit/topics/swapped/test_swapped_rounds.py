"""Batches dealt by coins: what the clients train on is what the coins say, and the sum does not change."""

from __future__ import annotations

import pytest
import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.swapped.swapped_rounds import play, table_of
from bilateral.engine.plan import RunPlan
from bilateral.protocols.mask import last_bits

SMALL = {"model.name": "mlp-3", "federation.clients": 3, "training.batch_size": 8, "training.loss": "mse"}
SOUND = {"noise.mechanism": "sound", "noise.noise_multiplier": 1.0}
COINS = (0, 1, 1, 0)


def played(coins=COINS, *, swap=True, **settings):
    table = table_of(Context(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"]))
    return play(table.plan, table, coins, lambda _done, _all: None, swap=swap)


def holds(match, client, number, batch):
    return torch.equal(match.recording.batches[match.table.names[client], number].inputs, batch.inputs)


@pytest.mark.parametrize("protection", ["fedavg", "perturbation"])
def test_each_round_has_the_batches_that_its_coin_says(protection):
    match = played(protection=protection)
    table = match.table
    assert match.worlds == dict(enumerate(COINS))
    for number, coin in match.worlds.items():
        first, second = (table.y, table.x) if coin else (table.x, table.y)
        assert holds(match, 0, number, first)
        assert holds(match, 1, number, second)


def test_without_swaps_the_first_client_always_has_x():
    match = played(swap=False)
    assert match.worlds == dict(enumerate(COINS))
    assert all(holds(match, 0, number, match.table.x) for number in match.worlds)


def test_under_ring_masks_the_sums_are_the_same_in_both_worlds_but_for_the_last_bits_that_clients_draw():
    """Each client moves its own values by at most 2^-22 of them, with a key that no world changes."""
    one, other = played().recording, played((1, 0, 0, 1)).recording
    for ours, theirs in zip(one.server_rounds, other.server_rounds, strict=True):
        assert ours.total.total_weight == theirs.total.total_weight
        sizes = ours.total.terms.abs().amax(1, keepdim=True)
        assert bool(((ours.total.terms - theirs.total.terms).abs() <= 2.0**-18 * sizes).all())
        torch.testing.assert_close(ours.parameters, theirs.parameters, rtol=1e-5, atol=1e-7)


def test_without_drawn_last_bits_the_sums_and_the_models_are_the_same_in_both_worlds_bit_for_bit(monkeypatch):
    """So nothing but the draws differs: what the adversary is shown of the sum has no world in it."""
    monkeypatch.setattr(last_bits, "STEPS", 0)
    one, other = played().recording, played((1, 0, 0, 1)).recording
    for ours, theirs in zip(one.server_rounds, other.server_rounds, strict=True):
        assert torch.equal(ours.total.terms, theirs.total.terms)
        assert torch.equal(ours.parameters, theirs.parameters)


def test_the_two_batches_are_of_the_first_and_of_the_last_classes():
    match = played(protection="fedavg")
    assert set(match.table.x.targets.argmax(1).tolist()) == {0}
    assert set(match.table.y.targets.argmax(1).tolist()) == {9}


def test_under_poisson_sampling_both_clients_have_as_much_of_their_batch():
    match = played(**SOUND)
    recording, table = match.recording, match.table
    assert match.worlds
    for number, coin in match.worlds.items():
        counts = []
        for client, batch in enumerate((table.y, table.x) if coin else (table.x, table.y)):
            held = recording.batches[table.names[client], number].inputs.flatten(1)
            counts.append(int(((held[:, None] == batch.inputs.flatten(1)[1:]).all(2)).sum()))
        assert counts[0] == counts[1]


@pytest.mark.long
def test_a_plan_with_a_budget_is_played_with_the_noise_of_its_own_rounds():
    settings = {**SMALL, "noise.mechanism": "sound", "noise.epsilon": 8.0, "training.rounds": 30}
    context = Context(RunPlan().with_settings(settings), EFFORTS["smoke"])
    plan = table_of(context).plan
    assert plan.noise.epsilon is None
    assert plan.noise.noise_multiplier == pytest.approx(
        context.record(context.plan, keep=()).privacy.deviations["noise multiplier"]
    )
