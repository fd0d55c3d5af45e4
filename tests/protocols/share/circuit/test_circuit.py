"""Circuits as JSON: they come back as they were, and whatever else arrives is refused in bounded time and memory."""

from __future__ import annotations

import copy
import json
import math
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocols.share.harness import QUERIER, Group, queries_like
from tests.reference.work import num_calls

from bilateral.errors import MalformedMessageError, ModelError
from bilateral.models.zoo import build_model
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.description import (
    KINDS,
    AvgPool,
    Circuit,
    Concat,
    Conv,
    Dense,
    MaxPool,
    Relu,
    Reshape,
)
from bilateral.protocols.share.computing.dealer import widths
from bilateral.protocols.share.gates.styles import SEALED
from bilateral.protocols.share.prediction.messages import SessionNotice

quick = settings(max_examples=100, deadline=None)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.sampled_from([2**24, 2**31, 2**63, 10**30, -1, 4096]),
    st.floats(), st.text(max_size=4),
)  # fmt: skip
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)

STATED = {"largest_input": 1, "value_bits": 12}
"""What a circuit says beside its shapes."""


@pytest.fixture(scope="module")
def honest():
    model = build_model("densenet", input_shape=(3, 8, 8), num_outputs=4, growth=2, layers=(1, 1))
    return compile_model(model, queries_like((3, 8, 8))).circuit


def refused(text):
    with pytest.raises(MalformedMessageError, match="circuit from anna"):
        Circuit.from_json(text, "anna")


@pytest.mark.parametrize("name", ["lenet", "vgg-7", "resnet-20", "resnet-11", "densenet", "mlp-7"])
def test_circuits_come_back_from_json_as_they_were(name):
    model = build_model(name, input_shape=(3, 32, 32), num_outputs=10)
    circuit = compile_model(model, queries_like((3, 32, 32), count=1)).circuit
    again = Circuit.from_json(circuit.to_json(), "anna")
    assert again == circuit
    assert again.values == circuit.values
    assert again.comparisons == circuit.comparisons


def test_a_circuit_says_nothing_of_the_weights():
    shapes = {"input_shape": (3, 16, 16), "num_outputs": 10}
    found = {
        compile_model(build_model("lenet", seed=seed, **shapes), queries_like((3, 16, 16))).circuit.to_json()
        for seed in range(3)
    }
    assert len(found) == 1


@given(st.text(max_size=40))
@quick
def test_text_that_is_no_circuit_is_refused(text):
    refused(text)


@given(anything)
@quick
def test_json_that_is_no_circuit_is_refused(found):
    refused(json.dumps(found))


@given(data=st.data())
@quick
def test_circuits_with_one_part_replaced_are_refused_or_sound(honest, data):
    """Only `MalformedMessageError` escapes; what is accepted has shapes that agree."""
    found = json.loads(honest.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        place = found
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and data.draw(st.integers(0, 4)):
                place = place[key]
                continue
            place[key] = copy.deepcopy(data.draw(anything))
            break
    try:
        circuit = Circuit.from_json(json.dumps(found), "anna")
    except MalformedMessageError:
        return
    assert len(circuit.values) == len(circuit.steps) + 1
    assert Circuit.from_json(circuit.to_json(), "anna") == circuit


@given(
    st.lists(
        st.fixed_dictionaries(
            {"kind": st.sampled_from(sorted(KINDS)), "sources": st.lists(st.integers(0, 6), max_size=3)},
            optional={
                name: st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4))
                for name in (
                    "out_features",
                    "out_channels",
                    "kernel",
                    "stride",
                    "padding",
                    "dilation",
                    "groups",
                    "shape",
                )
            },
        ),
        max_size=6,
    )
)
@quick
def test_steps_put_together_at_random_are_refused_or_sound(steps):
    try:
        circuit = Circuit.from_json(json.dumps({"input_shape": [2, 5, 5], **STATED, "steps": steps}), "anna")
    except MalformedMessageError:
        return
    assert all(min(value.shape) >= 1 for value in circuit.values)


