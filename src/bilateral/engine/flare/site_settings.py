"""What a party of a deployment keeps to itself: `bilateral.toml` in its kit, beside FLARE's workspace.

    [data]                      # a site: its training data. The server: test data of its own.
    data_dir = "data"
    [data.options]              # for the data loader that the plan names; they win over the plan's
    site = 2
    [identity]                  # a site only: the private key that signs for it
    key_file = "identity.key"
    [identities]                # public keys of all sites, pinned
    site-1 = "6f1d..."
    [plans]
    accepted = ["0c4e..."]      # fingerprints of the plans that this party's operator agreed to
    [code]
    allowed = ["my_clinic.data:load"]    # functions outside `bilateral` that a plan may name here
    [server]                    # the server only
    runs = "runs"

Nothing here is ever sent to another party. Relative paths are relative to the kit directory.

    KIT/bilateral.toml  KIT/identity.key  KIT/data  KIT/spent  KIT/runs      ours
    KIT/flare/startup  KIT/flare/local  KIT/flare/JOB_ID  ...                FLARE's workspace

FLARE makes a directory JOB_ID for each job below its workspace, and wipes what is there: so nothing of ours is.

Guarantees (tests/engine/flare/test_site_settings.py, test_job_gate.py):
- a party takes part in no plan whose fingerprint is not in its own file, and finds that out before it reads the plan.
  Whoever submits jobs could otherwise send a plan without masks and read everything: an operator agrees to a plan, not
  to a server;
- nor does an accepted plan run a function that the operator has not named here.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Annotated, Any, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from bilateral.documents import parse_toml
from bilateral.engine.kind import KitAround
from bilateral.engine.named_code import NamesCode, code_of
from bilateral.engine.plan import RunPlan
from bilateral.errors import DeploymentError, PlanError, PlanNotAcceptedError
from bilateral.protocols.mask.keys import KEY_BYTES, Identity

SETTINGS_FILE = "bilateral.toml"
WORKSPACE_FOLDER = "flare"
"""FLARE's workspace, below the kit."""
SPENT_FOLDER = "spent"
QUESTIONS = "questions"
"""Below `spent` of the server's kit, and the unit of what is counted there."""
FINGERPRINT_PATTERN = r"^[0-9a-f]{64}$"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PublicKey = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * KEY_BYTES}}}$")]


class FingerprintedPlan(NamesCode, Protocol):
    """A plan of a kind that can be deployed, other than rounds."""

    def fingerprint(self) -> str: ...


AcceptedPlan = RunPlan | FingerprintedPlan


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(_Section):
    """Where this party's data are: options of the loader that the plan names, and a directory."""

    options: dict[str, Any] = Field(default_factory=dict)
    data_dir: str | None = None


class IdentitySettings(_Section):
    """The file with this site's private signing key, in hex."""

    key_file: str = "identity.key"


class PlanSettings(_Section):
    """`accepted`: fingerprints (`RunPlan.fingerprint`) of the plans that this party takes part in."""

    accepted: tuple[Annotated[str, Field(pattern=FINGERPRINT_PATTERN)], ...] = ()


class CodeSettings(_Section):
    """`allowed`: functions `package.module:function` that a plan may name as its data or model, besides our own."""

    allowed: tuple[str, ...] = ()


class ServerSettings(_Section):
    """`runs`: the directory in which run directories live."""

    runs: str = "runs"


class SiteSettings(_Section):
    """One party's own settings. `load_site_settings` reads them; `kit` is the directory they were found in."""

    data: DataSettings = DataSettings()
    identity_settings: IdentitySettings | None = Field(default=None, alias="identity")
    identities: dict[str, _PublicKey] = Field(default_factory=dict)
    plans: PlanSettings = PlanSettings()
    code: CodeSettings = CodeSettings()
    server: ServerSettings | None = None
    _kit: Path = PrivateAttr(default=Path())

    @property
    def kit(self) -> Path:
        return self._kit

    @property
    def data_directory(self) -> Path | None:
        """Where the data are, or None if the loader needs no directory."""
        return None if self.data.data_dir is None else self._kit / self.data.data_dir

    @property
    def runs_directory(self) -> Path:
        """The server's run directories."""
        if self.server is None:
            raise DeploymentError(f"{_file(self._kit)} has no section [server].", remedy="Only a server has runs.")
        return self._kit / self.server.runs

    def run_directory(self, name: str) -> Path:
        """The directory of one run at the server. A job gives the name: a plain one, that leads nowhere else."""
        check_run_name(name)
        return self.runs_directory / name

    @property
    def counters(self) -> Path:
        """What was counted, in files that are made with the kit."""
        return self._kit / SPENT_FOLDER

    def spent_file(self, plan: AcceptedPlan) -> Path:
        """Where a site counts the rounds of a plan that it added noise in, over all runs of that plan."""
        return self._kit / SPENT_FOLDER / f"{plan.fingerprint()}.json"

    def check_accepted(self, plan: AcceptedPlan) -> None:
        """Refuse a plan that this party's operator has not agreed to, or whose code the operator has not."""
        self.check_fingerprint(plan.fingerprint())
        self.check_code(plan)

    def check_fingerprint(self, fingerprint: str) -> None:
        """Refuse a plan by its fingerprint."""
        if fingerprint not in self.plans.accepted:
            raise PlanNotAcceptedError(
                f"The plan with the fingerprint {fingerprint} is not among those that were accepted here "
                f"({len(self.plans.accepted)} are).",
                remedy=f'If the operator agrees to it, add "{fingerprint}" to `accepted` under [plans] in '
                f"{SETTINGS_FILE} of this kit, and with sound noise copy its file in `spent/` from the new kit.",
            )

    def check_code(self, plan: AcceptedPlan) -> None:
        """Refuse a plan that names a function which the operator has not named."""
        own = [name for name in code_of(plan).values() if name not in self.code.allowed]
        if own:
            names = ", ".join(f'"{name}"' for name in own)
            raise PlanNotAcceptedError(
                f"The plan wants to run {names} here, which this party's operator has not allowed.",
                remedy=f"If the operator has read that code and installed it here, add {names} to `allowed` under "
                f"[code] in {SETTINGS_FILE} of this kit.",
            )

    def pinned(self) -> dict[str, bytes]:
        """The public identity keys of all sites."""
        return {name: bytes.fromhex(key) for name, key in self.identities.items()}

    def around(self, identity: Identity | None = None) -> KitAround:
        """What kinds of run are told of this kit."""
        key = self.identity_settings
        return KitAround(
            self._kit,
            self.pinned(),
            identity,
            None if key is None else self._kit / key.key_file,
            None if self.server is None else self.runs_directory,
            self.counters,
            self.code.allowed,
        )

    def identity(self) -> Identity:
        """This site's signing key. A file that others on the machine can read is refused."""
        if self.identity_settings is None:
            raise DeploymentError(f"{_file(self._kit)} has no section [identity].", remedy="Only sites have one.")
        return read_identity(self._kit / self.identity_settings.key_file)


