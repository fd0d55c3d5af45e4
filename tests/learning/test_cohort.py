"""Loops of one's own under masks: sums that are right, and sites that are not led astray."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bilateral
from bilateral import Cohort, CohortServer, CohortSite, Identity, MaskSettings, PerturbationSettings, ScaleGraph
from bilateral.errors import (
    ArgumentError,
    AuthenticationError,
    BilateralError,
    PlanError,
    ProtocolError,
    ThresholdError,
)
from bilateral.learning.cohort_site import SERVER
from bilateral.protocols.mask.messages import MaskedUpload, MaskOpening, Roster, RoutedShares
from bilateral.protocols.membership import KeyRequest
from bilateral.protocols.messages import NamedTensors, Upload
from bilateral.protocols.wire import decode_packet, encode, encode_packet

NAMES = ("anna", "bela", "cleo", "dora")
WEIGHTS = {"anna": 1, "bela": 20, "cleo": 3, "dora": 7}


class Federation:
    """Sites that return what `made` says, and a transport in this process that a test may interfere with."""

    def __init__(self, made, names=NAMES, settings=None):
        self.identities = {name: Identity.generate() for name in names}
        pinned = {name: identity.public_bytes for name, identity in self.identities.items()}
        self.cohort = Cohort(pinned, settings or MaskSettings())
        self.sites = {name: self.site(name, made) for name in names}
        self.gone: set[str] = set()
        self.rewrite = lambda name, data: data
        self.answered = lambda name, data: data
        self.server = CohortServer(self.cohort, self.carry)

    def site(self, name, made, cohort=None):
        return CohortSite(cohort or self.cohort, self.identities[name], lambda tensors: made(name, tensors))

    def carry(self, packets):
        found = {}
        for name, data in packets.items():
            assert isinstance(data, bytes)
            if name not in self.gone:
                found[name] = self.answered(name, self.sites[name].answer(self.rewrite(name, data)))
        return found


def shifted(name, tensors):
    """Each site adds something of its own."""
    return {key: tensor + NAMES.index(name) for key, tensor in tensors.items()}, WEIGHTS[name]


STATE = {"layer.weight": torch.randn(3, 4), "layer.bias": torch.randn(3), "scale": torch.tensor(2.0)}


def mean_of(state, names):
    total = sum(WEIGHTS[name] for name in names)
    shift = sum(WEIGHTS[name] * NAMES.index(name) for name in names) / total
    return {key: tensor + shift for key, tensor in state.items()}


def assert_close(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)


def test_the_mean_is_that_of_what_sites_returned_by_their_weights():
    federation, state = Federation(shifted), STATE
    for _ in range(3):
        state, expected = federation.server.mean(state), mean_of(state, NAMES)
        assert_close(state, expected)
    assert federation.server.contributors == NAMES
    assert federation.server.incidents == ()
    wide = Federation(shifted).server.mean({"x": STATE["scale"].double(), "y": STATE["layer.bias"]})
    assert [tensor.dtype for tensor in wide.values()] == [torch.float64, torch.float32]


def test_values_beyond_the_first_range_take_another_attempt_and_are_right():
    large = {"x": torch.tensor([3e7, -1.0])}
    found = Federation(shifted).server.mean(large)
    assert_close(found, mean_of(large, NAMES))


def test_a_site_that_is_gone_is_not_in_the_sum_and_may_come_back():
    federation = Federation(shifted)
    federation.server.mean(STATE)
    federation.gone = {"bela"}
    assert_close(federation.server.mean(STATE), mean_of(STATE, ["anna", "cleo", "dora"]))
    assert federation.server.contributors == ("anna", "cleo", "dora")
    federation.gone = set()
    assert_close(federation.server.mean(STATE), mean_of(STATE, NAMES))
    assert_close(federation.server.mean(STATE, sites=NAMES[1:]), mean_of(STATE, NAMES[1:]))


def test_too_few_sites_end_a_round_and_the_next_one_is_tried():
    federation = Federation(shifted)
    federation.server.mean(STATE)
    federation.gone = {"bela", "cleo"}
    with pytest.raises(ThresholdError):
        federation.server.mean(STATE)
    federation.gone = set()
    assert_close(federation.server.mean(STATE), mean_of(STATE, NAMES))


def sites_that_were_sent_one_model_each(name, data):
    packet = decode_packet(data, KINDS, SERVER)
    return encode_packet(
        NamedTensors(m.round_index, m.parameters + NAMES.index(name), m.names, m.shapes)
        if isinstance(m, NamedTensors)
        else m
        for m in packet
    )


KINDS = tuple(
    {KeyRequest, Roster, MaskOpening, RoutedShares, NamedTensors}
    | {bilateral.protocols.mask.messages.SurvivorList, bilateral.protocols.mask.messages.UnmaskRequest}
)


def test_sites_that_were_sent_different_models_reveal_nothing_and_leave():
    federation = Federation(shifted)
    federation.rewrite = sites_that_were_sent_one_model_each
    with pytest.raises((AuthenticationError, ThresholdError)) as refused:
        federation.server.mean(STATE)
    assert "sign" in str(refused.value)
    federation.rewrite = lambda name, data: data
    assert_close(Federation(shifted).server.mean(STATE), mean_of(STATE, NAMES))  # the same without the lie


def test_a_site_that_caught_the_server_answers_nothing_more():
    federation = Federation(shifted)
    federation.server.mean(STATE)
    site = federation.sites["anna"]
    stolen = Roster(federation.cohort.run_id, ("anna", "bela"), (b"0" * 32,) * 2, (b"1" * 32,) * 2, (b"2" * 64,) * 2)
    with pytest.raises(AuthenticationError, match="different roster"):
        site.answer(encode_packet([stolen]))
    with pytest.raises(AuthenticationError, match="has left this run"):
        site.answer(encode_packet([KeyRequest(federation.cohort.run_id)]))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda data: b"garbage", "Malformed message from bela"),
        (lambda data: "text", "answered with str, expected bytes"),
        (lambda data: data[:-1], "Malformed message from bela"),
        (lambda data: encode(Upload(1, 5, torch.zeros(1, 16), torch.zeros(0))), "Malformed message from bela"),
        (lambda data: encode(MaskedUpload(1, 0, torch.zeros(3, dtype=torch.int64))), "bela"),
    ],
)
def test_a_site_that_answers_with_what_is_no_answer_is_out_of_the_round_and_nobody_else(answer, why):
    federation = Federation(shifted)
    federation.server.mean(STATE)
    federation.answered = lambda name, data: answer(data) if name == "bela" else data
    assert_close(federation.server.mean(STATE), mean_of(STATE, ["anna", "cleo", "dora"]))
    assert {incident.client for incident in federation.server.incidents} == {"bela"}
    assert why in federation.server.incidents[0].reason


def test_a_site_with_another_cohort_is_refused():
    federation = Federation(shifted)
    other = Cohort(federation.cohort.pinned, MaskSettings(threshold=0.51), federation.cohort.number)
    federation.sites["bela"] = federation.site("bela", shifted, other)
    with pytest.raises(ProtocolError, match="keys of another run"):
        federation.server.mean(STATE)


def test_a_cohort_is_the_same_after_it_was_sent():
    cohort = Federation(shifted, settings=MaskSettings(min_in_sum=3, width="auto")).cohort
    again = Cohort.from_json(cohort.to_json())
    assert again.run_id == cohort.run_id
    assert again.masks == cohort.masks
    assert Cohort(cohort.pinned).run_id != cohort.run_id
    for text in ("", "{}", '{"pinned": 3}', cohort.to_json().replace("complete", "x").replace("auto", "no")):
        with pytest.raises(PlanError):
            Cohort.from_json(text)


@pytest.mark.parametrize(
    ("made", "error", "why"),
    [
        (lambda name, tensors: tensors, ArgumentError, "named tensors and a weight"),
        (lambda name, tensors: (tensors, 0), ArgumentError, "a weight between 1"),
        (lambda name, tensors: (tensors, 2.5), ArgumentError, "a weight between 1"),
        (lambda name, tensors: ({"scale": tensors["scale"]}, 1), PlanError, "layer.bias, layer.weight"),
        (lambda name, tensors: ({**tensors, "more": tensors["scale"]}, 1), PlanError, "more"),
        (lambda name, tensors: ({k: t * float("nan") for k, t in tensors.items()}, 1), ProtocolError, "NaN"),
    ],
)
def test_what_training_returns_is_checked_at_the_site(made, error, why):
    with pytest.raises(error, match=why) as refused:
        Federation(made).server.mean(STATE)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: Cohort({"anna": b"0" * 32}), "2 or more sites"),
        (lambda: Cohort({"anna": b"0" * 32, "bela": b"0"}), "`pinned\\['bela'\\]` to be 32 bytes, got 1 bytes"),
        (lambda: Cohort({"anna": b"0" * 32, "bela": "0"}), "got str"),
        (lambda: Cohort({"anna": b"0" * 32, "bela": b"1" * 32}, number=b"1"), "`number` to be 32 bytes"),
        (lambda: CohortSite(Federation(shifted).cohort, Identity.generate(), shifted), "public key is not in"),
        (lambda: Federation(shifted).server.mean({}), "Expected named tensors"),
        (lambda: Federation(shifted).server.mean({"n": torch.ones(2, dtype=torch.int64)}), "real numbers in `n`"),
        (lambda: Federation(shifted).server.mean(STATE, sites=["anna", "zoe"]), "'zoe' is no site"),
        (lambda: Identity.load(b"short"), "32 bytes"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_remedy(wrong, why):
    with pytest.raises(BilateralError, match=why) as refused:
        wrong()
    assert refused.value.remedy


def test_one_cohort_sums_one_shape():
    federation = Federation(shifted)
    federation.server.mean(STATE)
    with pytest.raises(PlanError, match="one shape"):
        federation.server.mean({"other": torch.zeros(3)})


def test_tensors_that_do_not_fit_their_names_are_refused_by_the_site():
    federation = Federation(shifted)
    federation.rewrite = lambda name, data: encode_packet(
        NamedTensors(m.round_index, m.parameters[:-1], m.names, m.shapes) if isinstance(m, NamedTensors) else m
        for m in decode_packet(data, KINDS, SERVER)
    )
    with pytest.raises(ProtocolError, match="do not fit together"):
        federation.server.mean(STATE)


@pytest.mark.parametrize(
    "settings",
    [PerturbationSettings("ce"), PerturbationSettings("mse"), PerturbationSettings("ce", softmax="blinded")],
    ids=["cross entropy", "squared error", "with an exchange in the round"],
)
def test_a_protections_round_gives_the_gradient_of_plain_training(settings):
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    inputs = torch.randn(40, 6).double()
    targets = torch.randint(0, 3, (40,)) if settings.loss == "ce" else torch.randn(40, 3).double()
    graph = ScaleGraph.of(network, inputs[:2])
    report = bilateral.check_recovery(network, graph, settings, inputs[:3])
    assert report.error < 1e-8
    identities = {name: Identity.generate() for name in NAMES}
    cohort = Cohort({name: identity.public_bytes for name, identity in identities.items()})
    parts = dict(zip(NAMES, zip(inputs.split(10), targets.split(10), strict=True), strict=True))
    sites = {
        name: CohortSite.with_half(
            cohort,
            identities[name],
            bilateral.PerturbClient(name, network, graph, settings),
            lambda number, part=part: part,
        )
        for name, part in parts.items()
    }
    server = CohortServer(cohort, lambda packets: {name: sites[name].answer(data) for name, data in packets.items()})
    half = bilateral.PerturbServer(network, graph, settings)
    for _ in range(2):
        plain = copy.deepcopy(network)
        if settings.loss == "ce":
            F.cross_entropy(plain(inputs), targets).backward()
        else:
            F.mse_loss(plain(inputs), targets).backward()
        found = graph.unflatten(server.update(half).gradient)
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-7)
    assert server.incidents == ()


def test_masks_are_bound_to_something():
    with pytest.raises(TypeError, match="context"):
        bilateral.MaskServer(b"run", ["anna", "bela"], MaskSettings()).close_uploads()


def test_an_identity_that_was_kept_is_the_same_one():
    one = Identity.generate()
    again = Identity.load(one.secret_bytes())
    assert again.public_bytes == one.public_bytes
    assert one.secret_bytes().hex() not in repr(one)