WRONG = {
    "no steps": ((4,), ()),
    "a later value": ((4,), (Relu((1,)),)),
    "a value before the first": ((4,), (Relu((-1,)),)),
    "no source": ((4,), (Relu(()),)),
    "two sources": ((4,), (Relu((0, 0)),)),
    "a flat image": ((4,), (MaxPool((0,), (1, 1), (1, 1), (0, 0)),)),
    "an image that is not flat": ((1, 2, 2), (Dense((0,), 3),)),
    "a kernel larger than the image": ((1, 2, 2), (Conv((0,), 1, (3, 3), (1, 1), (0, 0), (1, 1), 1),)),
    "groups that do not divide": ((3, 2, 2), (Conv((0,), 4, (1, 1), (1, 1), (0, 0), (1, 1), 2),)),
    "no stride": ((1, 2, 2), (MaxPool((0,), (1, 1), (0, 1), (0, 0)),)),
    "a reshape of another size": ((4,), (Reshape((0,), (5,)),)),
    "a matrix": ((4, 4), (Relu((0,)),)),
    "an empty input": ((0,), (Relu((0,)),)),
    "other sizes concatenated": ((2, 4, 4), (MaxPool((0,), (2, 2), (1, 1), (0, 0)), Concat((0, 1)))),
    "too fine averages": ((1, 64, 64), (AvgPool((0,), (64, 64), (1, 1), (0, 0)),)),
    "too large divisors": ((1, 2047, 2047), (AvgPool((0,), (2047, 2047), (1, 1), (0, 0)),)),
}


@pytest.mark.parametrize("what", WRONG)
def test_circuits_whose_shapes_do_not_agree_are_refused(what):
    shape, steps = WRONG[what]
    with pytest.raises(ModelError):
        Circuit(shape, steps)
    described = [{"kind": step.kind, **vars(step)} for step in steps]
    refused(json.dumps({"input_shape": shape, **STATED, "steps": described}))


def doubling(count, last=0):
    return [{"kind": "concat", "sources": [i, i]} for i in range(count)]


