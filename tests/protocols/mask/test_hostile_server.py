"""Attacks of a server that does not follow the protocol, carried out against honest clients: it learns nothing.

Each was found in a review, and worked then.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from tests.protocols.mask.harness import BEFORE_UPLOAD, MODEL, NAMES, Group, sent, upload_of
from tests.protocols.mask.walk import FIVE, Walk

from bilateral.errors import (
    AuthenticationError,
    LostSumError,
    PlanError,
    ProtocolError,
    SealedShareError,
    ThresholdError,
)
from bilateral.protocols.mask.messages import MaskOpening, RangeRefusal, RoutedShares, SurvivorList, UnmaskRequest
from bilateral.protocols.mask.settings import MAX_ATTEMPTS, MaskSettings
from bilateral.protocols.mask.unmasking import unmasked_sum

torch.set_num_threads(1)


def routed_by_hand(sealed, receiver):
    """What a server that checks nothing hands to `receiver`: all that was sealed for it."""
    senders = tuple(name for name in sealed if name != receiver)
    columns = {"sealed": [], "self_digests": [], "escrow_digests": []}
    for sender in senders:
        message = sealed[sender]
        columns["sealed"].append(message.sealed[message.recipients.index(receiver)])
        place = sorted((*message.recipients, sender)).index(receiver)
        for column in ("self_digests", "escrow_digests"):
            columns[column].append(getattr(message, column)[place])
    return RoutedShares(0, 0, senders, *(tuple(column) for column in columns.values()))


@pytest.mark.parametrize(
    "change",
    [{"fraction_bits": (-1, -1, -1)}, {"participants": NAMES[:6]}],
    ids=["another format", "more participants"],
)
def test_clients_that_were_shown_different_openings_do_not_complete_an_attempt(change):
    """A fine format for the victim and a coarse one for all others made the sum the victim's upload."""
    group = Group(NAMES[:6])
    opening = group.server.open_round(0, FIVE, 3)
    shown = {name: replace(opening, **change) if name == "cleo" else opening for name in FIVE}
    sealed = {name: group.clients[name].open(sent(shown[name])) for name in FIVE}
    for name in FIVE:
        with pytest.raises(SealedShareError) as caught:
            group.clients[name].receive_shares(routed_by_hand(sealed, name))
        assert caught.value.dealer == ("anna" if name == "cleo" else "cleo")
        with pytest.raises(ProtocolError, match=f"{name}: an upload was not asked for"):
            group.clients[name].mask(upload_of(0), context=MODEL)


def test_a_signature_covers_the_opening_and_the_model_and_nothing_is_revealed_for_another():
    walk = Walk("upload")
    for name in FIVE:
        walk.deliver(
            "upload", name, walk.clients[name].mask(walk.uploads[name], context=b"true" if name == "cleo" else b"zeros")
        )
    listed = walk.server.close_uploads(context=b"zeros")
    signatures = {name: walk.clients[name].sign(listed) for name in FIVE}
    with pytest.raises(
        AuthenticationError, match="SurvivorSignature from cleo is not its signature on this opening, mod"
    ):
        walk.server.collect_signature("cleo", signatures["cleo"])
    request = UnmaskRequest(0, 0, FIVE, tuple(signatures[name].signature for name in FIVE))
    for name in FIVE:  # a server that checks nothing
        with pytest.raises(AuthenticationError, match=f"not on the opening, model and list that {name} signed"):
            walk.clients[name].reveal(request)


def test_the_upload_of_a_client_with_another_model_stays_masked_even_if_it_is_not_asked_to_sign():
    """All others trained on zeros, so the sum would be the victim's upload; but masks depend on the model."""
    walk = Walk("upload")
    length = 20_000
    for name in FIVE:
        upload = upload_of(0, 1, parameters=length, size=1.0 if name == "cleo" else 0.0)
        walk.deliver("upload", name, walk.clients[name].mask(upload, context=b"true" if name == "cleo" else b"zeros"))
    listed = walk.server.close_uploads(context=b"zeros")
    others = [name for name in FIVE if name != "cleo"]
    for name in others:
        walk.server.collect_signature(name, walk.clients[name].sign(listed))
    request = walk.server.request_shares()
    for name in others:
        walk.server.collect_reveal(name, walk.clients[name].reveal(request))
    total = unmasked_sum(walk.server._record, [length, length, 4]).numpy()
    assert kstest(total.view(np.uint64) / 2.0**64, "uniform").pvalue > 1e-4
    with pytest.raises(LostSumError, match="total weight"):
        walk.server.unmask((2, length), 3)


