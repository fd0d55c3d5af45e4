"""What the peers' scripts count and collect: bytes that came in by TCP, and one answer of every party."""

from __future__ import annotations

import multiprocessing
import socket

import numpy as np
import pytest

from prediction_task import Observation, Task, answer, collect, received_bytes


@pytest.mark.parametrize("num_bytes", [1, 1000, 3_000_000])
def test_received_bytes_counts_every_byte_once(num_bytes):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            before = received_bytes()
            left = num_bytes
            while left:  # both ends are in this process, so send no more than the buffers take
                sent = min(left, 10_000)
                sender.sendall(b"x" * sent)
                assert len(receiver.recv(sent, socket.MSG_WAITALL)) == sent
                left -= sent
            assert received_bytes() - before == num_bytes


def test_pipes_between_processes_of_one_party_are_no_traffic():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = received_bytes()
        ours.sendall(b"x" * 1000)
        theirs.recv(1000, socket.MSG_WAITALL)
        assert received_bytes() == before


def test_a_batch_takes_as_long_as_its_slowest_party_and_the_traffic_is_of_all():
    task = Task((), {}, np.zeros((4, 1), np.float32), np.zeros((4, 2), np.float32))
    logits = np.full((4, 2), -0.5, np.float32)
    parties = [
        Observation((1.0, 6.0, 3.0), 8_000_000, 10**9, logits, 7),
        Observation((2.0, 4.0, 9.0), 4_000_000, 10**9, logits, 7),
    ]
    found = answer("some", "vgg-7", task, parties)
    assert found["seconds"] == [2.0, 6.0, 9.0]
    assert found["seconds_per_prediction"] == 6.0 / 4
    assert found["megabytes_per_prediction"] == 12 / 4
    assert (found["parties"], found["batch_size"], found["rounds"]) == (2, 4, 7)
    assert found["max_logit_error"] == 0.5


def test_answers_are_in_the_order_of_the_parties_whoever_is_first():
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(3)]
    for rank in (2, 0, 1):
        pipes[rank][1].send(f"party {rank}")
    assert collect([receiver for receiver, _ in pipes], "some") == ["party 0", "party 1", "party 2"]


def test_a_party_that_ends_without_an_answer_ends_the_wait_for_all():
    (silent, _kept_open), (dead, closed) = multiprocessing.Pipe(duplex=False), multiprocessing.Pipe(duplex=False)
    closed.close()
    with pytest.raises(SystemExit, match="Party 1 of some ended without an answer"):
        collect([silent, dead], "some")
