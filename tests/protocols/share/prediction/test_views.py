"""Each party's view is what the proof allows: uniform, unchanged by others' secrets, and a simulator makes the same."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from tests.protocols.share.harness import QUERIER, Group, fill, queries_like, session_seed
from tests.protocols.share.prediction.views import (
    simulated_answerer,
    simulated_judge,
    simulated_querier,
    simulated_server,
    structure,
    view_of_client,
    view_of_server,
)
from tests.protocols.share.statistics import assert_same_distribution, assert_uniform, assert_uniform_bits
from torch import nn

from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.circuit.description import Circuit
from bilateral.protocols.share.circuit.plaintext import FixedPointModel, PlainArithmetic, PrivateLayer, predict
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED, SEALED
from bilateral.protocols.share.prediction.messages import (
    AnswererTurn,
    BatchRequest,
    BlindedValues,
    MaskedModel,
    QueryRequest,
    SessionNotice,
    SummedLogits,
    TablesRequest,
)
from bilateral.protocols.share.ring.streams import Stream

SHAPE, BATCH = (4, 8, 8), 16


def network(seed=0, size=0.3):
    return fill(
        nn.Sequential(
            nn.Conv2d(4, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
            nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 64),
        ),
        seed,
        size,
    )  # fmt: skip


def with_weights(model, change):
    """The same circuit with other parameters, which need not be sensible."""
    layers = tuple(PrivateLayer(change(layer.weight), change(layer.bias)) for layer in model.layers)
    return FixedPointModel(model.circuit, layers)


@pytest.fixture(scope="module")
def model():
    return compile_model(network(), queries_like(SHAPE, count=BATCH))


def secrets(model):
    """Runs with other queries and weights: usual, all zero, as large as can be."""
    usual = queries_like(SHAPE, count=BATCH)
    zero, huge = torch.zeros_like(usual), torch.full_like(usual, 2.0 * model.circuit.largest_input)
    no_weights = with_weights(model, torch.zeros_like)
    large = with_weights(model, lambda x: torch.full_like(x, 2**10))
    return {
        "usual": (usual, model),
        "zero queries": (zero, model),
        "huge queries": (huge, large),
        "zero weights": (usual, no_weights),
        "large weights": (usual, large),
    }


NAMES = ("usual", "zero queries", "huge queries", "zero weights", "large weights")


styles = pytest.mark.parametrize("style", [SEALED, HARDENED], ids=lambda style: style.name)


@pytest.fixture(scope="module")
def all_runs(model):
    """All parties have other keys in each run, so that the views are independent samples."""
    groups = {style: {} for style in (SEALED, HARDENED)}
    for style, found in groups.items():
        for seed, (name, (queries, answered)) in enumerate(secrets(model).items()):
            found[name] = Group(seed=100 + seed, style=style)
            found[name].answer = found[name].predict(queries, answered)
    return groups


@pytest.fixture
def runs(all_runs, style):
    return all_runs[style]


def outputs(group, party):
    """What an answering party said last in each batch: its masked output."""
    last = {turn.batch_index: turn.parts[-1] for turn in group.replied(party, AnswererTurn) if turn.parts}
    return list(last.values())


def assert_fair_bits(words):
    """As many ones as zeros, in all and among neighbours."""
    assert_uniform_bits(words.numpy().tobytes())


def assert_identical(first, second):
    assert structure(first) == structure(second)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first, second, strict=True))


def large_parts(view):
    """Parts with enough in them for a statistical test, by name."""
    found = {}
    for name, part in view:
        if part.numel() * part.element_size() >= 4096:
            found.setdefault(name, []).append(part)
    return found


def assert_all_uniform(view):
    for name, parts in large_parts(view).items():
        for part in parts:
            try:
                assert_uniform(part)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


@styles
@pytest.mark.parametrize("name", NAMES)
def test_everything_that_the_server_receives_is_uniform(runs, style, name):
    """Masked weights, all that is dealt, the query's share, bits, comparisons, judged shares, the output."""
    view = view_of_server(runs[name])
    assert {part for part, _ in view} == {
        "MaskedModel.weights", "Correlations.products", "Correlations.carries", "QueryShare.share",
        "AnswererTurn.parts",
        *(("SelectedValues.products", "SelectedValues.bits") if style.is_judged else ("Tables.comparisons",)),
    }  # fmt: skip
    assert len(large_parts(view)) == (7 if style.is_judged else 6)
    assert_all_uniform(view)