def test_the_masks_of_a_dropped_client_are_removed_for_whatever_model_was_sent():
    group = Group(NAMES[:4])
    uploads = {name: upload_of(0, number) for number, name in enumerate(group.names)}
    group.share(group.server.open_round(0, group.names, 3), group.names)
    group.route()
    for name in group.names[1:]:
        group.server.collect_upload(name, group.clients[name].mask(uploads[name], context=b"model"))
    listed = group.server.close_uploads(context=b"model")
    for name in listed.survivors:
        group.server.collect_signature(name, group.clients[name].sign(listed))
    group.reveal()
    total = group.server.unmask((2, 5), 3)
    assert total.total_weight == sum(uploads[name].weight for name in group.names[1:])


def test_another_attempt_never_lowers_the_number_of_clients_in_a_sum():
    """Ten take part, one refuses for range, eight die: the sum was over two."""
    group = Group(NAMES[:10], MaskSettings(initial_bound_bits=4))
    uploads = {
        name: upload_of(0, number, size=2.0**14 if name == "anna" else 0.01, weight=1)
        for number, name in enumerate(group.names)
    }
    with pytest.raises(ThresholdError, match="Expected 7 or more clients for another attempt, got 2"):
        group.run(0, uploads, (dict.fromkeys(group.names[2:], BEFORE_UPLOAD), {}))


def test_clients_hold_to_the_first_opening_of_a_round_whatever_the_server_opens_next():
    """Seven of ten gave one sum; the server wanted a second one over two of the others."""
    group = Group(NAMES[:10])
    opening = group.server.open_round(0, group.names, 3)
    hugo = group.clients["hugo"]
    hugo.open(opening)
    with pytest.raises(
        ThresholdError, match="hugo: MaskOpening from the server: expected 7 or more participants, got 2"
    ):
        hugo.open(replace(opening, attempt=1, participants=("hugo", "ivan")))
    with pytest.raises(ThresholdError, match="got 6"):
        hugo.open(replace(opening, attempt=1, participants=NAMES[3:9]))
    again = replace(opening, attempt=1, participants=NAMES[2:10])
    hugo.open(again)  # eight are enough, and the floor is still seven
    with pytest.raises(ThresholdError, match="expected 7 or more participants, got 6"):
        hugo.open(replace(opening, attempt=2, participants=NAMES[3:9]))


def test_another_attempt_has_nobody_who_was_not_in_the_first():
    """Otherwise the same client could be in two sums of a round, with two sets of others."""
    group = Group(NAMES[:10])
    opening = group.server.open_round(0, NAMES[:5], 3)
    group.clients["anna"].open(opening)
    with pytest.raises(ProtocolError, match="'finn' was not there in the first attempt"):
        group.clients["anna"].open(replace(opening, attempt=1, participants=("anna", *NAMES[5:10])))
    with pytest.raises(ProtocolError, match="'finn' does not belong there"):
        group.server.open_round(0, ("anna", *NAMES[5:10]), 3)


def test_there_are_three_attempts_at_a_round_and_no_more():
    group = Group(FIVE)
    for attempt in range(MAX_ATTEMPTS):
        opening = group.server.open_round(0, FIVE, 3)
        assert opening.attempt == attempt
    with pytest.raises(ThresholdError, match="there are 3 attempts"):
        group.server.open_round(0, FIVE, 3)
    with pytest.raises(ProtocolError, match="anna: MaskOpening from the server: attempt 3"):
        group.clients["anna"].open(replace(opening, attempt=3))
    assert group.server.open_round(1, FIVE, 3).attempt == 0


def test_no_sum_has_fewer_uploads_than_the_settings_say():
    """Both sides refuse: the server to open, and clients to take part, sign or reveal."""
    settings = MaskSettings(min_in_sum=5)
    group = Group(NAMES[:6], settings)
    with pytest.raises(ThresholdError, match="Expected 5 or more participants in round 0, got 4"):
        group.server.open_round(0, NAMES[:4], 3)
    with pytest.raises(ThresholdError, match=r"anna.*expected 5 or more participants, got 4"):
        group.clients["anna"].open(MaskOpening(0, 0, NAMES[:4], (37, 37, 37)))
    uploads = {name: upload_of(0, number) for number, name in enumerate(group.names)}
    total, _ = group.run(0, uploads, ({"anna": BEFORE_UPLOAD},))
    assert len(total.contributors) == 5
    with pytest.raises(ThresholdError, match="Expected uploads of at least 5 of 6 participants, got 4"):
        group.run(
            1, {n: replace(u, round_index=1) for n, u in uploads.items()}, (dict.fromkeys(NAMES[:2], BEFORE_UPLOAD),)
        )
    six = Group(NAMES[:6], settings)
    opening = six.server.open_round(0, six.names, 3)
    six.share(opening, six.names)
    six.route()
    six.upload(uploads, six.names)
    with pytest.raises(ThresholdError, match="at least 5 of 6 participants, got 4"):
        six.clients["anna"].sign(SurvivorList(0, 0, six.names, NAMES[:4]))
    six.sign(NAMES[:5])
    request = six.server.request_shares()
    with pytest.raises(ThresholdError, match=r"anna.*expected at least 5 signatures, got 4"):
        six.clients["anna"].reveal(replace(request, signers=NAMES[:4], signatures=request.signatures[:4]))


