"""Sites in this process behind the real transport interface, with faults on demand; and the run they should equal."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.federation import load_federation, member_names
from bilateral.engine.kind import ENROLMENT, ROUNDS, ServerAround, kind_named
from bilateral.engine.remote.edge import SiteSilentError
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.setup import make_blueprint
from bilateral.engine.term import conduct as conduct_term
from bilateral.errors import ThresholdError
from bilateral.protections.spoken_messages import stage_of, to_client
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode
from bilateral.runs.rounds.desk import SiteDesk
from bilateral.runs.rounds.hosted import REFERENCE_OPTION

VERSION = "test"
ONE_AT_A_TIME = threading.RLock()
"""Sites are processes elsewhere; torch's tracing and its global generator are not made for several in one process."""


class Killed(BaseException):
    """The server's process is gone: nothing catches it."""


@dataclass
class Call:
    """One packet on its way to a site."""

    site: str
    stage: str
    round_index: int
    number: int


Fault = Callable[[Call], float | None]
"""Called before a packet is handed to a site; raises SiteSilentError, kills the server, or says how many seconds the
site takes (none of which pass)."""


def no_fault(call: Call) -> None:
    return None


@dataclass
class LocalSites:
    """All sites of a plan as desks in this process; every term has new ones, as after a restart."""

    plan: object
    fault: Fault = no_fault
    here: tuple[str, ...] | None = None
    tamper: Callable[[Call, dict], dict] = lambda _, answer: answer
    reference: bool = False
    desks: dict[str, SiteDesk] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        names = self.plan.parties(member_names(self.plan))
        self.desks = {name: self.desk(name) for name in names if self.here is None or name in self.here}

    def desk(self, name: str, plan: object = None) -> SiteDesk:
        chosen = plan or self.plan
        return SiteDesk(
            name,
            chosen,
            lambda briefing: SimulatedSecrets(chosen.seed, chosen.parties(briefing.members), briefing.term),
            version=VERSION,
            reference=self.reference,
        )

    def names(self):
        return list(self.desks)

    def enrol(self, site, number, packet):
        return self.desks[site].deliver(ENROLMENT, number, packet)

    def ping(self, site):
        return self.desks[site].is_idle()

    def call(self, site, lane, ticket, packet, timeout):
        if lane == ENROLMENT:
            with ONE_AT_A_TIME:
                return self.enrol(site, ticket, packet)
        messages = [decode(data, to_client(), SERVER) for data in packet]
        round_index = getattr(messages[-1], "round_index", -1)
        with self._lock:
            call = Call(site, stage_of(messages), round_index, len(self.calls))
            self.calls.append(call)
        if (self.fault(call) or 0.0) > timeout:
            raise SiteSilentError(f"no answer within {timeout:g} seconds")
        with ONE_AT_A_TIME:
            return self.tamper(call, self.desks[site].deliver(lane, ticket, packet))


def conduct(plan, path, sites=None, *, reference=False, on_round=lambda _: None, make_secrets=None):
    """One term over local sites, by the shell that every engine uses."""
    around = ServerAround(
        "local",
        VERSION,
        sites=sites or LocalSites(plan, reference=reference),
        make_secrets=make_secrets,
        options={REFERENCE_OPTION: reference},
    )
    return conduct_term(kind_named(ROUNDS), plan, path, around, on_round)


def silent_at(site: str, stage: str, rounds) -> Fault:
    """The site does not answer at this stage of these rounds."""

    def fault(call: Call) -> None:
        if call.site == site and call.stage == stage and call.round_index in rounds:
            raise SiteSilentError("gone")

    return fault


def undisturbed(plan, contributors_by_round):
    """Weights of a training in which each round has just these clients from the start, and nobody ever fails."""
    federation = load_federation(plan)
    blueprint = make_blueprint(plan, federation)
    training = blueprint.server()
    exchange = blueprint.local_exchange(lambda *_: None)
    for round_index in range(plan.training.rounds):
        contributors = contributors_by_round.get(round_index + 1)
        if contributors is None:
            continue
        try:
            training.advance(round_index, contributors, exchange)
        except ThresholdError as error:  # the oracle itself must not fail
            raise AssertionError(f"round {round_index + 1}: {error}") from error
    return training.weights()


def weights_in(checkpoint, plan):
    """The model in a checkpoint, in the order of `Training.weights`."""
    training = make_blueprint(plan, load_federation(plan)).server()
    prefix = f"{training.protection}/model/"
    tensors = load_checkpoint(checkpoint).tensors
    training.model.load_state_dict({k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)})
    return training.weights()
