"""A deployment on FLARE: project file, start-up kits, identities.

    kits = provision(Deployment("trial", "fl.example.org", ["hospital-1", "hospital-2"]), Path("trial"))
    kits.sites["hospital-1"]        # the directory to give to that site, over a channel that both trust

`project.yml` is an ordinary FLARE project file: whoever likes edits it and runs `nvflare provision -p project.yml -w .`
beside it; `BilateralBuilder` is among its builders, so the kits are the same.

What the directory holds is secret: FLARE keeps its root key and all TLS keys in it, and the kits hold the identity keys
until they are handed out. Whoever has it can admit sites, and read nothing of the masks of past runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from nvflare.apis.utils.format_check import name_check
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner

from bilateral.engine.flare.kit_builder import PROPERTY
from bilateral.engine.flare.site_settings import DataSettings, ServerSettings
from bilateral.errors import DeploymentError, PlanError

Scheme = Literal["grpc", "tcp", "http"]
PROJECT_FILE = "project.yml"
_MAX_NAME_LENGTH = 63
_RESERVED = frozenset({"server", "admin", "all"})
_EXPECTED = {
    "client": "letters, digits, - and _",
    "server": "a host name or an IPv4 address",
    "org": "letters, digits and _",
    "admin": "an e-mail address",
}


@dataclass(frozen=True)
class Deployment:
    """Who takes part, and where the server is reached. `provision` refuses what FLARE would not take.

    `server_host`: the name or address under which sites reach the server; its certificate is for this name.
    `admin_port` None: sites and administrators use one port. `data_settings`: where a site's data are, if that is known
    here; a site can write it into its kit itself. `server_data`: test data of the server's own. `scheme`: how messages
    travel, always over mutual TLS; grpc passes most firewalls, tcp is a fifth quicker for small messages.
    """

    name: str
    server_host: str
    sites: Sequence[str]
    organisation: str = "bilateral"
    admin: str = "admin@bilateral.org"
    fed_learn_port: int = 8002
    admin_port: int | None = None
    data_settings: Mapping[str, DataSettings] = field(default_factory=dict)
    server_settings: ServerSettings = field(default_factory=ServerSettings)
    server_data: DataSettings = field(default_factory=DataSettings)
    scheme: Scheme = "grpc"


@dataclass(frozen=True)
class Kits:
    """Where the kits of a deployment are."""

    directory: Path
    project_file: Path
    server: Path
    sites: Mapping[str, Path]
    admin: Path

    @classmethod
    def open(cls, directory: Path) -> Kits:
        """The newest kits of a directory that `provision` or `nvflare provision` wrote."""
        directory = Path(directory).resolve()
        project = _read_project(directory / PROJECT_FILE)
        workspace = directory / str(project["name"])
        newest = max(workspace.glob("prod_[0-9][0-9]"), default=None)
        if newest is None:
            raise DeploymentError(
                f"There are no kits in {workspace}.",
                remedy=f"Run `nvflare provision -p {PROJECT_FILE} -w .` in {directory}.",
            )
        names = {kind: [p["name"] for p in project["participants"] if p["type"] == kind] for kind in _PARTIES}
        missing = [name for kind in _PARTIES for name in names[kind] if not (newest / name / "startup").is_dir()]
        if missing or len(names["server"]) != 1 or not names["admin"]:
            raise DeploymentError(
                f"The kits in {newest} are not those of {PROJECT_FILE}; missing: {', '.join(missing) or 'a server'}.",
                remedy=f"Run `nvflare provision -p {PROJECT_FILE} -w .` in {directory} again.",
            )
        sites = {name: newest / name for name in names["client"]}
        kits = (newest / names["server"][0], sites, newest / names["admin"][0])
        return cls(directory, directory / PROJECT_FILE, *kits)


_PARTIES = ("server", "client", "admin")


def provision(deployment: Deployment, directory: Path) -> Kits:
    """Write the project file and the kits into an empty or new directory."""
    _check(deployment)
    directory = Path(directory).resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise PlanError(
            f"Expected an empty directory for the kits, got {directory} with something in it.",
            remedy="Name a new directory, or add a site to an existing deployment.",
        )
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    (directory / PROJECT_FILE).write_text(project_text(deployment), encoding="utf-8")
    return _build_kits(directory)


def add_site(directory: Path, name: str, data: DataSettings | None = None) -> Kits:
    """Add a site to a deployment: same root certificate, same identities, new kits for all in a new `prod_NN`.

    The new site gets its kit. Every other party pins identities, so it must replace its `local/bilateral.toml` by the
    new one (or add the one line to [identities]) before the next run: until then its clients refuse a roster with the
    new site. Certificates and private keys stay as they are. Comments of the project file before the sites are kept.
    """
    directory = Path(directory).resolve()
    path = directory / PROJECT_FILE
    project = _read_project(path)
    taken = [str(p["name"]) for p in project["participants"]]
    _check_name(name, "client", "A site's name")
    _check_distinct([*taken, name])
    entry = _participant(name, "client", party_organisation(path), _settings(data or DataSettings()))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if re.match(r"participants:\s*(#.*)?$", line)), None)
    if start is None:
        raise DeploymentError(f"{path} has no block `participants:`.", remedy="Add the site by hand and provision.")
    changed = "".join([*lines[: start + 1], entry, *lines[start + 1 :]])
    if [p["name"] for p in yaml.safe_load(changed)["participants"]] != [name, *taken]:
        raise DeploymentError(f"{path} is laid out in a way not known here.", remedy="Add the site by hand.")
    path.write_text(changed, encoding="utf-8")
    return _build_kits(directory)


def party_organisation(project_file: Path) -> str:
    """The organisation of the parties. FLARE knows others, but one is enough here: it has no say in what is allowed."""
    project = _read_project(project_file)
    return next(str(p["org"]) for p in project["participants"] if p["type"] == "server")


def project_text(deployment: Deployment) -> str:
    """The FLARE project file of a deployment, with comments for the operator who edits it."""
    organisation = deployment.organisation
    ports = f"    fed_learn_port: {deployment.fed_learn_port}\n"
    if deployment.admin_port is not None:
        ports += f"    admin_port: {deployment.admin_port}\n"
    server = _settings(deployment.server_data) | deployment.server_settings.model_dump()
    none = DataSettings()
    return _PROJECT.format(
        name=json.dumps(deployment.name),
        server=_participant(deployment.server_host, "server", organisation, server, ports),
        sites="".join(
            _participant(site, "client", organisation, _settings(deployment.data_settings.get(site, none)))
            for site in deployment.sites
        ),
        scheme=deployment.scheme,
        admin=_participant(deployment.admin, "admin", organisation, {}, "    role: project_admin\n"),
    )


_PROJECT = """\
# FLARE project file of this deployment. After a change, run beside this file:
#   nvflare provision -p project.yml -w . --force
# Certificates and identities are kept; new kits for all parties appear in a new folder prod_NN.
api_version: 3
name: {name}
description: bilateral deployment

