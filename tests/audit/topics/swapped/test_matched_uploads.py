"""Deliberately weakened masks, the self masks intact: each is judged broken, and masks as they are hold.

The weaknesses are put into the real client's code, not into figures.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.audit.chance import SEEDS, each_holds

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context, undefended
from bilateral.audit.topics.inversion.attacks import stripped_masks
from bilateral.audit.topics.swapped.matched_uploads import MATCHED, WEIGHED, matched
from bilateral.audit.topics.swapped.swapped_attackers import attackers_of
from bilateral.audit.topics.swapped.swapped_rounds import play, table_of
from bilateral.audit.topics.swapped.swapped_runs import Runs
from bilateral.audit.verdict import judge
from bilateral.engine.plan import RunPlan
from bilateral.protocols.mask import client as mask_client
from bilateral.protocols.mask.prg import add_masks
from bilateral.protocols.mask.sealing import Occasion

SMALL = {"model.name": "mlp-3", "federation.clients": 4, "training.batch_size": 4}
ALONE = ("eavesdropper", "curious server")
"""Those who know no pairwise mask. A colluder here would take off the masks of the code as it should be."""
ALL = (*ALONE, "server with colluding clients")
COINS = (0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0)


def context_of(**settings):
    return Context(RunPlan().with_settings({**SMALL, "training.loss": "mse", **settings}), EFFORTS["smoke"])


def quietly(_done, _all):
    """Nobody waits for these runs."""


@pytest.fixture(scope="module")
def bare():
    table = table_of(context_of())
    return play(undefended(table.plan), table, COINS, quietly, swap=True)


def judged(bare, adversaries=ALONE, **settings):
    """The verdict on each of these adversaries that matches in the ring, and the evidence."""
    context = context_of(**settings)
    table = table_of(context)
    real = play(table.plan, table, COINS, quietly, swap=True)
    same = play(table.plan.with_settings({"seed": 1}), table, COINS[:8], quietly, swap=False)
    runs = Runs(real, (), same, bare, ())
    found = {}
    for attacker in attackers_of(context, table, context.guarantee()):
        for evidence in matched(context, attacker, runs) if attacker.adversary in adversaries else ():
            found[attacker.adversary] = evidence
    return {name: judge(evidence).verdict for name, evidence in found.items()}, found


def weaken(monkeypatch, change):
    """Every pairwise mask, as a client adds it, becomes `change(mask, lengths of its rows)`."""

    def add(values, seeds, lengths, width):
        add_masks(values, seeds[:1], lengths, width)
        for seed, sign in seeds[1:]:
            mask = np.zeros_like(values)
            add_masks(mask, [(seed, 1)], lengths, width)
            values += sign * change(mask, lengths)

    monkeypatch.setattr(mask_client, "add_masks", add)


def rows(mask, lengths):
    return np.split(mask, np.cumsum(lengths)[:-1])


def last_tenth_bare(mask, lengths):
    for row in rows(mask, lengths)[:-1]:
        row[int(0.9 * len(row)) :] = 0
    return mask


def one_in_four_bare(mask, _lengths):
    mask[:-1:4] = 0
    return mask


def some_sixty_bare(mask, lengths):
    for row in rows(mask, lengths)[:-1]:
        row[:: len(row) // 60] = 0  # not all of one neuron, whose gradient may be 0 for both batches
    return mask


def one_word_a_row(mask, lengths):
    for row in rows(mask, lengths):
        row[:] = row[0]
    return mask


def period_of_1000(mask, lengths):
    for row in rows(mask, lengths):
        row[:] = np.resize(row[:1000], len(row))
    return mask


def one_mask_for_all_terms(mask, lengths):
    first, *others = rows(mask, lengths)[:-1]
    for row in others:
        row[:] = first
    return mask


def forty_bits(mask, _lengths):
    return mask & np.int64((1 << 40) - 1)


def threefold_neighbours(mask, lengths):
    for row in rows(mask, lengths)[:-1]:
        even = row[: len(row) // 2 * 2]
        even[1::2] = 3 * even[::2]
    return mask


def equal_steps(mask, lengths):
    for row in rows(mask, lengths):
        row[:] = row[0] + row[-1] * np.arange(len(row))
    return mask


WEAK = [
    last_tenth_bare,
    one_in_four_bare,
    some_sixty_bare,
    one_word_a_row,
    period_of_1000,
    one_mask_for_all_terms,
    forty_bits,
    threefold_neighbours,
    equal_steps,
]


@pytest.mark.parametrize("change", WEAK)
def test_weak_masks_are_judged_broken(monkeypatch, bare, change):
    weaken(monkeypatch, change)
    verdicts, found = judged(bare)
    assert verdicts == dict.fromkeys(ALONE, "broken")
    assert all(evidence.target.of(MATCHED).mean >= 0.9 for evidence in found.values())


def test_colluders_take_their_own_weak_masks_off_and_find_the_rest(monkeypatch, bare):
    """What they compute is what clients compute, weak as it is."""
    weaken(monkeypatch, last_tenth_bare)
    monkeypatch.setattr(stripped_masks, "add_masks", mask_client.add_masks)
    verdicts, _ = judged(bare, ("server with colluding clients",))
    assert verdicts == {"server with colluding clients": "broken"}


def same_seeds_in_every_round(monkeypatch):
    """Returns what tells the round that was last asked for."""
    drawn, asked = Occasion.pair_secret, {}

    def of_the_first_round(self, ring, other, purpose):
        asked["round"] = self.round_index
        fixed = replace(self, round_index=0, attempt=0, opening_digest=b"") if purpose == "mask" else self
        return drawn(fixed, ring, other, purpose)

    monkeypatch.setattr(Occasion, "pair_secret", of_the_first_round)
    monkeypatch.setattr(mask_client, "bound_seed", lambda seed, _context: seed)
    return asked


def test_streams_of_rounds_that_overlap_are_judged_broken(monkeypatch, bare):
    """Round r has the words of a pair's one stream from the r-th on."""
    asked = same_seeds_in_every_round(monkeypatch)

    def add(values, seeds, lengths, width):
        add_masks(values, seeds[:1], lengths, width)
        for seed, sign in seeds[1:]:
            long = np.zeros(len(values) + 64, dtype=np.int64)
            add_masks(long, [(seed, 1)], [len(long)], width)
            values += sign * long[asked["round"] :][: len(values)]

    monkeypatch.setattr(mask_client, "add_masks", add)
    verdicts, _ = judged(bare)
    assert verdicts == dict.fromkeys(ALONE, "broken")


