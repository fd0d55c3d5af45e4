"""Lines to sites: in order, each once, and a site that is gone is noticed."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.engine.remote.edge import REFUSED, REPLY, SiteSilentError
from bilateral.engine.remote.lines import (
    MAX_MESSAGES,
    SiteLines,
    SiteLostError,
    SiteRefusedError,
    read_replies,
)
from bilateral.errors import ProtocolError
from bilateral.protocols.wire import decode, encode
from bilateral.runs.hetero.messages import REPLY_OF, GetReady, QueriesReady

SITES = ("a", "b", "c")
HANG = 900.0
"""Seconds after which a test that waits has stopped for good."""


class Echo:
    """Sites that answer `GetReady(n)` with `QueriesReady(n)` when `gate` is open, and write down what came."""

    def __init__(self, gate=None):
        self.gate = gate
        self.packets = {site: [] for site in SITES}

    def __call__(self, site, number, packet, timeout):
        assert self.gate is None or self.gate.wait(HANG)
        values = [decode(data, [GetReady], "server").iteration for data in packet]
        self.packets[site].append((number, values))
        return {REPLY: [encode(QueriesReady(value)) for value in values]}


def alive(site):
    return True


@settings(max_examples=30, deadline=None)
@given(parties=st.lists(st.sampled_from(SITES), max_size=80), opened_after=st.integers(0, 80))
def test_messages_to_a_site_arrive_in_order_each_once_and_every_ticket_has_its_reply(parties, opened_after):
    gate = threading.Event()
    echo = Echo(gate)
    lines = SiteLines(SITES, echo, alive, REPLY_OF)
    for ticket, party in enumerate(parties):
        lines.submit(ticket, party, GetReady(ticket))
        if ticket == opened_after:
            gate.set()
    gate.set()
    replies = dict(lines.next_reply() for _ in parties)
    lines.close()
    assert replies == {ticket: QueriesReady(ticket) for ticket in range(len(parties))}
    for site in SITES:
        numbers = [number for number, _ in echo.packets[site]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(1 <= len(values) <= MAX_MESSAGES for _, values in echo.packets[site])
        arrived = [value for _, values in echo.packets[site] for value in values]
        assert arrived == [ticket for ticket, party in enumerate(parties) if party == site]


def test_what_waits_goes_in_one_call():
    gate = threading.Event()
    echo = Echo(gate)
    lines = SiteLines(SITES, echo, alive, REPLY_OF)
    for ticket in range(MAX_MESSAGES + 1):
        lines.submit(ticket, "a", GetReady(ticket))
    gate.set()
    for _ in range(MAX_MESSAGES + 1):
        lines.next_reply()
    lines.close()
    assert len(echo.packets["a"]) == 2  # what the line took before the others were there, and all the rest


def test_all_sites_work_at_the_same_time():
    together = threading.Barrier(3, timeout=HANG)

    def call(site, number, packet, timeout):
        together.wait()  # passes only if all three are here
        return {REPLY: [encode(QueriesReady(1))]}

    lines = SiteLines(SITES, call, alive, REPLY_OF)
    found = dict(lines.ask(dict.fromkeys(SITES, GetReady(1))))
    lines.close()
    assert set(found) == set(SITES)


def test_a_site_that_hangs_is_lost_after_two_pings_without_an_answer_and_a_slow_one_is_waited_for():
    release, pings = {"a": threading.Event(), "b": threading.Event()}, []

    def call(site, number, packet, timeout):
        assert release[site].wait(HANG)
        return {REPLY: [encode(QueriesReady(1))]}

    def ping(site):
        pings.append(site)
        if pings.count("a") > 2:
            release["a"].set()  # slow, but there
        return None if site == "b" else False

    lines = SiteLines(SITES, call, ping, REPLY_OF, ping_after=0.05)
    assert dict(lines.ask({"a": GetReady(1)})) == {"a": QueriesReady(1)}
    assert pings.count("a") > 2
    with pytest.raises(SiteLostError, match="no sign of life") as caught:
        list(lines.ask({"b": GetReady(1)}))
    release["b"].set()
    lines.close()
    assert caught.value.site == "b"
    assert pings.count("b") == 2


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        (SiteSilentError("cut off"), SiteLostError, "cut off"),
        (RuntimeError("a bug"), SiteLostError, "the call failed: RuntimeError: a bug"),
        ({REFUSED: "no"}, SiteRefusedError, "a refused: no"),
        ({REPLY: [b"", b""]}, SiteRefusedError, "2 replies to 1 messages"),
        ({REPLY: [b"junk"]}, SiteRefusedError, "does not begin as a message does"),
    ],
)
def test_a_failed_call_is_told_to_whoever_waits_by_the_sites_name(behaviour, kind, words):
    def call(site, number, packet, timeout):
        if isinstance(behaviour, Exception):
            raise behaviour
        return behaviour

    lines = SiteLines(SITES, call, alive, REPLY_OF)
    with pytest.raises(kind, match=words) as caught:
        list(lines.ask({"a": GetReady(1)}))
    lines.close()
    assert caught.value.site == "a"


def test_what_was_forgotten_is_not_delivered_and_late_replies_are_not_taken_for_others():
    began, release, arrived = threading.Event(), threading.Event(), []

    def call(site, number, packet, timeout):
        began.set()
        assert release.wait(HANG)
        arrived.extend(decode(data, [GetReady], "server").iteration for data in packet)
        return {REPLY: [encode(QueriesReady(arrived[-1])) for _ in packet]}

    lines = SiteLines(SITES, call, alive, REPLY_OF)
    lines.submit(0, "a", GetReady(1))
    assert began.wait(HANG)
    lines.submit(1, "a", GetReady(2))
    lines.forget()
    release.set()
    assert dict(lines.ask({"a": GetReady(3)})) == {"a": QueriesReady(3)}
    lines.close()
    assert arrived == [1, 3]


def test_threads_end_with_the_lines():
    sites = ("only", "of this", "test")  # lines of other tests may end in the meantime
    lines = SiteLines(sites, Echo(), alive, REPLY_OF)
    threads = [thread for thread in threading.enumerate() if thread.name in {f"line-{site}" for site in sites}]
    assert len(threads) == len(sites)
    lines.close()
    for thread in threads:
        thread.join(HANG)
    assert not any(thread.is_alive() for thread in threads)


@settings(max_examples=60, deadline=None)
@given(
    answer=st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=5), st.binary(max_size=30)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=2), st.dictionaries(st.sampled_from([REPLY, "x"]), inner, max_size=2)
        ),
        max_leaves=6,
    )
)
def test_no_answer_of_another_form_is_read(answer):
    with pytest.raises(ProtocolError, match="a "):
        read_replies(answer, "a ", [GetReady])