participants:
# The server. Its name is the host name under which sites reach it; its certificate is for this name.
# `runs`: where run directories live, relative to its kit. `data`: test data of its own, if it has any.
{server}
# The sites. `data` goes to that site's local/bilateral.toml and nowhere else; a site can also write it there itself.
{sites}
# Who may submit and stop jobs. No role may send code or read files of a party (local/authorization.json).
{admin}
# All connections use mutual TLS; this is FLARE's default, said here so that nobody has to look it up.
connection_security: mtls

builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args:
      template_file:
        - master_template.yml
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args:
      config_folder: config
      scheme: {scheme}
  - path: nvflare.lighter.impl.cert.CertBuilder
  - path: nvflare.lighter.impl.signature.SignatureBuilder
  # Ours, and last: settings, identities and limits of each kit.
  - path: bilateral.engine.flare.kit_builder.BilateralBuilder
"""


def _participant(name: str, kind: str, organisation: str, settings: Mapping[str, Any], more: str = "") -> str:
    head = f"  - name: {json.dumps(name)}\n    type: {kind}\n    org: {json.dumps(organisation)}\n{more}"
    return head + (f"    {PROPERTY}: {_one_line_yaml(settings)}\n" if settings else "")


def _one_line_yaml(value: Mapping[str, Any]) -> str:
    """JSON is YAML, but for characters beyond 16 bits: JSON writes two surrogates, which YAML keeps apart."""

    def join(pair: re.Match[str]) -> str:
        high, low = (int(half, 16) for half in pair.groups())
        return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"

    return re.sub(r"\\u(d[89ab]..)\\u(d[c-f]..)", join, json.dumps(value))


def _settings(data: DataSettings) -> dict[str, Any]:
    values = data.model_dump(exclude_none=True, exclude_defaults=True)
    return {"data": values} if values else {}


def _build_kits(directory: Path) -> Kits:
    """FLARE's own provisioning, in this process, with its messages collected instead of printed."""
    project = _read_project(directory / PROJECT_FILE)
    log = _Collected()
    try:
        provisioner = Provisioner(str(directory), prepare_builders(project))
        context = provisioner.provision(prepare_project(project), logger=log)
    except (ValueError, RuntimeError) as error:
        raise DeploymentError(f"FLARE does not take {directory / PROJECT_FILE}: {error}") from error
    if context.get(CtxKey.BUILD_ERROR):
        raise DeploymentError(f"FLARE could not build the kits: {' '.join(log.problems)}")
    return Kits.open(directory)


