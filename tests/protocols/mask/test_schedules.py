"""Random schedules: any graph, any threshold, clients that drop at every stage, refusals for range.

The oracle is plain set logic and Python integers, written without the code under test.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction

import pytest
import torch
from tests.protocols.mask import last_bits_oracle
from tests.protocols.mask.harness import (
    BEFORE_REVEAL,
    BEFORE_SHARES,
    BEFORE_SIGNATURE,
    BEFORE_UPLOAD,
    NAMES,
    NEVER,
    Group,
    upload_of,
)

from bilateral.errors import ThresholdError
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.settings import MaskSettings

torch.set_num_threads(1)
NUM_SCHEDULES = 304


def least_above(threshold, size):
    fraction = Fraction(threshold).limit_denominator(1000)
    return min([m for m in range(size + 1) if m > fraction * size], default=size)


def in_one_piece(names, around):
    pieces = [{name} for name in names]
    for name in names:
        touching = [piece for piece in pieces if piece & (around[name] | {name})]
        pieces = [piece for piece in pieces if piece not in touching] + [set().union(*touching)]
    return len(pieces) == 1


def expected_sharers(participants, around, threshold, schedule):
    """Who shared, without those who have too few around them that did."""
    sharers = {name for name in participants if schedule.get(name, NEVER) > BEFORE_SHARES}
    while True:
        kept = {
            name
            for name in sharers
            if len(sharers & (around[name] | {name})) >= least_above(threshold, len(around[name]) + 1)
        }
        if kept == sharers:
            return sharers
        sharers = kept


def expected_survivors(participants, around, threshold, enough, schedule):
    """Whose sum must come out of one attempt, or None if it must fail. `enough`: the fewest that a sum may have."""
    late = {name: schedule.get(name, NEVER) for name in participants}
    around_and_self = {name: around[name] | {name} for name in participants}
    quorum = {name: least_above(threshold, len(members)) for name, members in around_and_self.items()}
    sharers = expected_sharers(participants, around, threshold, schedule)
    survivors = {name for name in sharers if late[name] > BEFORE_UPLOAD}
    signers = {name for name in survivors if late[name] > BEFORE_SIGNATURE}
    revealers = {name for name in signers if late[name] > BEFORE_REVEAL}
    if min(len(sharers), len(survivors), len(signers)) < enough or not in_one_piece(survivors, around):
        return None
    if any(len(group & around_and_self[n]) < quorum[n] for group in (survivors, revealers) for n in sharers):
        return None
    return survivors


def expected_sum(uploads, survivors, opening, seed):
    """Python integers: the sum of what each client's value becomes when its last bits are drawn."""
    bits = opening.fraction_bits
    encoded = [
        last_bits_oracle.integers(uploads[name], bits, last_bits_oracle.key_of(name, uploads[name], seed))
        for name in survivors
    ]
    return [
        [math.ldexp(float(sum(values)), -bits[number]) for values in zip(*rows, strict=True)]
        for number, rows in enumerate(zip(*encoded, strict=True))
    ]


def neighbour_sets(group, round_index, attempt, participants):
    seed = graph_seed(group.rings[participants[0]].roster_digest, round_index, attempt, participants)
    graph = PairGraph.of(participants, group.settings, seed)
    return {name: set(graph.neighbours(name)) for name in participants}


def assert_sum(aggregate, opening, uploads, survivors, seed=0):
    rows = expected_sum(uploads, sorted(survivors), opening, seed)
    assert aggregate.terms.tolist() == rows[:-1]
    assert aggregate.statistics.tolist() == rows[-1]
    assert aggregate.total_weight == sum(uploads[name].weight for name in survivors)
    assert set(aggregate.contributors) == survivors


def random_group(number):
    choose = random.Random(number)
    names = NAMES[: choose.choice([2, 3, 4, 5, 6, 7, 9])]
    kind = choose.choice(["complete", "n-out", "n-out"])
    settings = MaskSettings(
        kind,
        choose.randint(1, len(names)) if kind == "n-out" else None,
        choose.choice([0.51, 0.6, 2 / 3, 0.75, 0.9]),
        initial_bound_bits=choose.choice([4, 20]),
        min_in_sum=choose.choice([None, None, 2, max(2, len(names) - 1)]),
    )
    return choose, Group(names, settings, seed=number)


