"""Lines to sites: in order, each once, and a site that is gone is noticed."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.engine.remote.exchange import REFUSED, REPLY, SiteSilentError
from bilateral.engine.remote.hetero_messages import GetReady, QueriesReady
from bilateral.engine.remote.hetero_transport import (
    MAX_MESSAGES,
    SiteLines,
    SiteLostError,
    SiteRefusedError,
    read_replies,
)
from bilateral.errors import ProtocolError
from bilateral.protocols.wire import decode, encode

SITES = ("a", "b", "c")


class Echo:
    """Sites that answer `GetReady(n)` with `QueriesReady(n)`, and write down what came."""

    def __init__(self, delay=0.0):
        self.delay = delay
        self.packets = {site: [] for site in SITES}

    def __call__(self, site, number, packet, timeout):
        time.sleep(self.delay)
        values = [decode(data, [GetReady], "server").iteration for data in packet]
        self.packets[site].append((number, values))
        return {REPLY: [encode(QueriesReady(value)) for value in values]}


def alive(site):
    return True


@settings(max_examples=30, deadline=None)
@given(parties=st.lists(st.sampled_from(SITES), max_size=80), delay=st.sampled_from([0.0, 0.001]))
def test_messages_to_a_site_arrive_in_order_each_once_and_every_ticket_has_its_reply(parties, delay):
    echo = Echo(delay)
    lines = SiteLines(SITES, echo, alive)
    for ticket, party in enumerate(parties):
        lines.submit(ticket, party, GetReady(ticket))
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
    echo = Echo(delay=0.2)
    lines = SiteLines(SITES, echo, alive)
    for ticket in range(MAX_MESSAGES + 1):
        lines.submit(ticket, "a", GetReady(ticket))
    for _ in range(MAX_MESSAGES + 1):
        lines.next_reply()
    lines.close()
    assert len(echo.packets["a"]) <= 3


def test_all_sites_work_at_the_same_time():
    together = threading.Barrier(3, timeout=10)

    def call(site, number, packet, timeout):
        together.wait()  # passes only if all three are here
        return {REPLY: [encode(QueriesReady(1))]}

    lines = SiteLines(SITES, call, alive)
    found = dict(lines.ask(dict.fromkeys(SITES, GetReady(1))))
    lines.close()
    assert set(found) == set(SITES)


def test_a_site_that_hangs_is_lost_after_two_pings_without_an_answer_and_a_slow_one_is_waited_for():
    release, pings = threading.Event(), []

    def call(site, number, packet, timeout):
        release.wait(10) if site == "b" else time.sleep(0.3)
        return {REPLY: [encode(QueriesReady(1))]}

    def ping(site):
        pings.append(site)
        return None if site == "b" else False

    lines = SiteLines(SITES, call, ping, ping_after=0.05)
    assert dict(lines.ask({"a": GetReady(1)})) == {"a": QueriesReady(1)}
    assert pings.count("a") > 2
    with pytest.raises(SiteLostError, match="no sign of life") as caught:
        list(lines.ask({"b": GetReady(1)}))
    release.set()
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

    lines = SiteLines(SITES, call, alive)
    with pytest.raises(kind, match=words) as caught:
        list(lines.ask({"a": GetReady(1)}))
    lines.close()
    assert caught.value.site == "a"


def test_what_was_forgotten_is_not_delivered_and_late_replies_are_not_taken_for_others():
    began, release, arrived = threading.Event(), threading.Event(), []

    def call(site, number, packet, timeout):
        began.set()
        release.wait(10)
        arrived.extend(decode(data, [GetReady], "server").iteration for data in packet)
        return {REPLY: [encode(QueriesReady(arrived[-1])) for _ in packet]}

    lines = SiteLines(SITES, call, alive)
    lines.submit(0, "a", GetReady(1))
    assert began.wait(10)
    lines.submit(1, "a", GetReady(2))
    lines.forget()
    release.set()
    assert dict(lines.ask({"a": GetReady(3)})) == {"a": QueriesReady(3)}
    lines.close()
    assert arrived == [1, 3]


def test_threads_end_with_the_lines():
    before = threading.active_count()
    lines = SiteLines(SITES, Echo(), alive)
    assert threading.active_count() == before + 3
    lines.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


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
