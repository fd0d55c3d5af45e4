"""Malformed, replayed, reordered and forged messages to the server: refused by name, and the round goes on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.protocols.mask.harness import MODEL, Group, upload_of
from tests.protocols.mask.test_schedules import assert_sum
from tests.protocols.mask.walk import FIVE, Walk, cut

from bilateral.errors import AuthenticationError, BilateralError, LostSumError, ProtocolError, ThresholdError
from bilateral.protocols.mask import shamir
from bilateral.protocols.mask.messages import RangeRefusal
from bilateral.protocols.mask.sealing import SharePair, seal, share_digest

torch.set_num_threads(1)
STEPS_WITH_MESSAGES = ("share", "upload", "sign", "reveal")


@pytest.mark.parametrize("step", STEPS_WITH_MESSAGES)
def test_messages_of_another_round_or_attempt_are_refused_and_the_round_completes(step):
    walk = Walk(step)
    walk.begin(step)
    for change in ({"round_index": 1}, {"round_index": -1}, {"attempt": 1}):
        with pytest.raises(ProtocolError, match="from bela is of round"):
            walk.deliver(step, "bela", replace(walk.message(step, "bela"), **change))
    walk.finish(step)


@pytest.mark.parametrize("step", STEPS_WITH_MESSAGES)
def test_duplicated_messages_are_refused_and_the_round_completes(step):
    walk = Walk(step)
    walk.begin(step)
    walk.deliver(step, "bela")
    with pytest.raises(ProtocolError, match="from bela came a second time"):
        walk.deliver(step, "bela")
    walk.finish(step)


@pytest.mark.parametrize("step", STEPS_WITH_MESSAGES)
def test_messages_of_unknown_clients_are_refused_and_the_round_completes(step):
    walk = Walk(step)
    walk.begin(step)
    with pytest.raises(ProtocolError, match="from zora was not asked for"):
        walk.deliver(step, "zora", walk.message(step, "bela"))
    walk.finish(step)


@pytest.mark.parametrize("step", STEPS_WITH_MESSAGES)
def test_messages_at_the_wrong_stage_are_refused_and_the_round_completes(step):
    walk = Walk("reveal")
    walk.begin("reveal")
    if step != "reveal":
        with pytest.raises(ProtocolError, match="from anna came at the stage"):
            walk.deliver(step, "anna")
    close = partial(walk.server.close_uploads, context=MODEL)
    for wrong in (walk.server.route, close, walk.server.request_shares, walk.server.retry):
        with pytest.raises(ProtocolError, match=r"stage|refusal"):
            wrong()
    walk.finish("reveal")


def test_a_message_of_the_last_round_replayed_in_the_next_is_refused():
    walk = Walk("share")
    walk.finish("share")
    old = dict(walk.messages)
    opening = walk.server.open_round(1, FIVE)
    with pytest.raises(ProtocolError, match="from anna is of round 0"):
        walk.server.collect_shares("anna", old["share", "anna"])
    with pytest.raises(ProtocolError, match="not newer"):
        walk.clients["anna"].open(walk.opening)
    walk.group.share(opening, FIVE)
    # The same bytes under the new round number do not open either: sealed shares are bound to their round.
    routed = walk.server.route()["bela"]
    place = routed.senders.index("anna")
    replayed = old["share", "anna"].sealed[old["share", "anna"].recipients.index("bela")]
    sealed = (*routed.sealed[:place], replayed, *routed.sealed[place + 1 :])
    with pytest.raises(AuthenticationError, match="bela: the sealed shares of anna do not open"):
        walk.clients["bela"].receive_shares(replace(routed, sealed=sealed))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: replace(m, recipients=cut(m.recipients)), "recipients"),
        (lambda m: replace(m, recipients=(*cut(m.recipients), "zora")), "recipients"),
        (lambda m: replace(m, sealed=cut(m.sealed)), "`sealed`"),
        (lambda m: replace(m, sealed=(m.sealed[0][:-1], *m.sealed[1:])), "`sealed`"),
        (lambda m: replace(m, self_digests=cut(m.self_digests)), "`self_digests`"),
        (lambda m: replace(m, escrow_digests=(b"", *m.escrow_digests[1:])), "`escrow_digests`"),
        (lambda m: replace(m, seed_digest=b"short"), "`seed_digest`"),
        (lambda m: replace(m, escrow=m.escrow[:-1]), "`escrow`"),
    ],
)
def test_truncated_and_misaddressed_shares_are_refused_and_the_round_completes(change, match):
    walk = Walk("share")
    with pytest.raises(ProtocolError, match=f"from bela.*{match}"):
        walk.deliver("share", "bela", change(walk.message("share", "bela")))
    walk.finish("share")


def test_a_tampered_revealed_share_is_refused_by_the_revealers_name_and_the_round_completes():
    walk = Walk("reveal", absent=["dora"])
    walk.begin("reveal")
    honest = walk.message("reveal", "bela")
    for place in range(len(honest.shares)):
        wrong = (*honest.shares[:place], bytes(33), *honest.shares[place + 1 :])
        with pytest.raises(AuthenticationError, match=f"from bela: the share of {honest.owners[place]}"):
            walk.deliver("reveal", "bela", replace(honest, shares=wrong))
    for change in ({"shares": honest.shares[:-1]}, {"owners": honest.owners[:-1]}, {"owners": honest.owners[::-1]}):
        with pytest.raises(ProtocolError, match="from bela: expected one share of each"):
            walk.deliver("reveal", "bela", replace(honest, **change))
    walk.finish("reveal")


def test_a_revealer_that_keeps_lying_can_cost_the_round_but_not_the_next_one():
    walk = Walk("reveal", absent=["dora"])
    walk.begin("reveal")
    honest = walk.message("reveal", "bela")
    with pytest.raises(AuthenticationError, match="from bela"):
        walk.deliver("reveal", "bela", replace(honest, shares=tuple(reversed(honest.shares))))
    for name in ("anna", "cleo", "emil"):
        walk.deliver("reveal", name)
    with pytest.raises(ThresholdError, match="Expected at least 4 shares of the secret of anna, got 3"):
        walk.server.unmask((2, 5), 3)
    with pytest.raises(ProtocolError, match="stage 'closed'"):
        walk.server.unmask((2, 5), 3)
    uploads = {name: upload_of(1, number) for number, name in enumerate(FIVE)}
    aggregate, opening = walk.group.run(1, uploads)
    assert_sum(aggregate, opening, uploads, set(FIVE))


def test_a_swapped_escrow_is_found_and_its_owner_named():
    walk = Walk("share", absent=["dora"])
    other = walk.message("share", "cleo").escrow
    walk.messages["share", "dora"] = replace(walk.message("share", "dora"), escrow=other)
    for step in Walk.STEPS:
        walk.complete(step)
    with pytest.raises(LostSumError, match="escrow of dora does not open") as caught:
        walk.server.unmask((2, 5), 3)
    assert caught.value.culprit == "dora"
    aggregate, opening = walk.group.run(1, {name: upload_of(1) for name in FIVE})
    assert aggregate.round_index == opening.round_index == 1


def test_a_dealer_whose_shares_are_of_another_secret_is_named_and_no_wrong_sum_comes_out():
    """dora commits to one self seed and deals good-looking shares of another."""
    walk = Walk("share")
    honest = walk.message("share", "dora")
    attempt = walk.clients["dora"]._attempt
    holders = attempt.graph.neighbourhood("dora")
    points = [attempt.graph.point(holder) for holder in holders]
    dealt = shamir.split(bytes(32), attempt.threshold, points, walk.clients["dora"]._randomness)
    pairs = {holder: SharePair(dealt[point], dealt[point]) for holder, point in zip(holders, points, strict=True)}
    ring = walk.group.rings["dora"]
    attempt.shares["dora"] = pairs["dora"]
    walk.messages["share", "dora"] = replace(
        honest,
        sealed=tuple(seal(ring, attempt.occasion, other, pairs[other]) for other in honest.recipients),
        self_digests=tuple(share_digest(attempt.occasion, "self", "dora", h, pairs[h].of_self_seed) for h in holders),
        escrow_digests=tuple(
            share_digest(attempt.occasion, "escrow", "dora", h, pairs[h].of_escrow_key) for h in holders
        ),
    )
    for step in Walk.STEPS:
        walk.complete(step)
    with pytest.raises(LostSumError, match="shares of dora do not combine") as caught:
        walk.server.unmask((2, 5), 3)
    assert caught.value.culprit == "dora"


def test_a_wrong_upload_that_breaks_the_total_weight_is_noticed():
    walk = Walk("upload")
    honest = walk.message("upload", "bela")
    changed = honest.values.clone()
    changed[-1] += 2**50
    walk.deliver("upload", "bela", replace(honest, values=changed))
    for step in Walk.STEPS[2:]:
        walk.complete(step)
    with pytest.raises(
        LostSumError, match=r"total weight of 5 clients is.*one of anna, bela, cleo, dora, emil"
    ) as caught:
        walk.server.unmask((2, 5), 3)
    assert caught.value.culprit == ""


@pytest.mark.parametrize(
    "values", [torch.zeros(14), torch.zeros(2, 7, dtype=torch.int64), torch.zeros((), dtype=torch.int64)]
)
def test_uploads_that_are_no_integer_vector_are_refused_and_the_round_completes(values):
    walk = Walk("upload")
    with pytest.raises(ProtocolError, match="from bela: expected a vector of int64"):
        walk.deliver("upload", "bela", replace(walk.message("upload", "bela"), values=values))
    walk.finish("upload")


@pytest.mark.parametrize(
    ("rows", "bits"),
    [((), ()), ((0,), ()), ((1, 0), (30, 30)), ((0, 0), (30, 30)), ((-1,), (30,)), ((3,), (30,)), ((0,), (20,)),
     ((0,), (61,)), ((0,), (-5,))],
)  # fmt: skip
def test_refusals_that_make_no_sense_are_refused_and_the_round_completes(rows, bits):
    walk = Walk("upload")
    with pytest.raises(ProtocolError, match="RangeRefusal from bela"):
        walk.server.collect_upload("bela", RangeRefusal(0, 0, rows, bits))
    assert not walk.server.refused
    walk.finish("upload")


def test_thresholds_that_cannot_be_reached_end_the_round_and_the_next_one_works():
    group = Group(FIVE)
    opening = group.server.open_round(0, FIVE, 3)
    group.share(opening, FIVE[:3])
    with pytest.raises(ThresholdError, match="at least 4 of 5 participants, got 3, of which 0 can be used"):
        group.server.route()
    for round_index, names in ((1, FIVE), (2, FIVE[:2])):
        uploads = {name: upload_of(round_index, number) for number, name in enumerate(FIVE)}
        aggregate, opening = group.run(round_index, uploads, participants=names)
        assert_sum(aggregate, opening, uploads, set(names))


def test_forged_signatures_are_refused_by_the_server_and_the_round_completes():
    walk = Walk("sign")
    walk.begin("sign")
    of_another = walk.message("sign", "cleo")
    for wrong in (of_another, replace(of_another, signature=b"")):
        with pytest.raises(AuthenticationError, match="SurvivorSignature from bela is not its signature"):
            walk.deliver("sign", "bela", wrong)
    walk.finish("sign")


def test_the_server_does_not_go_back_in_rounds_nor_open_one_without_partners():
    walk = Walk("share")
    walk.finish("share")
    for round_index, names, kind in (
        (0, FIVE, ProtocolError),
        (-1, FIVE, ProtocolError),
        (1, FIVE[:1], ThresholdError),
        (1, ("anna", "zora"), ProtocolError),
        (1, ("anna", "anna"), ProtocolError),
    ):
        with pytest.raises(kind):
            walk.server.open_round(round_index, names)
    uploads = {name: upload_of(1) for name in FIVE}
    assert_sum(*walk.group.run(1, uploads), uploads, set(FIVE))


def test_a_round_that_failed_early_can_be_opened_again_as_another_attempt():
    group = Group(FIVE)
    group.share(group.server.open_round(0, FIVE, 3), FIVE[:2])
    with pytest.raises(ThresholdError):
        group.server.route()
    uploads = {name: upload_of(0, number) for number, name in enumerate(FIVE)}
    aggregate, opening = group.run(0, uploads)
    assert opening.attempt == 1
    assert_sum(aggregate, opening, uploads, set(FIVE))


def test_messages_without_an_open_round_are_refused():
    group = Group(FIVE)
    close = partial(group.server.close_uploads, context=MODEL)
    for call in (group.server.route, close, group.server.retry, group.server.request_shares):
        with pytest.raises(BilateralError, match="No round is open"):
            call()
    with pytest.raises(ProtocolError, match="number of rows"):
        group.server.open_round(0, FIVE)