def test_a_floor_below_two_is_refused_and_a_roster_below_the_floor_stays_open():
    with pytest.raises(PlanError, match="min_in_sum of 2 or more"):
        MaskSettings(min_in_sum=1)
    group = Group(NAMES[:6], MaskSettings(min_in_sum=5))
    fresh = type(group.server)(b"run 7", NAMES[:6], group.settings)
    for name in NAMES[:4]:
        fresh.register(name, group.rings[name].announce())
    with pytest.raises(ThresholdError, match="Expected announced keys of 5 or more clients, got 4"):
        fresh.roster()
    fresh.register("emil", group.rings["emil"].announce())
    assert fresh.roster().clients == FIVE


@pytest.mark.parametrize("bits", [40, 58, 60, 120])
def test_a_client_with_fixed_bounds_takes_part_in_no_other_format(bits):
    """A server that opened with tiny bounds read the size of every row of every client from their refusals."""
    group = Group(NAMES[:4], fixed_bounds=[2.0, 2.0, 4.0])
    opening = group.server.open_round(0, group.names)
    with pytest.raises(ProtocolError, match="anna: MaskOpening from the server: the bounds of this run are fixed"):
        group.clients["anna"].open(replace(opening, fraction_bits=(bits,) * 3))
    assert not isinstance(group.clients["anna"].open(opening), RangeRefusal)


def test_a_false_refusal_makes_one_round_a_little_coarser_and_no_later_one():
    """One refusal with the largest bound rounded a row to zero, and a row of zeros kept its bound for ever."""
    names = NAMES[:8]
    group = Group(names, MaskSettings("complete"))

    def uploads(round_index):
        return {name: upload_of(round_index, number, weight=30, size=0.05) for number, name in enumerate(names)}

    exact, before = group.run(0, uploads(0))
    group.share(group.server.open_round(1, names), names)
    group.route()
    group.clients["anna"].mask(uploads(1)["anna"], context=MODEL)
    group.server.collect_upload("anna", RangeRefusal(1, 0, (0, 1, 2), (60, 60, 60)))
    group.upload(uploads(1), names[1:])
    opening = group.server.retry()
    group.share(opening, names)
    group.route()
    group.upload(uploads(1), names)
    group.sign()
    group.reveal()
    coarse = group.server.unmask((2, 5), 3)
    torch.testing.assert_close(coarse.terms, exact.terms, rtol=0, atol=8 * 2.0**-14)
    following, after = group.run(2, uploads(2))
    torch.testing.assert_close(following.terms, exact.terms, rtol=0, atol=1e-5)  # last bits are drawn afresh
    assert min(after.fraction_bits) >= min(before.fraction_bits)


def test_a_row_of_zeros_after_a_refusal_gets_the_bound_from_before():
    group = Group(NAMES[:3])
    zeros = {name: upload_of(0, size=0.0) for name in group.names}
    first = group.server.open_round(0, group.names, 3)
    group.share(first, group.names)
    group.route()
    group.clients["anna"].mask(zeros["anna"], context=MODEL)
    group.server.collect_upload("anna", RangeRefusal(0, 0, (0,), (60,)))
    group.upload(zeros, group.names[1:])
    group.share(group.server.retry(), group.names)
    group.route()
    group.upload(zeros, group.names)
    group.sign()
    group.reveal()
    group.server.unmask((2, 5), 3)
    assert group.server.open_round(1, group.names).fraction_bits == first.fraction_bits


def test_a_client_that_refuses_more_than_is_granted_is_left_out_and_the_round_completes():
    group = Group(FIVE)
    uploads = {name: upload_of(0, number) for number, name in enumerate(FIVE)}
    uploads["anna"] = upload_of(0, 0, size=2.0**50, weight=1)
    total, opening = group.run(0, uploads)
    assert opening.attempt == 1
    assert total.contributors == FIVE[1:]
