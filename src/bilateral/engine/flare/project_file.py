"""The FLARE project file of a deployment: written from a `Deployment`, read again, and added to.

Names are checked here, once: what FLARE would not take, or would take and stumble over later, is refused before
anything is written.
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

from bilateral.documents import MAX_DEPTH
from bilateral.engine.flare.kit_builder import PROPERTY
from bilateral.engine.flare.site_settings import (
    FINGERPRINT_PATTERN,
    DataSettings,
    ServerSettings,
    check_question_name,
)
from bilateral.errors import DeploymentError, PlanError

Scheme = Literal["grpc", "tcp", "http"]
PROJECT_FILE = "project.yml"
_BUILDER = "bilateral.engine.flare.kit_builder.BilateralBuilder"
_PLANS_LINE = re.compile(r"^      plans: \[.*\][ \t]*$", re.MULTILINE)
_QUESTIONS_LINE = re.compile(r"^      questions: \[.*\][ \t]*\n", re.MULTILINE)
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
    travel, always over mutual TLS; grpc passes most firewalls, tcp is a fifth quicker for small messages. `plans`:
    fingerprints of the plans that it is for; the parties take part in no other. `questions`: RUN/CLIENT, for each run
    that is served and each client that asks.
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
    plans: Sequence[str] = ()
    questions: Sequence[str] = ()


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
        builder=_BUILDER,
        agreed=_agreed(deployment.plans, deployment.questions),
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
# The sites. `data` goes to that site's bilateral.toml and nowhere else; a site can also write it there itself.
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
  - path: {builder}
    args:
      # Fingerprints of the plans that all parties agree to take part in. Questions of clients that the server counts.
{agreed}
"""


def _agreed(plans: Sequence[str], questions: Sequence[str]) -> str:
    line = f"      plans: {json.dumps(list(plans))}"
    return f"{line}\n      questions: {json.dumps(list(questions))}" if questions else line


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


def add_to_project(
    path: Path, sites: Mapping[str, DataSettings], plans: Sequence[str], questions: Sequence[str] = ()
) -> None:
    """Add sites, plans and questions to a project file. Its comments and all else stay; if it fails, the whole file."""
    project = read_project(path)
    taken = [str(p["name"]) for p in project["participants"]]
    for name in sites:
        check_name(name, "client", "A site's name")
    _check_distinct([*taken, *sites])
    _check_plans(plans)
    for question in questions:
        check_question_name(question)
    organisation, text = party_organisation(path), path.read_text(encoding="utf-8")
    entries = "".join(_participant(name, "client", organisation, _settings(data)) for name, data in sites.items())
    text = re.sub(r"^participants:[ \t]*(#.*)?\n", lambda found: found[0] + entries, text, count=1, flags=re.MULTILINE)
    agreed = list(dict.fromkeys([*_agreed_in(project, "plans"), *plans]))
    counted = list(dict.fromkeys([*_agreed_in(project, "questions"), *questions]))
    text = _PLANS_LINE.sub(lambda _: _agreed(agreed, counted), _QUESTIONS_LINE.sub("", text))
    changed = yaml.safe_load(text)
    found = [p["name"] for p in changed["participants"]], _agreed_in(changed, "plans"), _agreed_in(changed, "questions")
    if found != ([*sites, *taken], agreed, counted):
        raise DeploymentError(
            f"{path} is laid out in a way not known here.", remedy="Add the sites and plans by hand, and provision."
        )
    path.write_text(text, encoding="utf-8")


def _agreed_in(project: Mapping[str, Any], what: str) -> list[str]:
    """`plans` or `questions`."""
    args = [builder.get("args", {}) for builder in project["builders"] if builder["path"] == _BUILDER]
    return [str(name) for each in args for name in each.get(what, ())]


def party_organisation(project_file: Path) -> str:
    """The organisation of the parties. FLARE knows others, but one is enough here: it has no say in what is allowed."""
    project = read_project(project_file)
    return next(str(p["org"]) for p in project["participants"] if p["type"] == "server")


class _ShallowLoader(yaml.SafeLoader):
    """Refuses what is nested deeply as soon as it is: PyYAML looks at all that is open for every bracket that opens."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 (PyYAML's name)
        self._go_deeper(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        self._go_deeper(len(self.indents))
        return bool(super().add_indent(column))

    def _go_deeper(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {MAX_DEPTH} levels deep")


def read_project(path: Path) -> dict[str, Any]:
    try:
        project = yaml.load(path.read_text(encoding="utf-8"), _ShallowLoader)
    except FileNotFoundError as error:
        raise DeploymentError(
            f"There is no project file at {path}.", remedy="`bilateral deploy` writes one with the kits."
        ) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OSError) as error:
        raise DeploymentError(f"{path} is not a readable YAML file: {str(error)[:500]}.") from error
    participants = project.get("participants") if isinstance(project, dict) else None
    if not isinstance(participants, list) or not all(
        isinstance(p, dict) and {"name", "type", "org"} <= p.keys() for p in participants
    ):
        raise DeploymentError(f"{path} is not a FLARE project file: no list `participants` with name, type and org.")
    builders = project.get("builders")
    if not isinstance(builders, list) or not all(isinstance(b, dict) and "path" in b for b in builders):
        raise DeploymentError(f"{path} is not a FLARE project file: no list `builders` with paths.")
    return dict(project)


def check_deployment(deployment: Deployment) -> None:
    if isinstance(deployment.sites, str) or not deployment.sites:
        raise PlanError(f"Expected a list of one or more sites, got {deployment.sites!r}.")
    check_name(deployment.name, "client", "A deployment's name")
    check_name(deployment.server_host, "server", "The server's host")
    check_name(deployment.organisation, "org", "The organisation")
    check_name(deployment.admin, "admin", "The administrator")
    for site in deployment.sites:
        check_name(site, "client", "A site's name")
    _check_distinct([deployment.server_host, *deployment.sites])
    unknown = sorted(set(deployment.data_settings) - set(deployment.sites))
    if unknown:
        raise PlanError(
            f"There are data settings for {', '.join(map(repr, unknown))}, but no such site.",
            remedy=f"Sites: {', '.join(deployment.sites)}.",
        )
    if deployment.scheme not in get_args(Scheme):
        raise PlanError(f"Expected one of {', '.join(get_args(Scheme))}, got scheme {deployment.scheme!r}.")
    _check_plans(deployment.plans)
    for question in deployment.questions:
        check_question_name(question)
    for port in (deployment.fed_learn_port, deployment.admin_port):
        if port is not None and not 1 <= port <= 65535:
            raise PlanError(f"Expected a port between 1 and 65535, got {port}.")


def check_name(name: str, kind: str, what: str) -> None:
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


def _check_plans(plans: Sequence[str]) -> None:
    for plan in plans:
        if not re.fullmatch(FINGERPRINT_PATTERN, plan) or plan.endswith("\n"):
            raise PlanError(f"Expected a plan's fingerprint of 64 hexadecimal digits, got {plan!r}.")
