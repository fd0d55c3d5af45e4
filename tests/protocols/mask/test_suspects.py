"""Who is left out after complaints: small sets that explain all of them, and few who did nothing."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.mask.harness import MODEL, NAMES, RUN, key_rings
from tests.protocols.mask.walk import FIVE, Walk

from bilateral.errors import AuthenticationError, ProtocolError, ThresholdError
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.mask.messages import ShareComplaint
from bilateral.protocols.mask.suspects import Suspects


def suspects_of(pairs, proven=()):
    found = Suspects()
    for client in proven:
        found.convict(client)
    for accuser, dealer in pairs:
        found.accuse(accuser, dealer)
    return set(found.names())


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES[:6]), st.sampled_from(NAMES[:6])).filter(lambda p: p[0] != p[1]), max_size=9
    ),
    st.sets(st.sampled_from(NAMES[:6]), max_size=2),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_every_complaint_is_explained_by_few(pairs, proven):
    found = suspects_of(pairs, proven)
    assert proven <= found
    assert all(found.intersection(pair) for pair in pairs)
    smallest = next(
        size
        for size in range(7)
        for group in combinations(NAMES[:6], size)
        if proven <= set(group) and all(set(group).intersection(pair) for pair in pairs)
    )
    assert smallest <= len(found) <= 2 * smallest + 1
    assert found == suspects_of(reversed(pairs), proven)


def test_a_dealer_of_garbage_is_left_out_and_those_who_complained_are_not():
    assert suspects_of([("bela", "anna"), ("cleo", "anna"), ("dora", "anna")]) == {"anna"}
    assert suspects_of([("bela", "anna")]) == {"anna"}


def test_who_accuses_many_is_left_out_and_the_accused_come_back():
    assert suspects_of([("mallory", "anna")]) == {"anna"}
    assert suspects_of([("mallory", "anna"), ("mallory", "bela")]) == {"mallory"}


@pytest.mark.parametrize("dealers", [(), ("anna",), ("zora",), ("dora", "cleo"), ("cleo", "cleo")])
def test_complaints_that_make_no_sense_are_refused_and_the_round_completes(dealers):
    walk = Walk("upload")
    with pytest.raises(ProtocolError, match="ShareComplaint from anna"):
        walk.server.collect_upload("anna", ShareComplaint(0, 0, dealers))
    walk.finish("upload")


def test_who_complains_is_out_of_the_attempt_and_too_many_complaints_end_it_by_name():
    walk = Walk("upload", absent=["anna"])
    walk.server.collect_upload("anna", ShareComplaint(0, 0, ("emil",)))
    assert walk.server.complaints == {"anna": ("emil",)}
    with pytest.raises(ProtocolError, match="from anna came a second time"):
        walk.deliver("upload", "anna")
    walk.finish("upload")
    walk = Walk("upload")
    for name in FIVE[:3]:
        walk.server.collect_upload(name, ShareComplaint(0, 0, ("emil",)))
    walk.deliver("upload", "dora")
    with pytest.raises(ThresholdError, match=r"got 1\. anna could not open the shares of emil\. bela could not"):
        walk.server.close_uploads(context=MODEL)


def test_a_server_that_knows_the_identities_refuses_a_client_that_would_spoil_the_roster():
    """Clients refuse a roster with another identity key than the pinned one, so one client could end the run."""
    rings, others = key_rings(FIVE), key_rings(FIVE, seed=1)
    pinned = {name: ring.announce().identity_key for name, ring in rings.items()}
    directory = KeyDirectory(RUN, FIVE, pinned)
    with pytest.raises(AuthenticationError, match="identity key that anna announced is not the pinned one"):
        directory.register("anna", others["anna"].announce())
    for name, ring in rings.items():
        directory.register(name, ring.announce())
    rings["bela"].accept(directory.roster())
