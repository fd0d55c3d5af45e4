"""The handbook of one deployment: a `README.md` beside its kits, with its own names, paths and plan.

docs/how-to/deployment.md is the general one, and was followed to the letter by docs/how-to/loopback.sh.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from bilateral.engine.flare.provisioning import Kits
from bilateral.engine.flare.site_settings import WORKSPACE_FOLDER
from bilateral.engine.kind import ROUNDS
from bilateral.engine.plan import RunPlan
from bilateral.engine.remote.hosting import hosted_kind
from bilateral.version import __version__

_TEMPLATE = """\
# Deployment {name}

Plan: `{plan_file}`. Its fingerprint, which all operators compare by telephone before they start:

    {fingerprint}

Every kit accepts this plan and no other. The fingerprint covers everything in the plan but how long the server waits
(`federation.timeout`, `min_sites`, `patience`).

## What this deployment does not hide

{warnings}

## Who gets what

Everything in this directory is secret: it holds the root key of the deployment and the private keys of all parties.

| directory | to whom | over which channel |
|---|---|---|
{parties}

Hand a kit to its party only, over a channel that both ends trust: in person, on an encrypted disk, or by `scp` to a
host whose key was checked. It holds that party's private keys. When a site has its kit, delete the copy of its identity
key here (`identity.key`); nobody but the site needs it. All parties get `{plan_file}` to read.

## At each site

1. Install `bilateral[flare]` {version}, the same version as everywhere, in an environment of Python 3.11 or later.
2. Read the plan, and compare its fingerprint: `{plan_file}` is what you agree to.
3. Data: the plan loads `{data_name}` with these options, by site:

{options}

   A relative path is looked for in `data/` of the kit. To use another folder or other options, edit `[data]` in
   `bilateral.toml` of the kit; what stands there wins over the plan, and is sent to nobody.
4. {code}
5. Start, with that environment active: `flare/startup/start.sh`. It starts the site again if it dies; after a reboot
   you start it. Its log is `flare/log.txt` in the kit. `flare/` is FLARE's workspace: keep nothing of yours in it.

Keep `spent/`: it counts the rounds of each plan with sound noise. A site without its file takes no part.

## At the server ({server}, port {port})

The same steps with the server's kit. The server needs test data of its own, loaded with the options above under
`server`; it never sees the sites' data. Sites and the administrator must reach it under the name `{server}`, which its
certificate is for, on port {port}; nobody needs to reach the sites. Runs are in `runs/` of its kit.

## Run, watch, stop, go on

    bilateral submit {admin} {plan_file} --name first      # from the administrator's machine
    bilateral watch runs/first                             # in the server's kit, at the server

Ctrl-C in `submit` stops the run after the round at hand. To go on, or to look after a run that was left alone:

    bilateral submit {admin} {plan_file} --name first --resume

## When a site or the server dies

Nothing has to be done for the others. The round goes on without the site if {needed} of {num_sites} sites are left;
otherwise the server waits (`federation.patience`). `flare/startup/start.sh` starts a party again that died; after a
reboot, start it by hand. `submit` begins a new term with the site in it, from the last round that was done. If `submit`
itself was ended, the same command with `--resume` goes on.

## Stop a party for good

    echo y | flare/startup/stop_fl.sh

in its kit, and wait until `flare/daemon_pid.fl` is gone (about ten seconds). All at once, from the administrator's kit:
`startup/fl_admin.sh`, then `shutdown all`.

## Another plan, or another site

Change a copy of the plan (a new site is a new `[data.sites.NAME]`) and run

    bilateral deploy NEW_PLAN.toml --update {directory}

Certificates and identities are kept. The new site gets its kit from the new folder `prod_NN`; every other party adds
the new lines of its new `bilateral.toml` (under `[identities]` and `[plans]`) and the new files of its new `spent/` to
its own, if it agrees. The new `spent/` has nothing of earlier plans: a budget begins once.
"""


def handbook(plan: RunPlan, kits: Kits, warnings: Sequence[str], plan_file: str) -> str:
    """The text for the operators of these kits."""
    sites = [name for name in kits.sites if name in plan.data.sites] or [
        name for name in kits.sites if name != plan.named_dealer
    ]
    num_helpers = len(plan.parties(()))
    return _TEMPLATE.format(
        **places_of(plan, kits, warnings, plan_file),
        parties="\n".join(_party(kits, kit, whom, channel) for kit, whom, channel in _parties(kits, plan)),
        data_name=plan.data.name,
        code=_code(plan),
        options=_indented(_options(plan, sites)),
        needed=hosted_kind(ROUNDS).quorum(plan, len(sites) + num_helpers).needed - num_helpers,
        num_sites=len(sites),
    )


def places_of(plan: Any, kits: Kits, warnings: Sequence[str], plan_file: str) -> dict[str, str]:
    """What every handbook names, of a plan of any kind: its deployment, its parties' kits, its server."""
    service = json.loads((kits.server / WORKSPACE_FOLDER / "startup" / "fed_server.json").read_text(encoding="utf-8"))
    return {
        "name": kits.server.parent.parent.name,
        "plan_file": plan_file,
        "fingerprint": plan.fingerprint(),
        "warnings": "\n".join(f"- {warning}" for warning in warnings),
        "version": __version__,
        "server": kits.server.name,
        "server_kit": str(kits.server.relative_to(kits.directory)),
        "port": service["servers"][0]["service"]["target"].rpartition(":")[2],
        "admin": str(kits.admin.relative_to(kits.directory)),
        "kits": str(kits.server.parent.relative_to(kits.directory)),
        "directory": kits.directory.name,
    }


def _parties(kits: Kits, plan: RunPlan) -> list[tuple[Path, str, str]]:
    sites = [(kit, _operator(name, plan), "a trusted channel to that operator") for name, kit in kits.sites.items()]
    server = (kits.server, "the operator of the server", "a trusted channel to that operator")
    return [server, *sites, (kits.admin, "whoever may start and stop runs", "stays with you, or a trusted channel")]


def _operator(name: str, plan: RunPlan) -> str:
    if name == plan.named_dealer:
        return f"the operator of {name}, who deals: it has no data, and must belong to neither a site nor the server"
    return f"the operator of {name}"


def _party(kits: Kits, kit: Path, whom: str, channel: str) -> str:
    return f"| `{kit.relative_to(kits.directory)}` | {whom} | {channel} |"


def _code(plan: RunPlan) -> str:
    own = [name for name in (plan.data.name, plan.model.name) if ":" in name]
    if not own:
        return "The plan names no code but that of `bilateral`; `[code]` in `bilateral.toml` stays empty."
    names = ", ".join(f'"{name}"' for name in own)
    return (
        f"The plan runs {names}. Read that code, install it, and write `allowed = [{names}]` under `[code]` in\n"
        "   `bilateral.toml` of the kit: without that the plan is refused here."
    )


def _options(plan: RunPlan, sites: Sequence[str]) -> str:
    own = {site: {**plan.data.options, **plan.data.sites.get(site, {})} for site in sites}
    return tomli_w.dumps({"server": {**plan.data.options, **plan.data.server}, **own})


def _indented(text: str) -> str:
    return "\n".join(f"       {line}" if line else "" for line in text.rstrip().splitlines())
