"""Rounds as a kind of run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilateral.engine.federation import load_federation, member_names
from bilateral.engine.kind import ROUNDS, Outline, ServerAround, ServerRun, SiteAround, SiteParty, Vocabulary
from bilateral.engine.plan import RunPlan, dump_plan, parse_plan
from bilateral.engine.run_directory import RunDirectory
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.setup import make_blueprint
from bilateral.errors import PlanError
from bilateral.learning.secrets import Secrets
from bilateral.protections.spoken_messages import to_client, to_server
from bilateral.protocols.guarantee import Guarantee
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.runs.rounds.conductor import Conductor, RoundsOverSites
from bilateral.runs.rounds.desk import SiteDesk
from bilateral.runs.rounds.enrolment import Briefing, SiteCard
from bilateral.runs.rounds.hosted import REFERENCE_OPTION, HostedRounds
from bilateral.runs.rounds.in_process import loop_here


@dataclass(frozen=True)
class RoundsKind(HostedRounds):
    """Clients train one model together, round by round."""

    name: str = ROUNDS
    plan: type[RunPlan] = RunPlan
    command: str = "run"
    deployable: bool = True
    useful_when_stopped: bool = True

    @property
    def vocabulary(self) -> Vocabulary:
        """With the messages of all protections that there are now."""
        return Vocabulary((*to_client(), Briefing), (*to_server(), SiteCard))

    def parse(self, values: dict[str, Any], source: str) -> RunPlan:
        return parse_plan(values, source)

    def dump(self, plan: RunPlan) -> str:
        return dump_plan(plan)

    def outline(self, plan: RunPlan) -> Outline:
        data, model, federation = plan.data.name, plan.model.name, plan.federation
        title = f"{data}-{model}"
        return Outline(data, model, plan.training.rounds, "round", title, federation.timeout, federation.patience)

    def members(self, plan: RunPlan, data_dir: Path | None = None) -> tuple[str, ...]:
        return plan.parties(member_names(plan, data_dir))

    def guarantee(self, plan: RunPlan, data_dir: Path | None = None) -> Guarantee:
        return make_blueprint(plan, load_federation(plan, data_dir)).guarantee

    def checkpoint_every(self, plan: RunPlan) -> int:
        return plan.training.checkpoint_every

    def server(self, plan: RunPlan, around: ServerAround) -> ServerRun:
        """Options: `reference`."""
        if around.sites is None:
            loop = loop_here(plan, around.data_dir, around.options.get(REFERENCE_OPTION) is True)
            loop.directory = None if around.path is None else RunDirectory(around.path)
            return loop

        if around.path is None:
            raise PlanError("Rounds over sites need a run directory.")
        return RoundsOverSites(self.conductor(plan, around), RunDirectory(around.path))

    def conductor(self, plan: RunPlan, around: ServerAround) -> Conductor:
        """The server's side of rounds over sites."""
        assert around.sites is not None

        def simulated(term: int, names: Sequence[str]) -> Secrets:
            return SimulatedSecrets(plan.seed, names, term)

        return Conductor(
            plan,
            around.sites,
            around.make_secrets or simulated,
            around.version,
            reference=around.options.get(REFERENCE_OPTION) is True,
            data_dir=around.data_dir,
            data_settings=around.data_settings,
            should_stop=around.should_stop,
        )

    def site(self, name: str, plan: RunPlan, around: SiteAround) -> SiteParty:
        def secrets(briefing: Briefing) -> Secrets:
            if around.make_secrets is None:
                return SimulatedSecrets(plan.seed, plan.parties(briefing.members), briefing.term)
            return around.make_secrets(briefing.run_id, briefing.members, briefing.term)

        spent = around.spent_file if plan.traits.spends_budget else None
        return SiteDesk(
            name,
            plan,
            secrets,
            version=around.version,
            reference=around.options.get(REFERENCE_OPTION) is True,
            data_dir=around.data_dir,
            data_settings=around.data_settings,
            counter=None if spent is None else FileCounter(spent),
        )


KIND = RoundsKind()
