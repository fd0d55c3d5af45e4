"""Sites of a heterogeneous run in this process behind the real transport interface, with faults on demand."""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.runs.rounds.harness import ONE_AT_A_TIME, VERSION

from bilateral.engine.kind import HETERO, ServerAround, kind_named
from bilateral.engine.remote.edge import REPLY, SiteSilentError
from bilateral.engine.term import conduct as conduct_term
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode
from bilateral.runs.hetero.desk import HeteroSiteDesk
from bilateral.runs.hetero.hosted import FACTS
from bilateral.runs.hetero.messages import REPLY_OF
from bilateral.runs.hetero.parties import deal
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.hetero.record import PublicFacts

PLAN = HeteroPlan().with_settings({
    "seed": 7,
    "clients.number": 3,
    "clients.architectures": [{"name": "mlp-3", "options": {"width": 8}}, {"name": "convnet", "options": {"width": 2}}],
    "data.samples_per_client": 12,
    "training.epochs": 2,
    "queries.number": 4,
    "retraining.epochs": 2,
    "iterations": 2,
})  # fmt: skip


@dataclass
class Call:
    """One message on its way to a site: `replied` once its reply is on the way back."""

    site: str
    kind: str
    replied: bool


Fault = Callable[[Call], None]


@dataclass
class HeteroLocalSites:
    """All sites as desks in this process; every term has new ones, as after a restart."""

    plan: HeteroPlan
    path: Path
    fault: Fault = lambda _: None
    tamper: Callable[[Call, dict], dict] = lambda _, answer: answer
    dead: set[str] = field(default_factory=set)
    replies: list[tuple[str, str, bytes]] = field(default_factory=list)
    """All that the server received: the site, the kind of the message it answers, the bytes."""
    num_calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.desks = {
            name: HeteroSiteDesk(name, self.plan, self.path / "sites" / name, version=VERSION)
            for name in self.plan.clients.names
        }

    def names(self):
        return list(self.desks)

    def ping(self, site):
        return None if site in self.dead else self.desks[site].is_idle()

    def call(self, site, lane, number, packet, timeout):
        kinds = [type(decode(data, REPLY_OF, SERVER)).__name__ for data in packet]
        with ONE_AT_A_TIME:
            self._pass(site, kinds, False)
            answer = self.desks[site].deliver(lane, number, packet)
            self._pass(site, kinds, True)
        with self._lock:
            self.num_calls += 1
            self.replies += [(site, kind, data) for kind, data in zip(kinds, answer.get(REPLY, []), strict=False)]
        return self.tamper(Call(site, kinds[-1], True), answer)

    def _pass(self, site, kinds, replied):
        if site in self.dead:
            raise SiteSilentError("gone")
        for kind in kinds:
            self.fault(Call(site, kind, replied))


def dies_at(site: str, kind: str, nth: int = 1, *, replied: bool = False) -> Fault:
    """The site is gone when the `nth` message of this kind comes, or (`replied`) when it has done what it says."""
    seen = []

    def fault(call: Call) -> None:
        if (call.site, call.kind, call.replied) == (site, kind, replied):
            seen.append(call)
            if len(seen) >= nth:
                raise SiteSilentError("gone")

    return fault


def facts_of(plan):
    shares = deal(plan)
    return PublicFacts(shares.dataset, {name: len(share) for name, share in shares.clients.items()})


def conduct(plan, path, sites=None, on_progress=lambda _: None, should_stop=lambda: False):
    """One term over local sites, in a directory that is made if there is none."""
    around = ServerAround(
        "local",
        VERSION,
        sites=sites or HeteroLocalSites(plan, path),
        options={FACTS: asdict(facts_of(plan))},
        should_stop=should_stop,
    )
    return conduct_term(kind_named(HETERO), plan, path, around, on_progress)
