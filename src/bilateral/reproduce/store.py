"""Finished rows, each a file that is written at once or not at all: after a kill the rest goes on.

A row's file is named by all that decides it, so that tables which need the same row share it, and a row whose settings
have changed is another one.
"""

from __future__ import annotations

import base64
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bilateral.documents import parse_json
from bilateral.engine.run_directory import write_json
from bilateral.errors import CheckpointError, DirectoryInUseError
from bilateral.reproduce.tables import Measured, Picture, Row

ROWS: Final = "rows"
_MALFORMED: Final = (ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class Done:
    """A finished row, and the seconds that it took."""

    measured: Measured
    seconds: float


class Store:
    """A folder with finished rows. One process at a time writes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = folder / ROWS
        self.rows.mkdir(parents=True, exist_ok=True)

    @property
    def work(self) -> Path:
        """What rows keep while they are at work."""
        return self.folder / "work"

    def path(self, row: Row) -> Path:
        return self.rows / f"{row.digest}.json"

    def get(self, row: Row) -> Done | None:
        """The row, if it is done."""
        path = self.path(row)
        if not path.exists():
            return None
        try:
            return _read(parse_json(path.read_bytes()))
        except _MALFORMED as error:
            raise CheckpointError(
                f"{path} is no finished row: {type(error).__name__}: {str(error)[:300]}.",
                remedy="Delete it; the row is then done again.",
            ) from error

    def put(self, row: Row, measured: Measured, seconds: float) -> None:
        write_json(self.path(row), {"row": row.name, "seconds": seconds, **as_json(measured)}, indent=1)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A second process is refused; a kill lets go."""
        with (self.folder / ".lock").open("w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DirectoryInUseError(
                    f"{self.folder} is in use by another process.", remedy="Wait for it, or choose another --output."
                ) from error
            yield


def as_json(measured: Measured) -> dict[str, Any]:
    return {
        "values": {name: list(values) for name, values in measured.values.items()},
        "curves": {name: [list(point) for point in points] for name, points in measured.curves.items()},
        "words": dict(measured.words),
        "pictures": [
            {"title": one.title, "png": base64.b64encode(one.png).decode("ascii")} for one in measured.pictures
        ],
    }


def _read(values: Mapping[str, Any]) -> Done:
    measured = Measured(
        {str(name): [None if one is None else float(one) for one in each] for name, each in values["values"].items()},
        {str(name): [(float(x), float(y)) for x, y in points] for name, points in values["curves"].items()},
        {str(name): str(word) for name, word in values["words"].items()},
        tuple(Picture(str(one["title"]), base64.b64decode(one["png"])) for one in values["pictures"]),
    )
    return Done(measured, float(values["seconds"]))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    partial = path.with_suffix(f"{path.suffix}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)  # noqa: PTH105 (the atomic one)
