"""Mutations that know a format: wire messages, safetensors, zip archives of arrays, pickles, MATLAB files."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import zipfile
import zlib
from random import Random
from typing import Any

from tests.fuzz.mutations import EXTREMES, LENGTHS, blind, json_mutation, mutate_value, put_raw, to_json

ALIGNMENT = 64


def wire_mutation(data: bytes, rng: Random) -> bytes:
    """A message whose header says something else, with its length mended; sometimes the payload grows to fit."""
    length = int.from_bytes(data[4:8], "little")
    header, payload = json.loads(data[8 : 8 + length]), data[8 + length :]
    text = to_json(mutate_value(header, rng)).encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        payload = rng.choice((payload + rng.randbytes(rng.randrange(1, 100)), payload * 2, b"", payload[:-1]))
    size = len(text) if rng.random() < 0.95 else rng.choice(EXTREMES) % 2**32
    return data[:4] + size.to_bytes(4, "little") + text + payload


def field_mutation(types: tuple[type[Any], ...]) -> Any:
    """A message that can be decoded, with other values of the right types in one or two of its fields."""

    def mutate(data: bytes, rng: Random) -> bytes:
        from dataclasses import fields, replace
        from typing import get_type_hints

        from bilateral.protocols.wire import decode, encode

        message = decode(data, types, "us")
        names, hints = [one.name for one in fields(message)], get_type_hints(type(message))
        for _ in range(rng.choice((1, 1, 2)) if names else 0):
            name = rng.choice(names)
            message = replace(message, **{name: _field(getattr(message, name), hints[name], rng)})
        return encode(message)

    return mutate


def _field(value: Any, kind: Any, rng: Random) -> Any:
    import torch

    if kind is int:
        return rng.choice((*EXTREMES, -1, value + 1, value - 1, -(2**62)))
    if kind is str:
        return rng.choice(("", "x", value + "x", value[:-1], value * 3, "x" * 5000, "os:system"))
    if kind is bytes:
        return rng.choice((b"", value[:-1], value + b"x", bytes(len(value)), value[::-1], rng.randbytes(len(value))))
    if kind is torch.Tensor:
        return _tensor(value, rng)
    parts = list(value)
    if parts and rng.random() < 0.5:
        index = rng.randrange(len(parts))
        parts[index] = _field(parts[index], kind.__args__[0], rng)
        return tuple(parts)
    return tuple(rng.choice((parts[:-1], parts * 2, parts[::-1], parts * 50, [], parts[1:], parts[:1] * len(parts))))


def _tensor(value: Any, rng: Random) -> Any:
    import torch

    changed = value.clone().contiguous()
    kind = rng.randrange(8)
    if kind < 3 and changed.numel():
        extremes = (0, 1, -1, 2**31 - 1, -(2**31))
        more = (2**63 - 1, -(2**63), 2**62) if changed.dtype == torch.int64 else ()
        floats = (float("nan"), float("inf"), -float("inf"), 1e38, 1e-38) if changed.is_floating_point() else ()
        chosen = rng.choice((*extremes, *more, *floats))
        changed.reshape(-1)[rng.randrange(changed.numel()) if kind < 2 else slice(None)] = chosen
        return changed
    made = {
        3: changed.reshape(-1)[: changed.numel() // 2].clone,
        4: lambda: torch.cat([changed.reshape(-1), changed.reshape(-1)]),
        5: lambda: changed.to(rng.choice((torch.float32, torch.float64, torch.int64, torch.int32))),
        6: lambda: changed.reshape(rng.choice(((1, -1), (-1, 1), (1, 1, -1)))) if changed.numel() else changed,
        7: lambda: torch.zeros(rng.choice(((), (0,), (1,), (0, 5), (3, 3)))),
    }
    return made.get(kind, made[7])()


def safetensors_mutation(data: bytes, rng: Random) -> bytes:
    """Another header: dtypes, shapes, offsets, or the JSON texts in its metadata."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.get("__metadata__", {})
    if metadata and rng.random() < 0.6:
        key = rng.choice(sorted(metadata))
        changed = put_raw(json_mutation(metadata[key].encode(), rng).decode("utf-8", "surrogatepass"))
        metadata[key] = changed.encode("utf-8", "replace").decode()
    else:
        header = mutate_value(header, rng)
    text = to_json(header).encode("utf-8", "surrogatepass")
    size = len(text) if rng.random() < 0.95 else rng.choice((*EXTREMES, *LENGTHS)) % 2**64
    return size.to_bytes(8, "little") + text + data[8 + length :]