@styles
@pytest.mark.parametrize("name", NAMES)
def test_everything_that_an_answering_party_receives_is_uniform(runs, name):
    view = view_of_client(runs[name], "anna")
    assert {part for part, _ in view} == {"Carries.bits", "ServerTurn.parts"}
    assert_all_uniform(view)


@styles
def test_what_the_server_sends_on_to_the_querying_party_is_uniform_to_itself(runs, style):
    """Under the mask that the two clients share, even blinded numbers and logits are uniform to the server."""
    for name in NAMES:
        view = view_of_client(runs[name], QUERIER)
        judged = {"BlindedValues.values"} if style.is_judged else set()
        assert {part for part, _ in view} == {"SummedLogits.logits", *judged}
        assert_all_uniform(view)


@styles
def test_what_two_runs_and_two_places_tell_is_independent(runs):
    """All of it is under one-time pads: the xor of any two parts of one length is uniform again."""
    found = [part for group in runs.values() for name, part in view_of_server(group) if name == "AnswererTurn.parts"]
    found += [part for group in runs.values() for name, part in view_of_client(group, "anna")]
    by_length = {}
    for part in found:
        by_length.setdefault(part.numel(), []).append(part.reshape(-1))
    pairs = [pair for parts in by_length.values() for pair in itertools.pairwise(parts) if len(pair[0]) >= 64]
    assert len(pairs) > 40
    for first, second in pairs:
        assert_fair_bits(first ^ second)


def test_the_output_of_an_answering_party_is_masked_anew_in_every_batch(model):
    group, queries = Group(seed=3), queries_like(SHAPE, count=BATCH)
    sessions = group.open(model)
    for _ in range(2):
        group.predict(queries, sessions=sessions)
    first, second = outputs(group, "anna")
    assert_uniform(first - second)


def test_masked_weights_of_two_sessions_say_nothing_together(model):
    group = Group(seed=4)
    for _ in range(2):
        group.open(model)
    first, second = group.replied("anna", MaskedModel)
    for a, b in zip(first.weights, second.weights, strict=True):
        if a.numel() >= 512:
            assert_uniform(a - b)


@styles
def test_a_simulator_makes_the_servers_view_from_circuit_and_sizes(model, runs, style):
    simulated = simulated_server(model.circuit, BATCH, style, seed=1)
    assert_all_uniform(simulated)
    for name in NAMES:
        real = view_of_server(runs[name])
        assert structure(real) == structure(simulated)
        for (_, a), (_, b) in zip(real, simulated, strict=True):
            if a.numel() >= 512:
                assert_same_distribution(a, b)


@styles
def test_a_simulator_makes_an_answering_partys_view_from_its_circuit_and_sizes(model, runs, style):
    simulated = simulated_answerer(model.circuit, BATCH, style, seed=2)
    assert_all_uniform(simulated)
    for name in NAMES:
        real = view_of_client(runs[name], "anna")
        assert structure(real) == structure(simulated)
        for (_, a), (_, b) in zip(real, simulated, strict=True):
            assert_same_distribution(a, b)


class Noting(PlainArithmetic):
    """Plaintext arithmetic that keeps the numbers it compares."""

    def __init__(self, model):
        super().__init__(model)
        self.compared = []

    def positive_part(self, x, fraction_bits):
        self.compared.append(x.reshape(len(x), -1))
        return super().positive_part(x, fraction_bits)


def unmasked(group, style=HARDENED):
    """Blinded numbers as the querying party sees them: it knows the mask."""
    first = group.received(QUERIER, BlindedValues)[0]
    circuit = Circuit.from_json(group.received(QUERIER, SessionNotice)[0].circuit, "anna")
    seed = session_seed(group.rings[QUERIER].pair_secret("anna"), first.session_id, QUERIER, "anna", circuit, style)
    stream = Stream.of(seed, "comparison", 0, len(first.values))
    views, masks = [], []
    for message in group.received(QUERIER, BlindedValues):
        mask = stream.words(*message.values.shape)
        stream.words(*mask.shape), stream.words(*mask.shape)  # for its shares of the judgement
        views.append(message.values - mask)
        masks.append(mask)
    return views, masks


def compared_numbers(model, queries):
    arithmetic = Noting(model)
    predict(model, queries, arithmetic)
    return arithmetic.compared


