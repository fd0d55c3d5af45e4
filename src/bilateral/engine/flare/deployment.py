"""`bilateral deploy`: from a plan to what the operators of its parties need.

    deployed = deploy(plan, server="fl.example.org", output=Path("federation"))

The directory then holds the FLARE project file, a kit a party, `plan.toml`, and a `README.md` with the steps of this
very deployment. Each kit accepts this plan and no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bilateral.engine.federation import member_names, needs_sample_counts
from bilateral.engine.flare.handbook import handbook, places_of
from bilateral.engine.flare.job_content import has_references
from bilateral.engine.flare.project_file import PROJECT_FILE, Deployment, check_deployment, read_project
from bilateral.engine.flare.provisioning import Kits, extend, provision
from bilateral.engine.flare.site_settings import DataSettings
from bilateral.engine.kind import ROUNDS, kind_of_plan
from bilateral.engine.named_code import is_own_code
from bilateral.engine.plan import RunPlan
from bilateral.engine.remote.hosting import DeployableKind, SelfDescribingKind, hosted_kind
from bilateral.errors import PlanError

DEFAULT_NAME = "federation"
DEFAULT_PORT = 8002
PLAN_FILE, HANDBOOK_FILE = "plan.toml", "README.md"


@dataclass(frozen=True)
class Deployed:
    """Where everything of a deployment is, and what its operators should know."""

    kits: Kits
    plan: Any
    warnings: tuple[str, ...]

    @property
    def plan_file(self) -> Path:
        return self.kits.directory / PLAN_FILE

    @property
    def handbook(self) -> Path:
        return self.kits.directory / HANDBOOK_FILE

    def as_dict(self) -> dict[str, Any]:
        return {
            "directory": str(self.kits.directory),
            "fingerprint": self.plan.fingerprint(),
            "server_kit": str(self.kits.server),
            "site_kits": {name: str(kit) for name, kit in self.kits.sites.items()},
            "admin_kit": str(self.kits.admin),
            "plan": str(self.plan_file),
            "handbook": str(self.handbook),
            "warnings": list(self.warnings),
        }


def deploy(
    plan: Any, *, server: str, port: int = DEFAULT_PORT, name: str = DEFAULT_NAME, output: Path | None = None
) -> Deployed:
    """Provision a deployment for a plan in a new directory. `server`: the host name under which sites reach it."""
    check_deployable(plan)
    deployment = Deployment(
        name,
        server,
        deployable_kind(plan).members(plan),
        fed_learn_port=port,
        plans=(plan.fingerprint(),),
        questions=_questions(plan),
    )
    check_deployment(deployment)
    return _describe(plan, provision(deployment, Path(name) if output is None else output))


def add_plan(plan: Any, directory: Path) -> Deployed:
    """Make an existing deployment one for this plan too: its new sites get kits, all new kits accept it."""
    check_deployable(plan)
    known = {str(party["name"]) for party in read_project(Path(directory) / PROJECT_FILE)["participants"]}
    new = {site: DataSettings() for site in deployable_kind(plan).members(plan) if site not in known}
    return _describe(plan, extend(directory, new, [plan.fingerprint()], _questions(plan)))


def deployable_kind(plan: Any) -> DeployableKind[Any]:
    """The kind of a plan for parties on machines of their own."""
    kind = kind_of_plan(plan)
    if not kind.deployable:
        raise PlanError(
            f"Runs of the kind `{kind.name}` are for simulations so far: their secrets come from the plan's seed.",
            remedy=f"Run it with `bilateral {kind.command}`, on one machine.",
        )
    return cast("DeployableKind[Any]", kind)


def check_deployable(plan: Any) -> None:
    """Refuse what belongs to simulations only."""
    deployable_kind(plan)
    if isinstance(plan, RunPlan):
        _check_rounds(plan)
    if has_references(plan.model_dump(mode="json")):
        raise PlanError(
            "The plan has a text with {, } or $ in it, which FLARE would take for a reference; sites refuse that.",
            remedy="Write such values into [data.options] of each kit's bilateral.toml.",
        )


def _check_rounds(plan: RunPlan) -> None:
    if plan.federation.dropout:
        raise PlanError(
            f"federation.dropout is {plan.federation.dropout}: simulated dropouts belong to the in-process engine.",
            remedy="Leave it out; sites of a deployment come and go by themselves.",
        )
    if not plan.data.sites and plan.federation.num_clients is None and is_own_code(plan.data.name):
        raise PlanError(
            f"Who takes part would be known from {plan.data.name} only, and a file must not decide what code runs.",
            remedy="Name the sites in the plan ([data.sites.NAME]).",
        )


def warnings_of(plan: RunPlan, sites: Sequence[str]) -> tuple[str, ...]:
    """What the plan itself says about the limits of a deployment of it; the lines are of docs/leakage-ledger.md."""
    return (*_limits_of_protection(plan, len(sites)), *_limits_of_operation(plan, len(sites)))


def _limits_of_protection(plan: RunPlan, num_sites: int) -> Iterator[str]:
    masks = plan.masks(num_sites)
    if not plan.data.sites:
        yield (
            "This is a TRIAL: the plan has no [data.sites], so every party loads the same dataset and takes its share. "
            "Nobody's data are private. Name the sites in the plan for data that stay where they are."
        )
    yield from plan.chosen.model.warnings(plan)
    if masks == "none":
        yield "Without masks the server reads every site's upload, and with a batch of one the sample (line 3)."
    elif masks == "float":
        yield "Float masks leak through their size (line 6)."
    if plan.chosen.noise is None:
        yield "Sums are not noised: no differential privacy is claimed, and sums of few sites say much (line 12)."
        if plan.training.batch_size == 0:
            yield "With batch_size = 0 a round that is repeated after a crash can show one site's upload (line 12)."
    else:
        yield from plan.chosen.noise.warnings(plan)
    if needs_sample_counts(plan):
        yield "All parties learn how many samples each site has: the accounting rests on it."
    if num_sites == 2 and masks == "ring":
        yield "With two sites, the server and one of them together have the other one's upload."


def _limits_of_operation(plan: RunPlan, num_sites: int) -> Iterator[str]:
    num_helpers = len(plan.parties(()))
    needed = hosted_kind(ROUNDS).quorum(plan, num_sites + num_helpers).needed - num_helpers
    if num_sites > 1 and needed == plan.federation.num_participants(num_sites):
        yield "Every invited site is needed in every round: one that is away holds up the run."
    if own_code := [name for name in (plan.data.name, plan.model.name) if ":" in name]:
        yield (
            f"The plan names code of yours ({', '.join(own_code)}): no job brings any. Every party installs it, and "
            "its operator writes these names under [code] in bilateral.toml of the kit; until then the plan is refused."
        )


def _questions(plan: Any) -> tuple[str, ...]:
    return () if isinstance(plan, RunPlan) else _self_describing(plan).questions(plan)


def _self_describing(plan: Any) -> SelfDescribingKind[Any]:
    return cast("SelfDescribingKind[Any]", deployable_kind(plan))


def _describe(plan: Any, kits: Kits) -> Deployed:
    if isinstance(plan, RunPlan):
        deployed = Deployed(kits, plan, warnings_of(plan, member_names(plan)))
        text = handbook(plan, kits, deployed.warnings, PLAN_FILE)
    else:
        kind = _self_describing(plan)
        deployed = Deployed(kits, plan, kind.warnings(plan))
        text = kind.handbook(plan, places_of(plan, kits, deployed.warnings, PLAN_FILE))
    deployed.plan_file.write_text(deployable_kind(plan).dump(plan), encoding="utf-8")
    deployed.handbook.write_text(text, encoding="utf-8")
    return deployed
