"""Where a process of a FLARE job finds itself: in a simulation on one machine, or in a kit of a deployment.

Whether secrets come from the seed is never for a job to say: whoever submits jobs could then read everything. It is
said by the environment of the process (`SIMULATION`), which our own launchers set and an operator's start script does
not.

What a job carries is never quoted, in no error: it may have been filled in from what the site keeps to itself. A plan's
fingerprint is compared with those that the operator accepted before anything else of it is read. In a kit, a site takes
the plan from the job and nothing else: data, keys and budget are its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bilateral.documents import parse_json
from bilateral.engine.flare.site_settings import SETTINGS_FILE, SiteSettings, check_layout, load_site_settings
from bilateral.engine.kind import ServerAround, SiteAround, SiteParty
from bilateral.engine.remote.hosting import DeployableKind, HostedKind, hosted_kind
from bilateral.engine.secrets import OwnSecrets
from bilateral.errors import PlanError
from bilateral.learning.secrets import Secrets
from bilateral.protocols.mask.keys import RUN_ID_BYTES
from bilateral.randomness import SecureRandomness
from bilateral.version import __version__

SIMULATION = "BILATERAL_SIMULATION"
_FACTS = "facts"
_SUBMIT = "Submit it with `bilateral submit`."


@dataclass(frozen=True)
class ServerPremises:
    """What the server of a job works with: the kind that the job names, its plan, its run directory."""

    kind: HostedKind[Any]
    plan: Any
    path: Path
    around: ServerAround


def is_simulation() -> bool:
    """Did one of our launchers start this process, for a run whose secrets come from the seed?"""
    return os.environ.get(SIMULATION) == "1"


def plan_of_job(kind: HostedKind[Any], text: str) -> Any:
    """The plan that a job of ours carries, as JSON, in a simulation."""
    return kind.parse(_values(text, "plan"), "of the job")


def accepted_plan(kind: HostedKind[Any], text: str, settings: SiteSettings) -> Any:
    """The plan that a job carries to a kit, if its operator has agreed to it and to the code that it names."""
    fingerprint_of = _deployable(kind).fingerprint_of
    values = _values(text, "plan")
    settings.check_fingerprint(fingerprint_of(values))
    try:
        plan = kind.parse(values, "of the job")
    except PlanError as error:
        raise PlanError("The job's plan is not as this version writes it.", remedy=_SUBMIT) from error
    settings.check_accepted(plan)
    return plan


def _deployable(kind: HostedKind[Any]) -> DeployableKind[Any]:
    """Refuse a kind whose secrets come from the plan's seed, whatever a job says."""
    if not kind.deployable:
        raise PlanError(
            f"Runs of the kind `{kind.name}` are for simulations so far: their secrets come from the plan's seed.",
            remedy=f"Run it with `bilateral {kind.command}`, on one machine.",
        )
    return cast("DeployableKind[Any]", kind)


def kit_settings(workspace: Any) -> SiteSettings:
    """The party's own settings, from its kit."""
    root = Path(workspace.get_root_dir()).resolve()
    check_layout(root)
    return load_site_settings(root.parent / SETTINGS_FILE)


def open_site(
    name: str, workspace: Any, kind_name: str, plan: str, *, facts: str, stores: str, data_dir: str
) -> SiteParty:
    """The site in whose process we are. All texts but `name` are the job's."""
    kind = hosted_kind(kind_name)
    if is_simulation():
        around = SiteAround(
            __version__,
            data_dir=Path(data_dir) if data_dir else None,
            options=_facts(facts),
            store=Path(stores) / name if stores else None,
        )
        return kind.site(name, plan_of_job(kind, plan), around)
    settings = kit_settings(workspace)
    chosen = accepted_plan(kind, plan, settings)
    identity, pinned = settings.identity(), settings.pinned()

    def own(run_id: bytes, members: Sequence[str], term: int) -> Secrets:  # noqa: ARG001
        return OwnSecrets(run_id, pinned, name, identity)

    around = SiteAround(
        __version__,
        make_secrets=own,
        data_dir=settings.data_directory,
        data_settings=settings.data.options,
        spent_file=settings.spent_file(chosen),
        kit=settings.around(identity),
    )
    return kind.site(name, chosen, around)


def open_server(
    workspace: Any, kind_name: str, plan: str, *, output: str, engine: str, facts: str, data_dir: str
) -> ServerPremises:
    """The server in whose process we are. All texts are the job's."""
    kind = hosted_kind(kind_name)
    if is_simulation():
        folder = Path(data_dir) if data_dir else None
        around = ServerAround(engine, __version__, data_dir=folder, options=_facts(facts))
        return ServerPremises(kind, plan_of_job(kind, plan), Path(output), around)
    settings = kit_settings(workspace)
    chosen = accepted_plan(kind, plan, settings)  # the server opens data too, with the loader that the plan names

    def own(term: int, names: Sequence[str]) -> Secrets:  # noqa: ARG001
        return server_secrets(settings, names)

    around = ServerAround(
        engine,
        __version__,
        make_secrets=own,
        data_dir=settings.data_directory,
        data_settings=settings.data.options,
        options=_facts(facts),
        kit=settings.around(),
    )
    return ServerPremises(kind, chosen, settings.run_directory(output), around)


def server_secrets(settings: SiteSettings, names: Sequence[str]) -> Secrets:
    """The server's secrets of a term in a deployment."""
    pinned = settings.pinned()
    if missing := [name for name in names if name not in pinned]:
        raise PlanError(
            f"The server's kit pins no identity of {', '.join(missing)}.",
            remedy="Provision the deployment for this plan.",
        )
    return OwnSecrets(SecureRandomness().random_bytes(RUN_ID_BYTES), pinned)


def text_of_facts(facts: Mapping[str, Any]) -> str:
    """How a job carries them. FLARE takes an object without another one in it for a reference to its own settings."""
    return json.dumps({_FACTS: dict(facts)})


def _facts(text: str) -> dict[str, Any]:
    facts = _values(text, "facts").get(_FACTS)
    if not isinstance(facts, dict):
        raise PlanError("The job's facts are not an object.", remedy=_SUBMIT)
    return facts


def _values(text: str, what: str) -> dict[str, Any]:
    try:
        values = parse_json(text)
    except (ValueError, TypeError):
        raise PlanError(f"The job's {what} is not JSON.", remedy=_SUBMIT) from None
    if not isinstance(values, dict):
        raise PlanError(f"The job's {what} is not an object.", remedy=_SUBMIT)
    return values