def test_one_mask_for_all_pairs_is_judged_broken(monkeypatch, bare):
    """With four clients the sum of a client's three masks is a small multiple of that one."""

    def add(values, seeds, lengths, width):
        add_masks(values, seeds[:1], lengths, width)
        for _, sign in seeds[1:]:
            add_masks(values, [(bytes(32), sign)], lengths, width)

    monkeypatch.setattr(mask_client, "add_masks", add)
    verdicts, _ = judged(bare)
    assert verdicts == dict.fromkeys(ALONE, "broken")


def test_the_same_masks_in_every_round_are_judged_broken(monkeypatch, bare):
    same_seeds_in_every_round(monkeypatch)
    verdicts, _ = judged(bare)
    assert verdicts == dict.fromkeys(ALONE, "broken")


def test_a_bare_weight_is_judged_broken(monkeypatch, bare):
    def bare_weight(mask, _lengths):
        mask[-1] = 0
        return mask

    weaken(monkeypatch, bare_weight)
    verdicts, found = judged(bare)
    assert verdicts == dict.fromkeys(ALONE, "broken")
    assert found["curious server"].target.of(WEIGHED).mean == 1.0
    assert found["curious server"].target.of(MATCHED).mean < 1.0


def test_the_server_matches_under_the_published_cross_entropy_too(monkeypatch, bare):
    weaken(monkeypatch, last_tenth_bare)
    verdicts, found = judged(bare, **{"training.loss": "ce", "perturbation.softmax": "blinded"})
    assert verdicts == {"curious server": "broken"}  # nobody else could have answered the clients' questions
    assert found["curious server"].target.of(WEIGHED) is None  # it is shown batches; weights are not claimed hidden


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (0, {}),
        (1, {}),
        (2, {"training.loss": "ce"}),
        (4, {"training.loss": "ce", "perturbation.softmax": "blinded"}),
        (3, {"protection": "fedavg", "aggregation.masks": "ring"}),
    ],
)
def test_masks_as_they_are_hold(bare, settings, seed):
    def of(another):
        _, found = judged(bare, ALL, seed=seed + SEEDS * another, **settings)
        assert "server with colluding clients" in found
        return {name: judge(evidence) for name, evidence in found.items()}

    each_holds(of)


def test_it_is_not_tried_where_uploads_do_not_follow_from_batches():
    noisy = context_of(**{"noise.mechanism": "sound", "noise.noise_multiplier": 1.0})
    attackers = attackers_of(noisy, table_of(noisy), noisy.guarantee())
    assert attackers
    assert not any(matched(noisy, attacker, None) for attacker in attackers)
