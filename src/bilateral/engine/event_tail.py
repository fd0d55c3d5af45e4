"""Reading `events.jsonl` while it grows: every whole line once, however the writing and the reading interleave."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter, ValidationError

from bilateral.engine.events import Event

LINE_START = b'{"time": '
"""How `write_event` begins a line. Inside a JSON string its quotes would be escaped, so no text can imitate it."""

NUM_BYTES_COMPARED = 512
MAX_ROUND = 10**12


def refuse_constant(name: str) -> float:
    """For `json.loads`, which takes NaN and Infinity for numbers."""
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)
_ADAPTERS: dict[str, TypeAdapter[Event]] = {kind.event: TypeAdapter(kind) for kind in Event.__subclasses__()}


@dataclass(frozen=True)
class Told:
    """An event and when it was written."""

    time: datetime
    event: Event


@dataclass(frozen=True)
class Batch:
    """What is new in the file. `restarted`: it is another file than before, and everything earlier is void."""

    restarted: bool
    told: tuple[Told, ...]
    num_unreadable: int


class EventTail:
    """Remembers how far a file was read.

    A last line without its newline is left for the next time. A replaced or rewritten file is known by its inode, or
    by other bytes (or none) before the place where reading stopped, and is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place: _Place | None = None

    def read_new(self) -> Batch:
        """Everything told since the last call; nothing if there is no file."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            restarted, self._place = self._place is not None, None
            return Batch(restarted, (), 0)
        with file:
            found = os.fstat(file.fileno())
            place = _Place((found.st_dev, found.st_ino), 0, b"")
            if self._place is not None and self._place.is_in(file):
                place = self._place
            file.seek(place.offset)
            data = file.read()
        restarted = self._place is not None and place is not self._place
        whole = data[: data.rfind(b"\n") + 1]
        self._place = place.after(whole)
        parsed = [told for line in whole.split(b"\n") for told in parse_line(line)]
        readable = tuple(told for told in parsed if told is not None)
        return Batch(restarted, readable, len(parsed) - len(readable))


@dataclass(frozen=True)
class _Place:
    """Where reading stopped, and how to know that place again."""

    inode: tuple[int, int]
    offset: int
    bytes_before: bytes

    def after(self, data: bytes) -> _Place:
        before = (self.bytes_before + data[-NUM_BYTES_COMPARED:])[-NUM_BYTES_COMPARED:]
        return _Place(self.inode, self.offset + len(data), before)

    def is_in(self, file: BinaryIO) -> bool:
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) != self.inode:
            return False
        file.seek(self.offset - len(self.bytes_before))
        return file.read(len(self.bytes_before)) == self.bytes_before


def parse_line(raw: bytes) -> Iterator[Told | None]:
    """The events of a line, None for what cannot be read.

    A kill may cut a line short, and the next writer then goes on in the same line; its events are found all the same.
    """
    if not raw.strip():
        return
    whole = _parse(raw)
    if whole is not None:
        yield whole
        return
    before, *pieces = raw.split(LINE_START)
    if before or not pieces:
        yield None
    for piece in pieces:
        yield _parse(LINE_START + piece)


def _parse(raw: bytes) -> Told | None:
    """None if this is no JSON, no event that this version knows, or one with a field missing or not finite."""
    try:
        line = _DECODER.decode(raw.decode())
        if not isinstance(line, dict):
            return None
        time = datetime.fromisoformat(line["time"])
        event = _ADAPTERS[line["event"]].validate_python(line)
    except (ValueError, KeyError, TypeError, ValidationError, RecursionError):
        return None
    if not all(_sensible(name, value) for name, value in vars(event).items()):
        return None
    return Told(time if time.tzinfo else time.replace(tzinfo=UTC), event)


def _sensible(name: str, value: Any) -> bool:
    """Finite numbers, and counts that are counts."""
    if isinstance(value, dict):
        return all(_sensible(name, part) for part in value.values())
    if name in {"round", "num_rounds", "term"}:
        return bool(0 <= value <= MAX_ROUND)
    return not isinstance(value, float) or math.isfinite(value)
