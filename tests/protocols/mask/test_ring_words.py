"""Uploads that are ring words: summed as they are modulo 2^64, and never taken for numbers."""

from dataclasses import replace

import pytest
import torch
from tests.protocols.mask.harness import (
    BEFORE_REVEAL,
    BEFORE_SHARES,
    BEFORE_SIGNATURE,
    BEFORE_UPLOAD,
    MODEL,
    NAMES,
    RUN,
    Group,
    key_rings,
    sent,
)

from bilateral.errors import PlanError, ProtocolError, ThresholdError
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.messages import MaskedUpload, RangeRefusal
from bilateral.protocols.mask.ring_words import sum_of_words
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.messages import Upload
from bilateral.randomness import SeededRandomness


def words_of(round_index, seed, *, terms=1, count=7, weight=None):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-(2**63), 2**63 - 1, (terms, count), generator=generator, dtype=torch.int64)
    return Upload(round_index, weight or 1 + seed, values, torch.zeros(0))


def uploads_of(names, round_index=0, **kwargs):
    return {name: words_of(round_index, seed, **kwargs) for seed, name in enumerate(names)}


def expected_sum(uploads, names):
    """In Python's integers."""
    columns = zip(*(uploads[name].terms.reshape(-1).tolist() for name in names), strict=True)
    wrapped = [(sum(column) + 2**63) % 2**64 - 2**63 for column in columns]
    return torch.tensor(wrapped).reshape(uploads[names[0]].terms.shape)


@pytest.mark.parametrize("terms", [1, 3])
def test_the_sum_is_that_of_the_words_modulo_2_to_the_64(terms):
    group = Group(NAMES[:5], words=True)
    uploads = uploads_of(group.names, terms=terms)
    total, opening = group.run(0, uploads)
    assert total.terms.dtype == torch.int64
    assert torch.equal(total.terms, expected_sum(uploads, group.names))
    assert total.total_weight == sum(upload.weight for upload in uploads.values())
    assert total.contributors == group.names
    assert opening.fraction_bits == ()


@pytest.mark.parametrize("stage", [BEFORE_SHARES, BEFORE_UPLOAD, BEFORE_SIGNATURE, BEFORE_REVEAL])
@pytest.mark.parametrize("settings", [MaskSettings(), MaskSettings("n-out", 7)])
def test_clients_may_die_at_every_stage(stage, settings):
    group = Group(NAMES, settings, words=True)
    uploads = uploads_of(group.names)
    total, _ = group.run(0, uploads, ({"bela": stage, "jana": stage},))
    survivors = [n for n in NAMES if stage > BEFORE_UPLOAD or n not in ("bela", "jana")]
    assert list(total.contributors) == survivors
    assert torch.equal(total.terms, expected_sum(uploads, survivors))


def test_rounds_follow_each_other_with_fresh_masks():
    group = Group(NAMES[:4], words=True)
    masked = []
    for round_index in range(3):
        uploads = uploads_of(group.names, round_index)
        group.share(sent(group.server.open_round(round_index, group.names, 2)), group.names)
        group.route()
        group.upload(uploads, group.names)
        masked.append(group.server._record.sum_of_uploads(8))
        assert not group.server.refused
    assert len({words.tobytes() for words in masked}) == 3


def test_another_attempt_masks_the_same_words_anew():
    group = Group(NAMES[:4], words=True)
    uploads = uploads_of(group.names)
    group.share(sent(group.server.open_round(0, group.names, 2)), group.names)
    group.route()
    group.upload(uploads, group.names[:1])
    first = group.clients["anna"]
    group.share(sent(group.server.open_round(0, group.names, 2)), group.names)
    group.route()
    again = first.mask_again()
    assert isinstance(again, MaskedUpload)
    group.server.collect_upload("anna", sent(again))
    group.upload(uploads, group.names[1:])
    group.sign()
    group.reveal()
    assert torch.equal(group.server.unmask((1, 7), 0).terms, expected_sum(uploads, group.names))


def test_a_refusal_for_range_does_not_exist():
    group = Group(NAMES[:4], words=True)
    group.share(sent(group.server.open_round(0, group.names, 2)), group.names)
    group.route()
    with pytest.raises(ProtocolError, match="RangeRefusal from anna: ring words have no range"):
        group.server.collect_upload("anna", RangeRefusal(0, 0, (0,), (30,)))
    assert not group.server.refused
    with pytest.raises(ProtocolError, match="only after a refusal"):
        group.server.retry()