@pytest.mark.parametrize(
    "found",
    [
        {"input_shape": [1], **STATED, "steps": doubling(60)},
        {"input_shape": [1], **STATED, "steps": doubling(4096)},
        {"input_shape": [1], **STATED, "steps": [{"kind": "relu", "sources": [i]} for i in range(4097)]},
        {
            "input_shape": [2**24 - 1, 2**24 - 1, 2**24 - 1],
            **STATED,
            "steps": [{"kind": "relu", "sources": [0]}],
        },
        {"input_shape": [1] * 4096, **STATED, "steps": [{"kind": "relu", "sources": [0]}]},
        {"input_shape": [1], **STATED, "steps": [{"kind": "dense", "sources": [0], "out_features": 2**40}]},
        {"input_shape": [1], **STATED, "steps": [{"kind": "concat", "sources": [0] * 5000}]},
    ],
    ids=["doubling", "doubling often", "4097 steps", "huge input", "4096 dimensions", "huge layer", "5000 sources"],
)
def test_huge_circuits_are_refused_with_little_work_and_without_memory(found):
    text = json.dumps(found)
    assert num_calls(lambda: refused(text)) < 10 * len(text) + 100_000  # no size that the text only names
    tracemalloc.start()
    refused(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20


def test_deeply_nested_text_is_refused():
    refused("[" * 100_000)
    refused('{"input_shape":' * 50_000)


def test_reading_the_longest_circuit_is_work_in_proportion_to_its_length():
    def chain(length):
        steps = [{"kind": "relu", "sources": [i]} for i in range(length)]
        return json.dumps({"input_shape": [1], **STATED, "steps": steps})

    def read(length):
        text = chain(length)

        def action():
            circuit = Circuit.from_json(text, "anna")
            assert len(circuit.comparisons) == length
            assert circuit.last_uses[-1] == length

        return num_calls(action)

    assert read(4096) < 1.1 * 8 * read(512)


EXPENSIVE = {
    "a kernel of 2^46 weights": {
        "kind": "conv", "sources": [0], "out_channels": 1, "kernel": [2**23, 2**23], "stride": [1, 1],
        "padding": [2**22, 2**22], "dilation": [1, 1], "groups": 1,
    },
    "a window of 2^46 places": {
        "kind": "max_pool", "sources": [0], "kernel": [2**23, 2**23], "stride": [1, 1], "padding": [2**22, 2**22],
    },
}  # fmt: skip


@pytest.mark.parametrize("what", EXPENSIVE)
def test_circuits_with_small_values_and_enormous_weights_or_windows_are_refused(what):
    refused(json.dumps({"input_shape": [1, 1, 1], **STATED, "steps": [EXPENSIVE[what]]}))


def pooled(size, kernel, channels=1):
    """Max pooling with overlapping windows: few values, many comparisons."""
    step = {"kind": "max_pool", "sources": [0], "kernel": [kernel] * 2, "stride": [1, 1], "padding": [0, 0]}
    return json.dumps({"input_shape": [channels, size, size], **STATED, "steps": [step]})


def test_a_circuit_with_few_values_and_enormous_comparisons_is_refused():
    """A dealer deals for all of them when it is asked for one batch, before anything else has come."""
    refused(pooled(200, 100, 64))  # 200 MB of values; a hundred gigabytes would be dealt
    assert sum(found.size for found in Circuit.from_json(pooled(32, 3, 64), "anna").comparisons) == 8 * 64 * 30**2


@given(kernel=st.tuples(st.integers(1, 6), st.integers(1, 6)), batch=st.integers(1, 3))
@quick
def test_the_largest_batch_of_a_circuit_takes_two_gigabytes(kernel, batch):
    """What is dealt for comparisons is below what the bound counts for them, which counts every one."""
    steps = Relu((0,)), MaxPool((1,), kernel, (1, 1), (0, 0))
    circuit = Circuit((2, 6, 6), steps)
    num_compared = sum(compared.size for compared in circuit.comparisons)
    assert num_compared == circuit.values[1].size + (math.prod(kernel) - 1) * circuit.values[2].size
    size = circuit.largest_batch
    assert size * (sum(value.size for value in circuit.values) + 5 * num_compared) <= 2**28
    dealt = sum(8 * math.prod(shape) for width in widths(circuit, SEALED, 64 * batch) for shape in width.dealt_shapes)
    assert dealt <= 5 * 8 * 64 * batch * num_compared


@pytest.mark.parametrize("value_bits", [2, 8, 12])
def test_the_range_that_a_circuit_states_travels_with_it(value_bits):
    circuit = Circuit((4,), (Relu((0,)),), value_bits=value_bits)
    assert Circuit.from_json(circuit.to_json(), "anna") == circuit
    assert json.loads(circuit.to_json())["value_bits"] == value_bits


@pytest.mark.parametrize("value_bits", [1, 0, -1, 13, 44, 2**24, 2**70, 12.0, "12", None, True, [12], {}])
def test_a_circuit_with_another_range_than_2_to_12_bits_is_refused(value_bits):
    """Wider numbers have no room beside the ring's 64 bits, and no digits can be dealt for those of fewer bits."""
    found = {"input_shape": [4], "largest_input": 1, "steps": [{"kind": "relu", "sources": [0]}]}
    refused(json.dumps({**found, "value_bits": value_bits}))
    refused(json.dumps(found))
    Circuit.from_json(json.dumps({**found, "value_bits": 12}), "anna")
    if type(value_bits) is int:
        with pytest.raises(ModelError, match="2 to 12 bits"):
            Circuit((4,), (Relu((0,)),), value_bits=value_bits)


def test_a_client_survives_a_circuit_with_enormous_weights():
    text = json.dumps({"input_shape": [1, 1, 1], **STATED, "steps": [EXPENSIVE["a kernel of 2^46 weights"]]})
    with pytest.raises(MalformedMessageError):
        Group().clients[QUERIER].handle(SessionNotice(b"s" * 16, "anna", text))


def dense(inputs, *widths):
    steps = [{"kind": "dense", "sources": [i], "out_features": width} for i, width in enumerate(widths)]
    return json.dumps({"input_shape": [inputs], **STATED, "steps": steps})


def test_no_notice_makes_a_client_hold_more_than_a_gigabyte_of_masks():
    """Masks of weights are made when a circuit is told, before any query is asked."""
    for text in (dense(2**13, 2**13 + 1), dense(2**13, 2**12, 2**13, 2**12, 2**13)):
        refused(text)
    for text in (dense(2**13, 2**13 - 2), dense(2**13, 2**12, 2**13, 2**12)):
        circuit = Circuit.from_json(text, "anna")
        masks = sum(math.prod(s.weight_shape(circuit.values[s.sources[0]])) for s in circuit.linear_steps)
        assert 8 * masks <= 2**30


def test_comparisons_are_those_of_a_walk():
    steps = MaxPool((0,), (3, 3), (2, 2), (0, 0)), Relu((1,)), Reshape((2,), (8,)), Relu((3,))
    circuit = Circuit((2, 5, 5), steps)
    places, sizes = 9, []
    while places > 1:
        sizes.append(places // 2 * 8)
        places -= places // 2
    assert tuple(compared.size for compared in circuit.comparisons) == (*sizes, 8, 8)
    assert torch.tensor([value.size for value in circuit.values]).tolist() == [50, 8, 8, 8, 8]
