"""Sealed training that is weak somewhere, every result still right: each is judged broken, and the real one is not."""

from dataclasses import replace

import pytest
import torch
from tests.audit.topics.sealed.harness import context_for, plain_gradient, played, relative

from bilateral.audit.recording import record
from bilateral.audit.topics.sealed.sealed_worlds import matched
from bilateral.audit.verdict import judge
from bilateral.errors import OutOfRangeError
from bilateral.protections.sealed import dealing
from bilateral.protections.sealed.boxes import BoxContent, seal_box
from bilateral.protocols.share.gates import sealed as comparisons
from bilateral.protocols.share.ring.streams import Keystream, Stream
from bilateral.protocols.share.training import parties, roles
from bilateral.protocols.share.training.parties import as_words, deal, seed_of_step

TRIALS = 18
CLIENT, SERVER, DEALER = ("curious client", False), ("curious server", True), ("dealer", False)


def bare_weights(patch):
    """The server sends its weights as they are."""

    def none(terms, seed, layer):
        del seed
        shape = terms.linear_steps[layer].weight_shape(terms.linear_sources[layer])
        return torch.zeros(shape, dtype=torch.int64)

    patch.setattr(roles, "weight_masks", none)
    patch.setattr(parties, "weight_masks", none)


def one_mask_for_all_rounds(patch):
    """B and B' come again in every round, whatever the seed."""

    class Repeated(Keystream):
        def __init__(self, seed, size):
            super().__init__(seed, size)
            self._always = Keystream(bytes(32), size)

        def stream(self, purpose, index):
            if purpose in ("value mask", "delta mask"):
                return self._always.stream(purpose, index)
            return super().stream(purpose, index)

    patch.setattr(roles, "Keystream", Repeated)


def one_seed_for_both(patch):
    """The dealer tells the server the seed that it has in common with the client."""

    def deal_for(self, keys, client, round_index):
        seed = self._randomness.child("round", round_index, client).random_bytes(32)
        step = self._terms.step(client, round_index)
        box = seal_box(keys, client, round_index, step.digest, BoxContent(seed))
        return seed, box, as_words(deal(step, seed, seed))

    patch.setattr(dealing.Dealing, "_deal_for", deal_for)
    # Parties that see it refuse one seed for both; these do not look.
    patch.setattr(parties, "_seeds_of_step", lambda terms, *seeds: [seed_of_step(terms, seed) for seed in seeds])


def one_box_for_all_rounds(patch):
    """A dealer that repeats itself: the same seeds, and the same box, in every round."""

    def deal_for(self, keys, client, round_index):
        draws = self._randomness.child("always", client)
        with_server, with_client = draws.random_bytes(32), draws.random_bytes(32)
        step = self._terms.step(client, round_index)
        box = seal_box(keys, client, round_index, step.digest, BoxContent(with_client))
        return with_server, box, as_words(deal(step, with_server, with_client))

    patch.setattr(dealing.Dealing, "_deal_for", deal_for)


def betas_that_are_zero(patch):
    """Signs of comparisons are opened as they are."""
    by_first, by_second = comparisons._drawn_whole, comparisons.drawn_own

    def first(stream, width):
        r, bits, own, selection = by_first(stream, width)
        own = own.clone()
        own[0] = 0
        return r, bits, own, selection

    def second(stream, width):
        r, own = by_second(stream, width)
        own = own.clone()
        own[0] = 0
        return r, own

    patch.setattr(comparisons, "_drawn_whole", first)
    patch.setattr(comparisons, "drawn_own", second)


def betas_that_are_biased(patch):
    """Seven of eight betas are zero."""
    by_first, by_second = comparisons._drawn_whole, comparisons.drawn_own

    def thinned(own):
        own = own.clone()
        own[0] &= 0x0101010101010101
        return own

    def first(stream, width):
        r, bits, own, selection = by_first(stream, width)
        return r, bits, thinned(own), selection

    def second(stream, width):
        r, own = by_second(stream, width)
        return r, thinned(own)

    patch.setattr(comparisons, "_drawn_whole", first)
    patch.setattr(comparisons, "drawn_own", second)


def corrections_in_the_clear(patch):
    """The server is dealt e itself, and not a share of it."""

    class Zeros(Stream):
        def words(self, *shape):
            return torch.zeros_like(super().words(*shape))

    class Bare(Keystream):
        def stream(self, purpose, index):
            return Zeros(self, purpose, index) if purpose == "gradient" else super().stream(purpose, index)

    patch.setattr(roles, "Keystream", Bare)


