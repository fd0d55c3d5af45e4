"""Frames, the gate and the switchboard of processes of one machine, with parties as threads of this process."""

import socket
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bilateral.engine.remote.loopback import HOST, TOKEN_BYTES, UNASKED, Connection, Gate, LostConnectionError, connect
from bilateral.errors import MalformedMessageError, ProtocolError
from bilateral.protocols import wire
from bilateral.protocols.messages import Message

SECONDS = 900
"""A test that waits longer than this has stopped for good."""


@dataclass(frozen=True)
class Note(Message):
    number: int
    raw: bytes
    words: tuple[Tensor, ...]


def note(number, *sizes):
    return Note(number, b"x" * number, tuple(torch.arange(size) * 3 - number for size in sizes))


def same(left, right):
    return wire.encode(left) == wire.encode(right)


@contextmanager
def parties(**answer):
    """A switchboard, and a thread a party that answers every note with `answer[party](note)`."""
    gate = Gate()

    def live(party):
        with closing(connect(gate.port, gate.token, party, "server", (Note,))) as connection:
            try:
                while True:
                    connection.send(answer[party](connection.receive()))
            except LostConnectionError:
                return

    threads = [threading.Thread(target=live, args=(party,), daemon=True) for party in answer]
    for thread in threads:
        thread.start()
    switchboard = gate.admit(dict.fromkeys(answer, (Note,)), lambda: None)
    gate.close()
    yield switchboard
    switchboard.close()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


def in_time(action):
    """What `action` returns; a failure, and no endless wait, if it does not return."""
    found = []
    thread = threading.Thread(target=lambda: found.append(action()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "still waiting"
    return found[0]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40_000), max_size=4), min_size=1, max_size=4))
def test_messages_arrive_as_they_were_sent_and_in_order(sizes):
    listener = socket.create_server((HOST, 0))
    near = Connection(socket.create_connection(listener.getsockname()), "far", (Note,))
    far = Connection(listener.accept()[0], "near", (Note,))
    sent = [note(number, *each) for number, each in enumerate(sizes)]
    with closing(listener), closing(near), closing(far):
        writer = threading.Thread(target=lambda: [near.send(message) for message in sent])
        writer.start()
        received = in_time(lambda: [far.receive() for _ in sent])
        writer.join()
    assert all(same(left, right) for left, right in zip(sent, received, strict=True))
    assert near.bytes_sent == far.bytes_received == sum(8 + len(wire.encode(message)) for message in sent)


def test_many_large_requests_and_replies_do_not_block_each_other():
    """A party that is writing a reply does not read; a server that only wrote would wait for it forever."""
    large = 3 << 20
    with parties(q=lambda m: note(m.number + 100, large), a=lambda m: note(m.number + 200, large)) as board:

        def pipeline():
            for ticket in range(6):
                board.submit(ticket, "qa"[ticket % 2], note(ticket, large))
            return dict(board.next_reply() for _ in range(6))

        replies = in_time(pipeline)
    assert {ticket: reply.number for ticket, reply in replies.items()} == {
        ticket: ticket + 100 * (1 + ticket % 2) for ticket in range(6)
    }


def test_parties_work_at_the_same_time():
    meeting = threading.Barrier(2, timeout=SECONDS)  # broken if one party is only asked after the other has answered

    def answer(message):
        meeting.wait()
        return message

    with parties(q=answer, a=answer) as board:
        board.submit(0, "q", note(1))
        board.submit(1, "a", note(2))
        replies = in_time(lambda: dict(board.next_reply() for _ in range(2)))
    assert (replies[0].number, replies[1].number) == (1, 2)
    assert board.waited_seconds > 0


@dataclass(frozen=True)
class Remark(Message):
    number: int


def test_what_nobody_asked_for_comes_between_answers_and_takes_no_ticket():
    gate = Gate()

    def live():
        with closing(connect(gate.port, gate.token, "q", "server", (Note, Remark))) as connection:
            asked = connection.receive()
            for number in range(3):
                connection.send(Remark(number))
            heard = connection.receive()
            connection.send(Remark(heard.number))
            connection.send(note(asked.number + 1))

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    board = gate.admit({"q": (Note, Remark)}, lambda: None, (Remark,))
    gate.close()
    with closing(board):
        board.submit(5, "q", note(1))
        found = [in_time(board.next_reply) for _ in range(3)]
        board.say("q", Remark(9))
        found += [in_time(board.next_reply) for _ in range(2)]
    thread.join(SECONDS)
    assert [(ticket, message.number) for ticket, message in found] == [
        (UNASKED, 0), (UNASKED, 1), (UNASKED, 2), (UNASKED, 9), (5, 2),
    ]  # fmt: skip


def test_whoever_answers_first_is_heard_first():
    release = threading.Event()

    def late(message):
        assert release.wait(SECONDS)
        return message

    with parties(q=late, a=lambda m: m) as board:
        board.submit(0, "q", note(1))
        board.submit(1, "a", note(2))
        first, _ = in_time(board.next_reply)
        release.set()
        second, _ = in_time(board.next_reply)
    assert (first, second) == (1, 0)


def test_waiting_for_nobody_is_an_error():
    with parties(q=lambda m: m) as board, pytest.raises(ProtocolError, match="nobody"):
        board.next_reply()


@pytest.mark.parametrize("opening", [b"", b"GET / HTTP/1.1\r\n\r\n", (1 << 40).to_bytes(8, "little"), bytes(8)])
def test_strangers_are_turned_away_and_parties_come_in(opening):
    with closing(Gate()) as gate:
        stranger = socket.create_connection((HOST, gate.port))
        stranger.sendall(opening)
        stranger.shutdown(socket.SHUT_WR)
        thief = connect(gate.port, bytes(TOKEN_BYTES), "q", "server", ())
        unknown = connect(gate.port, gate.token, "z", "server", ())
        with closing(connect(gate.port, gate.token, "q", "server", ())) as party:
            board = in_time(lambda: gate.admit({"q": (Note,)}, lambda: None))
            board.submit(0, "q", note(7))
            party.types = (Note,)
            assert in_time(party.receive).number == 7
            for other in (thief, unknown):
                with pytest.raises(LostConnectionError):
                    read_once(other)
            board.close()
        stranger.close()


def read_once(connection):
    connection.wait()
    connection.read_some()


def test_a_check_that_fails_ends_the_waiting():
    def check():
        raise RuntimeError("they are all dead")

    with closing(Gate()) as gate, pytest.raises(RuntimeError, match="all dead"):
        gate.admit({"q": (Note,)}, check)


def test_a_lost_connection_names_the_party():
    def leave(message):
        raise LostConnectionError("server")

    with parties(q=leave) as board:
        board.submit(0, "q", note(1))
        with pytest.raises(LostConnectionError) as lost:
            board.next_reply()
    assert lost.value.party == "q"


@pytest.mark.parametrize("length", [0, 1 << 40])
def test_a_frame_of_an_impossible_length_is_refused_by_name(length):
    listener = socket.create_server((HOST, 0))
    raw = socket.create_connection(listener.getsockname())
    connection = Connection(listener.accept()[0], "q", (Note,))
    listener.close()
    with closing(raw), closing(connection):
        raw.sendall(length.to_bytes(8, "little"))
        with pytest.raises(MalformedMessageError, match=f"from q, got {length}"):
            connection.receive()


def test_what_a_party_may_not_say_is_refused():
    @dataclass(frozen=True)
    class Other(Message):
        pass

    with parties(q=lambda m: Other()) as board:
        board.submit(0, "q", note(1))
        with pytest.raises(MalformedMessageError, match="from q"):
            board.next_reply()
