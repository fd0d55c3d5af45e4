"""Ways to damage bytes and documents: blind ones, and ones that know where lengths, shapes and values stand.

Every mutation draws from the `Random` that it is given and from nothing else: a case is named by its number, and the
same damage is done on every machine.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

EXTREMES = (0, 1, 2, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)
LENGTHS = (2**31 - 1, 2**32 - 1, 2**34, 2**40, 2**63 - 1, 2**64 - 1)
"""What a small file may claim of what follows."""


def flip_bits(data: bytes, rng: Random) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if raw:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def replace_bytes(data: bytes, rng: Random) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if raw:
            raw[rng.randrange(len(raw))] = rng.choice((0, 0xFF, 0x7F, 0x80, rng.randrange(256)))
    return bytes(raw)


def truncate(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def insert(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    piece = rng.choice((rng.randbytes(rng.randrange(1, 64)), b"\0" * rng.randrange(1, 4096), b"[" * 2000, b"{" * 2000))
    return data[:place] + piece + data[place:]


def delete(data: bytes, rng: Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 4, 8, 64, 1000)) :]


def splice(data: bytes, rng: Random) -> bytes:
    """A piece of the data at another place of them."""
    start, place = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    piece = data[start : start + rng.randrange(1, 300)]
    return data[:place] + piece + data[place + rng.choice((0, len(piece))) :]


def change_number(data: bytes, rng: Random) -> bytes:
    """An extreme integer of 1, 2, 4 or 8 bytes, in either order: what a length or a shape may be."""
    size = rng.choice((1, 2, 4, 4, 8))
    if len(data) < size:
        return data
    limit = len(data) if rng.random() < 0.5 else min(len(data), 400)  # headers come first
    place = rng.randrange(max(1, limit - size + 1))
    place = place // size * size if rng.random() < 0.5 else place
    value = rng.choice((*EXTREMES, *LENGTHS)) % (1 << 8 * size)
    return data[:place] + value.to_bytes(size, rng.choice(("little", "big"))) + data[place + size :]


def change_digits(data: bytes, rng: Random) -> bytes:
    """Another number where one is written out."""
    found = list(re.finditer(rb"\d+", data[:100_000]))
    if not found:
        return data
    chosen = rng.choice(found)
    texts = ("-1", "1e999", "NaN", "9" * 5000, "0x10", "1_000", '"7"', "[]", "{}", "true", "null")
    number = rng.choice((*texts, *map(str, EXTREMES), *map(str, LENGTHS)))
    return data[: chosen.start()] + number.encode() + data[chosen.end() :]


BLIND: tuple[Mutation, ...] = (
    *(flip_bits, replace_bytes, truncate, insert),
    *(delete, splice, change_number, change_digits),
)


def blind(data: bytes, rng: Random) -> bytes:
    """One to three blind mutations."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(BLIND)(data, rng)
    return data


_RAW = "\ue000raw{}\ue000"
"""Marks a value that JSON or TOML writers cannot write: it is put in as text."""
_RAW_TEXTS = (
    *("[" * depth + "]" * depth for depth in (40, 200, 900, 990, 5000, 100_000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (40, 300, 980, 5000)),
    *("9" * 4000, "9" * 5000, "1e400", "-1e400", "NaN", "Infinity", "-Infinity", '"\\ud800"', "-0.0", "1e-400"),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "os:system", "../../x", "x" * 3000, "\x00", "nan", "inf", "Infinity"),
    *([], {}, [[]], [None], {"a": 1}, [1, "a", None], [[1, 2], [3, 4]], {"": {}}),
    *(0, -1, 1, 2, 0.5, -0.5, 1e308, *EXTREMES, *LENGTHS, 10**30, -(2**63)),
)


