"""Views of secret-shared prediction: exactly a party's slice, and what it needs to read it."""

from __future__ import annotations

import pytest
import torch
from tests.audit.shared_samples import asked

from bilateral.audit.shared_recording import answering_view, helping_view, listening_view, querying_view
from bilateral.audit.shared_truth import compared_numbers, with_random_words, without_masks
from bilateral.audit.shared_views import (
    blinded_numbers,
    circuits_read,
    dealt_masks,
    names_of_parts,
    numbers_in_place,
    opened,
    own_correlations,
    told,
)
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED, SEALED
from bilateral.protocols.share.prediction.messages import (
    AnswererTurn,
    BlindedValues,
    MaskedModel,
    QueryShare,
    ServerTurn,
)
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring.packing import from_words, to_words
from bilateral.randomness import SeededRandomness


@pytest.fixture(scope="module")
def run():
    return asked(PUBLISHED)[0]


@pytest.fixture(scope="module")
def sealed_run():
    return asked(SEALED)[0]


def test_the_recorded_answer_is_the_sum_of_the_networks(run):
    expected = sum(predict(model, run.queries) for model in run.models.values())
    assert (run.answers - expected).abs().max() < 1e-3


def test_each_party_has_its_own_messages_and_the_server_has_all(run):
    assert len(helping_view(run).entries) == len(listening_view(run).entries) == len(run.entries)
    anna = answering_view(run, "anna")
    assert {end for entry in anna.entries for end in (entry.sender, entry.receiver)} == {"anna", "server"}
    assert not anna.messages(QueryShare) and not anna.messages(BlindedValues)
    assert not querying_view(run).messages(MaskedModel)
    total = sum(len(view.entries) for view in (querying_view(run), anna, answering_view(run, "bela")))
    assert total == len(run.entries)


def test_a_view_has_the_seeds_of_its_own_pairs_and_no_others(run):
    quentin, anna, server = querying_view(run), answering_view(run, "anna"), helping_view(run)
    of_anna, of_bela = run.sessions
    assert quentin.seeds[of_anna.session_id, "anna"] == anna.seeds[of_anna.session_id, "quentin"]
    assert quentin.seeds[of_anna.session_id, "server"] == server.seeds[of_anna.session_id, "quentin"]
    assert of_bela.session_id not in {session_id for session_id, _ in anna.seeds}
    assert quentin.seeds[of_anna.session_id, "anna"] not in server.seeds.values()
    assert server.seeds[of_anna.session_id, "anna"] not in quentin.seeds.values()
    assert not listening_view(run).seeds
    with pytest.raises(KeyError):
        listening_view(run).stream(of_anna, "anna", "comparison", 0, 1)


def test_only_the_owners_have_queries_answers_and_networks(run):
    assert querying_view(run).queries is not None and querying_view(run).model is None
    assert answering_view(run, "anna").model is run.models["anna"]
    for view in (answering_view(run, "anna"), helping_view(run), listening_view(run)):
        assert view.queries is None and view.answers is None


def test_the_querying_party_reads_its_blinded_numbers_right(run):
    """In the published style each is positive where the compared number is."""
    view = querying_view(run)
    for session in view.sessions:
        truth = compared_numbers(run.models[session.answerer], run.queries)
        for u, t in zip(blinded_numbers(view, session), truth, strict=True):
            assert u.shape == t.shape and ((u > 0) == (t >= 0)).double().mean() > 0.99


def test_without_masks_the_messages_hold_the_bare_values(run):
    bare = helping_view(without_masks(run))
    assert torch.equal(bare.messages(QueryShare)[0].share, ring.encode(run.queries, FRACTION_BITS))
    assert torch.equal(bare.messages(MaskedModel)[0].weights[0], run.models["anna"].layers[0].weight)
    assert not torch.equal(helping_view(run).messages(QueryShare)[0].share, ring.encode(run.queries, FRACTION_BITS)), (
        "and the real ones do not"
    )


def test_circuits_are_read_by_all_but_the_other_answering_party(run):
    truth = {name: model.circuit for name, model in run.models.items()}
    for view in (querying_view(run), helping_view(run), listening_view(run)):
        assert circuits_read(view) == truth
    assert circuits_read(answering_view(run, "anna")) == {}


