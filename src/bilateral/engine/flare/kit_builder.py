"""The last builder of our project files: makes a FLARE start-up kit into a kit of ours.

`nvflare provision` runs it like FLARE's own builders, so an operator who edits the project file and provisions by hand
gets the same kits as `provision`. It moves FLARE's kit into `flare/`, which is FLARE's workspace from then on, and
writes beside it, where no job reaches:

- `bilateral.toml`: the party's own settings, with the public identity keys of all sites and the plans that the party
  takes part in (`plans`, an argument of the builder in the project file);
- `data/`, empty: where the party's data are looked for, unless its settings say otherwise;
- `identity.key`, mode 0600, in a site's kit only: its private identity key;
- `spent/FINGERPRINT.json`, in a site's kit only: how many rounds of a plan the site has used. A plan's file is handed
  out once, with the first kit that accepts the plan; without it the site takes no part: no later kit resets a budget;
- `spent/questions/RUN/CLIENT.json`, in the server's kit only: how many questions a client has asked of a run's model,
  in all services of it. Handed out once as well; without it that client is not answered.

and changes in FLARE's part:

- `local/resources.json`: FLARE's settings, with the classes a job may build cut down to ours, short waits, and our
  `JobGate` before every command that comes from the server;
- `local/authorization.json`: nobody may send code (BYOC) or read files of a party;
- `local/log_config.json`: FLARE's line per call is not written; joining, leaving and refusing is.

Guarantee: a job can build only the classes in `JOB_CLASSES`, and carries no code. The class list alone would not do:
FLARE does not look at it for a job with code, so the right to send code is withdrawn too.
Provisioning again keeps certificates and identities, and pins the identities of all sites, new ones too, in every kit.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Participant, Project
from nvflare.lighter.spec import Builder

from bilateral.engine.flare.site_settings import (
    QUESTIONS,
    SETTINGS_FILE,
    SPENT_FOLDER,
    WORKSPACE_FOLDER,
    CodeSettings,
    DataSettings,
    IdentitySettings,
    PlanSettings,
    ServerSettings,
    check_question_name,
    read_identity,
)
from bilateral.errors import DeploymentError
from bilateral.protocols.mask.keys import KEY_BYTES, Identity
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.randomness import SecureRandomness

PROPERTY = "bilateral"
"""The key under which a participant of the project file has its settings."""
KIT_VARIABLE = "BILATERAL_KIT"
"""The environment variable that tells FLARE's storage where the kit is, wherever it was moved to."""
JOB_CLASSES = (
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "bilateral.engine.flare.coordinator.Coordinator",
    "bilateral.engine.flare.site.Site",
)
GATE = {"id": "job_gate", "path": "bilateral.engine.flare.job_gate.JobGate", "args": {}}
HEARTBEAT_SECONDS = 4
"""A parent process tells the server this often that it is there, and which jobs it runs."""
DATA_FOLDER = "data"
OPTIONS = {
    # a site that died does not hold up the end of a job for FLARE's 15 minutes
    "server": ("client_outcome_wait_timeout=10",),
    "client": (f"heart_beat_interval={HEARTBEAT_SECONDS}",),
}
"""FLARE reads these from the command line only, so they stand in `startup/sub_start.sh`."""
ENVIRONMENT = {
    # FLARE keeps a thread waiting for each reply that it received, 65 s by default: thousands with short rounds
    "NVFLARE_STREAMING_RETRY_TIMEOUT": "2",
    "NVFLARE_STREAMING_RETRY_WAIT": "1",
    # megabytes that come and go with every message stay with the process: a fifth less time for 8 MB
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "2147483647",
}
"""What every FLARE process of ours runs with."""
_IDENTITIES = "bilateral_identities.json"
_COUNTERS = "bilateral_counters.json"
_ALLOWED = ("submit_job", "manage_job", "download_job", "view", "operate", "app_command")
_REFUSED = ("clone_job", "shell_commands", "byoc", "server-predeployed-flwr")
_TELLING_LOGGERS = (
    "nvflare.private.fed.server.client_manager",  # a site joined or left
    "nvflare.private.fed.server.fed_server",  # a dead site was removed, a job failed at a site
    "nvflare.private.fed.server.job_runner",  # a job started or ended
    "nvflare.private.fed.client.fed_client",  # connected, registered
    "nvflare.private.fed.client.client_executor",  # a job process began or ended
    "nvflare.fuel.f3.mpm",  # the process ends
)


_SETTINGS_HEADER = """\
# Settings of {}, for this party only. Paths are relative to the kit directory.
# [data.options] are options of the data loader that the plan names; they win over the plan's own.
# [plans] accepted: add the fingerprint of another plan here if you agree to it; without it, it is refused.
# [code] allowed: functions of your own that a plan may name as its data or model, "package.module:function".

"""


