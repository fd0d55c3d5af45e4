"""Malformed, replayed, reordered and forged messages: a typed error that names the sender, and the round goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bilateral.errors import AuthenticationError, BilateralError, NumericalRangeError, ProtocolError, ThresholdError
from bilateral.protocols.mask import shamir
from bilateral.protocols.mask.messages import RangeRefusal, SurvivorList, UnmaskRequest
from bilateral.protocols.mask.sealing import SharePair, seal, share_digest
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.mask.survivors import signed_content
from bilateral.protocols.messages import Upload
from protocols.mask.harness import NAMES, Group, sent, upload_of
from protocols.mask.test_schedules import assert_sum

torch.set_num_threads(1)
FIVE = NAMES[:5]


class Walk:
    """A group that is walked through round 0 step by step; `finish` completes the honest round and checks its sum."""

    STEPS = ("share", "route", "upload", "sign", "reveal")

    def __init__(self, until="share", settings=None, absent=()):
        self.group = Group(FIVE, settings or MaskSettings(threshold=0.6))
        self.server, self.clients = self.group.server, self.group.clients
        self.uploads = {name: upload_of(0, number) for number, name in enumerate(FIVE)}
        self.absent = set(absent)  # these share and never upload
        self.opening = self.server.open_round(0, FIVE, 3)
        self.done = {}
        self.messages = {}
        for step in self.STEPS[: self.STEPS.index(until)]:
            self.complete(step)

    def message(self, step, name):
        """The honest message of one client; made once."""
        if (step, name) not in self.messages:
            client = self.clients[name]
            make = {
                "share": lambda: client.open(self.opening),
                "upload": lambda: client.mask(self.uploads[name]),
                "sign": lambda: client.sign(self.listed),
                "reveal": lambda: client.reveal(self.request),
            }[step]
            self.messages[step, name] = sent(make())
        return self.messages[step, name]

    def deliver(self, step, name, message=None):
        collect = {
            "share": self.server.collect_shares,
            "upload": self.server.collect_upload,
            "sign": self.server.collect_signature,
            "reveal": self.server.collect_reveal,
        }[step]
        collect(name, message if message is not None else self.message(step, name))
        self.done.setdefault(step, set()).add(name)

    def begin(self, step):
        if step == "sign" and not hasattr(self, "listed"):
            self.listed = sent(self.server.close_uploads())
        if step == "reveal" and not hasattr(self, "request"):
            self.request = sent(self.server.request_shares())

    def complete(self, step):
        if step == "route":
            self.routed = self.server.route()
            for name, message in self.routed.items():
                self.clients[name].receive_shares(sent(message))
            return
        self.begin(step)
        for name in FIVE:
            gone = step != "share" and name in self.absent
            if not gone and name not in self.done.get(step, ()):
                self.deliver(step, name)

    def finish(self, start):
        for step in self.STEPS[self.STEPS.index(start) :]:
            self.complete(step)
        aggregate = self.server.unmask((2, 5), 3)
        assert_sum(aggregate, self.opening, self.uploads, set(FIVE) - self.absent)


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
    for wrong in (walk.server.route, walk.server.close_uploads, walk.server.request_shares, walk.server.retry):
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


def cut(items):
    return items[:-1]


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


def test_the_round_survives_a_revealer_that_keeps_lying():
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
    with pytest.raises(AuthenticationError, match="escrow of dora does not open"):
        walk.server.unmask((2, 5), 3)
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
    with pytest.raises(AuthenticationError, match="shares of dora do not combine"):
        walk.server.unmask((2, 5), 3)


def test_a_wrong_upload_that_breaks_the_total_weight_is_noticed():
    walk = Walk("upload")
    honest = walk.message("upload", "bela")
    changed = honest.values.clone()
    changed[-1] += 2**50
    walk.deliver("upload", "bela", replace(honest, values=changed))
    for step in Walk.STEPS[2:]:
        walk.complete(step)
    with pytest.raises(ProtocolError, match="total weight of 5 clients is"):
        walk.server.unmask((2, 5), 3)


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
            walk.clients["bela"].mask(wrong)
    walk.finish("upload")


def test_a_client_masks_once_an_attempt_and_only_after_the_shares():
    walk = Walk("route")
    with pytest.raises(ProtocolError, match="bela: an upload was not asked for"):
        walk.clients["bela"].mask(walk.uploads["bela"])
    with pytest.raises(ProtocolError, match="bela: there is no upload"):
        walk.clients["bela"].mask_again()
    walk.complete("route")
    walk.complete("upload")
    other = Upload(0, 1, torch.ones(2, 5), torch.zeros(3))
    for again in (lambda: walk.clients["bela"].mask(other), walk.clients["bela"].mask_again):
        with pytest.raises(ProtocolError, match="bela: an upload was not asked for"):
            again()
    walk.finish("sign")


def test_thresholds_that_cannot_be_reached_end_the_round_and_the_next_one_works():
    group = Group(FIVE)
    opening = group.server.open_round(0, FIVE, 3)
    group.share(opening, FIVE[:3])
    with pytest.raises(ThresholdError, match="at least 4 of 5 participants, got usable ones of 3"):
        group.server.route()
    for round_index, names in ((1, FIVE), (2, FIVE[:2])):
        uploads = {name: upload_of(round_index, number) for number, name in enumerate(FIVE)}
        aggregate, opening = group.run(round_index, uploads, participants=names)
        assert_sum(aggregate, opening, uploads, set(names))


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


def list_with(walk, **changes):
    return replace(walk.listed, **changes)


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
        group.server.close_uploads()
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
        with pytest.raises(AuthenticationError, match=f"is not on the list that {name} signed"):
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
    with pytest.raises(ProtocolError, match="anna: UnmaskRequest from the server.*not under way"):
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


def test_forged_signatures_are_refused_by_the_server_and_the_round_completes():
    walk = Walk("sign")
    walk.begin("sign")
    of_another = walk.message("sign", "cleo")
    for wrong in (of_another, replace(of_another, signature=b"")):
        with pytest.raises(AuthenticationError, match="SurvivorSignature from bela is not its signature"):
            walk.deliver("sign", "bela", wrong)
    walk.finish("sign")


@pytest.mark.parametrize("after", ["sign", "reveal"])
def test_no_further_attempt_of_a_round_after_a_list_was_signed(after):
    """Two sums of one round over different survivors would show the difference."""
    walk = Walk("sign")
    walk.complete("sign")
    if after == "reveal":
        walk.complete("reveal")
    with pytest.raises(ProtocolError, match="anna: MaskOpening from the server: a list of survivors was already signed"):
        walk.clients["anna"].open(replace(walk.opening, attempt=1))
    walk.clients["anna"].open(replace(walk.opening, round_index=1))


def test_signatures_of_another_run_or_round_do_not_count():
    walk = Walk("reveal")
    walk.begin("reveal")
    ring = walk.group.rings["anna"]
    other_round = ring.sign(ring.statement(*signed_content(list_with(walk, round_index=1))))
    request = replace(walk.request, signatures=(other_round, *walk.request.signatures[1:]))
    with pytest.raises(AuthenticationError, match="signature of anna"):
        walk.clients["bela"].reveal(request)


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
    for call in (group.server.route, group.server.close_uploads, group.server.retry, group.server.request_shares):
        with pytest.raises(BilateralError, match="No round is open"):
            call()
    with pytest.raises(ProtocolError, match="number of rows"):
        group.server.open_round(0, FIVE)
