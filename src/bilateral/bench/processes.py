"""Parties in processes of their own: started and ended here; this process is the server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Final, TypeVar

import torch

from bilateral.bench.party import CostRequest, Costs, Heard, IdentityKey, IdentityRequest, Introduction, Setup
from bilateral.engine.remote.loopback import Gate, LostConnectionError, Switchboard
from bilateral.errors import DeploymentError
from bilateral.protocols.mask.keys import RUN_ID_BYTES, Identity, KeyDirectory, KeyRing
from bilateral.protocols.mask.messages import KeyAnnouncement
from bilateral.protocols.messages import Message
from bilateral.protocols.transport import SERVER
from bilateral.randomness import SecureRandomness

_ERROR_LINES: Final = 12
_ENDING_SECONDS: Final = 3.0
_PROGRAM: Final = "from {module} import main; main()"
_KEEP_FREED_MEMORY: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
"""What the command line does for its own process (`cli.memory`), said to glibc in the environment."""
_M = TypeVar("_M", bound=Message)


def tell(switchboard: Switchboard, party: str, order: Message, kind: type[_M]) -> _M:
    """An order of the bench, which is not part of the protocol and not counted."""
    switchboard.submit(0, party, order)
    _, reply = switchboard.next_reply()
    if not isinstance(reply, kind):
        raise DeploymentError(f"Expected {kind.__name__} from the {party} party, got {type(reply).__name__}.")
    return reply


def ask_costs(switchboard: Switchboard) -> dict[str, Costs]:
    """Of all clients, since the last time."""
    return {party: tell(switchboard, party, CostRequest(), Costs) for party in switchboard.connections}


def agree_on_keys(switchboard: Switchboard, threads: int, setup_of: Callable[[str, Setup], Setup]) -> KeyRing:
    """Key agreement over the connections. The bench vouches for the identities.

    `setup_of`: what this party is told, with what its kind needs beside `Setup`.
    """
    clients = tuple(switchboard.connections)
    randomness = SecureRandomness()
    identity = Identity.generate(randomness)
    known = {party: tell(switchboard, party, IdentityRequest(), IdentityKey).identity_key for party in clients}
    known[SERVER] = identity.public_bytes
    run_id = randomness.random_bytes(RUN_ID_BYTES)
    keys = KeyRing(SERVER, run_id, identity, known, randomness)
    directory = KeyDirectory(run_id, tuple(known), known, min_clients=len(known))
    directory.register(SERVER, keys.announce())
    setup = Setup(run_id, tuple(known), tuple(known.values()), threads)
    for party in clients:
        directory.register(party, tell(switchboard, party, setup_of(party, setup), KeyAnnouncement))
    roster = directory.roster()
    keys.accept(roster)
    for party in clients:
        tell(switchboard, party, roster, Heard)
    return keys


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
def started(
    module: str,
    may_say: Mapping[str, Sequence[type[Message]]],
    threads: int,
    unasked: Sequence[type[Message]] = (),
) -> Iterator[Switchboard]:
    """Start the parties of `may_say`, and end them whatever happens. One that dies is an error with what it wrote.

    `module` has the `main` of their processes. `unasked`: what they may say without being asked.
    """
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    gate = Gate()
    clients: dict[str, _Client] = {}
    switchboard = Switchboard({})
    try:
        for party in may_say:
            clients[party] = _start(module, Introduction(party, gate.port, gate.token.hex()))
        switchboard = gate.admit(may_say, lambda: _expect_alive(clients), unasked)
        yield switchboard
    except LostConnectionError as error:
        raise _failure(error.party, clients[error.party]) from error
    finally:
        gate.close()
        switchboard.close()
        for client in clients.values():
            client.end()
        torch.set_num_threads(torch_threads)


def _start(module: str, told: Introduction) -> _Client:
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the client)
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(module=module)],
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
