"""One client's wrong message costs that client the round (under float masks everyone one): never the others a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tests.runs.rounds.harness import LocalSites, conduct

from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.remote.edge import REPLY
from bilateral.engine.setup import make_blueprint
from bilateral.errors import NumericalRangeError, ThresholdError
from bilateral.learning.vocabulary import TO_SERVER
from bilateral.protocols.mask.messages import MaskedUpload, RangeRefusal, SurvivorSignature
from bilateral.protocols.messages import Message, Upload
from bilateral.protocols.perturb.messages import SoftmaxQuery
from bilateral.protocols.wire import decode, encode

torch.set_num_threads(1)
BASE = {
    "model.name": "mlp-3",
    "model.options": {"width": 8},
    "data.name": "breast-cancer",
    "federation.clients": 4,
    "training.rounds": 3,
    "training.batch_size": 16,
}
CULPRIT = "client-2"
HONEST = ("client-1", "client-3", "client-4")


def with_value(tensor, value):
    changed = tensor.clone()
    changed.view(-1)[0] = value
    return changed


UPLOADS = {
    "terms of one value": lambda m: replace(m, terms=torch.tensor(1.0)),
    "a vector of terms": lambda m: replace(m, terms=m.terms[0]),
    "a parameter too few": lambda m: replace(m, terms=m.terms[:, 1:]),
    "a term too many": lambda m: replace(m, terms=torch.cat([m.terms, m.terms])),
    "no terms": lambda m: replace(m, terms=m.terms[:0]),
    "whole numbers": lambda m: replace(m, terms=m.terms.to(torch.int64)),
    "whole statistics": lambda m: replace(m, statistics=torch.ones(5, dtype=torch.int32)),
    "NaN": lambda m: replace(m, terms=with_value(m.terms, float("nan"))),
    "infinity": lambda m: replace(m, terms=with_value(m.terms, float("-inf"))),
    "beyond any range": lambda m: replace(m, terms=with_value(m.terms.double(), 1e305)),
    "statistics too many": lambda m: replace(m, statistics=torch.zeros(len(m.statistics) + 1)),
    "statistics of no length": lambda m: replace(m, statistics=torch.tensor(0.0)),
    "another round": lambda m: replace(m, round_index=m.round_index + 1),
    "a negative round": lambda m: replace(m, round_index=-1),
    "no weight": lambda m: replace(m, weight=0),
    "a negative weight": lambda m: replace(m, weight=-5),
    "a huge weight": lambda m: replace(m, weight=2**62),
    "a signature": lambda m: SurvivorSignature(m.round_index, 0, b"signature"),
    "a masked upload": lambda m: MaskedUpload(m.round_index, 0, torch.zeros(3, dtype=torch.int64)),
    "a question": lambda m: SoftmaxQuery(m.round_index, torch.zeros(1), torch.zeros(1, 2, 1)),
}
QUERIES = {
    "exponentials of one value": lambda m: replace(m, blinded_exponentials=torch.tensor(1.0)),
    "sums of one value": lambda m: replace(m, activation_sum=torch.tensor(1.0)),
    "no samples": lambda m: replace(m, blinded_exponentials=m.blinded_exponentials[:0]),
    "whole exponentials": lambda m: replace(m, blinded_exponentials=m.blinded_exponentials.to(torch.int64)),
    "whole sums": lambda m: replace(m, activation_sum=m.activation_sum.to(torch.int32)),
    "NaN": lambda m: replace(m, blinded_exponentials=with_value(m.blinded_exponentials, float("nan"))),
    "sums beyond any range": lambda m: replace(m, activation_sum=with_value(m.activation_sum, 1e300)),
    "another round": lambda m: replace(m, round_index=m.round_index + 7),
    "a class too many": lambda m: replace(m, blinded_exponentials=torch.ones(16, 3, 2)),
    "a matrix": lambda m: replace(m, blinded_exponentials=m.blinded_exponentials[0]),
}
MASKED = {
    "one value": lambda m: replace(m, values=torch.tensor(1)),
    "real numbers": lambda m: replace(m, values=m.values.double()),
    "short integers": lambda m: replace(m, values=m.values.to(torch.int32)),
    "a value too few": lambda m: replace(m, values=m.values[1:]),
    "nothing": lambda m: replace(m, values=m.values[:0]),
    "another round": lambda m: replace(m, round_index=m.round_index + 1),
    "another attempt": lambda m: replace(m, attempt=-1),
    "a bare upload": lambda m: Upload(m.round_index, 1, torch.ones(1, 1), torch.zeros(0)),
    "a refusal of rows that there are not": lambda m: RangeRefusal(m.round_index, m.attempt, (-1, 99), (7,)),
    "a refusal of nothing": lambda m: RangeRefusal(m.round_index, m.attempt, (), ()),
    "a refusal beyond all bounds": lambda m: RangeRefusal(m.round_index, m.attempt, (0,), (10**9,)),
}


@dataclass
class Wrong:
    """A client that sends something else in the place of one kind of message."""

    client: object
    kind: type[Message]
    change: object

    def handle(self, packet):
        reply = self.client.handle(packet)
        return self.change(reply) if isinstance(reply, self.kind) else reply


def training_with(kind, change, **settings):
    plan = RunPlan().with_settings({**BASE, **settings})
    blueprint = make_blueprint(plan, load_federation(plan))
    exchange = blueprint.local_exchange(lambda *_: None)
    exchange.clients = {**exchange.clients, CULPRIT: Wrong(exchange.clients[CULPRIT], kind, change)}
    return blueprint.server(), exchange


def named(training):
    return {incident.client for incident in training.aggregation.incidents}


PROTECTIONS = {
    "fedavg": {"protection": "fedavg"},
    "perturbation": {},
    "perturbation, mse": {"training.loss": "mse"},
    "mp-dp-naive": {"noise.mechanism": "mp-dp-naive", "noise.epsilon": 3.0, "training.loss": "mse"},
}


@pytest.mark.parametrize("what", UPLOADS)
@pytest.mark.parametrize("protection", ["fedavg", "perturbation"])
def test_in_the_clear_a_wrong_upload_costs_its_sender_the_round(protection, what):
    training, exchange = training_with(
        Upload, UPLOADS[what], **PROTECTIONS[protection], **{"aggregation.masks": "none"}
    )
    for number in range(2):
        assert training.advance(number, (*HONEST, CULPRIT), exchange) == HONEST
    assert named(training) == {CULPRIT}
    assert [incident.round_index for incident in training.aggregation.incidents] == [0, 1]
    assert all(CULPRIT in incident.reason for incident in training.aggregation.incidents)


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("what", ["terms of one value", "NaN", "no weight"])
def test_whatever_the_protection_is(protection, what):
    settings = {**PROTECTIONS[protection], "aggregation.masks": "none"}
    training, exchange = training_with(Upload, UPLOADS[what], **settings)
    assert training.advance(0, (*HONEST, CULPRIT), exchange) == HONEST
    assert named(training) == {CULPRIT}


@pytest.mark.parametrize("mechanism", ["published", "mp-cdp"])
def test_where_noise_is_measured_out_for_all_clients_the_round_fails_by_name_and_the_next_one_has_all(mechanism):
    """Without one of them there would be too little noise: it is as if the client had died."""
    wrong = iter([True])
    training, exchange = training_with(
        Upload,
        lambda m: replace(m, terms=m.terms[0]) if next(wrong, False) else m,
        **{"noise.mechanism": mechanism, "noise.epsilon": 3.0, "training.loss": "mse", "aggregation.masks": "none"},
    )
    names = (*HONEST, CULPRIT)
    with pytest.raises(ThresholdError):
        training.advance(0, names, exchange)
    assert named(training) == {CULPRIT}
    assert training.aggregation.outsiders() == frozenset()
    assert set(training.advance(1, names, exchange)) == set(names)


def test_a_weight_that_the_plan_fixes_is_not_the_clients_affair():
    settings = {**PROTECTIONS["mp-dp-naive"], "aggregation.masks": "none"}
    training, exchange = training_with(Upload, lambda m: replace(m, weight=1000), **settings)
    assert training.advance(0, (*HONEST, CULPRIT), exchange) == HONEST
    assert "a weight of 1" in training.aggregation.incidents[0].reason


@pytest.mark.parametrize("what", ["terms of one value", "NaN", "another round", "a signature", "a huge weight"])
def test_under_float_masks_it_costs_one_round_and_the_sender_is_not_asked_again(what):
    training, exchange = training_with(Upload, UPLOADS[what], **{"aggregation.masks": "float"})
    names = (*HONEST, CULPRIT)
    with pytest.raises(ThresholdError, match=f"no upload from {CULPRIT}"):
        training.advance(0, names, exchange)
    assert training.aggregation.outsiders() == {CULPRIT}
    for number in (1, 2):
        assert training.advance(number, HONEST, exchange) == HONEST
    assert named(training) == {CULPRIT}


@pytest.mark.parametrize("masks", ["none", "float", "ring"])
@pytest.mark.parametrize("what", QUERIES)
def test_a_wrong_question_costs_its_sender_the_round_whatever_the_masks(masks, what):
    settings = {"perturbation.softmax": "blinded", "aggregation.masks": masks}
    training, exchange = training_with(SoftmaxQuery, QUERIES[what], **settings)
    if masks == "float":
        with pytest.raises(ThresholdError):
            training.advance(0, (*HONEST, CULPRIT), exchange)
        assert training.advance(1, HONEST, exchange) == HONEST
    else:
        assert training.advance(0, (*HONEST, CULPRIT), exchange) == HONEST
    assert named(training) == {CULPRIT}


@pytest.mark.parametrize("what", MASKED)
def test_under_ring_masks_a_wrong_upload_costs_its_sender_the_round(what):
    training, exchange = training_with(MaskedUpload, MASKED[what], **{"aggregation.masks": "ring"})
    assert training.advance(0, (*HONEST, CULPRIT), exchange) == HONEST
    assert named(training) == {CULPRIT}


def test_if_all_uploads_are_wrong_the_round_fails_and_says_why():
    training, exchange = training_with(Upload, UPLOADS["NaN"], **{"aggregation.masks": "none"})
    before = training.weights()
    with pytest.raises(ThresholdError, match=f"no upload that can be used. Upload from {CULPRIT}.*NaN"):
        training.advance(0, (CULPRIT,), exchange)
    assert torch.equal(training.weights(), before)


def test_if_all_clients_of_a_round_send_not_a_number_the_training_diverges_and_says_so():
    training, exchange = training_with(Upload, UPLOADS["NaN"], **{"aggregation.masks": "none"})
    exchange.clients = {name: Wrong(one, Upload, UPLOADS["NaN"]) for name, one in exchange.clients.items()}
    with pytest.raises(NumericalRangeError, match=r"All uploads of round 0 .* diverges"):
        training.advance(0, tuple(exchange.clients), exchange)


def test_variances_below_zero_do_not_make_the_model_not_a_number():
    convnet = {"model.name": "convnet", "model.options": {"width": 4, "batch_norm": True}, "data.name": "digits"}
    lie = {"aggregation.masks": "none", **convnet}
    training, exchange = training_with(
        Upload, lambda m: replace(m, statistics=-1e6 * torch.ones_like(m.statistics)), **lie
    )
    training.advance(0, (*HONEST, CULPRIT), exchange)
    assert all(float(b.min()) >= 0 for name, b in training.model.named_buffers() if name.endswith("running_var"))


def changed_on_the_wire(kind, change):
    def tamper(call, answer):
        if call.site != CULPRIT or REPLY not in answer:
            return answer
        message = decode(answer[REPLY], TO_SERVER, call.site)
        return {REPLY: encode(change(message))} if isinstance(message, kind) else answer

    return tamper


REMOTE = [
    ("none", Upload, UPLOADS["terms of one value"]),
    ("none", Upload, UPLOADS["NaN"]),
    ("none", Upload, UPLOADS["a negative weight"]),
    ("float", Upload, UPLOADS["a parameter too few"]),
    ("float", Upload, UPLOADS["a question"]),
    ("ring", MaskedUpload, MASKED["one value"]),
    ("ring", MaskedUpload, MASKED["a bare upload"]),
    ("none", SoftmaxQuery, QUERIES["exponentials of one value"]),
    ("float", SoftmaxQuery, QUERIES["sums of one value"]),
    ("ring", SoftmaxQuery, QUERIES["NaN"]),
]


@pytest.mark.parametrize(("masks", "kind", "change"), REMOTE)
def test_the_run_of_remote_sites_goes_on_without_the_one_that_sends_it(tmp_path, masks, kind, change):
    asks = {"perturbation.softmax": "blinded"} if kind is SoftmaxQuery else {}
    plan = RunPlan().with_settings({**BASE, "aggregation.masks": masks, **asks})
    result = conduct(plan, tmp_path / "run", LocalSites(plan, tamper=changed_on_the_wire(kind, change)))
    assert result.finished
    assert len(result.failed) == (1 if masks == "float" else 0)
    assert {incident.client for incident in result.incidents} == {CULPRIT}


def test_bytes_that_are_no_message_are_an_incident_of_a_site_under_float_masks_too(tmp_path):
    plan = RunPlan().with_settings({**BASE, "aggregation.masks": "float", "training.rounds": 12})

    def tamper(call, answer):
        return {REPLY: b"BLT1"} if call.site == CULPRIT and call.stage == "training" else answer

    result = conduct(plan, tmp_path / "run", LocalSites(plan, tamper=tamper))
    assert result.finished
    assert len(result.failed) == 1
    assert {incident.client for incident in result.incidents} == {CULPRIT}
