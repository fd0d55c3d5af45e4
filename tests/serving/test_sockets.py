"""The three parties on the loopback: threads of this process, with sockets between them."""

import socket
import threading
from contextlib import closing, contextmanager

import pytest
from tests.serving.harness import NET, inputs, served

from bilateral.engine.remote.loopback import HOST, LostConnectionError, connect
from bilateral.errors import DeploymentError, ProtocolError
from bilateral.protocols.share.serving.terms import REVEALS
from bilateral.randomness import SecureRandomness
from bilateral.serving.folder import Kit, ServingFolder
from bilateral.serving.server import AnswerServer, Conditions
from bilateral.serving.sockets import Line, Reception, deal_for, session_of

SECONDS = 900


@contextmanager
def service(tmp_path, *, limit=30, deals=True):
    randomness, said = SecureRandomness(), []
    folder = ServingFolder(tmp_path, "auditor", ("anna", "carol"), randomness)
    reception = Reception(folder, 0, said.append)
    reception.said = said
    server = AnswerServer(
        served(), Conditions(limit), "auditor", reception.dealer.tell, folder.counters(), folder.pinned, randomness
    )
    threads = [threading.Thread(target=reception.serve, args=(server,), daemon=True)]
    threads[0].start()
    if deals:
        threads.append(threading.Thread(target=deal, args=(folder,), daemon=True))
        threads[1].start()
        wait_for(lambda: reception.dealer.is_there)
    yield folder, reception
    reception.stop.set()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


def deal(folder):
    deal_for(Kit.read(folder.kit("auditor")), SecureRandomness())


def wait_for(holds):
    pause = threading.Event()
    for _ in range(SECONDS * 100):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError("waited in vain")


@contextmanager
def asking(folder, name="anna", **changes):
    kit = Kit.read(folder.kit(name))
    kit = Kit(**{**{key: getattr(kit, key) for key in Kit.__dataclass_fields__}, **changes})
    with closing(Line(kit)) as line:
        yield session_of(kit, line, SecureRandomness())


def test_two_clients_ask_side_by_side(tmp_path):
    with service(tmp_path) as (folder, _), asking(folder) as anna, asking(folder, "carol") as carol:
        wanted = NET(inputs(6)).detach()
        anna.open(), carol.open()
        for reveal in REVEALS:
            for session in (anna, carol):
                found = session.ask(inputs(6), reveal)
                assert found.shape == ((6, 3) if reveal == "logits" else (6,))
        assert float((anna.ask(inputs(6), "logits") - wanted).abs().max()) < 2.0**-14
        assert {name: counter.used for name, counter in folder.counters().items()} == {"anna": 18, "carol": 12}


def test_a_client_that_hangs_up_in_the_middle_has_spent_its_question_and_may_come_again(tmp_path):
    with service(tmp_path) as (folder, _):
        with asking(folder) as anna:
            anna.open()
            anna.ask(inputs(2), "class")
        with asking(folder) as anna:
            assert anna.open().used == 2
            assert anna.ask(inputs(1), "class").shape == (1,)


def test_without_a_dealer_nobody_is_answered_and_it_may_come_late(tmp_path):
    with service(tmp_path, deals=False) as (folder, reception):
        with asking(folder) as anna, pytest.raises(ProtocolError, match="auditor, who deals, is not there"):
            anna.open()
        thread = threading.Thread(target=deal, args=(folder,), daemon=True)
        thread.start()
        wait_for(lambda: reception.dealer.is_there)
        with asking(folder) as anna:
            anna.open()
            assert anna.ask(inputs(1), "class").shape == (1,)
        reception.stop.set()
        thread.join(SECONDS)


def test_a_visitor_without_the_token_is_turned_away(tmp_path):
    with service(tmp_path) as (folder, _):
        with asking(folder, token="00" * 32) as stranger, pytest.raises(DeploymentError, match="turned this kit away"):
            stranger.open()
        with asking(folder, name="anna") as anna:
            anna.open()


def test_a_visitor_who_sends_rubbish_harms_nobody(tmp_path):
    with service(tmp_path) as (folder, _):
        for rubbish in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(8), b"\xff" * 64):
            with socket.create_connection((HOST, folder.port)) as visitor:
                visitor.sendall(rubbish)
        with asking(folder) as anna:
            anna.open()
            assert anna.ask(inputs(1), "class").shape == (1,)


def test_a_frame_that_no_question_needs_is_refused_before_there_is_memory_for_it(tmp_path):
    with service(tmp_path) as (folder, reception), asking(folder) as anna:
        kit = Kit.read(folder.kit("carol"))
        with closing(connect(kit.port, bytes.fromhex(kit.token), "carol", "server", ())) as carol:
            carol._socket.setblocking(True)
            carol._socket.sendall((1 << 30).to_bytes(8, "little"))
            with pytest.raises(LostConnectionError):
                carol.receive()
        assert any("carol is sent away: Expected a frame of 1 to" in text for text in reception.said)
        anna.open()
        assert anna.ask(inputs(1), "class").shape == (1,)


def test_a_second_dealer_is_refused_and_the_first_stays(tmp_path):
    with service(tmp_path) as (folder, reception), asking(folder) as anna:
        anna.open()
        deal(folder)  # returns at once: it is turned away
        assert any("A second visitor with the kit of auditor was turned away" in text for text in reception.said)
        assert anna.ask(inputs(1), "class").shape == (1,)


def test_a_dealer_that_went_is_followed_by_the_next(tmp_path):
    with service(tmp_path, deals=False) as (folder, reception):
        kit = Kit.read(folder.kit("auditor"))
        connect(kit.port, bytes.fromhex(kit.token), "auditor", "server", ()).close()
        wait_for(lambda: reception.dealer.is_there)
        thread = threading.Thread(target=deal, args=(folder,), daemon=True)
        thread.start()
        wait_for(lambda: sum("is there, to deal" in text for text in reception.said) == 2)
        with asking(folder) as anna:
            anna.open()
            assert anna.ask(inputs(1), "class").shape == (1,)
        reception.stop.set()
        thread.join(SECONDS)


def test_where_no_server_listens_the_error_says_what_to_start(tmp_path):
    folder = ServingFolder(tmp_path, "auditor", ("anna",), SecureRandomness())
    with socket.create_server((HOST, 0)) as taken:
        folder.listen_at(taken.getsockname()[1])
        with pytest.raises(DeploymentError, match="another --port"):
            Reception(folder, 0, print)
    with pytest.raises(DeploymentError, match="Start `bilateral serve` there first"), asking(folder) as anna:
        anna.open()