def load_site_settings(path: str | Path) -> SiteSettings:
    """Read a kit's settings. `path`: the file `bilateral.toml`, or the kit directory."""
    path = Path(path)
    path = _file(path) if path.is_dir() else path
    check_layout(path.parent)
    try:
        values = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DeploymentError(
            f"There are no site settings at {path}.", remedy="`bilateral deploy` writes them into every kit."
        ) from error
    except (ValueError, OSError) as error:
        raise DeploymentError(f"{path} is not a readable TOML file: {error}.") from error
    try:
        settings = SiteSettings.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(_explain(problem) for problem in error.errors(include_url=False))
        raise DeploymentError(
            f"Site settings {path}: {problems}.",
            remedy="Sections: [data] data_dir, options; [identity] key_file; [identities] site = hex; "
            "[plans] accepted; [code] allowed; [server] runs.",
        ) from error
    settings._kit = path.resolve().parent
    return settings


def check_layout(kit: Path) -> None:
    """Refuse a kit of an earlier version, which had everything below FLARE's workspace, where jobs could delete it."""
    parts = (Path("startup"), Path("local") / "resources.json", Path("local") / SETTINGS_FILE)
    inside = [folder for folder in (kit, kit.parent) if all((folder / part).exists() for part in parts)]
    if inside:
        raise DeploymentError(
            f"{inside[0]} is a kit of an earlier version: a job could delete its data, keys and budget.",
            remedy="Stop it and run `bilateral deploy` again with this version; then take `data/` and `spent/` along "
            "to the new kit. See docs/how-to/deployment.md.",
        )


def check_run_name(name: str) -> None:
    """Refuse what is not a plain name for a run's directory."""
    if not isinstance(name, str) or not _RUN_NAME.fullmatch(name):
        raise PlanError(
            f"Expected a run's name of letters, digits, dots, - and _, at most 100, got {name!r}.",
            remedy="It begins with a letter or a digit, and is no path.",
        )


def check_question_name(name: object) -> None:
    """Refuse what is not RUN/CLIENT, two plain names."""
    run, _, client = name.partition("/") if isinstance(name, str) else ("", "", "")
    if not _RUN_NAME.fullmatch(run) or not _RUN_NAME.fullmatch(client):
        raise DeploymentError(f"Expected the names of a run and a client, RUN/CLIENT, got {name!r}.")


def read_identity(path: Path) -> Identity:
    """The signing key in a file of 64 hexadecimal digits that only its owner can read. Errors do not show it."""
    return Identity(Ed25519PrivateKey.from_private_bytes(read_secret(path)))


def read_secret(path: Path) -> bytes:
    """What `read_identity` makes a key of."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError as error:
        raise DeploymentError(
            f"There is no identity key at {path}.", remedy="Copy it from the kit that this site got first."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DeploymentError(f"The identity key {path} cannot be read: {type(error).__name__}.") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise DeploymentError(
            f"Expected an identity key that only its owner can read, got mode {stat.S_IMODE(mode):03o} at {path}.",
            remedy=f"Run `chmod 600 {path}`; if others had access to the machine, provision a new identity.",
        )
    if len(text) != 2 * KEY_BYTES or not set(text) <= set("0123456789abcdef"):
        raise DeploymentError(
            f"Expected {2 * KEY_BYTES} hexadecimal digits in {path}, got {len(text)} characters of another form.",
            remedy="Copy the key again from the kit that this site got first.",
        )
    return bytes.fromhex(text)


def _file(kit: Path) -> Path:
    return kit / SETTINGS_FILE


def _explain(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"]) or "settings"
    if problem["type"] == "extra_forbidden":
        return f"`{where}` is not a setting"
    return f"`{where}`: {problem['msg']}"
