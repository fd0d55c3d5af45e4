"""Malformed, late and replayed messages: a typed error that names the sender, and nothing changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bilateral.errors import BilateralError, DataError, NumericalRangeError, ProtocolError
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.zoo import build_model
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.messages import SoftmaxQuery
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

torch.set_num_threads(1)
SHAPE = (1, 8, 8)


class Pair:
    """A server and a client in the middle of round 5, with a BatchNorm model."""

    def __init__(self, loss, softmax="blinded"):
        model = build_model("convnet", input_shape=SHAPE, num_outputs=3, batch_norm=True)
        graph = ScaleGraph.of(model, torch.zeros(1, *SHAPE))
        settings = PerturbationSettings(loss, num_partitions=2, softmax=softmax)
        self.settings = settings
        self.server = PerturbServer(model, graph, settings, SeededRandomness(0))
        self.client = PerturbClient("anna", model, graph, settings, SeededRandomness(1))
        self.message = self.server.start_round(5)
        self.inputs = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(0))
        self.targets = torch.tensor([0, 1, 2, 0]) if loss == "ce" else torch.randn(4, 3)

    def train(self, message=None, inputs=None, targets=None):
        return self.client.train(
            message or self.message,
            self.inputs if inputs is None else inputs,
            self.targets if targets is None else targets,
            4,
        )

    def upload(self):
        sent = self.train()
        return self.client.receive(self.server.answer("anna", sent)) if isinstance(sent, SoftmaxQuery) else sent


@pytest.fixture(params=[("mse", "local"), ("ce", "local"), ("ce", "blinded")], ids=["mse", "ce", "published ce"])
def pair(request):
    return Pair(*request.param)


@pytest.fixture
def ce():
    return Pair("ce")


def test_messages_know_their_size(ce):
    query = ce.train()
    assert query.num_bytes == 8 * (1 + 4 + 4 * 3 * 2)
    upload = ce.client.receive(ce.server.answer("anna", query))
    assert upload.num_bytes == upload.terms.numel() * 4 + upload.statistics.numel() * 4 + 16


@pytest.mark.parametrize("name", ["parameters", "output_directions", "partition"])
def test_a_model_message_of_the_wrong_shape_is_refused(pair, name):
    broken = replace(pair.message, **{name: getattr(pair.message, name)[:-1]})
    with pytest.raises(ProtocolError, match=f"PerturbedModel from the server.*`{name}`"):
        pair.train(broken)


def test_noise_that_is_not_told_as_the_plan_says_is_refused(pair):
    told = pair.message.group_secrets
    assert len(told) == (2 if pair.settings.tells_noise else 0)
    for wrong in (torch.ones(len(told) + 1), torch.ones(len(told), 1), torch.ones(0 if len(told) else 2)):
        with pytest.raises(ProtocolError, match=r"PerturbedModel from the server.*`group_secrets`"):
            pair.train(replace(pair.message, group_secrets=wrong.double()))


def test_told_noise_that_is_no_number_is_refused():
    pair = Pair("ce", "local")
    for value in (float("nan"), float("inf")):
        with pytest.raises(NumericalRangeError, match=r"the server.*`group_secrets` holds"):
            pair.train(replace(pair.message, group_secrets=torch.tensor([1.0, value]).double()))


def test_a_question_in_a_plan_without_an_exchange_is_refused_with_its_sender(ce):
    other = Pair("ce", "local")
    assert not isinstance(other.train(), SoftmaxQuery)
    with pytest.raises(ProtocolError, match="anna sent a SoftmaxQuery"):
        other.server.answer("anna", ce.train())


@pytest.mark.parametrize("name", ["parameters", "output_directions"])
def test_a_model_message_with_nan_is_refused(pair, name):
    broken = getattr(pair.message, name).clone()
    broken[0] = float("nan")
    with pytest.raises(NumericalRangeError, match=f"the server.*`{name}` holds NaN"):
        pair.train(replace(pair.message, **{name: broken}))


@pytest.mark.parametrize("group", [-1, 2])
def test_a_partition_with_unknown_groups_is_refused(pair, group):
    with pytest.raises(ProtocolError, match="expected output groups 0 to 1"):
        pair.train(replace(pair.message, partition=torch.tensor([0, 1, group])))


def test_bad_batches_are_refused_with_the_clients_name(pair):
    nan = pair.inputs.clone()
    nan[0, 0, 0, 0] = float("nan")
    for inputs, targets in (
        (pair.inputs[:0], pair.targets[:0]),
        (pair.inputs[:3], pair.targets),
        (pair.inputs[:1], pair.targets[:1]),  # BatchNorm
        (nan, pair.targets),
        (pair.inputs, torch.tensor([0, 1, 2, 3]) if not pair.targets.is_floating_point() else pair.targets[:, :2]),
        (pair.inputs, pair.targets.double() * float("nan")),
    ):
        with pytest.raises(DataError, match="anna"):
            pair.train(inputs=inputs, targets=targets)


def test_labels_below_zero_are_refused(ce):
    with pytest.raises(DataError, match="between 0 and 2"):
        ce.train(targets=torch.tensor([0, -1, 2, 1]))


def test_a_query_of_another_round_is_refused(ce):
    query = ce.train()
    with pytest.raises(ProtocolError, match="from anna is of round 4, the current round is 5"):
        ce.server.answer("anna", replace(query, round_index=4))


def test_a_second_query_in_a_round_is_refused_with_its_sender(ce):
    query = ce.train()
    ce.server.answer("anna", query)
    with pytest.raises(ProtocolError, match="anna sent a second SoftmaxQuery in round 5"):
        ce.server.answer("anna", query)
    ce.server.answer("berta", query)


def test_a_query_before_the_first_round_is_refused(ce):
    query = ce.train()
    fresh = Pair("ce").server
    fresh._secrets = None
    with pytest.raises(ProtocolError, match="anna"):
        fresh.answer("anna", query)


@pytest.mark.parametrize(
    "changes",
    [
        {"blinded_exponentials": torch.ones(4, 3, 3, dtype=torch.float64)},
        {"blinded_exponentials": torch.ones(3, 3, 2, dtype=torch.float64)},
        {"activation_sum": torch.ones(4, 1, dtype=torch.float64)},
        {"activation_sum": torch.ones((), dtype=torch.float64)},
        {
            "activation_sum": torch.ones(0, dtype=torch.float64),
            "blinded_exponentials": torch.ones(0, 3, 2, dtype=torch.float64),
        },
        {"activation_sum": torch.full((4,), float("nan"), dtype=torch.float64)},
        {"blinded_exponentials": torch.full((4, 3, 2), float("inf"), dtype=torch.float64)},
    ],
)
def test_a_malformed_query_is_refused_with_its_sender(ce, changes):
    query = ce.train()
    with pytest.raises(ProtocolError, match="anna"):
        ce.server.answer("anna", replace(query, **changes))


@pytest.mark.parametrize("name", ["blinded_denominators", "blinder_coefficients", "corrections"])
def test_a_malformed_reply_is_refused_and_the_right_one_is_still_accepted(ce, name):
    reply = ce.server.answer("anna", ce.train())
    with pytest.raises(ProtocolError, match=f"SoftmaxReply from the server.*`{name}`"):
        ce.client.receive(replace(reply, **{name: getattr(reply, name)[:, :2]}))
    with pytest.raises(NumericalRangeError, match=f"`{name}` holds NaN"):
        ce.client.receive(replace(reply, **{name: getattr(reply, name) * float("nan")}))
    assert ce.client.receive(reply).round_index == 5


def test_unknown_late_and_replayed_replies_are_refused(ce):
    reply = ce.server.answer("anna", ce.train())
    with pytest.raises(ProtocolError, match=r"anna.*round 4 was not asked for"):
        ce.client.receive(replace(reply, round_index=4))
    ce.client.receive(reply)
    with pytest.raises(ProtocolError, match="not asked for"):
        ce.client.receive(reply)


def test_a_round_without_uploads_is_refused():
    with pytest.raises(ProtocolError, match="no uploads"):
        aggregate({}, 5)


@pytest.mark.parametrize("weight", [0, -3, float("nan")])
def test_an_upload_without_positive_weight_is_refused(pair, weight):
    upload = pair.upload()
    with pytest.raises(ProtocolError, match="from bert has weight"):
        aggregate({"anna": upload, "bert": replace(upload, weight=weight)}, 5)


def test_an_upload_of_another_round_is_refused(pair):
    upload = pair.upload()
    with pytest.raises(ProtocolError, match="from bert is of round 6, expected 5"):
        aggregate({"anna": upload, "bert": replace(upload, round_index=6)}, 5)


@pytest.mark.parametrize("name", ["terms", "statistics"])
def test_an_upload_with_nan_or_of_the_wrong_shape_is_refused_with_its_sender(pair, name):
    upload = pair.upload()
    others = {"bert": upload, "carl": upload}
    nan = getattr(upload, name).clone()
    nan.view(-1)[0] = float("nan")
    with pytest.raises(NumericalRangeError, match=f"Upload from anna.*`{name}`"):
        aggregate({"anna": replace(upload, **{name: nan}), **others}, 5)
    with pytest.raises(ProtocolError, match=f"Upload from anna.*`{name}`"):
        aggregate({"anna": replace(upload, **{name: getattr(upload, name)[:-1]}), **others}, 5)


@pytest.mark.parametrize("name", ["terms", "statistics"])
def test_an_aggregate_of_the_wrong_shape_is_refused(pair, name):
    total = aggregate({"anna": pair.upload()}, 5)
    with pytest.raises(ProtocolError, match="Both sides must run the same plan"):
        pair.server.recover(replace(total, **{name: getattr(total, name)[:-1]}))


def test_an_aggregate_of_another_round_is_refused(pair):
    total = aggregate({"anna": pair.upload()}, 5)
    pair.server.start_round(6)
    with pytest.raises(ProtocolError, match="round 5, the current round is 6"):
        pair.server.recover(total)


def test_the_aggregate_does_not_depend_on_the_order_of_arrival(pair):
    upload = pair.upload()
    other = replace(upload, terms=upload.terms / 3, weight=7)
    one, two = aggregate({"a": upload, "b": other}, 5), aggregate({"b": other, "a": upload}, 5)
    assert torch.equal(one.terms, two.terms)


def test_all_protocol_errors_are_of_one_family():
    assert issubclass(NumericalRangeError, ProtocolError)
    assert issubclass(ProtocolError, BilateralError)
