"""Three processes that predict together: this one is the server, the two clients are started and ended here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, TypeVar

import torch
from torch import Tensor

from bilateral.bench.prediction_party import (
    ANSWERING,
    MAY_SAY,
    QUERYING,
    Answer,
    AnswerRequest,
    CostRequest,
    Costs,
    Heard,
    IdentityKey,
    IdentityRequest,
    Introduction,
    Network,
    Queries,
    QueriesToCome,
    Setup,
    fresh_store,
    peak_memory_bytes,
)
from bilateral.engine.remote.loopback import Gate, LostConnectionError, Switchboard
from bilateral.errors import DeploymentError
from bilateral.protocols.mask.keys import RUN_ID_BYTES, Identity, KeyDirectory, KeyRing
from bilateral.protocols.mask.messages import KeyAnnouncement
from bilateral.protocols.messages import Message
from bilateral.protocols.share.gates.styles import STYLES
from bilateral.protocols.share.prediction.helping import HelpingSession
from bilateral.protocols.share.prediction.messages import PHASES, Phase, phase_of
from bilateral.protocols.share.prediction.parties import PredictionServer
from bilateral.protocols.transport import SERVER, Traffic
from bilateral.randomness import SecureRandomness

CLIENTS: Final = (QUERYING, ANSWERING)
PARTIES: Final = (*CLIENTS, SERVER)
_ERROR_LINES: Final = 12
_ENDING_SECONDS: Final = 3.0
_PROGRAM: Final = "from bilateral.bench.prediction_party import main; main()"
_KEEP_FREED_MEMORY: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
"""What the command line does for its own process (`cli.memory`), said to glibc in the environment."""
_M = TypeVar("_M", bound=Message)


@dataclass
class PartyCost:
    """What one party spent: seconds on a core, seconds at work by the clock, and bytes at its sockets."""

    cpu_seconds: float = 0.0
    busy_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass
class PhaseCost:
    """One phase by the clock, and each party's part in it."""

    seconds: float = 0.0
    rounds: int = 0
    parties: dict[str, PartyCost] = field(default_factory=lambda: {party: PartyCost() for party in PARTIES})


@dataclass(frozen=True)
class BatchCost:
    """One batch in a fresh session. `peak_memory_bytes`: of every party's process, so far."""

    logits: Tensor
    phases: Mapping[Phase, PhaseCost]
    peak_memory_bytes: Mapping[str, int]


@dataclass(frozen=True)
class _Reading:
    """The server's clocks and counters at one time; bytes sent to and received from every client."""

    seconds: float
    cpu_seconds: float
    waited_seconds: float
    num_bytes: Mapping[str, tuple[int, int]]


