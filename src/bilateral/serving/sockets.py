"""The three parties as processes of one machine: a server that listens on the loopback, clients and a dealer that come.

A visitor says who it is, with the token of its kit. What travels is not encrypted but for boxes: this is for one
machine, or for the two ends of an encrypted tunnel (`ssh -L`).
"""

from __future__ import annotations

import hmac
import select
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Event, Lock, Thread

from bilateral.engine.remote.loopback import HOST, Connection, LostConnectionError, connect, read_hello
from bilateral.errors import BilateralError, DeploymentError, MalformedMessageError, ProtocolError
from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER
from bilateral.randomness import Randomness
from bilateral.serving.asking import AskingSession
from bilateral.serving.dealer import AnswerDealer
from bilateral.serving.folder import Kit, ServingFolder
from bilateral.serving.messages import FROM_DEALER, NOT_DONE, TO_ASKING, TO_DEALER, TO_SERVER, Refused
from bilateral.serving.server import AnswerServer

_LOOK_SECONDS = 0.2


class DealerLine:
    """The server's way to its dealer, who may come late, go, and come again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._connection: Connection | None = None
        self._lock = Lock()

    @property
    def is_there(self) -> bool:
        return self._connection is not None

    def take(self, connection: Connection) -> bool:
        """False if a dealer is there already, who stays."""
        with self._lock:
            if self._connection is not None:
                # a dealer speaks when it is asked: what can be read between questions is the end of its connection
                if not select.select([self._connection], [], [], 0)[0]:
                    return False
                self._connection.close()
            self._connection = connection
            return True

    def tell(self, message: Message) -> Message:
        with self._lock:
            if self._connection is None:
                raise ProtocolError(f"{self.name}, who deals, is not there.", remedy="Start `bilateral deal` there.")
            try:
                self._connection.send(message)
                return self._connection.receive()
            except (LostConnectionError, MalformedMessageError) as error:
                self.close()
                raise ProtocolError(
                    f"{self.name}, who deals, is gone: {error}", remedy="Start `bilateral deal` there again."
                ) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Reception:
    """Where clients and the dealer come in: `serve` until `stop` is set."""

    def __init__(self, folder: ServingFolder, port: int, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        try:
            self._listener = socket.create_server((HOST, port or folder.port))
        except OSError as error:
            raise DeploymentError(
                f"Nobody can listen at port {port or folder.port}: {error.strerror}.",
                remedy="Stop the other `bilateral serve`, or choose another --port (and hand out the kits again).",
            ) from error
        folder.listen_at(self._listener.getsockname()[1])
        self.dealer = DealerLine(folder.dealer)
        self.stop = Event()

    def serve(self, server: AnswerServer, look: Callable[[], None] = lambda: None) -> None:
        """`look` is called every so often."""
        self._listener.settimeout(_LOOK_SECONDS)
        with closing(self._listener), closing(self.dealer):
            while not self.stop.is_set():
                look()
                with suppress(TimeoutError):
                    sock, _ = self._listener.accept()
                    Thread(target=self._receive, args=(server, sock), daemon=True).start()

    def _receive(self, server: AnswerServer, sock: socket.socket) -> None:
        hello = read_hello(sock)
        token = None if hello is None else self._folder.tokens.get(hello.party)
        if hello is None or token is None or not hmac.compare_digest(hello.token, token):
            self._say("A visitor without a kit of this service was turned away.")
            sock.close()
        elif hello.party == self._folder.dealer:
            connection = Connection(sock, hello.party, FROM_DEALER)
            connection.max_frame_bytes = server.most_bytes
            if self.dealer.take(connection):
                self._say(f"{hello.party} is there, to deal.")
            else:
                self._say(f"A second visitor with the kit of {hello.party} was turned away; the first one deals.")
                connection.close()
        else:
            with closing(Connection(sock, hello.party, TO_SERVER)) as connection:
                connection.max_frame_bytes = server.most_bytes
                self._answer(server, connection)

    def _answer(self, server: AnswerServer, connection: Connection) -> None:
        """One client, to its end."""
        try:
            session = server.session(connection.party)
        except BilateralError as error:
            with suppress(LostConnectionError):
                connection.send(Refused(NOT_DONE, str(error)))
            return
        try:
            while True:
                connection.send(session.handle(connection.receive()))
        except LostConnectionError:
            pass
        except MalformedMessageError as error:
            self._say(f"{connection.party} is sent away: {error}")
        finally:
            with suppress(BilateralError):
                session.close()


class Line:
    """A client's way to the server, for as long as it asks."""

    def __init__(self, kit: Kit) -> None:
        self._connection = _connected(kit, TO_ASKING)

    def tell(self, message: Message) -> Message:
        try:
            self._connection.send(message)
            return self._connection.receive()
        except LostConnectionError as error:
            raise _gone() from error

    def close(self) -> None:
        self._connection.close()


def session_of(kit: Kit, line: Line, randomness: Randomness) -> AskingSession:
    """A client's, not opened yet."""
    return AskingSession(kit.name, kit.keys, kit.dealer, kit.pinned_keys, randomness, line.tell)


def deal_for(kit: Kit, randomness: Randomness, on_dealt: Callable[[int], None] = lambda _: None) -> None:
    """A dealer's work, until the server is gone. `on_dealt` hears for how many questions it has dealt so far."""
    dealer = AnswerDealer(kit.name, kit.keys, kit.pinned_keys, randomness)
    with closing(_connected(kit, TO_DEALER)) as connection:
        try:
            while True:
                connection.send(dealer.handle(connection.receive()))
                on_dealt(dealer.num_dealt)
        except LostConnectionError:
            return


def _connected(kit: Kit, types: tuple[type[Message], ...]) -> Connection:
    try:
        return connect(kit.port, bytes.fromhex(kit.token), kit.name, SERVER, types)
    except (OSError, OverflowError) as error:
        raise DeploymentError(
            f"No server answers at {HOST}:{kit.port}.", remedy="Start `bilateral serve` there first."
        ) from error


def _gone() -> DeploymentError:
    return DeploymentError(
        "The server is gone, or turned this kit away.",
        remedy="See what `bilateral serve` says, and go on with `bilateral ask --resume`; what was asked is counted.",
    )
