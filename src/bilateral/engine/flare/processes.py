"""The parties of a deployment as processes on this machine: `bilateral run --engine flare-poc`, tests, trials.

FLARE runs a parent process a party and, for each job, a job process in a session of its own. All processes of a party
are known by a mark in their environment, which job processes inherit; no process is ever found by its name.

Guarantee: after `kill(name)`, and after leaving the `with` block, no process of the party is left, job processes and
orphans of a killed parent included.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import psutil

from bilateral.engine.flare.kit_builder import ENVIRONMENT, KIT_VARIABLE, OPTIONS
from bilateral.engine.flare.provisioning import Kits, party_organisation
from bilateral.engine.flare.site_settings import WORKSPACE_FOLDER
from bilateral.errors import DeploymentError
from bilateral.protocols.transport import SERVER

_MARK = "BILATERAL_PARTY"
_MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "client": "nvflare.private.fed.app.client.client_train",
}
_LOG_FILE = "process.log"
_POLL_SECONDS = 0.05
_START_SECONDS = 300.0
"""A server imports for as long as its machine is busy with other work; one that dies is noticed at once."""
_KILL_SECONDS = 60.0


def free_ports(count: int) -> tuple[int, ...]:
    """Ports on which nobody listens at this moment, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(int(each.getsockname()[1]) for each in sockets)


class LocalProcesses:
    """Starts, kills and stops the parties of `kits` here. `environment` goes to all processes (OMP_NUM_THREADS)."""

    def __init__(self, kits: Kits, environment: Mapping[str, str] | None = None) -> None:
        self._kits = kits
        self._environment = dict(environment or {})
        self._organisation = party_organisation(kits.project_file)
        self._id = uuid.uuid4().hex
        self._parents: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def names(self) -> tuple[str, ...]:
        """The server first, then the sites."""
        return (SERVER, *self._kits.sites)

    def kit(self, name: str) -> Path:
        """The kit directory of a party."""
        if name != SERVER and name not in self._kits.sites:
            raise DeploymentError(f"There is no party {name!r}.", remedy=f"Parties: {', '.join(self.names)}.")
        return self._kits.server if name == SERVER else self._kits.sites[name]

    def workspace(self, name: str) -> Path:
        """FLARE's part of a kit."""
        return self.kit(name) / WORKSPACE_FOLDER

    def log_file(self, name: str) -> Path:
        """What the processes of a party write to their terminal."""
        return self.kit(name) / _LOG_FILE

    def start_server(self, timeout: float = _START_SECONDS) -> None:
        """Start the server and wait until it listens."""
        self.start(SERVER)
        self._wait_until_listening(timeout)

    def start_sites(self, names: Sequence[str] | None = None) -> None:
        """Start sites (all by default) without waiting: `Admin.connected_sites` tells who has come."""
        for name in self._kits.sites if names is None else names:
            self.start(name)

    def start(self, name: str) -> None:
        """Start the parent process of a party: the same module and options as its `startup/sub_start.sh`."""
        kit, workspace = self.kit(name), self.workspace(name)
        if self.is_running(name):
            raise DeploymentError(f"{name} is running already.", remedy="Stop or kill it first.")
        self.kill(name)  # job processes that outlived their parent
        kind = "server" if name == SERVER else "client"
        who = [] if kind == "server" else [f"uid={name}"]
        settings = ["secure_train=true", *who, f"org={self._organisation}", *OPTIONS[kind], "config_folder=config"]
        command = [sys.executable, "-u", "-m", _MODULES[kind], "-m", str(workspace), "-s", f"fed_{kind}.json", "--set"]
        environment = {
            "MALLOC_ARENA_MAX": "4",  # as sub_start.sh has it
            **ENVIRONMENT,
            **os.environ,
            **self._environment,
            "PYTHONUNBUFFERED": "1",
            KIT_VARIABLE: str(kit),
            _MARK: self._mark(name),
        }
        (workspace / "transfer").mkdir(exist_ok=True)
        with self.log_file(name).open("ab") as log:
            self._parents[name] = subprocess.Popen(
                [*command, *settings],
                cwd=workspace,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self, name: str) -> bool:
        """Whether the parent process of a party lives."""
        parent = self._parents.get(name)
        return parent is not None and parent.poll() is None

    def pids(self, name: str) -> tuple[int, ...]:
        """All living processes of a party; the parent, if it lives, first."""
        self.kit(name)
        self.is_running(name)  # reaps a dead parent: job processes end when theirs is gone, and a zombie is not gone
        mark, found = self._mark(name), []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except psutil.Error:
                continue  # ended meanwhile, or of another user: not ours
        parent = self._parents.get(name)
        return tuple(sorted(found, key=lambda pid: (parent is None or pid != parent.pid, pid)))

    def kill(self, name: str, timeout: float = _KILL_SECONDS) -> None:
        """SIGKILL to all processes of a party, as if its machine had lost power. Returns when none is left."""
        deadline = time.monotonic() + timeout
        while pids := self.pids(name):
            for pid in pids:
                _send(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise DeploymentError(f"Processes {pids} of {name} do not end.", remedy="Look what holds them.")
            time.sleep(_POLL_SECONDS)
        self._reap(name)

    def restart(self, name: str, timeout: float = _START_SECONDS) -> None:
        """Kill a party if it lives, and start it again. A restarted server listens when this returns."""
        self.kill(name)
        if name == SERVER:
            self.start_server(timeout)
        else:
            self.start(name)

    def stop(self, timeout: float = 5.0) -> None:
        """End all processes: SIGTERM to the parents, sites before the server, then SIGKILL to what is left."""
        for names in (tuple(self._kits.sites), (SERVER,)):
            running = [name for name in names if self.is_running(name)]
            for name in running:
                self._parents[name].terminate()
            deadline = time.monotonic() + timeout
            while any(self.is_running(name) for name in running) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            for name in names:
                self.kill(name)

    def _wait_until_listening(self, timeout: float) -> None:
        service = json.loads((self.workspace(SERVER) / "startup" / "fed_server.json").read_text(encoding="utf-8"))
        host, port = str(service["servers"][0]["service"]["target"]).split(":")
        deadline = time.monotonic() + timeout
        while True:
            if not self.is_running(SERVER):
                raise DeploymentError(f"The server ended while it started. Its log: {self._tail(SERVER)}")
            try:
                with socket.create_connection((host, int(port)), timeout=1.0):
                    return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise DeploymentError(
                        f"The server does not listen on {host}:{port} after {timeout:g} seconds.",
                        remedy=f"See {self.log_file(SERVER)}.",
                    ) from error
            time.sleep(_POLL_SECONDS)

    def _tail(self, name: str, num_lines: int = 5) -> str:
        lines = self.log_file(name).read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-num_lines:])

    def _mark(self, name: str) -> str:
        return f"{self._id}:{name}"

    def _reap(self, name: str) -> None:
        parent = self._parents.pop(name, None)
        if parent is not None:
            parent.wait()


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself
