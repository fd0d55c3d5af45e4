"""Perturbation, noise and masks as one stack: what is built, what the server sees, what is refused by name."""

from dataclasses import replace

import pytest
import torch
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.federation import load_federation
from bilateral.engine.setup import initial_model, make_blueprint
from bilateral.errors import DataError, PlanError, ProtocolError, ThresholdError, UnsoundPlanError
from bilateral.learning.exchange import LocalExchange
from bilateral.protocols.mask import messages as mask_messages
from bilateral.protocols.mask.messages import MaskedUpload
from bilateral.protocols.membership import ClipNorm, KeyRequest, RoundMembers
from bilateral.protocols.messages import Message, Upload
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery, SoftmaxReply
from bilateral.protocols.wire import decode, encode
from bilateral.runs.rounds.in_process import run

SOUND = {
    "training__loss": "mse",
    "noise__mechanism": "sound",
    "noise__noise_multiplier": 1.0,
    "training__batch_size": 64,
    "perturbation__noise": "offset",
}
MASK_MESSAGES = [t for t in vars(mask_messages).values() if isinstance(t, type) and issubclass(t, Message)]
EVERY_MESSAGE = [
    *MASK_MESSAGES,
    Upload,
    PerturbedModel,
    SoftmaxQuery,
    SoftmaxReply,
    ClipNorm,
    KeyRequest,
    RoundMembers,
]


def sent_to_server(result):
    return [e.message for e in result.transcript.entries if e.receiver == "server" and e.round_index >= 0]


def test_by_default_the_server_sees_no_upload_of_any_client():
    result = run(plan(training__rounds=2, training__loss="mse"), save=False, keep_messages=True)
    kinds = {type(message) for message in sent_to_server(result)}
    assert Upload not in kinds
    assert MaskedUpload in kinds
    assert result.guarantee.protection == "perturbation + ring masks"
    assert result.difference_to_fedavg < 2e-6


def test_ring_masks_change_nothing_but_the_last_bits():
    masked, bare = (
        run(plan(training__dtype="float64", aggregation__masks=masks), save=False) for masks in ("ring", "none")
    )
    assert masked.difference_to_fedavg < 1e-12
    assert bare.difference_to_fedavg < 1e-12


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_clients_that_die_at_any_stage_leave_a_training_over_the_survivors(loss):
    result = run(
        plan(federation__clients=7, federation__dropout=0.15, training__loss=loss, training__rounds=12),
        save=False,
    )
    assert result.difference_to_fedavg < 2e-6  # FedSGD over the same survivors
    assert len(result.failed) < 12
    assert result.finished


def test_a_round_without_enough_clients_changes_nothing_and_is_reported():
    result = run(plan(federation__dropout=0.6, federation__clients=6, training__rounds=8), save=False)
    assert result.failed
    assert all("expected" in f.reason.lower() for f in result.failed)
    assert result.difference_to_fedavg < 2e-6
    assert result.as_dict()["rounds_failed"][0]["round_index"] == result.failed[0].round_index


def test_a_failed_round_leaves_every_weight_as_it_was_bit_for_bit():
    chosen = plan(federation__dropout=0.97, training__rounds=1)
    result = run(chosen, save=False, reference=False)
    assert len(result.failed) == 1
    before, after = initial_model(chosen, load_federation(chosen).problem).state_dict(), result.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_malformed_question_is_an_incident_that_outlives_a_restart(tmp_path, monkeypatch):
    """One client asks nonsense in round 1: the round goes on without it, and a resumed run still tells of it."""
    right = PerturbClient.train

    def train(self, message, inputs, targets, weight):
        sent = right(self, message, inputs, targets, weight)
        if self.name == "client-2" and message.round_index == 1:
            return replace(sent, blinded_exponentials=sent.blinded_exponentials[:, :1])
        return sent

    monkeypatch.setattr(PerturbClient, "train", train)
    chosen, rounds = plan(federation__clients=5, perturbation__softmax="blinded"), []
    run(chosen, output=tmp_path / "run", on_round=rounds.append, should_stop=lambda: len(rounds) >= 4)
    result = run(chosen, output=tmp_path / "run", resume=True)
    assert [(incident.round_index, incident.client) for incident in result.incidents] == [(1, "client-2")]
    assert "client-2" in result.incidents[0].reason
    assert not result.failed
    assert result.difference_to_fedavg < 2e-6  # FedSGD over the other four in that round


