"""A deployment on FLARE: project file, start-up kits, identities.

    kits = provision(Deployment("trial", "fl.example.org", ["hospital-1", "hospital-2"]), Path("trial"))
    kits.sites["hospital-1"]        # the directory to give to that site, over a channel that both trust

`project.yml` is an ordinary FLARE project file: whoever likes edits it and runs `nvflare provision -p project.yml -w .`
beside it; `BilateralBuilder` is among its builders, so the kits are the same.

What the directory holds is secret: FLARE keeps its root key and all TLS keys in it, and the kits hold the identity keys
until they are handed out. Whoever has it can admit sites, and read nothing of the masks of past runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvflare.lighter.constants import CtxKey
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner

from bilateral.engine.flare.project_file import (
    PROJECT_FILE,
    Deployment,
    add_to_project,
    check_deployment,
    party_organisation,
    project_text,
    read_project,
)
from bilateral.engine.flare.site_settings import WORKSPACE_FOLDER, DataSettings, check_layout
from bilateral.errors import DeploymentError, PlanError

__all__ = ["Deployment", "Kits", "extend", "party_organisation", "project_text", "provision"]


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
        project = read_project(directory / PROJECT_FILE)
        workspace = directory / str(project["name"])
        newest = max(workspace.glob("prod_[0-9][0-9]"), default=None)
        if newest is None:
            raise DeploymentError(
                f"There are no kits in {workspace}.",
                remedy=f"Run `nvflare provision -p {PROJECT_FILE} -w .` in {directory}.",
            )
        names = {kind: [p["name"] for p in project["participants"] if p["type"] == kind] for kind in _PARTIES}
        parties = [newest / name for kind in ("server", "client") for name in names[kind]]
        for kit in parties:
            check_layout(kit)
        workspaces = {kit.name: kit / WORKSPACE_FOLDER for kit in parties}
        workspaces |= {name: newest / name for name in names["admin"]}
        missing = [name for name, workspace in workspaces.items() if not (workspace / "startup").is_dir()]
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
    check_deployment(deployment)
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


def extend(
    directory: Path,
    sites: Mapping[str, DataSettings] | None = None,
    plans: Sequence[str] = (),
    questions: Sequence[str] = (),
) -> Kits:
    """Add sites and plans to a deployment: same root certificate, same identities, new kits in a new `prod_NN`.

    A new site gets its kit. Every other party pins identities and accepts plans by itself, so it must replace its
    `bilateral.toml` by the new one (or add the lines to [identities] and [plans]), and add the new files of `spent/` to
    its own, before the next run: until then it refuses the new plan, and a roster with the new site. Certificates and
    private keys stay as they are.
    """
    directory = Path(directory).resolve()
    add_to_project(directory / PROJECT_FILE, sites or {}, plans, questions)
    return _build_kits(directory)


def _build_kits(directory: Path) -> Kits:
    """FLARE's own provisioning, in this process, with its messages collected instead of printed."""
    project = read_project(directory / PROJECT_FILE)
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
