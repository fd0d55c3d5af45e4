"""Views of secret-shared prediction: exactly a party's slice, and what it needs to read it."""

from __future__ import annotations

import pytest
import torch
from tests.audit.shared_samples import asked

from bilateral.audit.shared_recording import answering_view, helping_view, listening_view, querying_view
from bilateral.audit.shared_truth import compared_numbers, without_masks
from bilateral.audit.shared_views import blinded_numbers, circuits_read
from bilateral.protocols.share.circuit.description import FRACTION_BITS
from bilateral.protocols.share.circuit.plaintext import predict
from bilateral.protocols.share.gates.styles import PUBLISHED
from bilateral.protocols.share.prediction.messages import BlindedValues, MaskedModel, QueryShare
from bilateral.protocols.share.ring import arithmetic as ring


@pytest.fixture(scope="module")
def run():
    return asked(PUBLISHED)[0]


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
