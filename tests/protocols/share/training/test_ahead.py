"""A dealer that follows a plan, and parties that work while they wait: the same words as without."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tests.protocols.share.training.stepping import step_of
from tests.protocols.share.training.test_views import network

from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.ring.streams import Keystream
from bilateral.protocols.share.training.parties import encode_batch, seed_of_step
from bilateral.protocols.share.training.planning import follow
from bilateral.protocols.share.training.roles import Dealing, First, Second
from bilateral.protocols.share.training.script import run, step

losses = pytest.mark.parametrize("loss", ["mse", "ce"])


def made_of(loss):
    """Every kind of gate."""
    return step_of(network(), (1, 8, 8), loss, 4)


def seeds_of(made):
    return [seed_of_step(made.terms, seed) for seed in made.seeds]


@losses
def test_a_dealer_by_plan_deals_what_one_that_walks_the_step_deals(loss):
    made = made_of(loss)
    walking, planned = (Dealing(made.terms, tuple(seeds_of(made)[:2])) for _ in range(2))
    run(step(walking, None, None))
    follow(planned, made.terms.shape_of_step.orders)
    assert len(walking.dealt) == len(planned.dealt) == len(made.terms.shape_of_step.dealt)
    assert all(torch.equal(a, b) for a, b in zip(walking.dealt, planned.dealt, strict=True))


def test_a_plan_lets_go_of_everything_once(monkeypatch):
    """What is kept for nobody would be as large as all values of a step."""
    orders = made_of("ce").terms.shape_of_step.orders
    done = [made for order in orders for made in order.done]
    read = {part.order for order in orders for part in order.made}
    assert len(done) == len(set(done)) and set(done) == read
    last = {part.order: number for number, order in enumerate(orders) for part in order.made}
    assert all(last[made] == number for number, order in enumerate(orders) for made in order.done)


class Conversation:
    """Two parties; `pieces` of work ahead are done whenever one of them waits."""

    def __init__(self, made, pieces):
        with_first, with_second, common = seeds_of(made)
        weights = made.first().masked_weights()
        self.roles = (
            First(made.terms, made.model, made.dealt(), with_first, common, "dora"),
            Second(made.terms, weights, with_second, common),
        )
        if pieces:
            for role in self.roles:
                role.plan(made.terms.shape_of_step.orders)
        encoded = encode_batch(made.terms, made.inputs, made.targets)
        speakers = [Speaker(step(self.roles[0], None, None), "second"), Speaker(step(self.roles[1], *encoded), "first")]
        self.told, self.num_pieces = [], 0
        while not all(speaker.is_done for speaker in speakers):
            for speaker, other in (speakers, speakers[::-1]):
                for role in self.roles:
                    self.num_pieces += sum(role.work_ahead() for _ in range(pieces))
                if told := speaker.take_told():
                    self.told.append(told)
                    other.hear(told, must_lead=False)
        self.parts = [speaker.result for speaker in speakers]


@losses
@pytest.mark.parametrize("pieces", [1, 1000])
def test_parties_that_work_while_they_wait_say_and_find_the_same(loss, pieces):
    made = made_of(loss)
    plain, ahead = Conversation(made, 0), Conversation(made, pieces)
    assert plain.num_pieces == 0 and ahead.num_pieces > 20
    assert [len(told) for told in plain.told] == [len(told) for told in ahead.told]
    for one, other in zip(plain.told, ahead.told, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain.parts, ahead.parts, strict=True))


@pytest.mark.parametrize("pieces", [0, 3, 1000])
def test_working_ahead_reads_no_block_of_a_stream_for_two_things(monkeypatch, pieces):
    """Masks of values and deltas are read once too, though the value and the product made of it both want them."""
    real, read = Keystream.fill, {}

    def fill(stream, start, words):
        for block in range(len(words) // 2 - 1):
            read.setdefault(id(stream), (stream, Counter()))[1][start + block] += 1
        return real(stream, start, words)

    made = made_of("ce")
    weights = made.first().masked_weights()
    del weights
    monkeypatch.setattr(Keystream, "fill", fill)
    conversation = Conversation(made, pieces)
    own = {id(role._with_dealer) for role in conversation.roles} | {id(r._with_other) for r in conversation.roles}
    counted = [blocks for key, (_, blocks) in read.items() if key in own]
    assert len(counted) >= 3
    assert all(most == 1 for blocks in counted for most in blocks.values())