def test_a_plan_of_words_answers_no_opening_for_numbers():
    group, numbers = Group(NAMES[:4], words=True), Group(NAMES[:4])
    opening = numbers.server.open_round(0, numbers.names, 2)
    with pytest.raises(ProtocolError, match="uploads of this plan are ring words, and the server opened for numbers"):
        group.clients["anna"].open(opening)
    words = group.server.open_round(0, group.names, 2)
    with pytest.raises(ProtocolError, match="uploads of this plan are ring words"):
        group.clients["anna"].open(replace(words, fraction_bits=(20,)))
    assert group.clients["anna"].open(words).round_index == 0  # what was refused changed nothing


def test_a_plan_of_numbers_answers_no_opening_for_words():
    for bounds in (None, (1.0, 1.0)):
        group = Group(NAMES[:4], fixed_bounds=bounds)
        opening = group.server.open_round(0, group.names, 2)
        with pytest.raises(ProtocolError, match="uploads of this plan are numbers, and the server opened for ring wor"):
            group.clients["anna"].open(replace(opening, fraction_bits=()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"terms": torch.zeros(1, 7)},
        {"terms": torch.zeros(1, 7, dtype=torch.int32)},
        {"terms": torch.zeros(7, dtype=torch.int64)},
        {"statistics": torch.zeros(2)},
        {"weight": 0},
        {"weight": 2**41},
    ],
)
def test_what_is_no_upload_of_words_is_refused_before_anything_is_sent(wrong):
    group = Group(NAMES[:4], words=True)
    group.share(sent(group.server.open_round(0, group.names, 2)), group.names)
    group.route()
    with pytest.raises(ProtocolError, match="Upload from anna: expected"):
        group.clients["anna"].mask(replace(words_of(0, 1), **wrong), context=MODEL)
    assert group.clients["anna"].mask(words_of(0, 1), context=MODEL).values.shape == (8,)


def test_words_are_no_upload_of_a_plan_of_numbers():
    group = Group(NAMES[:4])
    group.share(sent(group.server.open_round(0, group.names, 2)), group.names)
    group.route()
    with pytest.raises(ProtocolError, match="expected real numbers"):
        group.clients["anna"].mask(words_of(0, 1), context=MODEL)


def test_an_upload_of_another_length_is_refused_when_it_comes():
    group = Group(NAMES[:4], words=True)
    group.share(sent(group.server.open_round(0, group.names, 2, 8)), group.names)
    group.route()
    for name, count in zip(group.names, (7, 7, 7, 6), strict=True):
        answer = sent(group.clients[name].mask(words_of(0, 1, count=count), context=MODEL))
        if count == 7:
            group.server.collect_upload(name, answer)
        else:
            with pytest.raises(ProtocolError, match="MaskedUpload from dora: expected `values` of shape"):
                group.server.collect_upload(name, answer)


def test_a_sum_that_no_weights_give_is_lost():
    group = Group(NAMES[:4], words=True)
    uploads = uploads_of(group.names)
    group.share(sent(group.server.open_round(0, group.names, 2)), group.names)
    group.route()
    group.upload(uploads, group.names[1:])
    wrong = group.clients["anna"].mask(uploads["anna"], context=MODEL)
    group.server.collect_upload("anna", replace(wrong, values=wrong.values - 50))
    group.sign()
    group.reveal()
    with pytest.raises(ThresholdError, match="total weight"):
        group.server.unmask((1, 7), 0)


def test_a_sum_of_another_length_is_refused():
    with pytest.raises(ProtocolError, match="Expected a sum of 8 ring words"):
        sum_of_words(torch.zeros(7, dtype=torch.int64), 0, (1, 7), 0)
    with pytest.raises(ProtocolError, match="without statistics"):
        sum_of_words(torch.zeros(8, dtype=torch.int64), 0, (1, 7), 2)


def test_words_and_bounds_do_not_go_together():
    ring = key_rings(NAMES[:2])["anna"]
    with pytest.raises(PlanError, match="Ring words have no bounds"):
        MaskClient(ring, MaskSettings(), SeededRandomness(0), fixed_bounds=(1.0,), words=True)
    with pytest.raises(PlanError, match="Ring words have no bounds"):
        MaskServer(RUN, NAMES, MaskSettings(), (1.0,), words=True)


def test_a_checkpoint_of_words_goes_on():
    group = Group(NAMES[:4], words=True)
    group.run(0, uploads_of(group.names))
    again = Group(NAMES[:4], words=True)
    again.server.load_state_tensors(group.server.state_tensors())
    uploads = uploads_of(again.names, 1)
    total, _ = again.run(1, uploads)
    assert torch.equal(total.terms, expected_sum(uploads, again.names))