class BilateralBuilder(Builder):
    """Adds settings, identities and limits to the kits that FLARE's builders made. Must come last.

    `plans`: fingerprints of the plans that this deployment is for. `questions`: of whom the server's kit counts the
    questions to which run, RUN/CLIENT.
    """

    def __init__(self, plans: Sequence[str] = (), questions: Sequence[str] = ()) -> None:
        super().__init__()
        self._plans = PlanSettings(accepted=tuple(plans))
        for name in questions:
            check_question_name(name)
        self._questions = tuple(questions)

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        state = Path(ctx.get_state_dir())
        state.chmod(0o700)  # FLARE keeps the root key here, in a file that all may read
        server, sites = project.get_server(), project.get_clients()
        workspace = Path(ctx.get_workspace())
        public_keys = self._identities(state / _IDENTITIES, workspace, sites, ctx)
        self._counters(state / _COUNTERS, workspace, server, sites, ctx)
        for party in (server, *sites):
            local = Path(ctx.get_local_dir(party))
            _write_settings(local.parent, party, public_keys, self._plans)
            (local.parent / DATA_FOLDER).mkdir(exist_ok=True)
            _write_json(local / "authorization.json", _authorization(local))
            _write_json(local / "log_config.json", _log_config(local))
            _write_json(local / "resources.json", _resources(local, party.type))
            _extend_start_script(Path(ctx.get_kit_dir(party)) / "sub_start.sh", party.type)

    def finalize(self, project: Project, ctx: ProvisionContext) -> None:
        """FLARE calls this in reverse order: before the kits are moved to their place."""
        for party in (project.get_server(), *project.get_clients()):
            kit = Path(ctx.get_ws_dir(party))
            ours = {SETTINGS_FILE, SPENT_FOLDER, DATA_FOLDER, Path(IdentitySettings().key_file).name}
            flares = [path for path in kit.iterdir() if path.name not in ours]
            (kit / WORKSPACE_FOLDER).mkdir()
            for path in flares:
                path.rename(kit / WORKSPACE_FOLDER / path.name)

    def _counters(
        self, known_file: Path, workspace: Path, server: Participant, sites: list[Participant], ctx: ProvisionContext
    ) -> None:
        """A counter for each site and plan that never had one, and one at the server for each run and client."""
        if known_file.exists():
            handed_out: dict[str, list[str]] = json.loads(known_file.read_text(encoding="utf-8"))
        else:
            handed_out = {site.name: sorted(_plans_of_earlier_kits(workspace, site.name)) for site in sites}
        for site in sites:
            theirs = handed_out.setdefault(site.name, [])
            for plan in self._plans.accepted:
                if plan not in theirs:
                    FileCounter.create(Path(ctx.get_ws_dir(site)) / SPENT_FOLDER / f"{plan}.json")
                    theirs.append(plan)
        its = handed_out.setdefault(f"{QUESTIONS} at {server.name}", [])
        for name in self._questions:
            if name not in its:
                FileCounter.create(Path(ctx.get_ws_dir(server)) / SPENT_FOLDER / QUESTIONS / f"{name}.json", QUESTIONS)
                its.append(name)
        _write_json(known_file, handed_out)

    def _identities(
        self, known_file: Path, workspace: Path, sites: list[Participant], ctx: ProvisionContext
    ) -> dict[str, str]:
        known: dict[str, str] = json.loads(known_file.read_text(encoding="utf-8")) if known_file.exists() else {}
        for site in sites:
            key_file = Path(ctx.get_ws_dir(site)) / IdentitySettings().key_file
            if site.name in known:
                if not _keep_identity(known[site.name], site.name, key_file, workspace):
                    ctx.warning(f"The private identity key of {site.name} is not here; the site must keep its own.")
            else:
                known[site.name] = write_new_identity(key_file).public_bytes.hex()
        _write_json(known_file, known)
        return {site.name: known[site.name] for site in sites}


def write_new_identity(path: Path) -> Identity:
    """A fresh identity; its private key goes to `path`, mode 0600, and nowhere else."""
    secret = SecureRandomness().random_bytes(KEY_BYTES)
    _write_secret(path, secret.hex())
    return Identity(Ed25519PrivateKey.from_private_bytes(secret))


def _keep_identity(public_key: str, site: str, key_file: Path, workspace: Path) -> bool:
    """Copy a site's private key from the newest earlier kit that has it. False: no kit here has it any more."""
    for kits in sorted(workspace.glob("prod_*"), reverse=True):
        earlier = next((path for path in _places(kits / site, key_file.name) if path.exists()), None)
        if earlier is not None:
            if read_identity(earlier).public_bytes.hex() != public_key:
                raise DeploymentError(f"The identity key {earlier} is not the one that was pinned for {site}.")
            _write_secret(key_file, earlier.read_text(encoding="ascii").strip())
            return True
    return False


