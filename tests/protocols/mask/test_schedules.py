"""Random schedules: any graph, any threshold, clients that drop at every stage, refusals for range.

The oracle is plain set logic and Python integers, written without the code under test.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
import torch

from bilateral.errors import ThresholdError
from bilateral.protocols.mask.graph import PairGraph, graph_seed
from bilateral.protocols.mask.settings import MaskSettings
from protocols.mask.harness import (
    BEFORE_REVEAL,
    BEFORE_SHARES,
    BEFORE_SIGNATURE,
    BEFORE_UPLOAD,
    NAMES,
    NEVER,
    Group,
    upload_of,
)

torch.set_num_threads(1)
NUM_SCHEDULES = 320
SMALL_BITS = 4


def least_above(threshold, size):
    fraction = Fraction(threshold).limit_denominator(1000)
    return min([m for m in range(size + 1) if m > fraction * size], default=size)


def in_one_piece(names, around):
    pieces = [{name} for name in names]
    for name in names:
        touching = [piece for piece in pieces if piece & (around[name] | {name})]
        pieces = [piece for piece in pieces if piece not in touching] + [set().union(*touching)]
    return len(pieces) == 1


def expected_survivors(participants, around, threshold, schedule):
    """Whose sum must come out, or None if the round must fail."""
    late = {name: schedule.get(name, NEVER) for name in participants}
    enough = least_above(threshold, len(participants))
    around_and_self = {name: around[name] | {name} for name in participants}
    quorum = {name: least_above(threshold, len(members)) for name, members in around_and_self.items()}
    sharers = {name for name in participants if late[name] > BEFORE_SHARES}
    while True:
        kept = {name for name in sharers if len(sharers & around_and_self[name]) >= quorum[name]}
        if kept == sharers:
            break
        sharers = kept
    survivors = {name for name in sharers if late[name] > BEFORE_UPLOAD}
    signers = {name for name in survivors if late[name] > BEFORE_SIGNATURE}
    revealers = {name for name in signers if late[name] > BEFORE_REVEAL}
    if min(len(sharers), len(survivors), len(signers)) < enough or not in_one_piece(survivors, around):
        return None
    if any(len(group & around_and_self[n]) < quorum[n] for group in (survivors, revealers) for n in sharers):
        return None
    return survivors


def expected_sum(uploads, survivors, fraction_bits):
    """Python integers: sum of round(weight * value * 2^f), to the nearest and halves to even."""
    rows = []
    for number, bits in enumerate(fraction_bits):
        columns = []
        for name in survivors:
            row = [*uploads[name].terms, uploads[name].statistics][number].tolist()
            columns.append([round(Fraction(value) * uploads[name].weight * Fraction(2) ** bits) for value in row])
        rows.append([math.ldexp(float(sum(values)), -bits) for values in zip(*columns, strict=True)])
    return rows


def neighbour_sets(group, round_index, attempt, participants):
    seed = graph_seed(group.rings[participants[0]].roster_digest, round_index, attempt, participants)
    graph = PairGraph.of(participants, group.settings, seed)
    return {name: set(graph.neighbours(name)) for name in participants}


def assert_sum(aggregate, opening, uploads, survivors):
    rows = expected_sum(uploads, sorted(survivors), opening.fraction_bits)
    assert aggregate.terms.tolist() == rows[:-1]
    assert aggregate.statistics.tolist() == rows[-1]
    assert aggregate.total_weight == sum(uploads[name].weight for name in survivors)
    assert set(aggregate.contributors) == survivors


def random_case(number):
    choose = random.Random(number)
    names = NAMES[: choose.choice([2, 3, 4, 5, 6, 8, 10])]
    kind = choose.choice(["complete", "n-out", "n-out"])
    settings = MaskSettings(
        kind,
        choose.randint(1, len(names)) if kind == "n-out" else None,
        choose.choice([0.51, 0.6, 2 / 3, 0.75, 0.9]),
        initial_bound_bits=SMALL_BITS if choose.random() < 0.3 else 20,
    )
    drop_rate = choose.choice([0.0, 0.1, 0.2, 0.4])
    schedules = [
        {name: choose.randint(BEFORE_SHARES, BEFORE_REVEAL) for name in names if choose.random() < drop_rate}
        for _ in range(2)
    ]
    return choose, names, settings, schedules


def outcome(group, uploads, schedules, round_index):
    """(expected survivors or None, attempt) by the oracle, following refusals."""
    participants, attempt = tuple(sorted(group.names)), 0
    beyond = {
        name
        for name, upload in uploads.items()
        if group.settings.initial_bound_bits == SMALL_BITS
        and upload.weight * max(float(upload.terms.abs().max()), float(upload.statistics.abs().max())) > 2**SMALL_BITS
    }
    around = neighbour_sets(group, round_index, attempt, participants)
    threshold = group.settings.threshold
    sharing_only = {n: (BEFORE_SHARES if s == BEFORE_SHARES else NEVER) for n, s in schedules[0].items()}
    sharers = expected_survivors(participants, around, threshold, sharing_only)
    if sharers is None:
        return None, None
    answering = {name for name in sharers if schedules[0].get(name, NEVER) > BEFORE_UPLOAD}
    if not beyond & answering:
        return expected_survivors(participants, around, threshold, schedules[0]), participants
    participants = tuple(sorted(answering))
    if len(participants) < 2:
        return None, participants
    around = neighbour_sets(group, round_index, 1, participants)
    return expected_survivors(participants, around, threshold, schedules[1]), participants


@pytest.mark.parametrize("block", range(8))
def test_unmasked_sum_equals_plain_integer_sum_of_survivors_or_the_round_fails_cleanly(block):
    succeeded = failed = 0
    for number in range(block * NUM_SCHEDULES // 8, (block + 1) * NUM_SCHEDULES // 8):
        choose, names, settings, schedules = random_case(number)
        group = Group(names, settings, seed=number)
        uploads = {name: upload_of(0, choose.randrange(10**6)) for name in names}
        survivors, _ = outcome(group, uploads, schedules, 0)
        if survivors is None:
            failed += 1
            with pytest.raises(ThresholdError):
                group.run(0, uploads, schedules)
        else:
            succeeded += 1
            assert_sum(*group.run(0, uploads, schedules), uploads, survivors)
        # Whatever happened, the next round works.
        uploads = {name: upload_of(1, choose.randrange(10**6)) for name in names}
        everyone = expected_survivors(names, neighbour_sets(group, 1, 0, names), settings.threshold, {})
        if everyone is not None:  # a sparse random graph may be disconnected by itself
            aggregate, opening = group.run(1, uploads)
            if opening.attempt == 0:
                assert_sum(aggregate, opening, uploads, everyone)
    assert succeeded > 5
    assert failed > 5


def test_a_larger_sparse_graph_survives_drops_at_every_stage():
    names = tuple(f"client {number:03}" for number in range(40))
    group = Group(names, MaskSettings("n-out", 12))
    schedule = {names[3]: BEFORE_SHARES, names[9]: BEFORE_UPLOAD, names[17]: BEFORE_SIGNATURE, names[30]: BEFORE_REVEAL}
    uploads = {name: upload_of(0, number) for number, name in enumerate(names)}
    aggregate, opening = group.run(0, uploads, (schedule,))
    assert_sum(aggregate, opening, uploads, set(names) - {names[3], names[9]})
