"""`training.class_weights = "balanced"`: counted under masks before the first step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bilateral.engine.federation import load_federation
from bilateral.engine.plan import parse_plan
from bilateral.engine.setup import make_blueprint
from bilateral.errors import BilateralError, ProtocolError, UnsoundPlanError
from bilateral.protocols.class_balance import ClassTotals, CountClasses
from bilateral.protocols.mask.messages import RangeRefusal
from bilateral.protocols.messages import Upload
from bilateral.runs.rounds.in_process import run


def plan(protection="masks", rounds=5, **training):
    return parse_plan(
        {
            "protection": protection,
            "data": {"name": "breast-cancer"},
            "model": {"name": "mlp-3"},
            "federation": {"clients": 4, "partition": "dirichlet", "alpha": 2.0},
            "training": {"rounds": rounds, "schedule": "constant", "class_weights": "balanced", **training},
        },
        "of a test",
    )


def test_counting_makes_nobody_refuse_a_range():
    """A refusal tells the size of its client's upload (line 11): the sizes of counts say nothing of gradients."""
    for settings in ({}, {"aggregation.width": "auto"}, {"training.local_steps": 2}):
        chosen = plan(rounds=4).with_settings(settings)
        sent = run(chosen, save=False, reference=False, keep_messages=True).transcript.entries
        assert not [entry for entry in sent if isinstance(entry.message, RangeRefusal)]


@pytest.mark.parametrize("baseline", ["gaussian", "ppdl", "ckks"])
def test_a_baseline_counts_no_classes(baseline):
    with pytest.raises(UnsoundPlanError, match="balanced class weights under noise, or with a baseline"):
        run(plan(baseline), save=False)


def weights_of(chosen):
    labels = torch.cat([share.targets for share in load_federation(chosen).shares.values()])
    counts = torch.bincount(labels, minlength=2)
    return (len(labels) / (2 * counts)).tolist()


def parameters(result):
    return torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])


@pytest.mark.parametrize("local", [{}, {"local_steps": 2}])
@pytest.mark.parametrize("protection", ["fedavg", "masks"])
def test_the_first_round_counts_and_the_others_train_with_the_weights_that_follow(protection, local):
    counted = run(plan(protection, 1, **local), save=False, reference=False)
    begun = plan(protection, 1, **local).with_settings({"training.learning_rate": 1e-30})
    untrained = run(begun, save=False, reference=False)
    assert torch.equal(parameters(counted), parameters(untrained))
    # Batches are drawn by the round: the same rounds with the weights in the plan differ by the first step alone.
    chosen = plan(protection, 6, **local, momentum=0.0)
    blueprint = make_blueprint(chosen, load_federation(chosen))
    listed = chosen.with_settings({"training.class_weights": weights_of(chosen)})
    other = make_blueprint(listed, load_federation(listed))
    trainings = [(b.server(), b.local_exchange(lambda *_: None)) for b in (blueprint, other)]
    trainings[0][0].advance(0, blueprint.federation.names, trainings[0][1])
    for round_index in range(1, 6):
        for training, exchange in trainings:
            training.advance(round_index, blueprint.federation.names, exchange)
    torch.testing.assert_close(trainings[0][0].weights(), trainings[1][0].weights(), rtol=1e-6, atol=1e-7)


def test_under_masks_the_server_sees_no_counts_but_their_sum():
    result = run(plan(), save=False, reference=False, keep_messages=True)
    sent = [entry.message for entry in result.transcript.entries]
    assert not [message for message in sent if isinstance(message, Upload)]
    assert [message for message in sent if isinstance(message, CountClasses)]
    totals = {tuple(message.totals.tolist()) for message in sent if isinstance(message, ClassTotals)}
    shares = load_federation(plan()).shares.values()
    assert totals == {
        (
            *(sum(int((share.targets == number).sum()) for share in shares) for number in (0, 1)),
            sum(len(share) for share in shares),
        )
    }
    told = [leak.what for leak in result.guarantee.leaks if "all clients together" in leak.what]
    assert len(told) == 2
    assert not [leak for leak in result.guarantee.leaks if "each client" in leak.what]


def test_a_stopped_run_knows_the_counts_when_it_goes_on(tmp_path):
    whole = run(plan(), save=False, reference=False)
    rounds = iter((False, True))
    run(plan(), output=tmp_path / "out", reference=False, should_stop=lambda: next(rounds))
    resumed = run(plan(), output=tmp_path / "out", resume=True)
    assert torch.equal(parameters(resumed), parameters(whole))


def exchange_of(chosen):
    federation = load_federation(chosen)
    blueprint = make_blueprint(chosen, federation)
    return blueprint.server(), blueprint.client("client-1")


def test_a_client_counts_and_weighs_only_where_its_plan_says_so():
    server, balanced = exchange_of(plan("fedavg"))
    _, plain = exchange_of(plan("fedavg", class_weights=[]))
    model = server.server.start_round(3)
    totals = ClassTotals(3, torch.tensor([5, 5, 10]))
    with pytest.raises(ProtocolError, match="expected class totals of round 3"):
        balanced.handle([model])
    with pytest.raises(ProtocolError, match="expected no class totals"):
        plain.handle([totals, model])
    with pytest.raises(ProtocolError, match="to count only where the plan says so"):
        plain.handle([CountClasses(3, torch.zeros(0))])
    with pytest.raises(ProtocolError, match="totals of round 2"):
        balanced.handle([replace(totals, round_index=2), model])
    with pytest.raises(ProtocolError, match="ClassTotals"):
        balanced.handle([replace(totals, totals=torch.tensor([1, 2])), model])
    assert isinstance(balanced.handle([totals, model]), Upload)


def test_clients_that_are_told_different_totals_have_no_sum_in_common():
    chosen = plan()
    federation = load_federation(chosen)
    blueprint = make_blueprint(chosen, federation)
    training, exchange = blueprint.server(), blueprint.local_exchange(lambda *_: None)
    training.advance(0, federation.names, exchange)

    def lying(round_index, packets, respond=None):
        changed = {
            name: tuple(
                replace(message, totals=torch.tensor([1, 1, 2]))
                if name == "client-1" and isinstance(message, ClassTotals)
                else message
                for message in packet
            )
            for name, packet in packets.items()
        }
        return exchange(round_index, changed, respond)

    before = training.weights()
    with pytest.raises(BilateralError):
        training.advance(1, federation.names, lying)
    assert torch.equal(training.weights(), before)


def test_noise_does_not_cover_exact_counts():
    noisy = plan().with_settings({"noise.mechanism": "sound", "noise.epsilon": 8.0})
    with pytest.raises(UnsoundPlanError, match="balanced class weights under noise"):
        run(noisy, save=False)
