"""What a service keeps beside its run, in `RUN/serving/`, and what it hands out.

    service.json           identities and tokens of its parties, its port; the server's alone (mode 0600)
    questions/NAME.json    how many questions a client has asked; made once, with the client; missing is spent
    kits/NAME/kit.json     a client's or the dealer's kit: its identity, the other's public key, where the server is

Over FLARE a client's site has such a file in `asking/` of its kit while a service is under way; there it says in which
file the identity is.

Kits go to their owners. A client that is added later gets a kit, and the dealer's kit gets its public key.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bilateral.documents import parse_json
from bilateral.engine.flare.site_settings import SETTINGS_FILE, read_secret
from bilateral.errors import CheckpointError, DeploymentError, PlanError
from bilateral.protocols.mask.keys import KEY_BYTES, Identity
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.protocols.transport import SERVER
from bilateral.randomness import Randomness

FOLDER: Final = "serving"
DOOR_FOLDER: Final = "asking"
"""Below the kit of a FLARE site."""
KIT_FILE: Final = "kit.json"
UNIT: Final = "questions"
TOKEN_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, repr=False)
class Kit:
    """What a party needs: who it is, whom it trusts, and where the server is. Secret."""

    name: str
    dealer: str
    port: int
    token: str
    identity: str
    pinned: dict[str, str]
    key_file: str = ""
    """With an empty `identity`: the file that it is in, seen from this one."""

    @property
    def deals(self) -> bool:
        return self.name == self.dealer

    @property
    def keys(self) -> Identity:
        return Identity(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.identity)))

    @property
    def pinned_keys(self) -> dict[str, bytes]:
        return {name: bytes.fromhex(key) for name, key in self.pinned.items()}

    @classmethod
    def read(cls, folder: Path) -> Kit:
        is_of_a_site = (folder / SETTINGS_FILE).exists()
        path = folder / (DOOR_FOLDER if is_of_a_site else "") / KIT_FILE if folder.is_dir() else folder
        if is_of_a_site and not path.exists():
            raise DeploymentError(
                f"No service has come to the site of {folder} yet.",
                remedy="Start the site, and have the service's plan submitted. (A dealer's site needs no more.)",
            )
        found = _read(path, "a kit of a service")
        if (key_file := found.get("key_file")) and isinstance(key_file, str):
            found = found | {"identity": read_secret(path.parent / key_file).hex(), "key_file": ""}
        try:
            kit = cls(**found)
            _ = kit.keys, kit.pinned_keys, bytes.fromhex(kit.token), kit.port + 0, kit.name + kit.dealer
        except (TypeError, ValueError, AttributeError) as error:
            raise DeploymentError(
                f"{path} is no kit of a service: {error}.", remedy="Get it again from who runs `bilateral serve`."
            ) from error
        return kit


@dataclass(repr=False)
class _State:
    """`service.json`."""

    dealer: str
    port: int = 0
    public: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)


def write_kit(folder: Path, kit: Kit) -> None:
    """Whole or not at all, for its owner alone."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _write(folder / KIT_FILE, asdict(kit))


class ServingFolder:
    """Of one run. Opened with the clients that are to have a kit; those that have one stay."""

    def __init__(self, run: Path, dealer: str, clients: Sequence[str], randomness: Randomness) -> None:
        self.path = run / FOLDER
        self._randomness = randomness
        for name in (dealer, *clients):
            if _NAME.fullmatch(name) is None or name == SERVER:
                raise PlanError(
                    f"{name!r} cannot be the name of a party.", remedy="Use letters, digits, dots and dashes."
                )
        if dealer in clients:
            raise PlanError(f"{dealer} cannot both deal and ask.", remedy="The dealer is a third party.")
        self.path.mkdir(exist_ok=True)
        self._file = self.path / "service.json"
        self._state = self._opened(dealer)
        for name in (dealer, *clients):
            self._add(name)

    @property
    def dealer(self) -> str:
        return self._state.dealer

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(name for name in self._state.public if name != self.dealer)

    @property
    def port(self) -> int:
        return self._state.port

    @property
    def pinned(self) -> dict[str, bytes]:
        return {name: bytes.fromhex(key) for name, key in self._state.public.items()}

    @property
    def tokens(self) -> dict[str, bytes]:
        return {name: bytes.fromhex(token) for name, token in self._state.tokens.items()}

    def kit(self, name: str) -> Path:
        return self.path / "kits" / name

    def counters(self) -> dict[str, FileCounter]:
        """Of all clients. One that is missing, or cannot be read, is an error here: it is spent."""
        return {name: FileCounter(self._counter(name), UNIT) for name in self.clients}

    def listen_at(self, port: int) -> None:
        """Tell all kits. (A kit that was handed out has the old port.)"""
        if port == self._state.port:
            return
        self._state.port = port
        self._save()
        for name in self._state.public:
            kit = self.kit(name)
            if (kit / KIT_FILE).exists():
                found = Kit.read(kit)
                _write(kit / KIT_FILE, asdict(found) | {"port": port})

    def _opened(self, dealer: str) -> _State:
        if not self._file.exists():
            return _State(dealer)
        found = _read(self._file, "what a service keeps")
        try:
            state = _State(**found)
        except TypeError as error:
            raise CheckpointError(f"{self._file} is not what a service keeps: {error}.") from error
        if state.dealer != dealer:
            raise PlanError(
                f"{state.dealer} deals for the clients of {self.path}, and their kits say so.",
                remedy=f"Leave --dealer {dealer} out, or move {self._file.name} and the kits away and hand out new "
                "ones; leave questions/ where it is.",
            )
        return state

    def _add(self, name: str) -> None:
        """A kit, and for a client a counter, which is there first and never begins anew."""
        if name in self._state.public:
            return
        if name != self.dealer and not self._counter(name).exists():
            FileCounter.create(self._counter(name), UNIT)
        secret, token = (self._randomness.random_bytes(size) for size in (KEY_BYTES, TOKEN_BYTES))
        public = Identity(Ed25519PrivateKey.from_private_bytes(secret)).public_bytes.hex()
        own = {**self._state.public, name: public}
        pinned = own if name == self.dealer else {key: own[key] for key in (name, self.dealer)}
        kit = Kit(name, self.dealer, self._state.port, token.hex(), secret.hex(), pinned)
        self.kit(name).mkdir(parents=True, exist_ok=True)
        _write(self.kit(name) / KIT_FILE, asdict(kit))
        dealers = self.kit(self.dealer) / KIT_FILE
        if name != self.dealer and dealers.exists():
            _write(dealers, asdict(Kit.read(dealers)) | {"pinned": own})
        self._state.public, self._state.tokens = own, {**self._state.tokens, name: token.hex()}
        self._save()

    def _counter(self, name: str) -> Path:
        return self.path / UNIT / f"{name}.json"

    def _save(self) -> None:
        _write(self._file, asdict(self._state))


def _read(path: Path, what: str) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes())
    except FileNotFoundError as error:
        raise DeploymentError(
            f"There is nothing at {path}.", remedy="Name the folder of a kit, or a run directory."
        ) from error
    except ValueError as error:
        raise DeploymentError(f"{path} is not {what}: {error}.") from error
    if not isinstance(found, dict):
        raise DeploymentError(f"{path} is not {what}.")
    return found


def _write(path: Path, value: dict[str, Any]) -> None:
    """Whole or not at all, for its owner alone."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
