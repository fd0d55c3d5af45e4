"""A recording is the run itself, kept: the same model, the same sums, every message."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context, undefended
from bilateral.audit.recording import record
from bilateral.engine.plan import RunPlan
from bilateral.learning.masked_aggregation import SETUP
from bilateral.protocols.mask.messages import KeyAnnouncement, MaskedUpload, Roster
from bilateral.protocols.messages import RoundModel, Upload, aggregate
from bilateral.protocols.perturb.messages import PerturbedModel
from bilateral.runs.rounds.in_process import run

RING = RunPlan().with_settings(
    {"seed": 5, "federation.clients": 3, "training.rounds": 3, "training.batch_size": 4, "training.dtype": "float64"}
)
BARE = RING.with_settings({"aggregation.masks": "none"})
STACKS = {
    "ring masks, cross entropy": RING,
    "no masks, squared error": BARE.with_settings({"training.loss": "mse"}),
    "no masks, offset noise": BARE.with_settings({"perturbation.noise": "offset", "perturbation.partitions": 3}),
    "FedSGD": undefended(RING),
    "BatchNorm": BARE.with_settings({"model.name": "convnet", "model.options": {"batch_norm": True}}),
    "two of three clients a round": BARE.with_settings({"federation.participation": 0.6}),
    "sound noise": RING.with_settings(
        {"training.loss": "mse", "noise.mechanism": "sound", "noise.noise_multiplier": 2.0}
    ),
}


def recorded(plan, **options):
    return Context(plan, EFFORTS["smoke"]).record(plan, **options)


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def uploads(recording, round_index):
    entries = recording.transcript.entries
    return {e.sender: e.message for e in entries if isinstance(e.message, Upload) and e.round_index == round_index}


@pytest.mark.parametrize("stack", STACKS)
def test_a_recording_ends_in_the_same_model_as_the_run_bit_for_bit(stack):
    plan = STACKS[stack]
    ours, theirs = recorded(plan), run(plan, save=False, reference=False, keep_messages=True)
    expected = theirs.model.state_dict()
    assert expected.keys() == ours.model.state_dict().keys()
    assert all(torch.equal(value, expected[name]) for name, value in ours.model.state_dict().items())
    assert [(e.round_index, e.sender, e.receiver, type(e.message)) for e in ours.transcript.entries] == [
        (e.round_index, e.sender, e.receiver, type(e.message)) for e in theirs.transcript.entries
    ]
    assert (ours.transcript.bytes_up, ours.transcript.bytes_down) == (
        theirs.transcript.bytes_up,
        theirs.transcript.bytes_down,
    )


def test_parameters_of_a_round_are_those_before_it_and_lead_to_those_after_it():
    recording = recorded(undefended(RING))
    initial = recording.graph.flatten(dict(recording.initial.named_parameters()), torch.float64)
    assert torch.equal(recording.server_rounds[0].parameters, initial)
    for kept in recording.server_rounds:
        sent = [e.message for e in recording.transcript.entries if e.round_index == kept.round_index]
        models = [message for message in sent if isinstance(message, RoundModel)]
        assert len(models) == 3
        assert all(torch.equal(message.parameters.double(), kept.parameters) for message in models)
    final = recording.graph.flatten(dict(recording.model.named_parameters()), torch.float64)
    assert not torch.equal(recording.server_rounds[-1].parameters, final)


def test_the_total_of_bare_uploads_is_their_sum():
    recording = recorded(BARE)
    for kept in recording.server_rounds:
        expected = aggregate(uploads(recording, kept.round_index), kept.round_index)
        assert torch.equal(kept.total.terms, expected.terms)
        assert (kept.total.total_weight, kept.total.contributors) == (expected.total_weight, expected.contributors)


def test_the_total_under_ring_masks_is_the_sum_that_was_unmasked():
    """The first round of both plans has the same secrets and batches; only one of them shows its uploads."""
    masked, bare = recorded(RING), recorded(BARE)
    assert not uploads(masked, 0)
    ours, expected = masked.server_rounds[0].total, bare.server_rounds[0].total
    assert ours.total_weight == expected.total_weight and set(ours.contributors) == set(expected.contributors)
    assert 0 < relative(ours.terms, expected.terms) < 1e-9  # fixed point
    assert relative(masked.server_rounds[0].recovered(), bare.server_rounds[0].recovered()) < 1e-7


@pytest.mark.parametrize("stack", ["no masks, squared error", "no masks, offset noise", "FedSGD", "BatchNorm"])
def test_gradient_of_a_bare_upload_is_that_clients_gradient(stack):
    plan = STACKS[stack]
    recording = recorded(plan)
    for kept in recording.server_rounds:
        true = {}
        for name, upload in uploads(recording, kept.round_index).items():
            true[name] = true_gradient(recording, kept.parameters, recording.batches[name, kept.round_index])
            tolerance = 1e-4 if stack == "BatchNorm" else 1e-10  # its eps acts as another under scaling
            assert relative(kept.gradient_of(upload, name), true[name]) < tolerance
        first, second, *_ = true.values()
        assert relative(first, second) > 0.1  # or the comparison would not tell clients apart


def true_gradient(recording, parameters, batch):
    """The oracle: autograd on the true model, in training mode, with that client's batch."""
    network = recording.initial.train()
    values = recording.graph.unflatten(parameters)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(values[name])
    outputs = network(batch.inputs)
    ce = recording.problem.loss == "ce"
    lost = F.cross_entropy(outputs, batch.targets) if ce else F.mse_loss(outputs, batch.targets)
    names = [name for name, _ in network.named_parameters()]
    gradients = torch.autograd.grad(lost, list(network.parameters()))
    return recording.graph.flatten(dict(zip(names, gradients, strict=True)), torch.float64)