@pytest.mark.parametrize(
    ("weaken", "breaks"),
    [
        (bare_weights, (CLIENT, DEALER)),
        (one_mask_for_all_rounds, (SERVER,)),
        (one_seed_for_both, (SERVER, CLIENT)),
        (one_box_for_all_rounds, (SERVER, CLIENT)),
        (betas_that_are_zero, (SERVER, CLIENT)),
        (betas_that_are_biased, (SERVER, CLIENT)),
        (corrections_in_the_clear, (SERVER,)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_was_weakened_is_judged_broken_and_its_gradient_is_still_right(weaken, breaks, monkeypatch):
    context = context_for(**{"federation.clients": 3})
    weaken(monkeypatch)
    match, adversaries = played(context, TRIALS)
    recording = match.sealed.recording
    assert relative(recording.server_round(1).recovered(), plain_gradient(recording, 1)) < 1e-4
    for who in breaks:
        found = judge(matched(context, adversaries[who], match))
        assert found.verdict == "broken", (who, found.reason)
        assert found.evidence.target.scores[0].mean >= 0.9


def no_range_checks(patch):
    """No random sum and no norm is compared with its limit: the count is 0, whatever happened, for all parties."""

    def nothing(role):
        del role
        return 0
        yield

    patch.setattr(roles.Role, "settle", nothing)


def loud_round():
    """A round in which numbers leave their range: large targets, and a model that the server's small examples bear."""
    context = context_for(**{"federation.clients": 3, "training.rounds": 1, "model.name": "mlp-5", **WIDE})
    found = context.federation()
    shares = {name: replace(share, targets=1000.0 * share.targets.double()) for name, share in found.shares.items()}
    quiet = replace(found.problem, examples=0.02 * found.problem.examples)
    test = replace(found.test, inputs=0.02 * found.test.inputs)

    def grow(_round_index, network):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(3.0)

    loud = replace(found, shares=shares, problem=quiet, test=test)
    return record(context.plan, loud, keep=range(1), before_round=grow)


WIDE = {"model.options": {"width": 32}}


def test_without_range_checks_a_wrong_gradient_comes_out_and_the_recording_shows_it(monkeypatch):
    """The checks are all that is in the way: with them the same round ends in an error, and nothing is learned."""
    with pytest.raises(OutOfRangeError, match="left its range; nothing was learned"):
        loud_round()
    no_range_checks(monkeypatch)
    recording = loud_round()
    assert relative(recording.server_round(0).recovered(), plain_gradient(recording, 0)) > 0.1


def test_without_range_checks_nobody_sees_more_and_rounds_in_range_are_right(monkeypatch):
    """They keep gradients right, and hide nothing: the adversaries find what they find with them."""
    no_range_checks(monkeypatch)
    context = context_for(**{"federation.clients": 3})
    match, adversaries = played(context, TRIALS)
    recording = match.sealed.recording
    assert relative(recording.server_round(1).recovered(), plain_gradient(recording, 1)) < 1e-4
    for who in (CLIENT, SERVER, DEALER):
        assert judge(matched(context, adversaries[who], match)).verdict != "broken", who


def test_of_real_sealing_nobody_finds_anything_but_pairs_that_collude():
    context = context_for()
    match, adversaries = played(context, TRIALS)
    found = {who: judge(matched(context, one, match)) for who, one in adversaries.items()}
    for who, one in found.items():
        assert one.evidence.positive.scores[0].mean == 1.0, who
    colluding = {("client with its dealer", False), ("server with a client's dealer", True)}
    assert {who for who, one in found.items() if one.verdict == "broken"} == colluding
    assert {who for who, one in found.items() if one.evidence.target.scores[0].mean == 1.0} == colluding
    assert len(found) == 8


def test_without_a_dealer_among_them_matching_has_no_reason_to_prefer_a_world():
    from bilateral.audit.topics.sealed.attacks import step_matching

    context = context_for()
    match, adversaries = played(context, 6)
    for who, adversary in adversaries.items():
        if who[0] in ("client with its dealer", "server with a client's dealer"):
            continue
        view = match.view(adversary)
        sights = {
            index: step_matching._sight(view, match.suspect, index, match.worlds, of_batches=adversary.of_batches)
            for index in match.rounds
        }
        for index, sight in sights.items():
            others = [other for number, other in sights.items() if number != index]
            assert [step_matching._score(sight, world, others) for world in (0, 1)] == [0.0, 0.0], who


def test_a_named_dealer_alone_has_nothing_to_match():
    context = context_for(**{"federation.clients": 3, "federation.dealer": "auditor"})
    match, adversaries = played(context, 3)
    view = match.view(adversaries[DEALER])
    assert all(not seen.weights and not seen.told_by_server and not seen.told_by_client for seen in view.steps)
    assert ("server with another client's dealer", True) not in adversaries
    assert ("colluding clients", False) in adversaries
