"""Bytes for hashing, signing and key derivation that can be read in one way only.

Joining texts with a separator lets two different lists give the same bytes (`"ab","c"` and `"a","bc"`), and then one
signature or key serves two purposes. Here every part carries its type and its length.
"""

from __future__ import annotations

from collections.abc import Sequence

Part = str | int | bytes | Sequence["Part"]


def injective(*parts: Part) -> bytes:
    """Different `parts` give different bytes."""
    return b"".join([_encoded(part) for part in parts])


def _encoded(part: Part) -> bytes:
    if isinstance(part, str):
        return _framed(b"s", part.encode())
    if isinstance(part, bytes):
        return _framed(b"b", part)
    if isinstance(part, int):
        return _framed(b"i", b"%d" % part)
    return _framed(b"t", injective(*part))


def _framed(kind: bytes, content: bytes) -> bytes:
    return kind + len(content).to_bytes(8, "little") + content
