"""Every message, in both directions, with every part wrong in turn: refused with a typed error that shows no secret."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.protocols.share.harness import FROM_CLIENT, QUERIER, TO_CLIENT, Exchange, Group, fill, queries_like, sent
from torch import Tensor, nn

from bilateral.errors import BilateralError, MalformedMessageError, ProtocolError
from bilateral.protocols import wire
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.gates.styles import HARDENED, SEALED
from bilateral.protocols.share.prediction import messages
from bilateral.protocols.share.ring import arithmetic as ring

SHAPE, BATCH, BOTH = (2, 6, 6), 2, (SEALED, HARDENED)
QUERIES = queries_like(SHAPE, count=BATCH)
PROFILE = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)


@cache
def model():
    layers = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    return compile_model(fill(nn.Sequential(*layers)), queries_like(SHAPE, count=8))


def whole_session(group):
    """Open it, predict, and end it."""
    sessions = group.open(model())
    group.predict(QUERIES, sessions=sessions)
    group.server.close(sessions)


class Until(Exception):  # noqa: N818
    """Raised by the test to stop a prediction just before a message is delivered."""


class Stopped(Group):
    """A prediction that stops before some message of one kind is handled."""

    stop, passes = None, 0

    def next_reply(self):
        _, party, message = self._waiting[0]
        if type(message) is self.stop:
            if not self.passes:
                raise Until(party, message)
            self.passes -= 1
        return super().next_reply()


def stopped_before(style, kind, nth=0):
    """(client that expects it, an honest message of `kind`)."""
    group = Stopped(style=style)
    group.stop, group.passes = kind, nth
    with pytest.raises(Until) as caught:
        whole_session(group)
    party, message = caught.value.args
    return group.clients[party], message


def wrong_tensors(tensor):
    """Tensors of other shapes and types."""
    yield "dtype", tensor.to(torch.float64)
    yield "narrow", tensor.to(torch.int32 if tensor.dtype == torch.int64 else torch.int64)
    yield "empty", tensor[:0]
    yield "longer", torch.cat([tensor, tensor])
    if tensor.dim() != 1:
        yield "flat", tensor.reshape(-1)
    yield "deeper", tensor[None]
    yield "scalar", torch.zeros((), dtype=tensor.dtype)
    if tensor.dim() > 1:
        yield "narrower", tensor[..., :-1]


def wrong_values(value):
    """Replacements for one field that are of its type, and wrong."""
    match value:
        case Tensor():
            if value.numel():
                yield from wrong_tensors(value)
        case bytes():
            yield from (("empty", b""), ("shorter", value[:-1]), ("longer", value + b"\0"))
        case int():
            yield from ((str(found), found) for found in (-1, value + 1, -(2**62), 2**62))
        case str():
            yield from (("empty", ""), ("other", "nobody"), ("long", "x" * 100_000))
        case tuple():
            yield "none", ()
            yield "doubled", value + value
            if value:
                yield "one less", value[:-1]
                yield from ((f"first {name}", (part, *value[1:])) for name, part in wrong_values(value[0]))
                yield from ((f"last {name}", (*value[:-1], part)) for name, part in wrong_values(value[-1]))


def wrong_messages(message):
    for item in fields(message):
        for name, value in wrong_values(getattr(message, item.name)):
            if not _is_same(value, getattr(message, item.name)):
                yield f"{item.name}: {name}", replace(message, **{item.name: value})


def _is_same(first, second):
    if isinstance(first, Tensor):
        return first.shape == second.shape and first.dtype == second.dtype
    return first == () == second or (not isinstance(first, tuple) and first == second)


@cache
def honest_log(style):
    group = Group(style=style)
    whole_session(group)
    return tuple(group.log)


def honest(style, kind):
    """All messages of a kind in a whole session, in order."""
    messages = (message for e in honest_log(style) for message in (e.request, e.reply))
    return [message for message in messages if type(message) is kind]


def honest_in_any_style(kind):
    """The last of its kind: it has the output where there is one."""
    return [message for style in BOTH for message in honest(style, kind)][-1]


def _cases(kinds):
    """(style, kind, which of its messages, which part is wrong). Of turns, which differ, some are spoiled."""
    found = []
    for style in BOTH:
        for kind in kinds:
            sent_ones = honest(style, kind)
            chosen = {0, 1, len(sent_ones) - 1} if issubclass(kind, messages.TurnMessage) else {len(sent_ones) - 1}
            for nth in sorted(chosen) if sent_ones else ():
                for name, _ in wrong_messages(sent_ones[nth]):
                    found.append(pytest.param(style, kind, nth, name, id=f"{style.name} {kind.__name__} {nth} {name}"))
    return found


ALLOWED = {
    # A new index is the server's choice, and the batch goes on under it; a changed session_id is another session.
    (messages.BatchRequest, "batch_index: 1"),
    (messages.BatchRequest, f"batch_index: {2**62}"),
    (messages.Carries, "batch_index: 1"),
    (messages.Carries, f"batch_index: {2**62}"),
}
SHORTER = (SEALED, messages.ServerTurn, 1, "parts: one less")
"""What is missing may come with the next turn: more rounds, and nothing else changes (`test_turns`)."""
REQUESTS = [
    case
    for case in _cases(TO_CLIENT)
    if (case.values[1], case.values[3]) not in ALLOWED and tuple(case.values) != SHORTER
]


@cache
def secrets():
    """Weights, biases and queries as ring elements."""
    held = [part.reshape(-1) for layer in model().layers for part in (layer.weight, layer.bias)]
    return {abs(int(value)) for part in (*held, ring.encode(QUERIES, 20).reshape(-1)) for value in part}


def assert_shows_no_secret(error):
    assert not {int(number) for number in re.findall(r"\d{4,}", str(error))} & secrets()


def test_all_message_types_are_covered():
    assert {case.values[1] for case in REQUESTS} == set(TO_CLIENT)
    assert {type(e.request) for style in BOTH for e in honest_log(style)} == set(TO_CLIENT)
    assert {type(e.reply) for style in BOTH for e in honest_log(style)} == set(FROM_CLIENT)


@pytest.mark.parametrize(("style", "kind", "nth", "name"), REQUESTS)
def test_a_client_refuses_a_malformed_message_without_showing_secrets(style, kind, nth, name):
    client, expected = stopped_before(style, kind, nth)
    wrong = dict(wrong_messages(expected))[name]
    with pytest.raises(BilateralError) as caught:
        client.handle(sent(wrong, TO_CLIENT)[0])
    assert_shows_no_secret(caught.value)


@pytest.mark.parametrize("fraction_bits", [0, 19, -5000, 31, 5000])
def test_a_sum_with_impossible_fraction_bits_is_refused(fraction_bits):
    client, expected = stopped_before(SEALED, messages.SummedLogits)
    with pytest.raises(BilateralError):
        client.handle(replace(expected, fraction_bits=fraction_bits))


def test_a_sum_over_one_session_twice_is_refused():
    client, expected = stopped_before(SEALED, messages.SummedLogits)
    with pytest.raises(BilateralError):
        client.handle(replace(expected, session_ids=expected.session_ids * 2, batch_indices=expected.batch_indices * 2))


REPLIES = _cases(FROM_CLIENT)


def _spoiled(kind, nth, name, group):
    """A tamper function that spoils one reply of `kind`."""
    seen = [-1]

    def tamper(exchange: Exchange):
        seen[0] += type(exchange.reply) is kind
        if type(exchange.reply) is kind and seen[0] == nth:
            wrong = dict(wrong_messages(exchange.reply))[name]
            return sent(wrong, FROM_CLIENT)[0]
        return exchange.reply

    group.tamper = tamper


@pytest.mark.parametrize(("style", "kind", "nth", "name"), REPLIES)
def test_the_server_refuses_a_malformed_reply_without_showing_secrets(style, kind, nth, name):
    group = Group(style=style)
    _spoiled(kind, nth, name, group)
    with pytest.raises(BilateralError) as caught:
        whole_session(group)
    assert_shows_no_secret(caught.value)


@pytest.mark.parametrize("style", BOTH, ids=lambda style: style.name)
@pytest.mark.parametrize("kind", FROM_CLIENT)
def test_a_reply_of_another_type_is_refused(kind, style):
    for request in {type(e.request): e for e in honest_log(style)}.values():
        if type(request.reply) is kind:
            continue
        group = Group(style=style)
        group.tamper = lambda e, r=request: honest_in_any_style(kind) if type(e.request) is type(r.request) else e.reply
        with pytest.raises(ProtocolError):
            whole_session(group)
            group.clients[QUERIER].take_answers()


@pytest.mark.parametrize("kind", (*TO_CLIENT, *FROM_CLIENT), ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire_and_is_read_only_where_it_is_expected(kind):
    message = honest_in_any_style(kind)
    data = wire.encode(message)
    found = wire.decode(data, [kind], "anna")
    for item in fields(message):
        first, second = getattr(message, item.name), getattr(found, item.name)
        assert torch.equal(first, second) if isinstance(first, Tensor) else type(first) is type(second)
    for types in (messages.TO_ANSWERER, messages.TO_QUERIER, messages.FROM_ANSWERER, messages.FROM_QUERIER):
        if kind not in types:
            with pytest.raises(MalformedMessageError, match="anna"):
                wire.decode(data, types, "anna")


@given(data=st.data())
@PROFILE
def test_mutated_bytes_of_any_message_are_refused_or_are_another_message(data):
    """Only typed errors escape, at the wire or at the client that gets what the wire let through."""
    style = data.draw(st.sampled_from(BOTH))
    kind = data.draw(st.sampled_from([kind for kind in TO_CLIENT if honest(style, kind)]))
    client, expected = stopped_before(style, kind, data.draw(st.integers(0, len(honest(style, kind)) - 1)))
    encoded = bytearray(wire.encode(expected))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, min(len(encoded) - 1, 400)))
        encoded[position] = data.draw(st.integers(0, 255))
    try:
        client.handle(wire.decode(bytes(encoded), TO_CLIENT, "server"))
    except BilateralError:
        return


def test_nothing_that_holds_secrets_shows_them():
    group = Group()
    sessions = group.open(model())
    client = group.clients["anna"]
    held = [model(), *model().layers, client, group.server, *sessions, *group.rings.values()]
    held += [*client._answering.values(), *group.clients[QUERIER]._querying.values()]
    for thing in held:
        assert re.fullmatch(r"<[\w. ]+ object at 0x[0-9a-f]+>", repr(thing)), type(thing)
