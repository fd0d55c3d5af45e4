"""Whatever is malformed is refused with an error that names who sent it."""

from __future__ import annotations

import pytest
import torch
from tests.protocols.share.training.stepping import Step, converse, step_of
from tests.protocols.share.training.test_gradients import SHAPE, Own, _residual
from torch import nn

from bilateral.errors import MalformedMessageError, ProtocolError
from bilateral.protocols.share.gates.talk import Speaker
from bilateral.protocols.share.training import script
from bilateral.protocols.share.training.parties import (
    FirstParty,
    SecondParty,
    as_words,
    deal,
    from_words,
    seed_of_step,
)
from bilateral.protocols.share.training.roles import First


@pytest.fixture(scope="module")
def step() -> Step:
    return step_of(Own(_residual), SHAPE, "ce", 2)


WRONG_LISTS = {
    "missing": lambda parts: parts[:-1],
    "none": lambda parts: (),
    "too many": lambda parts: (*parts, parts[-1]),
    "reordered": lambda parts: parts[::-1],
    "two swapped": lambda parts: (parts[1], parts[0], *parts[2:]),
    "another type": lambda parts: (parts[0].to(torch.int16), *parts[1:]),
    "floats": lambda parts: (parts[0].double(), *parts[1:]),
    "another shape": lambda parts: (parts[0][:-1], *parts[1:]),
    "flat": lambda parts: (*parts[:-1], parts[-1].reshape(-1, 1)),
    "empty": lambda parts: (*parts[:-1], parts[-1][:0]),
}


@pytest.mark.parametrize("how", WRONG_LISTS)
def test_what_was_dealt_wrongly_is_refused_before_the_step_begins(step, how):
    with pytest.raises(MalformedMessageError, match="dora"):
        step.first(dealt=WRONG_LISTS[how](step.dealt()))


def test_what_is_dealt_travels_as_one_list_of_words():
    step = step_of(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)), (3,), "ce", 3)
    dealt = step.dealt()
    found = from_words(step.terms, as_words(dealt), "dora")
    assert len(found) == len(dealt)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, dealt, strict=True))
    odd = [part for part in dealt if part.dtype == torch.int32 and part.numel() % 2]
    assert odd, "halves of words that do not fill the last word"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda words: words[:-1],
        lambda words: torch.cat([words, words[:1]]),
        lambda words: words[None],
        lambda words: words.to(torch.int32),
        lambda words: words.double(),
        lambda words: words[:0],
    ],
)
def test_a_list_of_words_that_does_not_fit_is_refused_by_the_dealers_name(step, wrong):
    with pytest.raises(MalformedMessageError, match="dora"):
        from_words(step.terms, wrong(as_words(step.dealt())), "dora")


def test_a_dealer_that_deals_as_it_goes_and_stops_is_named(step):
    """Where what is dealt comes one by one, too little and too much are found when they matter."""
    dealt = step.dealt()
    for parts, refused in ((dealt[:-1], "dealt too little"), ((*dealt, dealt[-1]), "dealt more parts than expected")):
        role = First(step.terms, step.model, iter(parts), *seeds_as_used(step), "dora")

        def work(role=role):
            found = yield from script.step(role, None, None)
            role.expect_all_used()
            return found

        with pytest.raises(MalformedMessageError, match=f"dora {refused}"):
            converse(work(), step.second().work(step.inputs, step.targets))


def seeds_as_used(step):
    with_dealer, _, with_second = step.seeds
    return seed_of_step(step.terms, with_dealer), seed_of_step(step.terms, with_second)


@pytest.mark.parametrize("how", WRONG_LISTS)
def test_masked_weights_that_are_wrong_are_refused_before_the_step_begins(step, how):
    with pytest.raises(MalformedMessageError, match="the server"):
        step.second(weights=WRONG_LISTS[how](step.first().masked_weights()))


def speaker_of(step, party):
    """A party of a step, and who it blames."""
    if party == "first":
        return Speaker(step.first().work(), "the client"), "the client"
    return Speaker(step.second().work(step.inputs, step.targets), "the server"), "the server"


WRONG_TURNS = {
    "truncated": lambda parts: parts[:-1],
    "of nothing": lambda parts: (),
    "with a part too many": lambda parts: (*parts, parts[-1]),
    "of another type": lambda parts: (*parts[:-1], parts[-1].to(torch.int32)),
    "of floats": lambda parts: (*parts[:-1], parts[-1].double()),
    "of another shape": lambda parts: (*parts[:-1], parts[-1].reshape(-1)[:-1]),
    "of a scalar": lambda parts: (*parts[:-1], torch.tensor(1)),
}


def turns_of(step):
    """All that each party tells, turn by turn, first and second in order."""
    speakers = [speaker_of(step, party)[0] for party in ("first", "second")]
    turns = [], []
    while not all(speaker.is_done for speaker in speakers):
        for me, speaker in enumerate(speakers):
            turns[me].append(speaker.take_told())
            speakers[1 - me].hear(turns[me][-1], must_lead=False)
    return turns


@pytest.mark.parametrize("party", ["first", "second"])
@pytest.mark.parametrize("how", WRONG_TURNS)
def test_a_malformed_turn_is_refused_at_every_point_of_the_step(party, how):
    """In place of each turn that has parts, the malformed one; the error names who sent it."""
    step = step_of(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,), "ce", 2)
    turns = turns_of(step)[party == "first"]
    refused = 0
    for wrong in range(len(turns)):
        if not turns[wrong]:
            continue
        listener, sender = speaker_of(step, party)
        if party == "first":
            listener.take_told()
        for turn in turns[:wrong]:
            listener.hear(turn, must_lead=False)
            listener.take_told()
        with pytest.raises(MalformedMessageError, match=sender):
            listener.hear(WRONG_TURNS[how](turns[wrong]))
            listener.expect_end()
        refused += 1
    assert refused > 5


def test_a_count_that_is_not_a_single_number_is_refused(step):
    listener, sender = speaker_of(step, "first")
    turns = turns_of(step)[1]
    for turn in turns[:-1]:
        listener.hear(turn, must_lead=False)
    last = [turn for turn in turns if turn][-1]
    assert tuple(last[-1].shape) == (1,)
    with pytest.raises(MalformedMessageError, match=sender):
        listener.hear((*last[:-1], torch.zeros(2, dtype=torch.int64)))


@pytest.mark.parametrize("seeds", [(b"s" * 32, b"s" * 32), (b"s" * 31, b"t" * 32), (b"", b"t" * 32)])
def test_one_seed_for_two_pairs_of_parties_and_short_seeds_are_refused(step, seeds):
    """A seed that the dealer shares with both would tell each of them the other's masks."""
    with pytest.raises(ProtocolError, match="two different seeds"):
        deal(step.terms, *seeds)
    with pytest.raises(ProtocolError, match="two different seeds"):
        FirstParty(step.terms, step.model, step.dealt(), *seeds, dealer="dora")
    with pytest.raises(ProtocolError, match="two different seeds"):
        SecondParty(step.terms, step.first().masked_weights(), *seeds, first="the server")
