"""A service over sites that are objects of this process: the server's side, the sites' sides, doors on the loopback."""

import time
from contextlib import contextmanager
from threading import Event, Thread

from tests.serving.harness import served

from bilateral.engine.kind import ServerAround, SiteAround
from bilateral.engine.remote.edge import SiteSilentError
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.randomness import SecureRandomness
from bilateral.serving.folder import Kit
from bilateral.serving.hosted.kind import KIND, simulated, simulated_identity
from bilateral.serving.hosted.plan import ServingPlan
from bilateral.serving.hosted.server import ServingRun
from bilateral.serving.sockets import Line, session_of

PLAN = ServingPlan(run="first", clients=("anna", "carol"), dealer="auditor", answers={"questions": 20}, seed=3)
VERSION = "test"


class SitesHere:
    """`between`: what becomes of a packet on its way (site, packet) -> packet, and of an answer; `dead` sites are
    silent."""

    def __init__(self, parties, between=lambda _site, packet: packet, back=lambda _site, answer: answer):
        self.parties, self.between, self.back = parties, between, back
        self.dead, self.calls = set(), []

    def names(self):
        return list(self.parties)

    def call(self, site, lane, number, packet, timeout):
        assert timeout > 0
        if site in self.dead:
            raise SiteSilentError("dead")
        self.calls.append((site, number, packet))
        answer = self.parties[site].deliver(lane, number, self.between(site, packet))
        if site in self.dead:
            raise SiteSilentError("died at work")
        return self.back(site, answer)

    def ping(self, site):
        return None if site in self.dead else self.parties[site].is_idle()


class Service:
    """`come`: the sites that are there."""

    def __init__(self, folder, plan=PLAN, model=None, come=None, **sites):
        self.plan, self.folder, self.told = plan, folder, []
        self.parties = {
            name: KIND.site(name, plan, SiteAround(VERSION, store=folder / "sites" / name))
            for name in (plan.parties if come is None else come)
        }
        self.sites = SitesHere(self.parties, **sites)
        self.counters = {}
        for name in plan.clients:
            path = folder / "questions" / f"{name}.json"
            self.counters[name] = (
                FileCounter(path, "questions") if path.exists() else FileCounter.create(path, "questions")
            )
        pinned = {name: simulated_identity(plan, name).public_bytes for name in plan.parties}
        around = ServerAround("here", VERSION, self.sites, tell=self.told.append)
        self.run = ServingRun(
            plan, around, self.sites, model or served(), self.counters, pinned, simulated(plan, "server")
        )

    @contextmanager
    def under_way(self):
        stop = Event()

        def work():
            for step in self.run.steps():
                self.run.do(step)
                if stop.is_set():
                    return

        self.run.enrol()
        self.run.begin()
        thread = Thread(target=work)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
            self.run.result(None)
            self.run.close()
            for name, party in self.parties.items():
                if name != self.plan.dealer:
                    party.close()

    def kit(self, name="anna"):
        return Kit.read(self.folder / "sites" / name)

    @contextmanager
    def asking(self, name="anna", kit=None):
        kit = kit or self.kit(name)
        line = Line(kit)
        try:
            yield session_of(kit, line, SecureRandomness())
        finally:
            line.close()

    def used(self):
        return {name: counter.used for name, counter in self.counters.items()}

    def events(self, kind):
        return [event for event in self.told if isinstance(event, kind)]


def soon(check, seconds=900.0):
    """Wait for something that another thread is about to do. The limit ends a hang, and decides nothing else."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