def checkpoint_mutation(data: bytes, rng: Random) -> bytes:
    """As above, with the checksum of the contents as it must be: whoever writes a file can compute it."""
    from safetensors.torch import load, save

    tensors = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    state = json.loads(header["__metadata__"]["state"])
    if rng.random() < 0.5:
        tensors = _other_tensors(tensors, rng)
    if rng.random() < 0.7:
        state = mutate_value(state, rng)
    if isinstance(state, dict):
        state["content"] = _digest(tensors)
    text = to_json(state).encode("utf-8", "replace").decode()
    return save(tensors, metadata={"state": text})


def _other_tensors(tensors: dict[str, Any], rng: Random) -> dict[str, Any]:
    import torch

    changed = dict(tensors)
    for _ in range(rng.choice((1, 1, 2))):
        if not changed:
            break
        name = rng.choice(sorted(changed))
        tensor = changed.pop(name)
        kind = rng.randrange(8)
        if kind == 0:
            continue
        if kind == 1:
            changed[name + "x"] = tensor
        else:
            made = {
                2: tensor.reshape(-1)[:1].clone(),
                3: tensor.double() if tensor.dtype != torch.float64 else tensor.float(),
                4: torch.zeros(0),
                5: torch.tensor(float("nan")),
                6: torch.full(tensor.shape, float("inf")),
                7: torch.stack([tensor, tensor]),
            }
            changed[name] = made[kind].contiguous()
    return changed


def _digest(tensors: dict[str, Any]) -> str:
    """What `bilateral.engine.checkpoint` computes, written anew."""
    import torch

    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        found.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


_SHAPES = (
    "(1099511627776,)",
    "(65536, 65536, 8)",
    "(-1,)",
    "(0, 4611686018427387904)",
    "(0,)",
    "()",
    "(3, 'a')",
    "None",
)
_DESCRS = ("|O", "<f8", "<U1000000", "|V4000000000", "<c16", "|S0", "<M8[s]", ">i8", "<f2", "|b1", "x" * 50, "|u1")


def _npy_header(rng: Random) -> bytes:
    shape = rng.choice((*_SHAPES, f"({rng.choice(EXTREMES)}, {rng.choice(EXTREMES)})", "(" * 300 + ")" * 300))
    descr = rng.choice(_DESCRS)
    fields = rng.choice(("", "'extra': 1, ", "'shape': (9,), "))
    text = (
        f"{{'descr': '{descr}', 'fortran_order': {rng.choice(('False', 'True', '3'))}, {fields}'shape': {shape}, }}\n"
    )
    raw = text.encode("latin-1")
    return rng.choice(
        (
            b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw,
            b"\x93NUMPY\x02\x00" + struct.pack("<I", len(raw)) + raw,
            b"\x93NUMPY\x02\x00" + struct.pack("<I", rng.choice(EXTREMES) % 2**32) + raw,
            b"\x93NUMPY\x03\x00" + struct.pack("<I", len(raw)) + raw,
        )
    )


