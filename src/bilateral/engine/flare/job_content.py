"""What a job's application may consist of: two JSON files as our recipes write them, and nothing that refers elsewhere.

FLARE fills in `{$VARIABLE}` from a site's environment, `{name}` from its own settings and `${...}` from secrets, reads
settings in other formats that have references of their own, and takes Python files along. A job of ours needs none of
it. The only texts with braces are the plan and the like, which are JSON: what stands in them must not look like a
reference either.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, Final

from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE

from bilateral.documents import parse_json
from bilateral.errors import PlanError

FILES: Final = ("config/config_fed_client.json", "config/config_fed_server.json")
SIGNATURES: Final = frozenset(
    f"{folder}{name}" for folder in ("", "config/") for name in (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
)
"""The administrator's console signs what it submits; FLARE checks that, and reads these as nothing else."""
MAX_BYTES: Final = 4_000_000
"""Of each file; a plan with thousands of sites has about one."""
_MARKS: Final = frozenset("{}$")
_JSON_FIELDS: Final = frozenset({"plan", "facts"})
"""Arguments of our two ends that are JSON themselves."""
_REMEDY: Final = "Submit the plan with `bilateral submit`."


def check_app(data: object) -> None:
    """Refuse an application that no recipe of ours writes. Errors quote nothing of it."""
    for text in _files(data):
        try:
            content = parse_json(text)
        except ValueError as error:
            raise _refusal("has a file that is not JSON") from error
        for key, value in _texts(content):
            if key in _JSON_FIELDS:
                _check_json(value)
            elif _MARKS & {*value}:
                raise _refusal("refers to settings or secrets of the site")


def _files(data: object) -> Iterator[str]:
    """The files of a zip archive, if they are the expected ones, once each and of bounded size."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise _refusal("is not an archive")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = {entry.filename: entry for entry in archive.infolist() if not _is_plain_folder(entry)}
            names = archive.namelist()
            if len(set(names)) != len(names) or set(entries) - SIGNATURES != set(FILES):
                raise _refusal(f"has other files than {' and '.join(FILES)}")
            contents = {name: _read(archive, entry) for name, entry in entries.items()}
            for name in FILES:
                yield contents[name].decode("utf-8")
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise _refusal("is not a readable archive") from error


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with archive.open(entry) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _refusal(f"has a file of more than {MAX_BYTES} bytes")
    return content


def _is_plain_folder(entry: zipfile.ZipInfo) -> bool:
    return entry.filename == "config/" and not entry.file_size


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a JSON value, names of fields too, with the name of the field that it stands in."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield "", name
            yield from _texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _check_json(text: str) -> None:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise _refusal("has a plan that is not JSON") from error
    # A text that begins with `{"` is no reference as a whole, and no format string: no name has a quotation mark.
    if not isinstance(value, dict) or not text.startswith('{"'):
        raise _refusal("has a plan that is not a JSON object")
    if "$" in text or has_references(value):
        raise _refusal("has a plan with a reference in it")


def has_references(value: Any) -> bool:
    """Does any text of a JSON value hold a mark that FLARE may take for a reference?"""
    return any(_MARKS & {*text} for _, text in _texts(value))


def _refusal(what: str) -> PlanError:
    return PlanError(f"the job's application {what}.", remedy=_REMEDY)