def test_ten_failed_rounds_in_a_row_end_the_run_with_a_checkpoint_to_resume_from(tmp_path):
    with pytest.raises(ThresholdError, match="10 rounds in a row"):
        run(plan(federation__dropout=0.97, training__rounds=20), output=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"federation__dropout": 0.2, "federation__clients": 6},
        {"federation__participation": 0.6, "federation__clients": 6},
        SOUND,
        {**SOUND, "training__loss": "ce"},
        {**SOUND, "noise__adaptive_clip": True},
        {"training__loss": "mse", "noise__mechanism": "published", "noise__epsilon": 10.0},
        {"training__loss": "mse", "noise__mechanism": "mp-cdp", "noise__epsilon": 10.0},
        {"aggregation__masks": "float"},
    ],
    ids=" ".join,
)
def test_every_stack_resumes_to_the_same_model_bit_for_bit(tmp_path, settings):
    chosen, rounds = plan(**settings), []
    whole = run(chosen, output=tmp_path / "whole")
    run(chosen, output=tmp_path / "part", on_round=rounds.append, should_stop=lambda: len(rounds) >= 4)
    resumed = run(chosen, output=tmp_path / "part", resume=True)
    a, b = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert resumed.failed == whole.failed


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"federation__clients": 1, "aggregation__masks": "ring"}, "masks over a single client"),
        ({**SOUND, "aggregation__masks": "none"}, "sound noise without ring masks"),
        ({**SOUND, "aggregation__masks": "float"}, "sound noise without ring masks"),
        (
            {**SOUND, "training__loss": "ce", "perturbation__softmax": "blinded"},
            "sound noise with the published exchange of cross entropy",
        ),
        (
            {**SOUND, "data__name": "digits", "model__name": "convnet", "model__options": {"batch_norm": True}},
            "sound noise with batch statistics",
        ),
        (
            {"noise__mechanism": "published", "noise__epsilon": 3.0, "training__loss": "mse", "protection": "fedavg"},
            "published noise without perturbation",
        ),
        (
            {"noise__mechanism": "published", "noise__epsilon": 3.0, "training__loss": "ce"},
            "published noise with cross",
        ),
        (
            {
                "noise__mechanism": "mp-cdp",
                "noise__epsilon": 3.0,
                "training__loss": "mse",
                "aggregation__masks": "ring",
            },
            "published noise under masks",
        ),
        (
            {
                "noise__mechanism": "published",
                "noise__epsilon": 3.0,
                "training__loss": "mse",
                "federation__clients": 1,
            },
            "published noise of a single client",
        ),
    ],
)
def test_an_unsound_mix_is_refused_by_name(settings, name):
    with pytest.raises(UnsoundPlanError, match=f"Refused, {name}"):
        run(plan(**settings), save=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"noise__mechanism": "sound"},
        {"noise__mechanism": "sound", "noise__epsilon": 1.0, "noise__noise_multiplier": 1.0},
        {"noise__mechanism": "published", "noise__noise_multiplier": 1.0},
        {"noise__mechanism": "mp-cdp", "noise__epsilon": 1.0, "noise__adaptive_clip": True},
        {"noise__epsilon": -1.0},
        {"noise__delta": 1.0},
        {"aggregation__threshold": 0.5},
        {"aggregation__threshold": 1.0},
        {"federation__dropout": 1.0},
        {"aggregation__masks": "paper"},
        {"aggregation__neighbours": 0},
    ],
    ids=str,
)
def test_a_plan_that_makes_no_sense_is_refused(settings):
    with pytest.raises(PlanError):
        plan(**settings)


def test_colluders_beyond_what_a_sparse_graph_tolerates_are_refused_by_name():
    sparse = {"federation__clients": 12, "aggregation__graph": "n-out", "aggregation__neighbours": 3}
    with pytest.raises(UnsoundPlanError, match="colluders beyond what the graph tolerates"):
        run(plan(**SOUND, **sparse, noise__colluders=7), save=False)


def test_central_noise_with_batch_statistics_is_refused_by_name():
    central = {"noise__mechanism": "mp-cdp", "noise__epsilon": 3.0, "training__loss": "mse"}
    normed = {"data__name": "digits", "model__name": "convnet", "model__options": {"batch_norm": True}}
    with pytest.raises(UnsoundPlanError, match="central noise with batch statistics"):
        run(plan(**central, **normed), save=False)


def test_a_run_with_central_noise_survives_dropouts_as_failed_rounds():
    central = {"noise__mechanism": "mp-cdp", "noise__epsilon": 3.0, "training__loss": "mse"}
    result = run(plan(**central, federation__clients=6, federation__dropout=0.9), save=False, reference=False)
    assert result.failed
    assert "expected 6" in result.failed[0].reason


def test_bad_data_of_a_private_run_are_refused_before_the_first_round(monkeypatch):
    import bilateral.runs.rounds.in_process as engine

    loaded = engine.load_federation(plan(**SOUND))
    loaded.shares["client-2"].inputs[3, 0] = float("nan")
    monkeypatch.setattr(engine, "load_federation", lambda *_: loaded)
    with pytest.raises(DataError, match="client-2: the inputs hold NaN"):
        run(plan(**SOUND), save=False)


def test_more_colluders_than_a_sum_needs_clients_are_refused():
    with pytest.raises(PlanError, match="fewer colluders"):
        run(plan(**SOUND, noise__colluders=3), save=False)


@pytest.mark.parametrize("colluders", [0, 1, 3])
def test_a_client_knows_its_own_noise_besides_that_of_its_colluders(colluders):
    """Of ten clients a sum has seven or more; whoever observes it as a client knows colluders + 1 of their noises."""
    chosen = plan(**SOUND, federation__clients=10, noise__colluders=colluders)
    blueprint = make_blueprint(chosen, load_federation(chosen))
    (claim,) = [claim for claim in blueprint.server().guarantee.claims if claim.subject == "differential privacy"]
    assert f"every sum holds {7 - colluders - 1} or more honest clients" in claim.assumption
    assert f"({colluders} at most)" in claim.assumption


@pytest.mark.parametrize("factor", [1 / 5000, 5000, 1e9])
def test_clients_refuse_a_clipping_norm_beyond_the_limits_of_the_plan(factor):
    chosen = plan(**SOUND, noise__adaptive_clip=True, noise__clip=2.0)
    client = make_blueprint(chosen, load_federation(chosen)).client("client-1")
    set_norm = client._uploader._inner._set_norm
    set_norm(2.0 * 15)
    with pytest.raises(ProtocolError, match="stays between"):
        set_norm(2.0 * factor)


def test_sound_noise_spends_what_the_plan_allows_and_says_so():
    budget = {**SOUND, "noise__noise_multiplier": None, "noise__epsilon": 20.0}
    result = run(plan(**budget), save=False, keep_messages=True)
    assert Upload not in {type(message) for message in sent_to_server(result)}
    claim = next(c for c in result.guarantee.claims if "epsilon" in c.what)
    assert "epsilon 20 in total" in claim.what
    assert result.privacy is not None
    assert 19.5 < result.privacy.rows[0].epsilon <= 20
    assert result.privacy.status == "sound"
    leaks = {leak.ledger_line: leak.what for leak in result.guarantee.leaks}
    assert 11 not in leaks
    assert leaks[12].startswith("who takes part")
    assert result.difference_to_fedavg is None  # a model without noise does not lie beside a private one


def test_less_noise_stays_closer_to_fedavg():
    far, near = (
        run(plan(**{**SOUND, "noise__noise_multiplier": z}), save=False, reference=True).difference_to_fedavg
        for z in (4.0, 1.0)
    )
    assert near < far


def test_adaptive_clipping_moves_the_norm_and_its_count_is_in_no_statistic_of_the_model():
    result = run(
        plan(**SOUND, noise__adaptive_clip=True, noise__clip=50.0), save=False, keep_messages=True, reference=False
    )
    norms = [float(e.message.norm) for e in result.transcript.entries if isinstance(e.message, ClipNorm)]
    assert norms[0] == 50.0
    assert norms[-1] < norms[0]


def test_published_noise_says_that_it_is_conditional_and_what_the_server_reads():
    result = run(
        plan(training__loss="mse", noise__mechanism="published", noise__epsilon=3.0), save=False, reference=False
    )
    assert result.privacy is not None
    assert result.privacy.status == "published, conditional"
    assert result.privacy.rows[0].epsilon_per_round == 3.0
    assert result.privacy.rows[0].epsilon > 3.0  # rounds compose
    assert {3, 4} <= {leak.ledger_line for leak in result.guarantee.leaks}


def test_published_noise_and_float_masks_fail_by_name_if_a_client_drops():
    for settings in (
        {"aggregation__masks": "float"},
        {"training__loss": "mse", "noise__mechanism": "published", "noise__epsilon": 3.0},
    ):
        result = run(plan(**settings, federation__dropout=0.9), save=False, reference=False)
        assert result.failed
        assert "cancels only in a full sum" in result.failed[0].reason


@pytest.mark.parametrize(
    "settings",
    [{}, {"training__loss": "mse"}, {**SOUND, "noise__adaptive_clip": True}, {"aggregation__masks": "float"}],
    ids=["ce", "mse", "sound", "float"],
)
def test_a_run_over_the_wire_gives_the_same_model_bit_for_bit(monkeypatch, settings):
    """Every message is turned into bytes and back: what a transport will do."""
    here = run(plan(**settings), save=False, reference=False)
    plain, count = LocalExchange._converse, []

    def converse(self, round_index, name, packet, respond):
        def over(message, sender):
            count.append(type(message))
            return decode(encode(message), EVERY_MESSAGE, sender)

        there = None if respond is None else lambda sender, reply: respond(sender, over(reply, sender))
        client = self.clients[name]

        class Remote:
            def handle(self, packet):
                return over(client.handle([over(message, "server") for message in packet]), name)

        swapped = LocalExchange({name: Remote()}, self.record)
        return plain(swapped, round_index, name, packet, there)

    monkeypatch.setattr(LocalExchange, "_converse", converse)
    remote = run(plan(**settings), save=False, reference=False)
    a, b = here.model.state_dict(), remote.model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert len(count) > 50