def mutate_value(value: Any, rng: Random) -> Any:
    """A document with one or two of its values or names changed. What comes in is not touched."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2))):
        places = list(_places(value))
        if not places:
            return _other(value, rng)
        holder, key = rng.choice(places)
        kind = rng.randrange(10)
        if kind < 6:
            holder[key] = _other(holder[key], rng)
        elif kind == 6:
            del holder[key]
        elif kind == 7 and isinstance(holder, dict):
            holder[rng.choice(("extra", "", "format", "__class__", key.upper(), "x" * 2000))] = holder[key]
        elif kind == 8:
            there, other = rng.choice(places)
            if there is holder or not _inside(holder, there[other]):
                holder[key] = json.loads(json.dumps(there[other]))
        elif isinstance(holder, list):
            holder[key:key] = [holder[key]] * rng.choice((1, 3, 100, 2000))
    return value


def _inside(holder: Any, value: Any) -> bool:
    return value is holder or any(_inside(holder, inner) for inner in _children(value))


def _children(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()


def _places(value: Any):
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _other(value: Any, rng: Random) -> Any:
    """Something else, and a thing of its own: what is drawn from `_VALUES` must not be changed by later cases."""
    return copy.deepcopy(_drawn(value, rng))


def _drawn(value: Any, rng: Random) -> Any:
    """Another kind, an extreme number, or a value near the one that was there."""
    if type(value) is int and rng.random() < 0.3:
        return value + rng.choice((-1, 1, 1000, -value, value))
    if isinstance(value, str) and rng.random() < 0.3:
        return rng.choice((value + "x", value[:-1], value.upper(), value * 50, [value], {value: value}))
    if isinstance(value, list) and rng.random() < 0.3:
        return rng.choice((value[:-1], value * 2, [value], {"0": value}, value[::-1], value * 200))
    if rng.random() < 0.25:
        return _RAW.format(rng.randrange(len(_RAW_TEXTS)))
    return rng.choice(_VALUES)


def put_raw(text: str) -> str:
    """Replace the marks by what they stand for."""
    for spelled in ('"\ue000raw(\\d+)\ue000"', r'"\\ue000raw(\d+)\\ue000"', "\ue000raw(\\d+)\ue000"):
        text = re.sub(spelled, lambda found: _RAW_TEXTS[int(found.group(1))], text)
    return text


def to_json(value: Any) -> str:
    return put_raw(json.dumps(value))


def json_mutation(data: bytes, rng: Random) -> bytes:
    """A JSON file with changed values."""
    return to_json(mutate_value(json.loads(data), rng)).encode("utf-8", "surrogatepass")


_TOML_VALUES = (
    *('""', '"x"', "0", "-1", "1e999", "nan", "inf", "true", "[]", "{}", "1979-05-27", "07:32:00", "'''", '"""'),
    *(
        "9" * 4000,
        "9" * 5000,
        "0x" + "f" * 100,
        "[1, 'a', []]",
        "{a = 1}",
        "[[1], {b = [2]}]",
        '"\\ud800"',
        '"\\u0000"',
    ),
    *("[" * depth + "]" * depth for depth in (40, 200, 400, 2000)),
    *("{a=" * depth + "1" + "}" * depth for depth in (40, 300, 2000)),
    *(str(number) for number in (*EXTREMES, *LENGTHS)),
)
_TOML_LINES = (
    *("[" + "a." * depth + "b]" for depth in (20, 900, 5000)),
    *("a." * depth + "b = 1" for depth in (20, 900, 5000)),
    *("[[x]]", "[x]", "[data]", "seed = 1", "seed.x = 2", "= 3", "\x00", "[data.sites.x]", "x" * 5000 + " = 1"),
)


def toml_mutation(data: bytes, rng: Random) -> bytes:
    """A TOML file with changed values, lines and sections."""
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2))):
        index = rng.randrange(len(lines))
        kind = rng.randrange(8)
        if kind < 5 and "=" in lines[index]:
            key = lines[index].partition("=")[0]
            lines[index] = f"{key}= {rng.choice(_TOML_VALUES)}"
        elif kind == 5:
            lines.insert(index, rng.choice(_TOML_LINES))
        elif kind == 6:
            lines.insert(index, lines[rng.randrange(len(lines))])
        else:
            del lines[index]
            lines = lines or [""]
    return "\n".join(lines).encode("utf-8", "surrogatepass")
