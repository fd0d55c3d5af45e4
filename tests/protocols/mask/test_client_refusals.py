"""What a client refuses of a server that does not follow the protocol; the honest message still goes through."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.protocols.mask.harness import MODEL, NAMES, Group, upload_of
from tests.protocols.mask.walk import FIVE, Walk, cut, list_with

from bilateral.errors import AuthenticationError, NumericalRangeError, ProtocolError, ThresholdError
from bilateral.protocols.mask.messages import SurvivorList, UnmaskRequest
from bilateral.protocols.mask.sealing import SharePair, seal
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.survivors import signed_content
from bilateral.protocols.messages import Upload

torch.set_num_threads(1)


def test_a_tampered_sealed_share_is_found_by_its_recipient_who_names_the_sender():
    walk = Walk("route")
    routed = walk.server.route()
    walk.routed = routed
    place = routed["cleo"].senders.index("bela")
    flipped = bytes([routed["cleo"].sealed[place][0] ^ 1]) + routed["cleo"].sealed[place][1:]
    sealed = list(routed["cleo"].sealed)
    sealed[place] = flipped
    with pytest.raises(AuthenticationError, match="cleo: the sealed shares of bela do not open"):
        walk.clients["cleo"].receive_shares(replace(routed["cleo"], sealed=tuple(sealed)))
    for name, message in routed.items():  # the true ones still open
        walk.clients[name].receive_shares(message)
    walk.finish("upload")


def test_shares_other_than_those_committed_to_are_found_by_the_recipient():
    walk = Walk("route")
    bela = walk.group.rings["bela"]
    occasion = walk.clients["bela"]._attempt.occasion
    other = seal(bela, occasion, "cleo", SharePair(bytes(33), bytes(33)))
    routed = walk.server.route()["cleo"]
    place = routed.senders.index("bela")
    sealed = (*routed.sealed[:place], other, *routed.sealed[place + 1 :])
    with pytest.raises(AuthenticationError, match="cleo: the shares of bela are not those it committed to"):
        walk.clients["cleo"].receive_shares(replace(routed, sealed=sealed))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: replace(m, senders=tuple(reversed(m.senders))), "not in order"),
        (lambda m: replace(m, senders=(*cut(m.senders), "zora")), "'zora'"),
        (lambda m: replace(m, senders=("anna", *cut(m.senders))), "'anna'|in order"),
        (lambda m: replace(m, sealed=cut(m.sealed)), "different lengths"),
        (lambda m: replace(m, round_index=4), "not under way"),
        (lambda m: replace(m, attempt=4), "not under way"),
    ],
)
def test_malformed_routed_shares_are_refused_by_the_client(change, match):
    walk = Walk("route")
    walk.routed = walk.server.route()
    with pytest.raises(ProtocolError, match=match):
        walk.clients["anna"].receive_shares(change(walk.routed["anna"]))
    for name, message in walk.routed.items():
        walk.clients[name].receive_shares(message)
    with pytest.raises(ProtocolError, match="anna: the server routed shares twice"):
        walk.clients["anna"].receive_shares(walk.routed["anna"])
    walk.finish("upload")


def test_a_client_with_too_few_active_neighbours_does_not_go_on():
    walk = Walk("route")
    routed = walk.server.route()["anna"]
    few = replace(
        routed,
        **{column: getattr(routed, column)[:1] for column in ("senders", "sealed", "self_digests", "escrow_digests")},
    )
    with pytest.raises(ThresholdError, match="anna: expected shares of at least 3 neighbours, got 1"):
        walk.clients["anna"].receive_shares(few)


def test_bad_uploads_are_refused_at_the_client_by_its_name_and_a_good_one_still_goes():
    walk = Walk("upload")
    good = walk.uploads["bela"]
    nan = good.terms.clone()
    nan[0, 0] = float("nan")
    for wrong, kind, match in (
        (replace(good, weight=0), ProtocolError, "bela.*weight"),
        (replace(good, weight=-1), ProtocolError, "bela.*weight"),
        (replace(good, terms=nan), NumericalRangeError, "bela"),
        (replace(good, terms=torch.full_like(good.terms, 1e30)), NumericalRangeError, "bela"),
        (replace(good, round_index=1), ProtocolError, "bela.*round 1"),
        (replace(good, terms=good.terms[:1]), ProtocolError, "bela.*expected 2 terms"),
    ):
        with pytest.raises(kind, match=match):
            walk.clients["bela"].mask(wrong, context=MODEL)
    walk.finish("upload")


def test_a_client_masks_once_an_attempt_and_only_after_the_shares():
    walk = Walk("route")
    with pytest.raises(ProtocolError, match="bela: an upload was not asked for"):
        walk.clients["bela"].mask(walk.uploads["bela"], context=MODEL)
    with pytest.raises(ProtocolError, match="bela: there is no upload"):
        walk.clients["bela"].mask_again()
    walk.complete("route")
    walk.complete("upload")
    other = Upload(0, 1, torch.ones(2, 5), torch.zeros(3))
    for again in (lambda: walk.clients["bela"].mask(other, context=MODEL), walk.clients["bela"].mask_again):
        with pytest.raises(ProtocolError, match="bela: an upload was not asked for"):
            again()
    walk.finish("sign")


@pytest.mark.parametrize(
    "change",
    [
        {"participants": ("bela", "cleo")},
        {"participants": ("anna",)},
        {"participants": ("anna", "zora")},
        {"participants": ("bela", "anna")},
        {"participants": ("anna", "anna", "bela")},
        {"round_index": -1},
        {"attempt": -1},
        {"fraction_bits": ()},
        {"fraction_bits": (20, 20, -100)},
        {"fraction_bits": (1 << 62,)},
    ],
)
def test_openings_that_make_no_sense_are_refused_by_the_client_and_the_honest_one_is_not(change):
    walk = Walk("share")
    with pytest.raises(ProtocolError, match="anna: MaskOpening from the server"):
        walk.clients["anna"].open(replace(walk.opening, **change))
    walk.finish("share")


def test_an_opening_is_answered_once_and_old_rounds_never():
    walk = Walk("route")
    for opening in (walk.opening, replace(walk.opening, attempt=0)):
        with pytest.raises(ProtocolError, match="not newer than round 0 attempt 0"):
            walk.clients["anna"].open(opening)
    walk.finish("route")


def test_a_second_different_list_is_refused_and_the_same_one_is_signed_the_same_way():
    walk = Walk("sign")
    walk.begin("sign")
    first = walk.clients["anna"].sign(walk.listed)
    assert walk.clients["anna"].sign(walk.listed) == first
    with pytest.raises(AuthenticationError, match="anna: the server showed a second, different list"):
        walk.clients["anna"].sign(list_with(walk, survivors=walk.listed.survivors[:4]))
    walk.finish("sign")


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"survivors": FIVE[1:]}, ProtocolError, "without its upload"),
        ({"survivors": FIVE[:3]}, ThresholdError, "at least 4 of 5 participants, got 3"),
        ({"survivors": (*FIVE, "zora")}, ProtocolError, "'zora'"),
        ({"survivors": FIVE[::-1]}, ProtocolError, "not in order"),
        ({"sharers": FIVE[:4], "survivors": FIVE[:4]}, AuthenticationError, "not those whose shares"),
        ({"sharers": (*FIVE, "zora")}, ProtocolError, "'zora'"),
        ({"round_index": 3}, ProtocolError, "not under way"),
    ],
)
def test_lists_that_would_show_too_much_are_not_signed_and_the_honest_one_is(changes, kind, match):
    walk = Walk("sign")
    walk.begin("sign")
    with pytest.raises(kind, match=match):
        walk.clients["anna"].sign(list_with(walk, **changes))
    walk.finish("sign")


def test_survivors_that_no_mask_connects_are_not_summed():
    """n-out with one choice each: a graph in two parts is found by both sides."""
    names = NAMES[:6]
    for seed in range(40):
        group = Group(names, MaskSettings("n-out", 1, threshold=0.51), seed=seed)
        opening = group.server.open_round(0, names, 3)
        if not group.server._record.graph.is_connected(names):
            break
    group.share(opening, names)
    group.route()
    group.upload({name: upload_of(0) for name in names}, names)
    with pytest.raises(ThresholdError, match="not connected"):
        group.server.close_uploads(context=MODEL)
    with pytest.raises(ThresholdError, match="not connected"):
        group.clients["anna"].sign(SurvivorList(0, 0, names, names))


def test_a_server_that_shows_different_lists_gets_no_shares():
    """Half of the clients are told that emil dropped, the others that it did not: no majority signed either list."""
    walk = Walk("sign")
    walk.begin("sign")
    without = list_with(walk, survivors=FIVE[:4])
    signatures = {name: walk.clients[name].sign(without).signature for name in FIVE[:2]}
    signatures |= {name: walk.clients[name].sign(walk.listed).signature for name in FIVE[2:]}
    signers = tuple(sorted(signatures))[:4]
    request = UnmaskRequest(0, 0, signers, tuple(signatures[name] for name in signers))
    for name in FIVE:
        with pytest.raises(AuthenticationError, match=f"is not on the opening, model and list that {name} signed"):
            walk.clients[name].reveal(request)
    for name, own in (("anna", FIVE[:2]), ("cleo", FIVE[2:])):
        few = UnmaskRequest(0, 0, own, tuple(signatures[signer] for signer in own))
        with pytest.raises(ThresholdError, match=f"{name}.*expected at least 4 signatures, got"):
            walk.clients[name].reveal(few)


def test_shares_are_revealed_once_and_never_of_both_secrets_of_one_client():
    walk = Walk("reveal", absent=["dora"])
    walk.begin("reveal")
    kept = {name: dict(walk.clients[name]._attempt.shares) for name in ("anna", "bela")}
    for name, shares in kept.items():
        revealed = walk.message("reveal", name)
        for owner, share in zip(revealed.owners, revealed.shares, strict=True):
            assert (share == shares[owner].of_self_seed) == (owner != "dora")
            assert (share == shares[owner].of_escrow_key) == (owner == "dora")
        assert len(revealed.owners) == len(set(revealed.owners))
    with pytest.raises(ProtocolError, match=r"anna: UnmaskRequest from the server.*not under way"):
        walk.clients["anna"].reveal(walk.request)
    with pytest.raises(ProtocolError, match="not under way"):
        walk.clients["anna"].sign(walk.listed)
    assert walk.clients["anna"]._attempt is None  # the secrets are gone
    walk.finish("reveal")


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        (lambda r: replace(r, signatures=(bytes(64), *r.signatures[1:])), AuthenticationError, "signature of anna"),
        (lambda r: replace(r, signatures=(b"", *r.signatures[1:])), AuthenticationError, "signature of anna"),
        (lambda r: replace(r, signatures=r.signatures[::-1]), AuthenticationError, "signature of anna"),
        (lambda r: replace(r, signatures=cut(r.signatures)), ProtocolError, "5 signers and 4 signatures"),
        (lambda r: replace(r, signers=("anna", *cut(r.signers))), ProtocolError, "one comes twice"),
        (lambda r: replace(r, signers=(*cut(r.signers), "zora")), ProtocolError, "'zora'"),
        (lambda r: replace(r, signers=r.signers[:3], signatures=r.signatures[:3]), ThresholdError, "at least 4"),
    ],
)
def test_requests_without_enough_true_signatures_reveal_nothing(change, kind, match):
    walk = Walk("reveal")
    walk.begin("reveal")
    with pytest.raises(kind, match=match):
        walk.clients["emil"].reveal(change(walk.request))
    walk.finish("reveal")


@pytest.mark.parametrize("after", ["sign", "reveal"])
def test_no_further_attempt_of_a_round_after_a_list_was_signed(after):
    """Two sums of one round over different survivors would show the difference."""
    walk = Walk("sign")
    walk.complete("sign")
    if after == "reveal":
        walk.complete("reveal")
    with pytest.raises(
        ProtocolError, match="anna: MaskOpening from the server: a list of survivors was already signed"
    ):
        walk.clients["anna"].open(replace(walk.opening, attempt=1))
    walk.clients["anna"].open(replace(walk.opening, round_index=1))


def test_signatures_of_another_run_or_round_do_not_count():
    walk = Walk("reveal")
    walk.begin("reveal")
    ring = walk.group.rings["anna"]
    other_round = ring.sign(ring.statement(*signed_content(walk.occasion, b"", list_with(walk, round_index=1))))
    request = replace(walk.request, signatures=(other_round, *walk.request.signatures[1:]))
    with pytest.raises(AuthenticationError, match="signature of anna"):
        walk.clients["bela"].reveal(request)


def test_masks_and_lists_are_bound_to_what_was_trained_on_or_not_made_at_all():
    group = Group(NAMES[:3])
    group.share(group.server.open_round(0, group.names, 3), group.names)
    group.route()
    with pytest.raises(TypeError, match="context"):
        group.clients["anna"].mask(upload_of(0))
    with pytest.raises(ProtocolError, match="digest of what clients were sent to train on, got nothing"):
        group.clients["anna"].mask(upload_of(0), context=b"")
    with pytest.raises(ProtocolError, match="digest of what clients were sent to train on, got nothing"):
        group.server.close_uploads(context=b"")
    group.upload({name: upload_of(0, seed) for seed, name in enumerate(group.names)}, group.names)
    assert group.sign().survivors == group.names
