"""Finding files in the data directory, and turning what goes wrong with them into advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bilateral.errors import BilateralError, DataError, MissingDataError

_MAX_REASON = 500
"""Characters of what a parser says: it may quote the file, and not all of it."""
HOW_TO_POINT = "name their folder with --data-dir or the environment variable BILATERAL_DATA"


@dataclass(frozen=True)
class Source:
    """Where a dataset can be had, and the file names under which it is accepted."""

    dataset: str
    origin: str
    accepted: tuple[str, ...]

    def require_directory(self, data_dir: Path | None) -> Path:
        """The data directory, or a MissingDataError that says how to get the set and point to it."""
        if data_dir is None:
            raise self.missing("no data directory was given")
        if not data_dir.is_dir():
            raise self.missing(f"{data_dir} is not a directory")
        return data_dir

    def missing(self, where_looked: str) -> MissingDataError:
        """The error for a set that is not there."""
        return MissingDataError(
            f'Expected the files of dataset "{self.dataset}" ({"; or ".join(self.accepted)}), '
            f"found none: {where_looked}.",
            remedy=f"Get them from {self.origin}, and {HOW_TO_POINT}.",
        )

    def incomplete(self, data_dir: Path, absent: Sequence[str]) -> MissingDataError:
        """The error for a set of which only some files are there."""
        return MissingDataError(
            f'Expected all files of dataset "{self.dataset}" in {data_dir}, missing: {", ".join(absent)}.',
            remedy=f"Get the complete set from {self.origin}.",
        )


def find_file(data_dir: Path, patterns: str) -> Path | None:
    """The file that matches the first of the `|`-separated glob patterns that matches at all.

    Two files for one pattern (say, two subsets of a set) are refused: a silent choice would make results
    depend on what else lies in the folder.
    """
    for pattern in patterns.split("|"):
        matches = sorted(path for path in data_dir.glob(pattern) if path.is_file())
        if len(matches) > 1:
            raise DataError(
                f"Expected one file like {pattern} in {data_dir}, got {', '.join(p.name for p in matches)}.",
                remedy="Keep one of them there, and move the others to another folder.",
            )
        if matches:
            return matches[0]
    return None


@contextmanager
def reading(path: Path, origin: str) -> Iterator[None]:
    """Turn any failure inside the block into a DataError that names the file and the remedy.

    It catches every exception because parsers meet damaged bytes with whatever their internals raise
    (zlib, zip, struct, index and memory errors); errors that already carry advice pass unchanged.
    """
    try:
        yield
    except BilateralError:
        raise
    except Exception as error:
        reason = str(error)[:_MAX_REASON] or type(error).__name__
        raise DataError(
            f"Expected a complete, readable file at {path}, but it is corrupt, truncated or of another "
            f"format ({reason}).",
            remedy=f"Get it again from {origin}.",
        ) from error