def random_uploads(choose, names, round_index):
    """Now and then one that does not fit the bounds, which follow earlier sums."""
    sizes = {name: 2.0**14 if choose.random() < 0.1 else 1.0 for name in names}
    return {name: upload_of(round_index, choose.randrange(10**6), size=sizes[name]) for name in names}


def out_of_range(upload, bound_bits):
    rows = [*upload.terms.tolist(), upload.statistics.tolist()]
    return any(
        upload.weight * abs(value) > 2.0**bits for row, bits in zip(rows, bound_bits, strict=True) for value in row
    )


def expected_outcome(group, uploads, schedules, round_index):
    """Whose sum must come out after all attempts, or None."""
    participants, threshold = tuple(sorted(group.names)), group.settings.threshold
    bound_bits = group.server.state_tensors()["bound_bits"].tolist() or [group.settings.initial_bound_bits] * 3
    around = neighbour_sets(group, round_index, 0, participants)
    # The floor is that of the round's first opening, in all its attempts.
    enough = max(least_above(threshold, len(participants)), group.settings.min_in_sum or 0)
    sharing_only = {n: (BEFORE_SHARES if s == BEFORE_SHARES else NEVER) for n, s in schedules[0].items()}
    sharers = expected_sharers(participants, around, threshold, sharing_only)
    if len(sharers) < enough:
        return None
    answering = {name for name in sharers if schedules[0].get(name, NEVER) > BEFORE_UPLOAD}
    if not any(out_of_range(uploads[name], bound_bits) for name in answering):
        return expected_survivors(participants, around, threshold, enough, schedules[0])
    participants = tuple(sorted(answering))
    if len(participants) < enough:
        return None
    return expected_survivors(
        participants, neighbour_sets(group, round_index, 1, participants), threshold, enough, schedules[1]
    )


@pytest.mark.parametrize("block", range(4))
def test_unmasked_sum_equals_plain_integer_sum_of_survivors_or_the_round_fails_cleanly(block):
    seen = Counter()
    for number in range(block, NUM_SCHEDULES // 4, 4):
        choose, group = random_group(number)
        for round_index in range(4):  # a round that failed must not spoil the next one
            drop_rate = choose.choice([0.0, 0.1, 0.2, 0.4])
            schedules = [
                {
                    name: choose.randint(BEFORE_SHARES, BEFORE_REVEAL)
                    for name in group.names
                    if choose.random() < drop_rate
                }
                for _ in range(2)
            ]
            uploads = random_uploads(choose, group.names, round_index)
            survivors = expected_outcome(group, uploads, schedules, round_index)
            if survivors is None:
                with pytest.raises(ThresholdError):
                    group.run(round_index, uploads, schedules)
                seen["failed"] += 1
                continue
            aggregate, opening = group.run(round_index, uploads, schedules)
            assert_sum(aggregate, opening, uploads, survivors, seed=number)
            seen["again" if opening.attempt else "at once", len(survivors) < len(opening.participants)] += 1
    assert seen["failed"] > 3  # the schedules are worth something
    assert sum(count for key, count in seen.items() if key != "failed") > 10
    assert seen["at once", True]
    assert seen["again", False] or seen["again", True]


def test_a_larger_sparse_graph_survives_drops_at_every_stage():
    names = tuple(f"client {number:03}" for number in range(40))
    group = Group(names, MaskSettings("n-out", 12))
    schedule = {names[3]: BEFORE_SHARES, names[9]: BEFORE_UPLOAD, names[17]: BEFORE_SIGNATURE, names[30]: BEFORE_REVEAL}
    uploads = {name: upload_of(0, number) for number, name in enumerate(names)}
    aggregate, opening = group.run(0, uploads, (schedule,))
    assert_sum(aggregate, opening, uploads, set(names) - {names[3], names[9]})