def zip_mutation(data: bytes, rng: Random) -> bytes:
    """An archive whose members are damaged, renamed, doubled, dropped, made huge, or given other array headers."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    kind = rng.randrange(8)
    if kind < 3 and members[name][:6] == b"\x93NUMPY":
        content = members[name]
        start = 10 + int.from_bytes(content[8:10], "little")
        members[name] = _npy_header(rng) + content[start:]
    elif kind < 4:
        members[name] = blind(members[name], rng)
    elif kind == 4:
        members[rng.choice(("../x.npy", "x_train", "y_train.npy", "classes.npy", "site_train.npy", " "))] = members[
            name
        ]
    elif kind == 5:
        del members[name]
    elif kind == 6:
        return _bomb(members, name, rng)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for one, content in members.items():
            archive.writestr(one, content)
    found = target.getvalue()
    return found if rng.random() < 0.7 else blind(found, rng)


_ZEROS_MB = 300
_BOMB = None


def _zeros() -> tuple[bytes, int]:
    """A deflated stream of 300 MB of zeros (300 kB), and its checksum: made once."""
    global _BOMB  # noqa: PLW0603
    if _BOMB is None:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        block, crc, parts = bytes(1 << 20), 0, []
        for _ in range(_ZEROS_MB):
            parts.append(packer.compress(block))
            crc = zlib.crc32(block, crc)
        _BOMB = (b"".join([*parts, packer.flush()]), crc)
    return _BOMB


def _bomb(members: dict[str, bytes], name: str, rng: Random) -> bytes:
    """A member of 300 MB of zeros, as a stored member of its packed size, whose entries then say otherwise."""
    packed, crc = _zeros()
    size = rng.choice((_ZEROS_MB << 20, len(members[name]), 2**32 - 2))
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 33, crc, len(packed), size, len(name), 0) + name.encode()
    place = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 33, crc, len(packed), size, len(name), 0, 0, 0, 0, 0, 0
    )
    place += name.encode()
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(place), len(local) + len(packed), 0)
    return local + packed + place + end


_OPS = (
    *(
        b"r\xff\xff\xff\x7f",
        b"r\xff\xff\xff\xff",
        b"p4294967295\n",
        b"q\xff",
        b"j\xff\xff\xff\x7f",
        b"g99999\n",
        b"2",
        b"0",
    ),
    *(b"\x8e" + struct.pack("<Q", 2**40), b"B\xff\xff\xff\x7f", b"X\xff\xff\xff\x7f", b"T\xff\xff\xff\x7f", b"\x95"),
    *(b"\x96" + struct.pack("<Q", 2**36), b"\x8b\xff\xff\xff\x7f", b"\x8a\xff", b"cos\nsystem\n", b"R", b"b", b"\x81"),
    *(b"(", b"t", b"l", b"d", b"e", b"u", b"s", b"a", b"]", b"}", b")", b"N", b"\x88", b"K\x05", b"Pid\n", b"Q", b"."),
    *(
        b"cnumpy\nndarray\n",
        b"cnumpy\ndtype\n",
        b"c_codecs\nencode\n",
        b"I" + b"9" * 5000 + b"\n",
        b"\x85",
        b"\x86\x94",
    ),
)


def pickle_mutation(data: bytes, rng: Random) -> bytes:
    """Operations put in between, or a batch of other values pickled anew."""
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 1, 2, 4))):
            place = rng.randrange(len(data) + 1) if rng.random() < 0.5 else rng.randrange(min(200, len(data)) + 1)
            data = data[:place] + rng.choice(_OPS) + data[place:]
        return data
    values = (None, 1, -1, 2**70, "x", b"x", [], [1, [2]], {}, (), 0.5, [True], [None] * 4, [2**70] * 4, list(range(4)))
    batch = pickle.loads(data, encoding="bytes")
    key = rng.choice(sorted(batch))
    batch[key] = rng.choice((*values, _folded(rng.choice((5, 60))), batch[key]))
    if rng.random() < 0.3:
        batch = rng.choice(([batch], list(batch.items()), batch[key], {1: batch}, {**batch, "data": [0]}))
    return pickle.dumps(batch, protocol=rng.choice((0, 2, 4, 5)))


def _folded(depth: int) -> list[Any]:
    """A list of two times the same list of two times ...: small in a pickle, 2^depth where it is unfolded."""
    found: list[Any] = [0]
    for _ in range(depth):
        found = [found, found]
    return found


def mat_mutation(data: bytes, rng: Random) -> bytes:
    """Tags and sizes of elements, also inside compressed ones."""
    if data[128:132] == struct.pack("<I", 15) and rng.random() < 0.7:
        size = int.from_bytes(data[132:136], "little")
        inner, rest = zlib.decompress(data[136 : 136 + size]), data[136 + size :]
        if rng.random() < 0.2:
            inner = inner + bytes(rng.choice((1 << 20, 64 << 20)))
        packed = zlib.compress(_words(inner, rng), 9)
        return data[:132] + struct.pack("<I", len(packed)) + packed + rest
    return _words(data, rng)


def _words(data: bytes, rng: Random) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(0, min(len(raw), 256) - 4, 4)
        value = rng.choice((*EXTREMES, *range(20))) % 2**32
        raw[place : place + 4] = struct.pack("<I", value)
    return bytes(raw)
