"""Every decoder of messages, with an example of every type it reads, made from the types of its fields."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any, get_type_hints

import torch
from tests.fuzz.formats import wire_mutation
from tests.fuzz.mutations import blind, json_mutation
from tests.fuzz.target import Target

import bilateral
from bilateral.engine.remote.edge import REPLY
from bilateral.protections.spoken_messages import to_client, to_server
from bilateral.protocols.messages import Message
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.wire import decode, encode
from bilateral.runs.hetero.messages import REPLY_OF
from bilateral.runs.rounds.enrolment import Briefing, SiteCard
from bilateral.runs.rounds.remote_exchange import read_answer

SENDER = "mallory"


def message_types() -> tuple[type[Message], ...]:
    """All types of messages of the package that a message can have, benchmarks' too."""
    for found in pkgutil.walk_packages(bilateral.__path__, "bilateral."):
        if ".flare" not in found.name and "__main__" not in found.name:
            importlib.import_module(found.name)
    kinds = [kind for kind in _descendants(Message) if is_dataclass(kind) and kind.__module__.startswith("bilateral.")]
    return tuple(sorted(kinds, key=lambda kind: (kind.__module__, kind.__name__)))


def _descendants(kind: type[Message]) -> Iterable[type[Message]]:
    for one in kind.__subclasses__():
        yield one
        yield from _descendants(one)


def example(kind: type[Message], rng: Random) -> Message:
    """A message of this type: small values of its fields' types."""
    hints = get_type_hints(kind)
    return kind(**{one.name: _value(hints[one.name], rng) for one in fields(kind)})


def _value(kind: Any, rng: Random) -> Any:
    if kind is int:
        return rng.choice((0, 1, 3, 17))
    if kind is str:
        return rng.choice(("anna", "Бен", "", "client-1"))
    if kind is bytes:
        return rng.randbytes(rng.choice((0, 5, 32)))
    if kind is torch.Tensor:
        shape = rng.choice(((4,), (2, 3), (), (0,), (2, 3, 2)))
        dtype = rng.choice((torch.float32, torch.float64, torch.int64, torch.int32))
        return torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)
    return tuple(_value(kind.__args__[0], rng) for _ in range(rng.choice((0, 1, 3))))


def _reads_back(data: bytes, types: Iterable[type[Message]]) -> None:
    """Decode; what was accepted is a message again. From a buffer of the receiver's own it must come out alike."""
    types = tuple(types)
    message = decode(data, types, SENDER)
    assert encode(decode(encode(message), types, SENDER)) == encode(message)
    assert encode(decode(bytearray(data), types, SENDER)) == encode(message)


def _seeds(types: Iterable[type[Message]]) -> tuple[bytes, ...]:
    rng = Random(13)
    return tuple(encode(example(kind, rng)) for kind in types for _ in range(3))


def _circuits() -> tuple[bytes, ...]:
    from bilateral.models.zoo import build_model

    shapes = {"lenet": (1, 12, 12), "mlp-3": (5,), "convnet": (3, 8, 8), "resnet-8": (1, 8, 8)}
    return tuple(
        compile_model(build_model(name, input_shape=shape, num_outputs=3).eval(), torch.rand(2, *shape))
        .circuit.to_json()
        .encode()
        for name, shape in shapes.items()
    )


def _circuit(data: bytes) -> None:
    """A circuit as another party describes it, and the figures that are computed from it before anything is asked."""
    circuit = Circuit.from_json(data.decode("utf-8", "replace"), SENDER)
    assert circuit.comparisons is not None and circuit.last_uses is not None
    assert Circuit.from_json(circuit.to_json(), SENDER) == circuit


def message_targets() -> tuple[Target, ...]:
    """By decoder: what a site reads, what the server reads, single questions, heterogeneous runs, and all types."""
    everything = message_types()
    replies = tuple(dict.fromkeys(REPLY_OF.values()))
    named = (
        ("all types", everything, lambda data: _reads_back(data, _unique(everything))),
        ("to a site", to_client(), lambda data: _reads_back(data, to_client())),
        ("to the server", to_server(), lambda data: read_answer({REPLY: data}, SENDER)),
        ("enrolment", (SiteCard, Briefing), lambda data: _reads_back(data, (SiteCard, Briefing))),
        ("to a heterogeneous site", tuple(REPLY_OF), lambda data: _reads_back(data, REPLY_OF)),
        ("from a heterogeneous site", replies, lambda data: _reads_back(data, replies)),
    )
    targets = [Target(name, _seeds(types), (wire_mutation, wire_mutation, blind), read) for name, types, read in named]
    targets.append(Target("circuit", _circuits(), (json_mutation, json_mutation, blind), _circuit))
    return tuple(targets)


def _unique(types: Iterable[type[Message]]) -> tuple[type[Message], ...]:
    """The last of those with the same name: two benches have a `Done` of their own."""
    return tuple({kind.__name__: kind for kind in types}.values())
