"""Messages as bytes and back, without pickle: what a transport sends, and the edge where malformed input ends.

    magic "BLT1" | header length (4 bytes) | header (JSON) | payload

The header names the message's type and, for each field, what it is; numbers and text stand in the header itself,
bytes and arrays lie one after the other in the payload. A decoder is given the message types it is willing to read.
Whatever else arrives (another type, a field too many, a wrong length, an unknown dtype, bytes left over) is refused as
`MalformedMessageError`, naming the sender.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final, TypeVar, get_type_hints

import torch
from torch import Tensor

from bilateral.documents import parse_json
from bilateral.errors import MalformedMessageError
from bilateral.protocols.messages import Message

_MAGIC: Final = b"BLT1"
_PACKET_MAGIC: Final = b"BLP1"
_MAX_MESSAGES: Final = 16
"""In a packet: a roster, an opening, and a few more."""
_MAX_HEADER: Final = 1 << 20
"""Names and sizes take some 60 bytes a client in the largest messages (rosters, shares): room for 15,000 clients."""
_ALIGNMENT: Final = 64
_MAX_ITEMS: Final = 1 << 16
_MAX_VALUES: Final = 1 << 36
_MAX_DIMENSIONS: Final = 8
_DTYPES: Final = {str(t).removeprefix("torch."): t for t in (torch.float32, torch.float64, torch.int32, torch.int64)}
_M = TypeVar("_M", bound=Message)
_FIELD_TYPES: Final[dict[type[Message], dict[str, Any]]] = {}


def encode(message: Message) -> bytes:
    """The message as one string of bytes."""
    return b"".join(encode_parts(message))


def digest(*messages: Message) -> bytes:
    """SHA-256 over the messages as bytes. Each says how long it is, so different messages have different digests."""
    found = hashlib.sha256()
    for message in messages:
        for part in encode_parts(message):
            found.update(part)
    return found.digest()


def decode(data: bytes | bytearray, types: Iterable[type[_M]], sender: str) -> _M:
    """The inverse of `encode`. Only messages of `types` are read.

    Arrays of a message that was read from a `bytearray` share its memory: large ones are not copied.
    """
    header, payload = _split(data, sender)
    known = {t.__name__: t for t in types}
    name = header.get("type")
    if not isinstance(name, str) or name not in known:
        raise _refusal(sender, f"expected one of {', '.join(sorted(known))}, got type {_short(name)}")
    described = header.get("fields")
    expected = _field_types(known[name])
    if not isinstance(described, dict) or set(described) != set(expected) or set(header) != {"type", "fields"}:
        raise _refusal(sender, f"{name} has the fields {', '.join(expected)}, and no others")
    reader = _Reader(payload, sender)
    values = {field: reader.read(f"{name}.{field}", described[field], expected[field]) for field in expected}
    reader.expect_end()
    return known[name](**values)


def encode_packet(messages: Iterable[Message]) -> bytes:
    """Several messages that travel together, as one string of bytes: of each its length (8 bytes), then itself."""
    parts: list[bytes | memoryview] = [_PACKET_MAGIC]
    for message in messages:
        pieces = encode_parts(message)
        parts += [sum(memoryview(piece).nbytes for piece in pieces).to_bytes(8, "little"), *pieces]
    return b"".join(parts)


def decode_packet(data: bytes | bytearray, types: Iterable[type[_M]], sender: str) -> tuple[_M, ...]:
    """The inverse of `encode_packet`. Only messages of `types` are read."""
    if data[: len(_PACKET_MAGIC)] != _PACKET_MAGIC:
        raise _refusal(sender, "it does not begin as a packet does")
    known, at = tuple(types), len(_PACKET_MAGIC)
    found: list[_M] = []
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        if at + 8 > len(data) or end > len(data) or len(found) == _MAX_MESSAGES:
            raise _refusal(sender, f"a packet of {len(data)} bytes is cut off, or has more than {_MAX_MESSAGES} parts")
        found.append(decode(data[at + 8 : end], known, sender))
        at = end
    return tuple(found)


def _field_types(kind: type[Message]) -> dict[str, Any]:
    """Reading annotations is slow, and they do not change."""
    if kind not in _FIELD_TYPES:
        hints = get_type_hints(kind)
        _FIELD_TYPES[kind] = {item.name: hints[item.name] for item in fields(kind)}
    return _FIELD_TYPES[kind]


def encode_parts(message: Message) -> list[bytes | memoryview]:
    """The message as pieces to be sent one after the other. Arrays are not copied: they must not change meanwhile."""
    payload: list[bytes | memoryview] = []
    kind = type(message)
    described = ",".join([f'"{name}":{_describe(getattr(message, name), payload)}' for name in _field_types(kind)])
    header = f'{{"type":"{kind.__name__}","fields":{{{described}}}}}'.encode()
    header += b" " * (-(len(_MAGIC) + 4 + len(header)) % _ALIGNMENT)  # arrays can then be used where they lie
    if len(header) > _MAX_HEADER:
        raise MalformedMessageError(
            f"{type(message).__name__} has a header of {len(header)} bytes, at most {_MAX_HEADER} can be sent.",
            remedy="Use fewer clients, or the sparse graph.",
        )
    return [_MAGIC, len(header).to_bytes(4, "little"), header, *payload]


def _refusal(sender: str, what: str) -> MalformedMessageError:
    return MalformedMessageError(
        f"Malformed message from {sender}: {what}.", remedy="Both sides must run the same version of the protocol."
    )


def _describe(value: object, payload: list[bytes | memoryview]) -> str:
    """What the header says of a value, as JSON: by hand, because messages of a step are many and small."""
    match value:
        case Tensor():
            described = _describe_tensor(value.dtype, tuple(value.shape))
            payload.append(_bytes_of(value))
            return described
        case bool() | None:
            raise TypeError(f"a message cannot hold {value!r}")
        case int() | str():
            return json.dumps(value)
        case bytes():
            payload.append(value)
            return f'{{"bytes":{len(value)}}}'
        case tuple():
            return f"[{','.join([_describe(part, payload) for part in value])}]"
        case _:
            raise TypeError(f"a message cannot hold {type(value).__name__}")


@lru_cache(maxsize=1024)
def _describe_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise TypeError(f"a message cannot hold {dtype}")
    return f'{{"dtype":"{name}","shape":[{",".join(map(str, shape))}]}}'


def _bytes_of(tensor: Tensor) -> memoryview:
    """Its memory, flat; a copy only where it is elsewhere or in another order."""
    found = tensor.detach().cpu().contiguous().numpy().data
    return found.cast("B") if tensor.numel() else memoryview(b"")


def _split(data: bytes | bytearray, sender: str) -> tuple[dict[str, Any], memoryview]:
    start = len(_MAGIC) + 4
    if len(data) < start or data[: len(_MAGIC)] != _MAGIC:
        raise _refusal(sender, "it does not begin as a message does")
    length = int.from_bytes(data[len(_MAGIC) : start], "little")
    if length > _MAX_HEADER or start + length > len(data):
        raise _refusal(sender, f"its header of {length} bytes is cut off or too long")
    try:
        header = parse_json(bytes(data[start : start + length]))
    except ValueError as error:
        raise _refusal(sender, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _refusal(sender, "its header is not an object")
    return header, memoryview(data)[start + length :]


class _Reader:
    """Reads fields in order from a payload, and accounts for every byte of it."""

    def __init__(self, payload: memoryview, sender: str) -> None:
        self._payload = payload
        self._sender = sender
        self._position = 0

    def read(self, field: str, described: Any, expected: Any) -> Any:
        if expected is int and type(described) is int and abs(described) < 1 << 63:
            return described
        if expected is str and isinstance(described, str) and _is_text(described):
            return described
        if expected is bytes and isinstance(described, dict) and set(described) == {"bytes"}:
            return bytes(self._take(field, described["bytes"]))
        if expected is Tensor and isinstance(described, dict) and set(described) == {"dtype", "shape"}:
            return self._tensor(field, described["dtype"], described["shape"])
        inner: tuple[Any, ...] = getattr(expected, "__args__", ())
        if len(inner) == 2 and inner[1] is Ellipsis and isinstance(described, list):
            if len(described) > _MAX_ITEMS:
                raise _refusal(self._sender, f"`{field}` has {len(described)} items, at most {_MAX_ITEMS} are read")
            return tuple(self.read(field, part, inner[0]) for part in described)
        raise _refusal(self._sender, f"`{field}` is not what the message should have there")

    def expect_end(self) -> None:
        if self._position != len(self._payload):
            raise _refusal(self._sender, f"{len(self._payload) - self._position} bytes are left over")

    def _take(self, field: str, count: Any) -> memoryview:
        left = len(self._payload) - self._position
        if type(count) is not int or not 0 <= count <= left:
            raise _refusal(self._sender, f"`{field}` needs {_short(count)} bytes, {left} are left")
        self._position += count
        return self._payload[self._position - count : self._position]

    def _tensor(self, field: str, name: Any, shape: Any) -> Tensor:
        if not isinstance(name, str) or name not in _DTYPES:
            raise _refusal(self._sender, f"`{field}` has the unknown dtype {_short(name)}")
        fits = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
        if not fits or not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
            raise _refusal(self._sender, f"`{field}` has no valid shape")
        if math.prod([max(size, 1) for size in shape]) > _MAX_VALUES:  # a zero in the shape hides what does not fit
            raise _refusal(self._sender, f"`{field}` has a shape that no message has")
        dtype = _DTYPES[name]
        raw = self._take(field, math.prod(shape) * dtype.itemsize)
        if not raw:
            return torch.empty(shape, dtype=dtype)
        if not raw.readonly:
            found = torch.frombuffer(raw, dtype=dtype)
            if found.data_ptr() % dtype.itemsize == 0:  # a sender need not have aligned it
                return found.reshape(shape)
        return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def _short(value: object) -> str:
    """What a sender wrote, for an error message: not all of it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _is_text(value: str) -> bool:
    """JSON can name half a character (a lone surrogate), which no text can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in value)
