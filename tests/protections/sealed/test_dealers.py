"""Who deals for whom: drawn from what everybody is shown, never oneself, afresh in each round."""

from collections import Counter

import pytest
from tests.protections.sealed.harness import plan_of

from bilateral.errors import ProtocolError, UnsoundPlanError
from bilateral.protections.sealed.dealers import dealers_of
from bilateral.protections.sealed.protection import Sealed

NAMES = ("anna", "bela", "cleo", "dora")


def test_everyone_is_dealt_for_by_another_and_deals_for_one():
    for round_index in range(50):
        drawn = dealers_of(NAMES, round_index, b"roster")
        assert sorted(drawn) == sorted(drawn.values()) == list(NAMES)
        assert all(client != dealer for client, dealer in drawn.items())


def test_participants_stand_in_one_circle():
    drawn = dealers_of(NAMES, 3, b"roster")
    name, met = "anna", []
    for _ in NAMES:
        met.append(name)
        name = drawn[name]
    assert sorted(met) == list(NAMES)


def test_the_order_in_which_they_are_named_does_not_matter():
    assert dealers_of(NAMES[::-1], 3, b"roster") == dealers_of(NAMES, 3, b"roster")


@pytest.mark.parametrize("other", [(NAMES, 4, b"roster"), (NAMES, 3, b"another roster")])
def test_the_draw_depends_on_the_round_and_on_the_roster(other):
    several = [dealers_of(NAMES, 3 + 100 * number, b"roster") for number in range(5)]
    others = [dealers_of(other[0], other[1] + 100 * number, other[2]) for number in range(5)]
    assert several != others


def test_all_dealers_are_equally_likely():
    drawn = Counter(dealers_of(NAMES, round_index, b"roster")["anna"] for round_index in range(3000))
    assert set(drawn) == {"bela", "cleo", "dora"}
    assert all(900 < count < 1100 for count in drawn.values())


def test_a_named_dealer_deals_for_all_and_takes_no_part():
    assert dealers_of(NAMES, 0, b"roster", "auditor") == dict.fromkeys(NAMES, "auditor")
    with pytest.raises(ProtocolError, match="anna deals in this run"):
        dealers_of(NAMES, 0, b"roster", "anna")


def test_nobody_deals_for_itself_alone():
    with pytest.raises(ProtocolError, match="two or more participants"):
        dealers_of(("anna",), 0, b"roster")


def test_no_client_of_sealed_training_is_made_by_itself():
    """The class asks for no such method, and whoever wants one hears why there is none."""
    assert not hasattr(Sealed(), "make_client")
    with pytest.raises(UnsoundPlanError, match="made with all that the parties agreed on"):
        _ = plan_of().chosen.halves
    assert plan_of().with_settings({"protection": "perturbation"}).chosen.halves.name == "perturbation"
