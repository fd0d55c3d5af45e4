"""Mutated messages: the wire refuses them, or the half that gets them does, and never with any other exception."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from functools import cache
from typing import get_type_hints

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.protocols.mask.harness import RUN, Group, key_rings, sent
from tests.protocols.mask.walk import FIVE, Walk
from torch import Tensor

from bilateral.errors import BilateralError, MalformedMessageError
from bilateral.protocols import wire
from bilateral.protocols.mask import messages
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import MaskSettings

torch.set_num_threads(1)
PROFILE = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
STEPS = {
    messages.SealedShares: "share",
    messages.MaskedUpload: "upload",
    messages.SurvivorSignature: "sign",
    messages.RevealedShares: "reveal",
}
TO_CLIENT = {
    messages.MaskOpening: ("share", "open"),
    messages.RoutedShares: ("route", "receive_shares"),
    messages.SurvivorList: ("sign", "sign"),
    messages.UnmaskRequest: ("reveal", "reveal"),
}
ALL = (messages.KeyAnnouncement, messages.Roster, *STEPS, *TO_CLIENT, messages.RangeRefusal, messages.ShareComplaint)


@cache
def situation(kind):
    """(honest message, function that gives it to a fresh copy of whoever expects it)."""
    if kind is messages.KeyAnnouncement:
        rings = key_rings(FIVE)
        return rings["bela"].announce(), lambda m: MaskServer(RUN, FIVE, MaskSettings()).register("bela", m)
    if kind is messages.Roster:
        return Group(FIVE).server.roster(), accept_afresh
    if kind in TO_CLIENT:
        step, method = TO_CLIENT[kind]
        walk = Walk(step)
        walk.begin(step)
        honest = {
            messages.MaskOpening: lambda: walk.opening,
            messages.RoutedShares: lambda: walk.server.route()["anna"],
            messages.SurvivorList: lambda: walk.listed,
            messages.UnmaskRequest: lambda: walk.request,
        }[kind]()

        def give(message):
            getattr(copied(walk.clients["anna"]), method)(message)

        return honest, give
    if kind in (messages.RangeRefusal, messages.ShareComplaint):
        walk = Walk("upload")
        refusal, complaint = messages.RangeRefusal(0, 0, (1,), (30,)), messages.ShareComplaint(0, 0, ("cleo",))
        honest = refusal if kind is messages.RangeRefusal else complaint
        return honest, lambda m: copied(walk.server).collect_upload("bela", m)
    step = STEPS[kind]
    walk = Walk(step)
    walk.begin(step)
    collect = {"share": "shares", "upload": "upload", "sign": "signature", "reveal": "reveal"}[step]
    return walk.message(step, "bela"), lambda m: getattr(copied(walk.server), f"collect_{collect}")("bela", m)


def accept_afresh(roster):
    key_rings(FIVE)["anna"].accept(roster)


def copied(half):
    """Enough of a copy that the original does not change: its own state, and that of the attempt."""
    twin = copy.copy(half)
    for part in ("_attempt", "_record", "_openings"):
        if getattr(half, part, None) is not None:
            inner = copy.copy(getattr(half, part))
            for name, value in vars(inner).items():
                if isinstance(value, dict):
                    setattr(inner, name, dict(value))
            setattr(twin, part, inner)
    return twin


def refused_or_accepted(give, data, kind):
    """Any other exception fails the test."""
    try:
        message = wire.decode(data, [kind], "bela")
    except MalformedMessageError as error:
        assert "bela" in str(error)
        return
    for item in fields(message):
        assert getattr(message, item.name) is not None
    try:
        give(message)
    except BilateralError as error:
        assert str(error)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_the_honest_message_is_accepted(kind):
    """Otherwise the fuzzing below would show nothing."""
    honest, give = situation(kind)
    give(sent(honest))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_mutated_truncated_and_extended_bytes_are_refused_or_harmless(kind):
    honest, give = situation(kind)
    encoded = wire.encode(honest)

    @given(st.data())
    @PROFILE
    def check(draw):
        data = bytearray(encoded)
        for _ in range(draw.draw(st.integers(1, 4))):
            place = draw.draw(st.integers(0, max(0, len(data) - 1)))
            match draw.draw(st.sampled_from(["flip", "cut", "insert", "end", "truncate"])):
                case "flip" if data:
                    data[place] ^= draw.draw(st.integers(1, 255))
                case "cut":
                    del data[place : place + draw.draw(st.integers(1, 8))]
                case "insert":
                    data[place:place] = draw.draw(st.binary(min_size=1, max_size=8))
                case "end":
                    data += draw.draw(st.binary(min_size=1, max_size=8))
                case _:
                    del data[place:]
        refused_or_accepted(give, bytes(data), kind)

    check()


NAMES_AND_WORSE = st.one_of(st.sampled_from((*FIVE, "zora", "")), st.text(alphabet="ab\x00é", max_size=3))
INTEGERS = st.one_of(st.integers(-3, 70), st.sampled_from([2**62, -(2**62), 2**31]))
BYTES = st.one_of(st.binary(max_size=4), st.sampled_from([bytes(32), bytes(33), bytes(64), b"\xff" * 32, bytes(82)]))


def values_of(hint, honest):
    """Well-typed values for a field: other ones, and the honest one disturbed."""
    if hint is int:
        return INTEGERS
    if hint is bytes:
        return BYTES
    if hint is Tensor:
        shapes = st.sampled_from([(0,), (1,), (14,), (2, 7), ()])
        return st.builds(lambda s, d: torch.ones(s, dtype=d), shapes, st.sampled_from([torch.int64, torch.float64]))
    inner = {tuple[str, ...]: NAMES_AND_WORSE, tuple[int, ...]: INTEGERS, tuple[bytes, ...]: BYTES}
    if hint not in inner:
        return NAMES_AND_WORSE
    disturbed = st.permutations(honest).map(tuple)
    shorter = st.integers(0, len(honest)).map(lambda count: honest[:count])
    return st.one_of(disturbed, shorter, st.lists(inner[hint], max_size=6).map(tuple))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_well_formed_messages_with_wrong_contents_are_refused_or_harmless(kind):
    honest, give = situation(kind)
    hints = get_type_hints(kind)

    @given(st.data())
    @PROFILE
    def check(draw):
        names = draw.draw(st.lists(st.sampled_from([item.name for item in fields(kind)]), min_size=1, max_size=3))
        changes = {name: draw.draw(values_of(hints[name], getattr(honest, name))) for name in names}
        refused_or_accepted(give, wire.encode(replace(honest, **changes)), kind)

    check()