class _Collected:
    """The logger that FLARE's provisioning asks for. Keeps what went wrong."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def debug(self, message: str) -> None:
        """Not kept."""

    def info(self, message: str) -> None:
        """Not kept."""

    def warning(self, message: str) -> None:
        self.problems.append(message)

    def error(self, message: str) -> None:
        self.problems.append(message)


def _read_project(path: Path) -> dict[str, Any]:
    try:
        project = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DeploymentError(
            f"There is no project file at {path}.", remedy="`bilateral deploy` writes one with the kits."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise DeploymentError(f"{path} is not a readable YAML file: {error}.") from error
    participants = project.get("participants") if isinstance(project, dict) else None
    if not isinstance(participants, list) or not all(
        isinstance(p, dict) and {"name", "type", "org"} <= p.keys() for p in participants
    ):
        raise DeploymentError(f"{path} is not a FLARE project file: no list `participants` with name, type and org.")
    return dict(project)


def _check(deployment: Deployment) -> None:
    if isinstance(deployment.sites, str) or not deployment.sites:
        raise PlanError(f"Expected a list of one or more sites, got {deployment.sites!r}.")
    _check_name(deployment.name, "client", "A deployment's name")
    _check_name(deployment.server_host, "server", "The server's host")
    _check_name(deployment.organisation, "org", "The organisation")
    _check_name(deployment.admin, "admin", "The administrator")
    for site in deployment.sites:
        _check_name(site, "client", "A site's name")
    _check_distinct([deployment.server_host, *deployment.sites])
    unknown = sorted(set(deployment.data_settings) - set(deployment.sites))
    if unknown:
        raise PlanError(
            f"There are data settings for {', '.join(map(repr, unknown))}, but no such site.",
            remedy=f"Sites: {', '.join(deployment.sites)}.",
        )
    if deployment.scheme not in get_args(Scheme):
        raise PlanError(f"Expected one of {', '.join(get_args(Scheme))}, got scheme {deployment.scheme!r}.")
    for port in (deployment.fed_learn_port, deployment.admin_port):
        if port is not None and not 1 <= port <= 65535:
            raise PlanError(f"Expected a port between 1 and 65535, got {port}.")


def _check_name(name: str, kind: str, what: str) -> None:
    # FLARE's patterns end with `$`, which lets a line break through.
    refused = not isinstance(name, str) or name != name.strip() or name_check(name, kind)[0]
    if refused or len(name) > _MAX_NAME_LENGTH or (kind == "client" and name.casefold() in _RESERVED):
        raise PlanError(
            f"{what} must be of {_EXPECTED[kind]}, at most {_MAX_NAME_LENGTH} characters, and none of "
            f"{', '.join(sorted(_RESERVED))}; got {name!r}."
        )


def _check_distinct(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            raise PlanError(f"The name {name!r} is given twice.", remedy="Server and sites need different names.")
        seen.add(name.casefold())
