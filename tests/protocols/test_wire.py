"""Messages as bytes: what goes in comes out, and whatever is no message is refused by name."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.errors import MalformedMessageError
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.membership import KeyRequest, RoundMembers
from bilateral.protocols.messages import Upload
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery, SoftmaxReply
from bilateral.protocols.wire import decode, digest, encode

TYPES = (Upload, PlainModel, PerturbedModel, SoftmaxQuery, SoftmaxReply, KeyRequest, RoundMembers)
EXAMPLES = (
    Upload(3, 17, torch.linspace(-1, 1, 6).reshape(2, 3), torch.zeros(0)),
    PlainModel(0, torch.arange(5.0, dtype=torch.float64)),
    PerturbedModel(
        1, torch.ones(4), torch.ones(2, dtype=torch.float64), torch.tensor([0, 1]), torch.ones(1, dtype=torch.float64)
    ),
    SoftmaxQuery(2, torch.zeros(0, dtype=torch.float64), torch.rand(2, 3, 2, dtype=torch.float64)),
    SoftmaxReply(2, *(torch.rand(2, 3, dtype=torch.float64) for _ in range(3))),
    KeyRequest(b"\x00\xffrun"),
    RoundMembers(9, ("anna", "Бен", "")),
)


def same(one, other):
    assert type(one) is type(other)
    for name, value in vars(one).items():
        found = getattr(other, name)
        if isinstance(value, torch.Tensor):
            assert value.dtype == found.dtype
            assert value.shape == found.shape
            assert torch.equal(value, found)
        else:
            assert value == found


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_message_survives_the_wire_bit_for_bit(message):
    same(message, decode(encode(message), TYPES, "anna"))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_the_wire_adds_little_to_what_a_message_says_it_weighs(message):
    assert message.num_bytes <= len(encode(message)) + 8 * len(vars(message))
    assert len(encode(message)) <= message.num_bytes + 300


@given(data=st.binary(max_size=200))
@settings(derandomize=True, deadline=None)
def test_random_bytes_are_refused_and_the_sender_is_named(data):
    with pytest.raises(MalformedMessageError, match="from mallory"):
        decode(data, TYPES, "mallory")


@given(which=st.integers(0, len(EXAMPLES) - 1), data=st.data())
@settings(derandomize=True, deadline=None, max_examples=400)
def test_a_mutated_message_is_refused_or_still_a_message(which, data):
    raw = bytearray(encode(EXAMPLES[which]))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(raw) - 1))
        raw[position] = data.draw(st.integers(0, 255))
    try:
        message = decode(bytes(raw), TYPES, "mallory")
    except MalformedMessageError as error:
        assert "mallory" in str(error)
    else:
        assert isinstance(message, TYPES)
        assert encode(message)


@given(which=st.integers(0, len(EXAMPLES) - 1), cut=st.integers(1, 400), extra=st.binary(min_size=1, max_size=9))
@settings(derandomize=True, deadline=None)
def test_truncated_and_extended_messages_are_refused(which, cut, extra):
    raw = encode(EXAMPLES[which])
    for broken in (raw[: max(0, len(raw) - cut)], raw + extra):
        with pytest.raises(MalformedMessageError):
            decode(broken, TYPES, "mallory")


def _with_header(change) -> bytes:
    raw = encode(EXAMPLES[0])
    length = int.from_bytes(raw[4:8], "little")
    header = json.loads(raw[8 : 8 + length])
    change(header)
    changed = json.dumps(header).encode()
    return raw[:4] + len(changed).to_bytes(4, "little") + changed + raw[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.update(type="Pickle"),
        lambda h: h.update(type=["Upload"]),
        lambda h: h.update(more=1),
        lambda h: h["fields"].pop("weight"),
        lambda h: h["fields"].update(extra=1),
        lambda h: h["fields"].update(weight=1.5),
        lambda h: h["fields"].update(weight=True),
        lambda h: h["fields"].update(weight=2**63),
        lambda h: h["fields"].update(weight=None),
        lambda h: h["fields"].update(terms={"dtype": "complex64", "shape": [2, 3]}),
        lambda h: h["fields"].update(terms={"dtype": "float32", "shape": [-2, -3]}),
        lambda h: h["fields"].update(terms={"dtype": "float32", "shape": [1] * 9}),
        lambda h: h["fields"].update(terms={"dtype": "float32", "shape": [2**39, 2**39]}),
        lambda h: h["fields"].update(terms={"dtype": "float32", "shape": [2, 2]}),
        lambda h: h["fields"].update(terms={"dtype": "float32", "shape": [0, 2**39]}),
        lambda h: h["fields"].update(terms={"dtype": "float32", "shape": [2**39, 2**39, 0]}),
        lambda h: h["fields"].update(terms={"dtype": "float32", "shape": [2**39, 0, 2**39, 2**39]}),
        lambda h: h["fields"].update(terms=[1]),
    ],
)
def test_a_header_that_does_not_fit_its_type_is_refused(change):
    with pytest.raises(MalformedMessageError, match="mallory"):
        decode(_with_header(change), TYPES, "mallory")


def test_deep_nesting_does_not_break_the_decoder():
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(MalformedMessageError):
        decode(b"BLT1" + len(deep).to_bytes(4, "little") + deep, TYPES, "mallory")


def _raw(header: bytes) -> bytes:
    return b"BLT1" + len(header).to_bytes(4, "little") + header


def test_a_header_of_a_million_items_is_refused_before_it_is_read():
    """A decoder that read it took 600 MB and seconds."""
    for count, item in ((1_300_000, '{"bytes":0}'), (100_000, '""')):
        names = ",".join([item] * count)
        header = f'{{"type":"RoundMembers","fields":{{"round_index":0,"names":[{names}]}}}}'.encode()
        with pytest.raises(MalformedMessageError, match=r"from mallory: .*(too long|100000 items)"):
            decode(_raw(header), TYPES, "mallory")


def test_the_keys_of_ten_thousand_clients_fit_into_one_message():
    names = tuple(f"hospital-{number:05}" for number in range(10_000))
    roster = Roster(b"run", names, (bytes(32),) * 10_000, (bytes(32),) * 10_000, (bytes(64),) * 10_000)
    assert decode(encode(roster), [Roster], "anna") == roster
    with pytest.raises(MalformedMessageError, match="Roster has a header of"):
        encode(Roster(b"run", names * 3, *((bytes(32),) * 30_000 for _ in range(3))))


@pytest.mark.parametrize(
    "header",
    [
        {"type": "x" * 100_000, "fields": {}},
        {"type": "KeyRequest", "fields": {"run_id": {"bytes": "9" * 100_000}}},
        {"type": "PlainModel", "fields": {"round_index": 0, "parameters": {"dtype": "y" * 100_000, "shape": [1]}}},
    ],
    ids=["type", "size", "dtype"],
)
def test_an_error_does_not_repeat_all_that_a_sender_wrote(header):
    with pytest.raises(MalformedMessageError) as caught:
        decode(_raw(json.dumps(header).encode()), TYPES, "mallory")
    assert len(str(caught.value)) < 400


def test_digests_differ_where_messages_do():
    model = EXAMPLES[1]
    others = [
        PlainModel(1, model.parameters),
        PlainModel(0, model.parameters.float()),
        PlainModel(0, model.parameters + 1e-15),
        PlainModel(0, model.parameters[:-1]),
        KeyRequest(b""),
    ]
    assert len({digest(), digest(model), digest(model, model), *(digest(other) for other in others)}) == 8
    assert digest(decode(encode(model), TYPES, "anna")) == digest(model)


def test_only_the_types_that_were_asked_for_are_read():
    with pytest.raises(MalformedMessageError, match="expected one of KeyRequest, got type 'Upload'"):
        decode(encode(EXAMPLES[0]), (KeyRequest,), "mallory")


def test_half_a_character_is_no_text():
    raw = encode(RoundMembers(1, ("x",)))
    with pytest.raises(MalformedMessageError):
        decode(
            raw.replace(b'"x"', b'"\\ud800"').replace(raw[4:8], (len(raw) - 8 + 5).to_bytes(4, "little")), TYPES, "m"
        )


def test_arrays_of_a_bytearray_are_not_copied_and_always_aligned():
    """A receiver with its own buffer saves a copy; a sender that does not pad its header cannot misalign arrays."""
    message = Upload(1, 2, torch.arange(6.0, dtype=torch.float64).reshape(2, 3), torch.zeros(0))
    data = encode(message)
    shared = bytearray(data)
    found = decode(shared, [Upload], "client")
    shared[-48:] = bytes(48)
    assert float(found.terms.sum()) == 0.0
    length = int.from_bytes(data[4:8], "little")
    header = data[8 : 8 + length].rstrip(b" ") + b" "
    for padding in range(8):
        other = data[:4] + (len(header) + padding).to_bytes(4, "little") + header + b" " * padding + data[8 + length :]
        found = decode(bytearray(other), [Upload], "client")
        assert torch.equal(found.terms, message.terms)
        assert found.terms.data_ptr() % 8 == 0
