"""What was dealt ahead, on disk: encrypted, each batch used once, also if the process dies in between.

Every party keeps its own part in a folder of its own, and marks a batch as used *before* it reads it: a crash loses a
batch, and never gives one twice.

    FOLDER/SESSION/KIND.session   what the party needs to go on with the session
    FOLDER/SESSION/3.batch        a batch that is dealt and not used
    FOLDER/SESSION/3.used         a batch that was taken; made first, with everybody else shut out
    FOLDER/SESSION/closed         the session is over; its name is never taken again

Guarantees (tests/protocols/share/prediction/test_store.py): files are AES-256-GCM under a key that the caller holds,
bound to owner, session, index and the session's terms (circuit, style, names). What was changed, cut off, moved to
another place, or belongs to another session, circuit, style or party is refused by name, and is used up by the attempt.

Not covered: whoever can put back an older copy of the whole folder can make its owner use a batch again. The other two
parties keep their own marks, and refuse.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from bilateral.arguments import checked
from bilateral.errors import ProtocolError
from bilateral.protocols import wire
from bilateral.protocols.mask.injective import injective
from bilateral.protocols.messages import Message
from bilateral.protocols.share.prediction.stored import StoredSession

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_SESSION, _CLOSED, _USED, _BATCH = ".session", "closed", ".used", ".batch"
_NAME: Final = re.compile(r"[0-9a-f]{32}")
_INDEX: Final = re.compile(r"(0|[1-9][0-9]{0,18})\.(batch|used)")
_ANEW: Final = "Deal again: what was dealt for one session cannot serve another, and nothing is used twice."
_M = TypeVar("_M", bound=Message)


class CorrelationStore:
    """One party's sessions and dealt batches. `key`: 32 bytes that only the owner knows, kept elsewhere."""

    @checked
    def __init__(self, folder: Path, key: bytes, owner: str) -> None:
        if len(key) != KEY_BYTES:
            raise ProtocolError(f"Expected a key of {KEY_BYTES} bytes, got {len(key)}.")
        label = injective("bilateral correlation store v2", owner)
        self._cipher = AESGCM(HKDFExpand(SHA256(), KEY_BYTES, label).derive(key))
        self.folder, self._owner = folder, owner
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def is_known(self, session_id: bytes) -> bool:
        """Was there ever a session of this name?"""
        return self._folder(session_id).exists()

    def open_sessions(self, kind: type[StoredSession]) -> list[bytes]:
        """The sessions of this kind that can be gone on with, those that changed last at the end."""
        found = [
            path
            for path in self.folder.iterdir()
            if _NAME.fullmatch(path.name)
            and (path / f"{kind.__name__}{_SESSION}").exists()
            and not (path / _CLOSED).exists()
        ]
        return [bytes.fromhex(path.name) for path in sorted(found, key=lambda path: (path.stat().st_ctime_ns, path))]

    def keep_session(self, session_id: bytes, stored: StoredSession) -> None:
        """A new session. Its name must be new."""
        folder = self._folder(session_id)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise ProtocolError(f"The store of {self._owner} knows this session already.", remedy=_ANEW) from None
        name = f"{type(stored).__name__}{_SESSION}"
        self._write(folder / name, self._sealed(stored, session_id, name, b""))

    def session(self, session_id: bytes, kind: type[_M]) -> _M:
        """What was kept of a session."""
        name = f"{kind.__name__}{_SESSION}"
        return self._read(self._folder(session_id) / name, kind, session_id, name, b"")

    def close(self, session_id: bytes) -> None:
        """The session is over: what is left of it goes, its name stays taken."""
        folder = self._folder(session_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._write(folder / _CLOSED, b"")
        for path in folder.iterdir():
            if path.name != _CLOSED:
                path.unlink(missing_ok=True)

    def put(self, session_id: bytes, index: int, terms: bytes, stored: Message) -> None:
        """A batch that was dealt. `terms`: what its session is about (`SessionAgreement.digest`)."""
        if index <= self.last_index(session_id):
            raise ProtocolError(f"The store of {self._owner} has had batch {index} of this session.", remedy=_ANEW)
        path = self._folder(session_id) / f"{index}{_BATCH}"
        self._write(path, self._sealed(stored, session_id, str(index), terms))

    def take(self, session_id: bytes, index: int, terms: bytes, kind: type[_M]) -> _M:
        """A batch, once. It is used up by this call, whatever comes of it."""
        folder = self._folder(session_id)
        path = folder / f"{index}{_BATCH}"
        if not path.exists():
            raise ProtocolError(
                f"The store of {self._owner} has no batch {index} of this session: it was used, or never dealt.",
                remedy=_ANEW,
            )
        try:
            _mark(folder / f"{index}{_USED}")
        except FileExistsError:
            raise ProtocolError(f"Batch {index} of this session was used before.", remedy=_ANEW) from None
        _sync(folder)
        try:
            return self._read(path, kind, session_id, str(index), terms)
        finally:
            path.unlink(missing_ok=True)

    def look(self, session_id: bytes, index: int, terms: bytes, kind: type[_M]) -> _M:
        """A batch that waits, without using it: only for what hides nothing by itself."""
        return self._read(self._folder(session_id) / f"{index}{_BATCH}", kind, session_id, str(index), terms)

    def use_up(self, session_id: bytes, index: int) -> None:
        """A batch that is used at once, and never put here: its index is taken."""
        folder = self._folder(session_id)
        _mark(folder / f"{index}{_USED}")
        _sync(folder)

    def waiting(self, session_id: bytes) -> list[int]:
        """Batches that are dealt and not used, oldest first."""
        found = self._indices(session_id)
        return sorted(index for index, kinds in found.items() if kinds == {"batch"})

    def last_index(self, session_id: bytes) -> int:
        """The highest index that a batch ever had; -1 if there was none."""
        return max(self._indices(session_id), default=-1)

    def _indices(self, session_id: bytes) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        folder = self._folder(session_id)
        for path in folder.iterdir() if folder.exists() else ():
            if match := _INDEX.fullmatch(path.name):
                found.setdefault(int(match[1]), set()).add(match[2])
        return found

    def _folder(self, session_id: bytes) -> Path:
        return self.folder / session_id.hex()

    def _context(self, kind: type[Message], session_id: bytes, place: str, terms: bytes) -> bytes:
        return injective(self._owner, kind.__name__, session_id, place, terms)

    def _sealed(self, stored: Message, session_id: bytes, place: str, terms: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        context = self._context(type(stored), session_id, place, terms)
        return nonce + self._cipher.encrypt(nonce, wire.encode(stored), context)

    def _read(self, path: Path, kind: type[_M], session_id: bytes, place: str, terms: bytes) -> _M:
        try:
            data = path.read_bytes()
            context = self._context(kind, session_id, place, terms)
            plain = self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], context)
        except (OSError, ValueError, InvalidTag) as error:
            raise ProtocolError(
                f"{path.name} of session {session_id.hex()[:8]} in the store of {self._owner} is not what was put "
                "there: changed, cut off, or of another session, circuit, style, party or key.",
                remedy=_ANEW,
            ) from error
        return wire.decode(plain, [kind], f"the store of {self._owner}")

    def _write(self, path: Path, data: bytes) -> None:
        """All of it or nothing, also if the machine stops."""
        draft = path.with_name(path.name + ".draft")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync(path.parent)


@dataclass(frozen=True)
class Kept:
    """The batches of one session in a store. `terms`: what they are bound to (`SessionAgreement.digest`)."""

    store: CorrelationStore
    session_id: bytes
    terms: bytes

    @property
    def waiting(self) -> list[int]:
        return self.store.waiting(self.session_id)

    @property
    def last_index(self) -> int:
        return self.store.last_index(self.session_id)

    def put(self, index: int, stored: Message) -> None:
        self.store.put(self.session_id, index, self.terms, stored)

    def take(self, index: int, kind: type[_M]) -> _M:
        return self.store.take(self.session_id, index, self.terms, kind)

    def look(self, index: int, kind: type[_M]) -> _M:
        return self.store.look(self.session_id, index, self.terms, kind)

    def use_up(self, index: int) -> None:
        self.store.use_up(self.session_id, index)


def _mark(path: Path) -> None:
    """Whoever makes this file first has it; `FileExistsError` for all others."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _sync(folder: Path) -> None:
    """Names in the folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
