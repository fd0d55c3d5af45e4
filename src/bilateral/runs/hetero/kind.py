"""Heterogeneous runs as a kind of run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilateral.engine.kind import HETERO, Outline, ServerAround, SiteAround, SiteParty, Vocabulary
from bilateral.engine.remote.lines import SiteLines
from bilateral.errors import PlanError
from bilateral.protocols.guarantee import Guarantee
from bilateral.runs.hetero.desk import HeteroSiteDesk
from bilateral.runs.hetero.here import ClientsHere
from bilateral.runs.hetero.hosted import FACTS, HostedHetero
from bilateral.runs.hetero.in_process import members_of, record_of
from bilateral.runs.hetero.messages import REPLY_OF
from bilateral.runs.hetero.parties import check_secure, deal, guarantee_of, make_answers
from bilateral.runs.hetero.plan import HeteroPlan, dump_hetero_plan, parse_hetero_plan
from bilateral.runs.hetero.record import HeteroRecord, PublicFacts
from bilateral.runs.hetero.remote import ClientsAtSites
from bilateral.runs.hetero.server import HeteroServer
from bilateral.runs.hetero.steps import num_stages

LONGEST_STAGE_SECONDS = 3600.0
VOCABULARY = Vocabulary(tuple(REPLY_OF), tuple(dict.fromkeys(REPLY_OF.values())))


@dataclass(frozen=True)
class HeteroKind(HostedHetero):
    """Clients with different networks teach each other. For simulations: keys and queries come from the seed."""

    name: str = HETERO
    plan: type[HeteroPlan] = HeteroPlan
    command: str = "hetero"
    vocabulary: Vocabulary = VOCABULARY
    deployable: bool = False
    useful_when_stopped: bool = False

    def parse(self, values: dict[str, Any], source: str) -> HeteroPlan:
        return parse_hetero_plan(values, source)

    def dump(self, plan: HeteroPlan) -> str:
        return dump_hetero_plan(plan)

    def outline(self, plan: HeteroPlan) -> Outline:
        models = dict.fromkeys(plan.clients.label(name) for name in plan.clients.names)
        return Outline(
            plan.data.name,
            ", ".join(models),
            num_stages(plan) * plan.clients.number,
            "stage",
            title=f"hetero-{plan.data.name}",
            longest_step=LONGEST_STAGE_SECONDS,
        )

    def members(self, plan: HeteroPlan, data_dir: Path | None = None) -> tuple[str, ...]:  # noqa: ARG002
        return plan.clients.names

    def guarantee(self, plan: HeteroPlan, data_dir: Path | None = None) -> Guarantee:  # noqa: ARG002
        return guarantee_of(plan)

    def checkpoint_every(self, plan: HeteroPlan) -> int:  # noqa: ARG002
        return 0

    def server(self, plan: HeteroPlan, around: ServerAround) -> HeteroServer:
        """Options, where the clients are elsewhere: `facts`, what is public of the data."""
        if around.sites is None:
            shares = deal(plan, around.data_dir)
            clients = ClientsHere(plan, members_of(plan, shares), lambda note, term: make_answers(plan, note, term))
            return HeteroServer(record_of(plan, shares), clients, around)
        check_secure(plan)
        sites, facts = around.sites, PublicFacts(**around.options[FACTS])
        lines = SiteLines(
            [name for name in plan.clients.names if name in sites.names()],
            lambda site, number, packet, timeout: sites.call(site, 0, number, packet, timeout),
            sites.ping,
            REPLY_OF,
        )
        return HeteroServer(HeteroRecord(plan, facts), ClientsAtSites(plan, lines, around), around)

    def site(self, name: str, plan: HeteroPlan, around: SiteAround) -> SiteParty:
        if around.store is None:
            raise PlanError(f"{name} has no directory to keep its network in.")
        return HeteroSiteDesk(name, plan, around.store, version=around.version, data_dir=around.data_dir)


KIND = HeteroKind()
