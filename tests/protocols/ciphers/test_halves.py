"""Both halves of encrypted sums over the wire: what is refused of whom, and that a refusal changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.protocols.ciphers.conftest import SYSTEMS
from tests.protocols.mask.harness import key_rings, sent

from bilateral.errors import AuthenticationError, NumericalRangeError, PlanError, ProtocolError, ThresholdError
from bilateral.protocols.ciphers.boxes import key_id, open_key, seal_key
from bilateral.protocols.ciphers.client import CipherClient, Dealer
from bilateral.protocols.ciphers.integers import IntegerFormat
from bilateral.protocols.ciphers.messages import KeyDealRequest, OpeningRequest
from bilateral.protocols.ciphers.server import CipherServer
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.messages import Upload
from bilateral.randomness import SeededRandomness

RUN = b"run 7"
NAMES = ("a", "b", "c", "d", "e")
FORM = IntegerFormat(10, 4, 50)
WEIGHTS = {"a": 3, "b": 4, "c": 5, "d": 6, "e": 7}


class Known:
    """A cryptosystem whose keys are dealt already: drawing them takes seconds."""

    def __init__(self, system, dealt):
        self._system, self._dealt = system, dealt

    def __getattr__(self, name):
        return getattr(self._system, name)

    def deal(self, clients, randomness):
        assert tuple(clients) == NAMES
        return self._dealt


def agreed(names=NAMES, run_id=RUN):
    rings = key_rings(names, run_id=run_id)
    directory = KeyDirectory(run_id, names)
    for name, ring in rings.items():
        directory.register(name, ring.announce())
    for ring in rings.values():
        ring.accept(directory.roster())
    return rings


class Group:
    def __init__(self, name, dealt, *, deliver=True):
        self.system = Known(SYSTEMS[name], dealt[name])
        self.rings = agreed()
        self.clients = {n: CipherClient(r, self.system, FORM, SeededRandomness(0, n)) for n, r in self.rings.items()}
        self.server = CipherServer(RUN, self.system, FORM, WEIGHTS, (1, 5), 2)
        dealt_keys = sent(self.clients["a"].deal(sent(KeyDealRequest(RUN, NAMES))))
        self.server.take_keys("a", dealt_keys, NAMES)
        if deliver:
            for n in NAMES[1:]:
                self.clients[n].receive_keys(sent(self.server.delivery(n)))

    def uploads(self, round_index=0, inside=NAMES):
        self.plain = {n: upload_of(n, round_index) for n in inside}
        return {n: sent(self.clients[n].encrypt(upload)) for n, upload in self.plain.items()}

    def finish(self, helpers=NAMES):
        allowed, needed = self.server.helpers()
        request = sent(self.server.opening_request())
        for n in [one for one in helpers if one in allowed][:needed]:
            self.server.collect_part(n, sent(self.clients[n].help_open(request)))
        return self.server.finish()


def upload_of(name, round_index):
    draws = SeededRandomness(round_index, name)
    return Upload(round_index, WEIGHTS[name], draws.normal(1, 5), draws.child("s").normal(2))


@pytest.fixture(params=SYSTEMS)
def group(request, dealt):
    return Group(request.param, dealt)


@pytest.mark.parametrize("inside", [NAMES, ("b", "c"), ("a", "c", "e")])
def test_the_sum_is_the_weighted_sum_of_uploads_to_the_grid(group, inside):
    group.server.open_round(0)
    for n, message in group.uploads(inside=inside).items():
        group.server.collect_upload(n, message)
    if not group.system.dealer_opens and group.server.helpers()[1] > len(inside):
        with pytest.raises(ThresholdError, match="2 helped to open the sum, and 3 must"):
            group.finish()
        return
    found = group.finish()
    assert found.contributors == tuple(sorted(inside))
    assert found.total_weight == sum(WEIGHTS[n] for n in inside)
    exact = sum(WEIGHTS[n] * group.plain[n].terms for n in inside)
    assert torch.allclose(found.terms, exact, atol=found.total_weight * 2.0**-10)
    assert torch.allclose(
        found.statistics,
        sum(WEIGHTS[n] * group.plain[n].statistics for n in inside),
        atol=found.total_weight * 2.0**-10,
    )


def test_uploads_of_strangers_other_rounds_other_keys_and_second_ones_are_refused(group):
    group.server.open_round(1)
    messages = group.uploads(1)
    first = messages["a"]
    for sender, bad, said in (
        ("a", replace(first, round_index=0), "is of round 0, expected 1"),
        ("stranger", first, "has no keys of this run"),
        ("a", replace(first, key_id=bytes(32)), "under another key"),
        ("a", replace(first, ciphertext=first.ciphertext[:-1]), "from a"),
    ):
        with pytest.raises(ProtocolError, match=said):
            group.server.collect_upload(sender, bad)
    for n, message in messages.items():
        group.server.collect_upload(n, message)
    with pytest.raises(ProtocolError, match="two encrypted uploads"):
        group.server.collect_upload("a", first)
    assert group.finish().contributors == NAMES


def test_an_upload_of_an_earlier_round_does_not_count_in_a_later_one(group):
    group.server.open_round(0)
    old = group.uploads(0)["b"]
    group.server.open_round(1)
    with pytest.raises(ProtocolError, match="It came late or was sent twice"):
        group.server.collect_upload("b", old)


def test_a_client_opens_one_sum_a_round_and_only_in_the_round_of_its_upload(group):
    group.server.open_round(0)
    for n, message in group.uploads(0).items():
        group.server.collect_upload(n, message)
    request = group.server.opening_request()
    who = "a"
    for bad in (replace(request, key_id=bytes(32)), replace(request, request=b"")):
        with pytest.raises(ProtocolError):
            group.clients[who].help_open(bad)
    if not group.system.dealer_opens:
        with pytest.raises(ProtocolError, match="in which it has not uploaded"):
            group.clients[who].help_open(replace(request, round_index=1))
    group.clients[who].help_open(request)
    with pytest.raises(ProtocolError, match=r"two sums of round 0|a second one"):
        group.clients[who].help_open(request)


def test_parts_of_another_round_or_key_are_refused(group):
    group.server.open_round(0)
    for n, message in group.uploads(0).items():
        group.server.collect_upload(n, message)
    part = group.clients["a"].help_open(group.server.opening_request())
    for bad in (replace(part, round_index=1), replace(part, key_id=b"")):
        with pytest.raises(ProtocolError, match="no part of the sum of round 0"):
            group.server.collect_part("a", bad)
    with pytest.raises(ProtocolError):
        group.server.collect_part("a", replace(part, part=part.part[1:]))
    if group.server.helpers()[1] > 1:
        group.server.collect_part("a", part)
        with pytest.raises(ThresholdError, match="1 helped to open"):
            group.server.finish()


def test_one_upload_is_no_sum(group):
    group.server.open_round(0)
    group.server.collect_upload("a", group.uploads(0)["a"])
    with pytest.raises(ThresholdError, match="a sum has two or more"):
        group.server.helpers()


def test_boxes_of_other_dealers_runs_and_keys_do_not_open(dealt):
    group = Group("ckks", dealt, deliver=False)
    good = group.server.delivery("b")
    client = group.clients["b"]
    for bad in (
        replace(good, run_id=b"another"),
        replace(good, dealer="c"),
        replace(good, dealer="b"),
        replace(good, box=group.server.delivery("c").box),
        replace(good, box=good.box[:-1]),
        replace(good, box=b""),
        replace(good, public=good.public + b"x"),
    ):
        with pytest.raises(AuthenticationError):
            client.receive_keys(bad)
    with pytest.raises(ProtocolError, match="no keys of this run yet"):
        client.encrypt(upload_of("b", 0))
    client.receive_keys(good)
    client.receive_keys(good)  # it was sent again: the server had no answer to the first
    with pytest.raises(AuthenticationError, match="a second, different key"):
        client.receive_keys(replace(good, public=b"other"))


def test_keys_of_a_client_are_refused_where_another_party_deals(dealt):
    rings = agreed()
    system = Known(SYSTEMS["ckks"], dealt["ckks"])
    client = CipherClient(rings["b"], system, FORM, SeededRandomness(0), named_dealer="auditor")
    good = Group("ckks", dealt, deliver=False).server.delivery("b")
    with pytest.raises(AuthenticationError, match="but auditor deals in this run"):
        client.receive_keys(good)
    with pytest.raises(ProtocolError, match="auditor does"):
        client.deal(KeyDealRequest(RUN, NAMES))


def test_a_dealer_deals_once_and_to_clients_of_its_run(dealt):
    dealer = Dealer(agreed()["a"], Known(SYSTEMS["inner-products"], dealt["inner-products"]), SeededRandomness(0))
    with pytest.raises(ProtocolError, match="it dealt no keys that it keeps"):
        dealer.help_open(OpeningRequest(0, bytes(32), b""))
    with pytest.raises(AuthenticationError, match="keys of another run"):
        dealer.deal(KeyDealRequest(b"another", NAMES))
    for clients in (("a",), ("b", "a"), ("a", "a"), ("a", "stranger")):
        with pytest.raises(ProtocolError, match="in order"):
            dealer.deal(KeyDealRequest(RUN, clients))
    dealer.deal(KeyDealRequest(RUN, NAMES))
    with pytest.raises(ProtocolError, match="has dealt keys for this run already"):
        dealer.deal(KeyDealRequest(RUN, NAMES))


def test_keys_that_were_not_dealt_as_they_were_asked_for_are_refused(dealt):
    group = Group("ckks", dealt)
    dealt_keys = group.server._dealt
    fresh = CipherServer(RUN, group.system, FORM, WEIGHTS, (1, 5), 2)
    for bad in (
        replace(dealt_keys, run_id=b""),
        replace(dealt_keys, clients=NAMES[1:]),
        replace(dealt_keys, boxes=dealt_keys.boxes[1:]),
        replace(dealt_keys, public=b""),
    ):
        with pytest.raises(ProtocolError):
            fresh.take_keys("a", bad, NAMES)
        assert not fresh.has_keys


def test_a_box_opens_for_its_client_alone():
    rings = agreed()
    box = seal_key(rings["a"], "b", b"public", b"secret")
    assert open_key(rings["b"], "a", b"public", box) == b"secret"
    assert b"secret" not in box
    with pytest.raises(AuthenticationError):
        open_key(rings["c"], "a", b"public", box)
    other_run = agreed(run_id=b"run 8")
    with pytest.raises(AuthenticationError):
        open_key(other_run["b"], "a", b"public", box)
    assert key_id(b"public") != key_id(b"public2")


def test_values_that_are_too_large_or_no_numbers_are_refused_by_name():
    for bad in (float("nan"), float("inf"), 16.01):
        with pytest.raises(NumericalRangeError, match="a: a value of the upload is beyond 16"):
            FORM.encode(torch.tensor([0.0, bad]), 1, "a")
    assert FORM.encode(torch.tensor([16.0, -16.0]), 3, "a").tolist() == [3 * 2**14, -3 * 2**14]


def test_sums_never_leave_their_lanes():
    assert FORM.bits == 10 + 4 + 6 + 1
    largest = FORM.encode(torch.tensor([16.0]), 50, "a")[0]
    assert int(largest) < 2 ** (FORM.bits - 1)
    with pytest.raises(PlanError, match="62 are there"):
        IntegerFormat(40, 20, 1000)
    assert IntegerFormat.as_fine_as(40, 7, 1000).bits == 40
