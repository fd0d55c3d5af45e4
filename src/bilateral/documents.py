"""JSON and TOML that somebody else may have written: parsed in bounded depth, or refused as a `ValueError`.

The parsers of the standard library leave by other ways too. Deep nesting is a `RecursionError`, in the parser or in
whoever walks through the value later; a key of thousands of parts takes TOML's parser memory by the square of their
number; and half a character (a lone surrogate) is found out only when the text is written again. Callers catch one
`ValueError`, and say in their own words what the text should have been.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any, Final

MAX_DEPTH: Final = 64
"""Lists and objects in each other. The deepest that this package writes has about ten."""
MAX_TOML_CHARACTERS: Final = 4_000_000
"""A plan with thousands of sites has about a million."""
MAX_KEY_PARTS: Final = 32
_STRING: Final = (
    r"""(?:"{3}(?:[^"\\]++|\\[\s\S]|"(?!""))*+"{3,5}|'{3}(?:[^']++|'(?!''))*+'{3,5}"""
    r"""|"(?:[^"\\\n]++|\\.)*+"|'[^'\n]*+')"""
)
_PIECE: Final = rf"""(?:[^"'#=,\[\]{{}}\n.]++|{_STRING})"""
"""Of a key or a value: all between what parts them. Strings and comments begin and end alike wherever they stand."""
_LONG: Final = rf"(?:{_PIECE}*+\.){{{MAX_KEY_PARTS}}}"
_SHORT_KEYS: Final = re.compile(
    rf"""(?:(?!{_LONG})(?:(?:{_PIECE}|\.)++|\#[^\n]*+|[=,\[\]{{}}\n]++|["']))*+""",
)
"""All of a text in which no key has more than `MAX_KEY_PARTS`. A number has one dot, a string counts as none.

A quotation mark that begins no string is where the parser stops: what comes after it does not matter.
"""


def parse_json(text: str | bytes | bytearray, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """The value of a JSON text, or `ValueError`. `parse_constant`: as `json.loads` takes it, for NaN and infinities."""
    try:
        value = json.loads(text, parse_constant=parse_constant)
    except RecursionError:
        raise _too_deep() from None
    if not _is_plain(text):
        _check(value)
    return value


def _is_plain(text: str | bytes | bytearray) -> bool:
    """Whether it can be seen without walking through the value that nothing of it is deep or half a character."""
    if isinstance(text, str):
        return text.isascii() and "\\" not in text and text.count("[") + text.count("{") < MAX_DEPTH
    return text.isascii() and b"\\" not in text and text.count(b"[") + text.count(b"{") < MAX_DEPTH


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text, or `ValueError`."""
    if len(text) > MAX_TOML_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters, at most {MAX_TOML_CHARACTERS} are read")
    if not _SHORT_KEYS.fullmatch(text):
        raise ValueError(f"a key has more than {MAX_KEY_PARTS} parts")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _check(values)
    return values


def _check(value: Any) -> None:
    """Refuse what is nested too deeply, and text that no file can hold. A loop: recursion is what it guards against."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise _too_deep()
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.keys()
                below += one.values()
            elif isinstance(one, list):
                below += one
            elif isinstance(one, str) and not one.isascii():
                one.encode()  # UnicodeEncodeError is a ValueError
        level, depth = below, depth + 1


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
