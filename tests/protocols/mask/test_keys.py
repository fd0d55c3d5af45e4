"""Key agreement: equal secrets at both ends, and a server in the middle is found out."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.mask.harness import RUN, key_rings, sent

from bilateral.errors import AuthenticationError, ProtocolError, ThresholdError
from bilateral.protocols.mask.injective import injective
from bilateral.protocols.mask.keys import _FIELD, _LOW_ORDER, NO_OPENING, Identity, KeyDirectory, KeyRing
from bilateral.randomness import SecureRandomness, SeededRandomness

NAMES = ("anna", "bela", "cleo")


def directory_of(rings, names=NAMES):
    directory = KeyDirectory(RUN, names)
    for name, ring in rings.items():
        directory.register(name, sent(ring.announce()))
    return directory


@pytest.fixture
def rings():
    return key_rings(NAMES)


@pytest.fixture
def roster(rings):
    return directory_of(rings).roster()


def test_both_ends_of_every_pair_derive_the_same_secret_and_no_two_pairs_share_one(rings, roster):
    for ring in rings.values():
        ring.accept(roster)
    secrets = set()
    for one, other in itertools.combinations(NAMES, 2):
        assert rings[one].pair_secret(other) == rings[other].pair_secret(one)
        secrets.add(rings[one].pair_secret(other))
        for labels in itertools.product(("mask", "shares from anna"), (0, 1, 10), (0, 1)):
            secret = rings[one].round_secret(other, *labels, NO_OPENING)
            assert secret == rings[other].round_secret(one, *labels, NO_OPENING)
            secrets.add(secret)
    assert len(secrets) == 3 * (1 + 12)
    assert len({ring.roster_digest for ring in rings.values()}) == 1


def test_another_run_gives_other_secrets_even_with_the_same_random_numbers():
    secrets = []
    for run_id in (b"one", b"two"):
        rings = key_rings(NAMES, run_id=run_id)
        directory = KeyDirectory(run_id, NAMES)
        for name, ring in rings.items():
            directory.register(name, ring.announce())
        rings["anna"].accept(directory.roster())
        secrets.append(rings["anna"].pair_secret("bela"))
    assert secrets[0] != secrets[1]


def substituted(roster, name, **columns):
    place = roster.clients.index(name)
    changes = {}
    for column, value in columns.items():
        items = list(getattr(roster, column))
        items[place] = value
        changes[column] = tuple(items)
    return replace(roster, **changes)


def attackers_ring(name):
    """The server's own keys in the name of a client."""
    return KeyRing(name, RUN, Identity.generate(SecureRandomness()), {}, SecureRandomness())


def test_a_server_that_substitutes_keys_is_detected_and_the_client_named(rings, roster):
    forged = attackers_ring("bela").announce()
    with pytest.raises(AuthenticationError, match="signature on the key announced by bela"):
        rings["anna"].accept(substituted(roster, "bela", agreement_keys=forged.agreement_key))
    whole = substituted(
        roster,
        "bela",
        agreement_keys=forged.agreement_key,
        identity_keys=forged.identity_key,
        signatures=forged.signature,
    )
    with pytest.raises(AuthenticationError, match="identity key of bela is not the pinned one"):
        rings["anna"].accept(whole)
    rings["anna"].accept(roster)  # nothing was taken over from the refused ones


def test_swapped_entries_are_detected(rings, roster):
    swapped = replace(roster, agreement_keys=(roster.agreement_keys[0], *reversed(roster.agreement_keys[1:])))
    with pytest.raises(AuthenticationError, match="bela"):
        rings["anna"].accept(swapped)


def test_own_entry_missing_or_altered_is_refused(rings, roster):
    others = replace(
        roster,
        clients=roster.clients[1:],
        agreement_keys=roster.agreement_keys[1:],
        identity_keys=roster.identity_keys[1:],
        signatures=roster.signatures[1:],
    )
    altered = substituted(roster, "anna", agreement_keys=attackers_ring("anna").announce().agreement_key)
    for wrong in (others, altered):
        with pytest.raises(AuthenticationError, match="another entry than mine for anna"):
            rings["anna"].accept(wrong)


def test_a_client_without_pinned_key_is_refused():
    rings = key_rings((*NAMES, "zora"))
    roster = directory_of(rings, (*NAMES, "zora")).roster()
    anna = key_rings(NAMES)["anna"]
    assert anna.announce() == rings["anna"].announce()
    with pytest.raises(AuthenticationError, match="'zora', whose identity key is not pinned"):
        anna.accept(roster)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda r: replace(r, run_id=b"another"), "another run"),
        (lambda r: replace(r, clients=("anna", "bela", "bela")), "twice"),
        (lambda r: replace(r, clients=("bela", "anna", "cleo")), "not in order"),
        (lambda r: replace(r, signatures=r.signatures[:-1]), "other numbers"),
        (lambda r: substituted(r, "cleo", signatures=bytes(64)), "cleo"),
        (lambda r: substituted(r, "cleo", signatures=b""), "cleo has the wrong length"),
        (lambda r: substituted(r, "cleo", agreement_keys=bytes(31)), "cleo has the wrong length"),
    ],
)
def test_malformed_rosters_are_refused_by_name(rings, roster, change, match):
    with pytest.raises(ProtocolError, match=match):
        rings["anna"].accept(change(roster))
    with pytest.raises(ProtocolError, match="no roster was accepted"):
        rings["anna"].pair_secret("bela")