def _places(kit: Path, name: str) -> tuple[Path, Path]:
    """Where a file of ours is in a kit, and where it was in kits of earlier versions."""
    return kit / name, kit / "local" / name


def _plans_of_earlier_kits(workspace: Path, site: str) -> set[str]:
    """Plans that kits of earlier versions accepted: their budgets may be in use, and begin anew for nobody."""
    files = [path for kits in workspace.glob("prod_*") for path in _places(kits / site, SETTINGS_FILE) if path.exists()]
    return {plan for path in files for plan in tomllib.loads(path.read_text(encoding="utf-8"))["plans"]["accepted"]}


def _write_secret(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text + "\n")


def _write_settings(kit: Path, party: Participant, public_keys: dict[str, str], plans: PlanSettings) -> None:
    own = dict(party.get_prop(PROPERTY) or {})
    data = {"data_dir": DATA_FOLDER, **own.pop("data", {})}
    values: dict[str, Any] = {"data": DataSettings.model_validate(data).model_dump(exclude_none=True)}
    if party.type == "server":
        values["server"] = ServerSettings.model_validate(own).model_dump()
    elif own:
        raise DeploymentError(f"`{PROPERTY}` of {party.name} has {', '.join(own)}; expected only `data`.")
    else:
        values["identity"] = IdentitySettings().model_dump()
    values["identities"] = public_keys
    values["plans"] = plans.model_dump(mode="json")
    values["code"] = CodeSettings().model_dump(mode="json")
    header = _SETTINGS_HEADER.format(party.name)
    (kit / SETTINGS_FILE).write_text(header + tomli_w.dumps(values), encoding="utf-8")


def _resources(local: Path, kind: str) -> dict[str, Any]:
    resources = _read_default(local, "resources.json")
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = list(JOB_CLASSES)
    resources["components"].append(GATE)
    if kind == "server":
        _set_server_resources(resources)
    else:
        # A site's log can quote its data: it stays at the site.
        resources["allow_log_streaming"] = False
        resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
        # "maint": registration and heartbeat. A server that is gone is asked again after this time.
        resources["client"].update({"maint_msg_timeout": 5.0, "client_register_interval": 1.0})
    return resources


def _set_server_resources(resources: dict[str, Any]) -> None:
    storage = f"{{${KIT_VARIABLE}}}/storage"  # FLARE's default is one directory in /tmp for all servers of a machine
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{storage}/snapshots"
    components = {part["id"]: part for part in resources["components"]}
    components["job_manager"]["args"]["uri_root"] = f"{storage}/jobs"
    # Tries after 1, 2, 4, 8, 10, 10, ... seconds, and does not give up: the sites may take their time to come.
    components["job_scheduler"]["args"].update(
        {"max_jobs": 1, "max_schedule_count": 100_000, "min_schedule_interval": 1.0, "max_schedule_interval": 10.0}
    )
    resources["servers"][0].update({"heart_beat_timeout": 6 * HEARTBEAT_SECONDS, "shutdown_period": 5.0})


def _authorization(local: Path) -> dict[str, Any]:
    policy = _read_default(local, "authorization.json")
    allowed = dict.fromkeys(_ALLOWED, "any") | dict.fromkeys(_REFUSED, "none")
    policy["permissions"] = {"project_admin": allowed, "member": {"view": "any"}}
    return policy


def _log_config(local: Path) -> dict[str, Any]:
    config = _read_default(local, "log_config.json")
    handlers = ["consoleHandler", "logFileHandler", "errorFileHandler"]
    config["handlers"] = {name: config["handlers"][name] for name in handlers}
    config["filters"] = {}
    config["loggers"] = {
        "root": {"level": "INFO", "handlers": handlers},
        "nvflare": {"level": "WARNING"},
        **{name: {"level": "INFO"} for name in _TELLING_LOGGERS},
    }
    return config


def _extend_start_script(script: Path, kind: str) -> None:
    text = script.read_text(encoding="utf-8")
    export = 'echo "WORKSPACE set to $WORKSPACE"\n'
    last_option = " config_folder="
    if text.count(export) != 1 or text.count(last_option) != 1:
        raise DeploymentError(
            f"FLARE wrote a {script.name} of a form that is not known here.", remedy="Use nvflare 2.9."
        )
    ours = "".join(f'export {name}="{value}"\n' for name, value in ENVIRONMENT.items())
    text = text.replace(export, export + f'export {KIT_VARIABLE}="$(dirname "$SOURCE_WORKSPACE")"\n' + ours)
    script.write_text(text.replace(last_option, f" {' '.join(OPTIONS[kind])}{last_option}"), encoding="utf-8")


def _read_default(local: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((local / f"{name}.default").read_text(encoding="utf-8"))
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
