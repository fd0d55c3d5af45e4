"""Sealed runs, recorded: who has what of a step, and the truth that figures are scored against."""

import pytest
import torch
from tests.audit.topics.sealed.harness import context_for, plain_gradient, relative

from bilateral.audit.recording import record
from bilateral.audit.sealed_recording import SealedRecording
from bilateral.audit.threat import server_view
from bilateral.audit.topics.inversion.attacks.uploads import own_gradient, sum_gradient
from bilateral.protocols.transport import SERVER


@pytest.fixture(scope="module")
def sealed():
    context = context_for(**{"training.rounds": 2})
    return SealedRecording(record(context.plan, context.federation()))


def seen_by(sealed, *parties):
    return sealed.view("curious client", lambda _: frozenset(parties)).step(1, "client-1")


def test_recovery_of_the_kept_sum_is_the_gradient_of_plain_training(sealed):
    recording = sealed.recording
    for index in (0, 1):
        assert relative(recording.server_round(index).recovered(), plain_gradient(recording, index)) < 1e-4


def test_a_single_upload_under_masks_is_noise_to_the_server_and_the_sum_is_not(sealed):
    view = server_view(sealed.recording)
    expected = plain_gradient(sealed.recording, 1)
    assert relative(sum_gradient(view, 1)[0], expected) < 1e-4
    assert relative(own_gradient(view, 1, "client-1"), expected) > 1e3


def test_each_party_has_of_a_step_what_the_table_says(sealed):
    dealer = sealed.dealers(1)["client-1"]
    client, server = seen_by(sealed, "client-1"), seen_by(sealed, SERVER)
    deals = sealed.view("dealer", lambda d: frozenset({d["client-1"]})).step(1, "client-1")
    assert client.dealer == server.dealer == deals.dealer == dealer
    assert client.weights and server.weights and not deals.weights
    assert client.told_by_server and server.told_by_client and not deals.told_by_server and not deals.told_by_client
    assert client.server_and_client == server.server_and_client and deals.server_and_client is None
    assert client.dealer_and_server is None and server.dealer_and_server == deals.dealer_and_server
    assert server.dealer_and_client is None and client.dealer_and_client == deals.dealer_and_client
    assert client.batch is not None and server.batch is None and deals.batch is None
    assert server.layers and not client.layers and not deals.layers
    assert server.dealt and deals.dealt and not client.dealt


def test_who_has_no_part_in_a_step_sees_nothing_of_it(sealed):
    dealer = sealed.dealers(1)["client-1"]
    stranger = next(name for name in sealed.dealers(1) if name not in ("client-1", dealer))
    assert seen_by(sealed, stranger) is None


def test_both_computing_parties_can_name_all_that_they_heard(sealed):
    for party in ("client-1", SERVER):
        seen = seen_by(sealed, party)
        told = seen.told_by_server if party == "client-1" else seen.told_by_client
        heard = [event.words for event in seen.events if event.name and not (event.is_dealt or event.is_told)]
        assert len(heard) == len(told)
        assert all(torch.equal(one, other) for one, other in zip(heard, told, strict=True))
    names = {event.name for event in seen_by(sealed, SERVER).events if event.is_dealt}
    assert "a share of a gradient's correction" in names