def test_batches_are_what_the_clients_trained_on_and_lie_in_their_shares():
    recording = recorded(BARE)
    assert set(recording.batches) == {(name, r) for name in recording.shares for r in range(3)}
    for (name, _), batch in recording.batches.items():
        share = recording.shares[name].inputs
        assert len(batch) == 4
        assert all((share == sample).flatten(1).all(1).any() for sample in batch.inputs)


def test_secrets_of_a_kept_round_are_those_of_that_round_and_not_of_the_last():
    recording = recorded(BARE)
    first, *_, last = recording.server_rounds
    assert not torch.equal(first.secrets.scale_factors, last.secrets.scale_factors)
    for kept in recording.server_rounds:
        sent = next(
            e.message
            for e in recording.transcript.entries
            if isinstance(e.message, PerturbedModel) and e.round_index == kept.round_index
        )
        assert torch.equal(kept.secrets.output_directions, sent.output_directions)
    assert recorded(undefended(RING)).server_rounds[0].secrets is None


def test_only_the_rounds_in_keep_are_kept_and_the_training_is_the_same():
    everything, some = recorded(RING), recorded(RING, keep={1})
    assert [kept.round_index for kept in some.server_rounds] == [1]
    assert {round_index for _, round_index in some.batches} == {1}
    assert torch.equal(some.server_round(1).parameters, everything.server_round(1).parameters)
    assert torch.equal(some.server_round(1).total.terms, everything.server_round(1).total.terms)
    values = some.model.state_dict()
    assert all(torch.equal(value, values[name]) for name, value in everything.model.state_dict().items())
    of_round = [e for e in some.transcript.entries if e.round_index == 1]
    assert len(of_round) == len([e for e in everything.transcript.entries if e.round_index == 1])
    assert len([e for e in of_round if isinstance(e.message, MaskedUpload)]) == 3
    assert not [e for e in some.transcript.entries if e.round_index == 2]


@pytest.mark.parametrize("plan", [RING, BARE], ids=["with set-up", "without set-up"])
def test_messages_of_round_0_are_not_kept_unless_asked_for(plan):
    some = recorded(plan, keep={1})
    assert {e.round_index for e in some.transcript.entries} <= {SETUP, 1}


def test_set_up_messages_are_always_kept():
    for keep in ({2}, (), None):
        entries = recorded(RING, keep=keep).transcript.entries
        setup = [e for e in entries if e.round_index == SETUP]
        assert [type(e.message) for e in setup].count(KeyAnnouncement) == 3
        # The roster travels with the first opening: it is a message of round 0.
        assert [type(e.message) for e in entries].count(Roster) == (3 if keep is None else 0)


def test_progress_is_told_after_every_round():
    told = []
    plan = undefended(RING)
    context = Context(plan, EFFORTS["smoke"])
    record(plan, context.federation(), keep=(), on_round=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