def test_a_second_different_roster_is_refused_and_the_same_one_is_not(rings, roster):
    rings["anna"].accept(roster)
    rings["anna"].accept(sent(roster))
    without_cleo = directory_of({name: rings[name] for name in ("anna", "bela")}).roster()
    with pytest.raises(AuthenticationError, match="second, different roster"):
        rings["anna"].accept(without_cleo)


def low_order_encodings():
    """Canonical or not, with the top bit set or not: all 32-byte strings that stand for a point of small order."""
    return [
        (u + top).to_bytes(32, "little")
        for point in _LOW_ORDER
        for u in (point, point + _FIELD)
        if u < 2**255
        for top in (0, 2**255)
    ]


def test_low_order_points_are_refused_exactly_where_the_shared_secret_would_be_zero(rings):
    private = X25519PrivateKey.generate()
    identity = Identity.generate(SeededRandomness(3))
    for encoded in low_order_encodings():
        with pytest.raises(ValueError, match=r".*"):  # the library's own check is the oracle
            private.exchange(X25519PublicKey.from_public_bytes(encoded))
        content = injective("bilateral key announcement v1", RUN, "bela", encoded, identity.public_bytes)
        announcement = replace(
            rings["bela"].announce(),
            agreement_key=encoded,
            identity_key=identity.public_bytes,
            signature=identity.sign(content),
        )
        with pytest.raises(AuthenticationError, match="announced by bela has small order"):
            KeyDirectory(RUN, NAMES).register("bela", announcement)
    assert len(low_order_encodings()) == 14


@pytest.mark.parametrize(
    ("sender", "change", "match"),
    [
        ("zora", {}, "'zora' is not a client"),
        ("bela", {}, "bela announced a key in the name of 'anna'"),
        ("anna", {"run_id": b"another"}, "anna is of another run"),
        ("anna", {"signature": bytes(64)}, "announced by anna is not of its identity"),
        ("anna", {"signature": bytes(63)}, "announced by anna has the wrong length"),
        ("anna", {"agreement_key": bytes(33)}, "announced by anna has the wrong length"),
        ("anna", {"agreement_key": b"\x09" + bytes(31)}, "announced by anna is not of its identity"),
    ],
)
def test_the_directory_refuses_bad_announcements_by_name_and_still_takes_the_good_one(rings, sender, change, match):
    directory = KeyDirectory(RUN, NAMES)
    with pytest.raises(AuthenticationError, match=match):
        directory.register(sender, replace(rings["anna"].announce(), **change))
    directory.register("anna", rings["anna"].announce())
    directory.register("cleo", rings["cleo"].announce())
    assert directory.roster().clients == ("anna", "cleo")  # bela never announced a key and is not in the run


def test_the_directory_refuses_a_second_and_a_late_announcement_and_a_roster_of_one(rings):
    directory = KeyDirectory(RUN, NAMES)
    directory.register("anna", rings["anna"].announce())
    with pytest.raises(ThresholdError, match="got 1"):
        directory.roster()
    with pytest.raises(ProtocolError, match="anna announced a key twice"):
        directory.register("anna", rings["anna"].announce())
    directory.register("bela", rings["bela"].announce())
    directory.roster()
    with pytest.raises(ProtocolError, match="cleo announced its key after"):
        directory.register("cleo", rings["cleo"].announce())


def test_secrets_of_strangers_and_of_oneself_are_refused(rings, roster):
    rings["anna"].accept(roster)
    for other in ("anna", "zora"):
        with pytest.raises(ProtocolError, match=other):
            rings["anna"].pair_secret(other)


def test_keys_do_not_show_in_a_repr(rings, roster):
    rings["anna"].accept(roster)
    secret = rings["anna"].pair_secret("bela")
    shown = repr(rings["anna"]) + repr(rings["anna"]._identity)
    assert secret.hex() not in shown
    assert repr(secret) not in shown


def test_a_second_user_of_the_same_round_secrets_is_refused(rings):
    rings["anna"].claim("mask")
    rings["anna"].claim("something else")
    with pytest.raises(ProtocolError, match="anna: the keys of this run are already in use"):
        rings["anna"].claim("mask")


part = st.recursive(
    st.one_of(st.text(max_size=3), st.binary(max_size=3), st.integers(-300, 300)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)


@given(st.lists(part, max_size=4), st.lists(part, max_size=4))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_different_parts_never_encode_to_the_same_bytes(one, other):
    assert (injective(*one) == injective(*other)) == (one == other)


def test_moving_a_boundary_between_parts_changes_the_bytes():
    assert injective("ab", "c") != injective("a", "bc")
    assert injective(("a",), "b") != injective(("a", "b"))
    assert injective("1") != injective(1) != injective(b"1")