def test_a_simulator_makes_the_querying_partys_view_of_a_sealed_prediction_from_the_sum_alone(model, all_runs):
    """It deals, it shares its queries, and it gets the sum: nothing else arrives, and the sum is exact to rounding.

    The requests in between have no payload. They name batches, in an order that the circuits and sizes fix.
    """
    for name, (queries, answered) in secrets(model).items():
        group = all_runs[SEALED][name]
        (logits,) = group.received(QUERIER, SummedLogits)
        assert_identical(view_of_client(group, QUERIER), simulated_querier(logits.logits))
        kinds = [type(exchange.request) for exchange in group.log if exchange.party == QUERIER]
        assert kinds == [SessionNotice, BatchRequest, TablesRequest, QueryRequest, SummedLogits]
        if "large" not in name and "huge" not in name:  # those leave the range
            assert (group.answer - predict(answered, queries)).abs().max() < 2**-12


def test_a_simulator_makes_a_judges_view_from_sizes_and_the_sum(model, all_runs):
    """Given sizes of compared numbers (the leak of `hardened`) and the logits, and no sign and no order."""
    queries, answered = secrets(model)["usual"]
    group = all_runs[HARDENED]["usual"]
    views, masks = unmasked(group)
    numbers = compared_numbers(answered, queries)
    sizes = [torch.where(t >= 0, t, -t - 1) for t in numbers]
    (logits,) = group.received(QUERIER, SummedLogits)
    simulated = simulated_judge(sizes, logits.logits, masks, seed=3)
    real = view_of_client(group, QUERIER)
    assert structure(real) == structure(simulated)
    for real_u, (_, masked), mask in zip(views, simulated, masks, strict=False):
        simulated_u = masked - mask
        assert_same_distribution(real_u, simulated_u)
        assert_same_distribution(real_u.abs().double().log2(), simulated_u.abs().double().log2())
        for half in (slice(0, real_u.shape[1] // 2), slice(real_u.shape[1] // 2, None)):
            assert_same_distribution(real_u[:, half], simulated_u[:, half])


def test_signs_in_a_judges_view_are_those_of_no_activation(model, all_runs):
    queries, answered = secrets(model)["usual"]
    for style_is_published in (False, True):
        group = Group(seed=8, style=PUBLISHED) if style_is_published else all_runs[HARDENED]["usual"]
        if style_is_published:
            group.predict(queries, answered)
        views, _ = unmasked(group, PUBLISHED if style_is_published else HARDENED)
        for u, t in zip(views, compared_numbers(answered, queries), strict=True):
            agreement = float(((u > 0) == (t >= 0)).double().mean())
            if style_is_published:
                # Truncation may move a number by one unit, so a few signs around zero differ from the plaintext's.
                assert agreement > 0.999
            else:
                assert abs(agreement - 0.5) < 5 * 0.5 / u.numel() ** 0.5


def shifted(model, c):
    """The model with c added to the last layer's bias: its logits are all larger by c."""
    *layers, last = model.layers
    return FixedPointModel(model.circuit, (*layers, PrivateLayer(last.weight, last.bias + (c << 40))))


@styles
def test_the_querying_party_learns_only_the_sum_of_two_answers(model, style):
    """One model's logits up by c, the other's down by c: with all seeds fixed, the view is the same bit by bit."""
    other = compile_model(network(seed=5), queries_like(SHAPE, count=BATCH))
    queries, views, logits = queries_like(SHAPE, count=BATCH), [], []
    for c in (0, 3, -700):
        group = Group(seed=9, style=style)
        logits.append(group.predict(queries, shifted(model, c), shifted(other, -c)))
        views.append(view_of_client(group, QUERIER))
    assert structure(views[0]) == structure(views[1]) == structure(views[2])
    for parts in zip(*views, strict=True):
        (name, first), *others = parts
        if name == "BlindedValues.values":
            assert all(torch.equal(first, part) for _, part in others)
        else:  # a truncated number may be one unit off, another one in each run
            assert all(int((first - part).abs().max()) <= 2 for _, part in others)
    assert (logits[0] - logits[1]).abs().max() <= 2 * 2**-20


@styles
def test_the_servers_view_of_the_answers_does_not_say_which_client_said_what(model, style):
    """Each masked output is uniform, and so is their difference."""
    group = Group(seed=10, style=style)
    group.predict(queries_like(SHAPE, count=BATCH), model, copy.copy(model))
    (first,), (second,) = outputs(group, "anna"), outputs(group, "bela")
    assert_uniform(first)
    assert_uniform(second)
    assert_uniform(first - second)