def test_both_computing_parties_see_what_is_opened_and_the_dealer_knows_what_is_under_it(sealed_run):
    """y is t + r, and m is [t >= 0] xor beta."""
    server, quentin = helping_view(sealed_run), querying_view(sealed_run)
    for session in sealed_run.sessions:
        ((index, size),) = server.batches(session)
        seen = opened(server, session, index, size)
        by_answerer = opened(answering_view(sealed_run, session.answerer), session, index, size)
        truth = compared_numbers(sealed_run.models[session.answerer], sealed_run.queries)
        masks = dealt_masks(quentin, session, index, size)
        for one, same, mask, t in zip(seen, by_answerer, masks, truth, strict=True):
            assert torch.equal(one.numbers, same.numbers) and torch.equal(one.signs, same.signs)
            assert all(torch.equal(*pair) for pair in zip(one.digits, same.digits, strict=True))
            assert [len(level) for level in one.digits] == [11, 5, 2]
            assert (one.numbers - mask.r - t).abs().max() <= 4, "truncation rounds at random"
            assert ((one.signs ^ mask.beta == 1) == (t >= 0)).double().mean() > 0.99


def test_own_masks_are_those_that_a_party_told_its_share_with(sealed_run):
    """r is the sum of both parties' r, and beta the exclusive or."""
    session = sealed_run.sessions[0]
    views = helping_view(sealed_run), answering_view(sealed_run, session.answerer)
    ((index, size),) = views[0].batches(session)
    first, second = (own_correlations(view, session, index, size) for view in views)
    for one, other, mask in zip(
        first, second, dealt_masks(querying_view(sealed_run), session, index, size), strict=True
    ):
        assert torch.equal(one.r + other.r, mask.r.reshape(-1))
        assert torch.equal(one.beta + other.beta, mask.beta.reshape(-1))


def test_a_dealer_has_nothing_in_the_place_of_numbers_but_the_sum_less_its_masks(sealed_run):
    quentin = querying_view(sealed_run)
    assert not quentin.messages(BlindedValues)
    for session in sealed_run.sessions:
        truth = compared_numbers(sealed_run.models[session.answerer], sealed_run.queries)
        for words, t in zip(numbers_in_place(quentin, session), truth, strict=True):
            assert words.shape == t.shape
            assert abs(((words > 0) == (t >= 0)).double().mean() - 0.5) < 0.2


@pytest.mark.parametrize("style", [SEALED, HARDENED, PUBLISHED])
def test_every_part_of_a_turn_has_a_name(style):
    (run,) = asked(style, answerers=("anna",))
    (session,), server = run.sessions, helping_view(run)
    for turn in (ServerTurn, AnswererTurn):
        names = names_of_parts(session.circuit, style, turn)
        assert len(set(names)) == len(names)
        assert list(told(server, session, 0, turn)) == names
    answerers, servers = (told(server, session, 0, turn) for turn in (AnswererTurn, ServerTurn))
    assert [one.what for one in answerers].count("bits of a truncation") == 3
    assert [one.what for one in servers].count("layer input") == 3
    assert [one.what for one in answerers].count("blinded numbers") == (2 if style.is_judged else 0)
    assert [one.what for one in servers].count("masked digits") == (0 if style.is_judged else 6)


def test_without_masks_the_bare_numbers_are_opened(sealed_run):
    bare, session = helping_view(without_masks(sealed_run)), sealed_run.sessions[0]
    truth = compared_numbers(sealed_run.models[session.answerer], sealed_run.queries)
    for one, t in zip(opened(bare, session, 0, len(sealed_run.queries)), truth, strict=True):
        assert torch.equal(one.numbers, t) and torch.equal(one.signs == 1, t >= 0)


def test_random_words_fill_up_nothing_that_is_zeros_by_the_protocol(sealed_run):
    """Bits of truncations travel in whole words: else any attacker would tell random words by the ends."""
    random, session = helping_view(with_random_words(sealed_run, SeededRandomness(1))), sealed_run.sessions[0]
    values = session.circuit.linear_values
    for view in (random, helping_view(sealed_run)):
        for name, part in told(view, session, 0, AnswererTurn).items():
            if name.what == "bits of a truncation":
                count = len(sealed_run.queries) * values[name.place].size
                assert torch.equal(to_words(from_words(part, count)), part)
