"""Counting the rounds that a client has added noise in: what its budget is measured against.

Formal guarantee (tests/protocols/noise/test_round_counter.py): a `FileCounter` has counted a round, on disk, before the
noise of that round exists. A process that dies can only have counted a round that it never sent, and one that starts
again goes on from there; so do two processes with the same file at the same time. A round that cannot be counted is
not done. A file that is missing is no budget: it is made once, by `FileCounter.create`, and nothing else ever begins at
zero. What this cannot see is a file that its own operator wrote, or restored from an old copy.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, final

from bilateral.documents import parse_json
from bilateral.errors import CheckpointError


class RoundCounter(Protocol):
    """How many rounds a client has taken part in."""

    @property
    def used(self) -> int: ...

    def spend(self, limit: int | None) -> bool:
        """Count one more round; False, and nothing is counted, if `limit` rounds are used already."""
        ...


@final
class MemoryCounter:
    """Counts as long as the process lives: enough for a simulation."""

    def __init__(self) -> None:
        self.used = 0

    def spend(self, limit: int | None, count: int = 1) -> bool:
        if limit is not None and self.used + count > limit:
            return False
        self.used += count
        return True


@final
class FileCounter:
    """Counts in a file that outlives the process. One file a client and plan; who deletes it ends the budget.

    `unit`: what is counted, "rounds" or something else that is done once for each time it is paid for.
    """

    def __init__(self, path: Path, unit: str = "rounds") -> None:
        self._path, self._unit = path, unit
        self._read()  # a file that is missing or cannot be read is refused at once, not in the first round

    @classmethod
    def create(cls, path: Path, unit: str = "rounds") -> FileCounter:
        """A counter that begins at zero. A file that is there already is not touched: that is an error."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise CheckpointError(
                f"{path} counts the {unit} of a budget already.", remedy="Go on with it; it does not begin anew."
            ) from error
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({unit: 0}, file)
            file.flush()
            os.fsync(file.fileno())
        return cls(path, unit)

    @property
    def used(self) -> int:
        with self._locked():
            return self._read()

    def spend(self, limit: int | None, count: int = 1) -> bool:
        """Count `count` more at once; False, and nothing is counted, if that is more than `limit` allows."""
        if count < 1:
            raise ValueError(f"expected to count one or more, got {count}")
        with self._locked():
            used = self._read()
            if limit is not None and used + count > limit:
                return False
            try:
                self._write(used + count)
            except OSError as error:
                raise self._unwritable(error) from error
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = self._path.with_name(f"{self._path.name}.lock").open("a")
        except FileNotFoundError as error:
            raise self._unreadable("its folder is missing, which counts as spent") from error
        except OSError as error:
            raise self._unwritable(error) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
            yield

    def _read(self) -> int:
        try:
            used = parse_json(self._path.read_bytes())[self._unit]
        except FileNotFoundError as error:
            raise self._unreadable("it is missing, which counts as spent") from error
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._unreadable(f"{type(error).__name__}: {error}") from error
        if type(used) is not int or used < 0:
            raise self._unreadable(f"expected a number of {self._unit}, got {used!r}")
        return used

    def _write(self, used: int) -> None:
        """Whole and on disk before this returns."""
        partial = self._path.with_name(f"{self._path.name}.partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump({self._unit: used}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _unwritable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self._path} cannot count more {self._unit}: {type(error).__name__}: {error}.",
            remedy="Nothing was done. Make the folder and its files this user's own, with space left.",
        )

    def _unreadable(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path} does not say how many {self._unit} were used: {reason}.",
            remedy="Without it nobody knows what was spent: restore it, or go on without this client. Only who knows "
            f'the number of {self._unit} may write it anew: {{"{self._unit}": NUMBER}}.',
        )