class MeteredTransport:
    """The server's transport, with a meter: a phase lasts from its first message to the first of the next phase."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self.begin()

    def begin(self) -> None:
        self._costs: dict[Phase, PhaseCost] = {phase: PhaseCost() for phase in PHASES}
        self._phase, self._last = PHASES[0], self._read()

    def end(self) -> dict[Phase, PhaseCost]:
        """What was spent since `begin`, by the server, and by the clients as far as the server can see it."""
        self._charge()
        found = self._costs
        self.begin()  # what comes now is charged elsewhere
        return found

    def submit(self, ticket: int, party: str, message: Message) -> None:
        phase = phase_of(message)
        if phase != self._phase:
            self._charge()
            self._phase = phase
        self._switchboard.submit(ticket, party, message)

    def next_reply(self) -> tuple[int, Message]:
        return self._switchboard.next_reply()

    def forget(self) -> None:
        """Nothing to do: a run that fails here ends the benchmark, and replies of another run are ignored."""

    def _charge(self) -> None:
        """All that was spent since the last reading, to the phase that ends here."""
        before, now, cost = self._last, self._read(), self._costs[self._phase]
        elapsed, waited = now.seconds - before.seconds, now.waited_seconds - before.waited_seconds
        server = cost.parties[SERVER]
        cost.seconds += elapsed
        server.cpu_seconds += now.cpu_seconds - before.cpu_seconds
        server.busy_seconds += elapsed - waited
        for party, (sent, received) in now.num_bytes.items():  # whatever travels, travels to the server or from it
            down, up = sent - before.num_bytes[party][0], received - before.num_bytes[party][1]
            server.bytes_sent += down
            server.bytes_received += up
            cost.parties[party].bytes_received += down
            cost.parties[party].bytes_sent += up
        self._last = now

    def _read(self) -> _Reading:
        counted = {party: (c.bytes_sent, c.bytes_received) for party, c in self._switchboard.connections.items()}
        return _Reading(time.perf_counter(), time.process_time(), self._switchboard.waited_seconds, counted)


class ThreeParties:
    """The server with two clients that have agreed on keys. Made by `three_parties`."""

    def __init__(self, switchboard: Switchboard, style: str, threads: int, folder: str = "") -> None:
        """`folder`: for what is dealt ahead (`predict_ahead`)."""
        self._switchboard = switchboard
        self._transport = MeteredTransport(switchboard)
        folders = {party: str(Path(folder) / party) if folder else "" for party in PARTIES}
        self._server = PredictionServer(
            self._agree(style, threads, folders),
            self._transport,
            style=STYLES[style],
            store=fresh_store(folders[SERVER], SERVER),
        )

    def _agree(self, style: str, threads: int, folders: Mapping[str, str]) -> KeyRing:
        """Key agreement over the connections. The bench vouches for the identities."""
        randomness = SecureRandomness()
        identity = Identity.generate(randomness)
        known = {party: self._tell(party, IdentityRequest(), IdentityKey).identity_key for party in CLIENTS}
        known[SERVER] = identity.public_bytes
        run_id = randomness.random_bytes(RUN_ID_BYTES)
        keys = KeyRing(SERVER, run_id, identity, known, randomness)
        directory = KeyDirectory(run_id, PARTIES, known, min_clients=len(PARTIES))
        directory.register(SERVER, keys.announce())
        for party in CLIENTS:
            setup = Setup(run_id, tuple(known), tuple(known.values()), style, threads, folders[party])
            directory.register(party, self._tell(party, setup, KeyAnnouncement))
        roster = directory.roster()
        keys.accept(roster)
        for party in CLIENTS:
            self._tell(party, roster, Heard)
        return keys

    def offer(self, network: Network) -> None:
        """The answering party makes this network and answers with it from now on."""
        self._tell(ANSWERING, network, Heard)

    def predict(self, queries: Tensor) -> BatchCost:
        """One batch in a fresh session, from its opening to the logits at the querying party."""
        self._tell(QUERYING, Queries(queries), Heard)
        self._ask_costs()  # of what was before, such as the end of the last session: not counted
        self._server.traffic = Traffic()
        self._transport.begin()
        sessions = self._server.open_sessions(QUERYING, [ANSWERING])
        self._server.predict(sessions, len(queries))
        return self._batch_cost(sessions)

    def predict_ahead(self, queries: Tensor) -> BatchCost:
        """The same, but everything that needs no query was dealt before, and lies in the stores: what is left then."""
        self._tell(QUERYING, QueriesToCome(len(queries)), Heard)
        sessions = self._server.open_sessions(QUERYING, [ANSWERING])
        self._server.deal_ahead(sessions, len(queries))
        self._tell(QUERYING, Queries(queries), Heard)
        self._ask_costs()
        self._server.traffic = Traffic()
        self._transport.begin()
        self._server.answer_ahead(sessions, len(queries))
        return self._batch_cost(sessions)

    def _batch_cost(self, sessions: Sequence[HelpingSession]) -> BatchCost:
        phases = self._transport.end()
        costs = self._ask_costs()
        for index, (phase, cost) in enumerate(phases.items()):
            cost.rounds = self._server.traffic.rounds[phase]
            for party, found in costs.items():
                cost.parties[party].cpu_seconds, cost.parties[party].busy_seconds = found.seconds[index].tolist()
        logits = self._tell(QUERYING, AnswerRequest(), Answer).logits
        self._server.close(sessions)
        peaks = {party: found.peak_memory_bytes for party, found in costs.items()}
        return BatchCost(logits, phases, {**peaks, SERVER: peak_memory_bytes()})

    def _ask_costs(self) -> dict[str, Costs]:
        return {party: self._tell(party, CostRequest(), Costs) for party in CLIENTS}

    def _tell(self, party: str, order: Message, kind: type[_M]) -> _M:
        """An order of the bench, which is not part of the protocol and not counted."""
        self._switchboard.submit(0, party, order)
        _, reply = self._switchboard.next_reply()
        if not isinstance(reply, kind):
            raise DeploymentError(f"Expected {kind.__name__} from the {party} party, got {type(reply).__name__}.")
        return reply


@dataclass(frozen=True)
class _Client:
    process: subprocess.Popen[str]
    errors: IO[str]

    def last_words(self) -> str:
        self.errors.seek(0)
        return "\n".join(self.errors.read().splitlines()[-_ERROR_LINES:])

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.errors.close()


@contextmanager
def three_parties(style: str, threads: int, folder: str = "") -> Iterator[ThreeParties]:
    """Start the clients, and end them whatever happens. A client that dies is an error with what it wrote.

    `folder`: where they keep what is dealt ahead.
    """
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    gate = Gate()
    clients: dict[str, _Client] = {}
    switchboard = Switchboard({})
    try:
        for party in CLIENTS:
            clients[party] = _start(Introduction(party, gate.port, gate.token.hex()))
        switchboard = gate.admit({party: MAY_SAY[party] for party in CLIENTS}, lambda: _expect_alive(clients))
        yield ThreeParties(switchboard, style, threads, folder)
    except LostConnectionError as error:
        raise _failure(error.party, clients[error.party]) from error
    finally:
        gate.close()
        switchboard.close()
        for client in clients.values():
            client.end()
        torch.set_num_threads(torch_threads)


def _start(told: Introduction) -> _Client:
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the client)
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=errors,
        stderr=errors,
        text=True,
        env={**_KEEP_FREED_MEMORY, **os.environ},
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(told.to_line())
    return _Client(process, errors)


def _expect_alive(clients: Mapping[str, _Client]) -> None:
    for party, client in clients.items():
        if client.process.poll() is not None:
            raise _failure(party, client)


def _failure(party: str, client: _Client) -> DeploymentError:
    try:
        code: int | str = client.process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        code = "none yet"
    return DeploymentError(
        f"The {party} party ended in the middle (exit code {code}). It wrote:\n{client.last_words()}",
        remedy="\nIf it wrote nothing, the system may have ended it: look at the free memory.",
    )
