"""FedAvg: local steps, in the clear and under masks, beside an implementation of forty lines on the same batches."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bilateral import run
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan, fingerprint_of
from bilateral.engine.setup import make_blueprint
from bilateral.errors import ModelError, NotAuditableError, PlanError, UnsoundPlanError
from bilateral.learning.local_steps import ChangeTaker, ServerRuleSettings
from bilateral.models.layout import ModelLayout

CLIENTS = 3
SMALL = {
    "data.name": "breast-cancer",
    "model.name": "mlp-3",
    "model.options": {"width": 8},
    "federation.clients": CLIENTS,
    "federation.partition": "dirichlet",  # so that clients have other numbers of samples, and of steps
    "training.rounds": 3,
    "training.batch_size": 32,
    "training.evaluate_every": 1,
    "training.checkpoint_every": 1,
    "training.dtype": "float64",
    "training.weight_decay": 0.01,
}
EPOCHS = {**SMALL, "training.local_epochs": 2}


def plan(settings, **more):
    return RunPlan().with_settings({"protection": "fedavg", **settings, **more})


def trained(chosen, rounds=None):
    """Models before each round and after the last, and the exchange whose clients did it."""
    federation = load_federation(chosen)
    blueprint = make_blueprint(chosen, federation)
    training = blueprint.server()
    exchange = blueprint.local_exchange(lambda *_: None)
    models = [copy.deepcopy(training.model)]
    for round_index in range(chosen.training.rounds if rounds is None else rounds):
        training.advance(round_index, federation.names, exchange)
        models.append(copy.deepcopy(training.model))
    return models, exchange, training


def federated_average(model, clients, num_rounds, *, rate, momentum, weight_decay, proximal=0.0):
    """FedAvg as everyone means it: `clients` has, for each, its weight and a function from rounds to batches."""
    for round_index in range(num_rounds):
        total = sum(weight for weight, _ in clients)
        mean = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in model.state_dict().items()}
        for weight, batches_of in clients:
            local = copy.deepcopy(model).train()
            optimiser = torch.optim.SGD(
                local.parameters(), lr=rate(round_index), momentum=momentum, weight_decay=weight_decay
            )
            for inputs, targets in batches_of(round_index):
                lost = F.cross_entropy(local(inputs), targets)
                pulls = zip(local.parameters(), model.parameters(), strict=True)
                lost = lost + proximal / 2 * sum((p - q.detach()).square().sum() for p, q in pulls)
                optimiser.zero_grad()
                lost.backward()
                optimiser.step()
            for name, value in local.state_dict().items():
                mean[name] += value.double() * weight / total
        model.load_state_dict({name: value.to(model.state_dict()[name].dtype) for name, value in mean.items()})
    return model


def expected_after(chosen, start, exchange, **more):
    """By the forty lines above, on the clients' own data in the order of their schedules."""

    def batches_of(client):
        def of_round(round_index):
            for indices in client._schedule.of_round(round_index):
                part = client._data.subset(indices)
                yield part.inputs, part.targets

        return of_round

    clients = [(client.weight, batches_of(client)) for client in exchange.clients.values()]
    settings, rounds = chosen.training.optimiser_settings(), chosen.training.rounds
    return federated_average(
        copy.deepcopy(start),
        clients,
        rounds,
        rate=lambda round_index: settings.rate(round_index, rounds),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        **more,
    )


def relative_difference(model, other):
    """The largest difference of any number in them, over the largest number of its tensor."""
    pairs = zip(model.state_dict().items(), other.state_dict().values(), strict=True)
    return max(
        float((one.double() - two.double()).abs().max() / two.double().abs().max().clamp_min(1e-30))
        for (name, one), two in pairs
        if not name.endswith("num_batches_tracked")
    )


@pytest.mark.parametrize(("protection", "limit"), [("fedavg", 1e-12), ("masks", 1e-9)])
@pytest.mark.parametrize("amount", [{"training.local_epochs": 2}, {"training.local_steps": 3}])
def test_local_steps_are_those_of_an_independent_implementation_on_the_same_batches(amount, protection, limit):
    chosen = plan({**SMALL, **amount}, protection=protection)
    models, exchange, _ = trained(chosen)
    assert len({client.weight for client in exchange.clients.values()}) == CLIENTS
    assert relative_difference(models[-1], expected_after(chosen, models[0], exchange)) <= limit
    assert relative_difference(models[-1], models[0]) > 0.01


@pytest.mark.parametrize(("protection", "limit"), [("fedavg", 1e-12), ("masks", 1e-9)])
def test_batch_norm_is_as_fed_avg_has_it(protection, limit):
    pictures = {
        "data.name": "digits",
        "model.name": "resnet-8",
        "model.options": {"width": 4},
        "training.rounds": 2,
        "data.options": {},
    }
    chosen = plan({**SMALL, **pictures, "training.local_steps": 2, "training.batch_size": 8}, protection=protection)
    models, exchange, _ = trained(chosen)
    assert any("running_mean" in name for name in models[0].state_dict())
    assert relative_difference(models[-1], expected_after(chosen, models[0], exchange)) <= limit


def test_a_proximal_term_is_that_of_fed_prox():
    chosen = plan({**EPOCHS, "training.proximal": 0.5})
    models, exchange, _ = trained(chosen)
    assert relative_difference(models[-1], expected_after(chosen, models[0], exchange, proximal=0.5)) <= 1e-12
    assert relative_difference(models[-1], expected_after(chosen, models[0], exchange)) > 1e-4


def test_one_local_step_of_plain_descent_is_fed_sgd():
    bare = {**SMALL, "training.momentum": 0.0, "training.weight_decay": 0.0}
    one_step, _, _ = trained(plan({**bare, "training.local_steps": 1}))
    one_gradient, _, _ = trained(plan(bare))
    assert relative_difference(one_step[-1], one_gradient[-1]) <= 1e-12


def test_no_momentum_is_carried_into_the_next_round():
    _, exchange, training = trained(plan(EPOCHS))
    again = make_blueprint(plan(EPOCHS), load_federation(plan(EPOCHS))).client("client-1")
    message = training.server.start_round(2)
    assert torch.equal(exchange.clients["client-1"].handle([message]).terms, again.handle([message]).terms)


def by_hand(rule, changes, rate, momentum, tau=1e-3):
    x, m, v = 0.0, 0.0, tau**2
    for change in changes:
        if rule == "momentum":
            m = momentum * m + change
            x -= rate * m
            continue
        m = momentum * m + (1 - momentum) * change
        square = change**2
        v = 0.99 * v + 0.01 * square if rule == "adam" else v - 0.01 * square * math.copysign(1, v - square)
        x -= rate * m / (math.sqrt(v) + tau)
    return x


@pytest.mark.parametrize("rule", ["momentum", "adam", "yogi"])
def test_server_optimisers_are_those_of_their_papers(rule):
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    taker = ChangeTaker(
        model, ModelLayout.of_module(model, torch.zeros(2, 1).double()), ServerRuleSettings(rule, 0.5, 0.8)
    )
    changes = [0.3, -0.1, 0.002, 0.7]
    for number, change in enumerate(changes):
        taker.step(torch.tensor([change], dtype=torch.float64), number, len(changes))
    assert model.weight.item() == pytest.approx(by_hand(rule, changes, 0.5, 0.8), rel=1e-12)


@pytest.mark.parametrize("rule", ["average", "momentum", "adam", "yogi"])
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(rule, tmp_path):
    chosen = plan({**EPOCHS, "protection": "masks", "training.server_optimiser": rule, "training.proximal": 0.1})
    whole = run(chosen, output=tmp_path / "whole", reference=False)
    rounds = iter(range(9))
    stopped = run(chosen, output=tmp_path / "parts", reference=False, should_stop=lambda: next(rounds) == 1)
    assert not stopped.finished
    resumed = run(chosen, output=tmp_path / "parts", resume=True)
    assert resumed.finished
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])


def test_the_yardstick_of_local_steps_is_fed_avg_in_the_clear():
    result = run(plan({**EPOCHS, "protection": "masks"}), reference=True)
    assert result.difference_to_fedavg < 1e-9
    assert result.guarantee.protection == "FedAvg + ring masks"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"protection": "perturbation"}, "never has a true gradient"),
        ({"protection": "sealed"}, "clients are sent no model"),
        ({"noise.mechanism": "sound", "noise.epsilon": 8.0}, "Use noise.unit = 'client'"),
    ],
)
def test_where_local_steps_would_not_hold_what_is_claimed_they_are_refused(settings, reason):
    chosen = plan({**EPOCHS, **settings, "training.dtype": "float32"})
    with pytest.raises(UnsoundPlanError, match=reason):
        make_blueprint(chosen, load_federation(chosen))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training.local_steps": 2, "training.local_epochs": 1}, "either `local_steps` or `local_epochs`"),
        ({"training.proximal": 0.1}, "expected `proximal` only beside"),
        ({"training.server_optimiser": "yogi"}, "expected `server_optimiser` only beside"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings, words):
    with pytest.raises(PlanError, match=words):
        plan({**SMALL, **settings})


def test_plans_without_local_steps_have_the_fingerprint_that_they_had():
    values = RunPlan().model_dump(mode="json")
    new = {"local_steps", "local_epochs", "proximal", "server_optimiser", "server_learning_rate", "server_momentum"}
    before = {**values, "training": {key: value for key, value in values["training"].items() if key not in new}}
    assert RunPlan().fingerprint() == fingerprint_of(before)
    assert plan(SMALL).fingerprint() != plan(EPOCHS).fingerprint()
    assert RunPlan().with_settings({"training.local_steps": 0}).fingerprint() == RunPlan().fingerprint()


def test_sound_noise_of_clients_clips_the_change_and_covers_it():
    noisy = {"noise.mechanism": "sound", "noise.unit": "client", "noise.noise_multiplier": 1.0, "noise.clip": 0.01}
    chosen = plan(
        {**EPOCHS, **noisy}, **{"federation.clients": 6, "federation.partition": "iid", "training.dtype": "float32"}
    )
    federation = load_federation(chosen)
    blueprint = make_blueprint(chosen, federation)
    training, client = blueprint.server(), blueprint.client("client-1")
    message = training.server.start_round(0)
    batches = list(client._local_batches(0, client._schedule))
    upload = client.half.train_locally(message, batches, 1)
    assert upload.weight == 1
    assert 0.0099 < float(upload.terms.double().norm()) <= 0.01
    training.advance(0, federation.names, blueprint.local_exchange(lambda *_: None))
    spread = float((training.last_gradient.double()).std())
    # One multiplier of noise over the sum of the fewest that may be in it, a sixth of that in the mean.
    assert spread * 1.2 > 0.01 / 6
    assert spread < 0.01


def test_a_change_that_is_not_finite_counts_as_none_where_an_error_would_be_an_answer():
    noisy = {"noise.mechanism": "sound", "noise.unit": "client", "noise.noise_multiplier": 1.0}
    many = {"federation.clients": 6, "federation.partition": "iid", "training.learning_rate": 1e300}
    chosen = plan({**EPOCHS, **noisy}, **many)
    blueprint = make_blueprint(chosen, load_federation(chosen))
    client, message = blueprint.client("client-1"), blueprint.server().server.start_round(0)
    upload = client.half.train_locally(message, client._local_batches(0, client._schedule), 1)
    assert not upload.terms.any()


def test_batch_norm_without_a_momentum_is_refused_by_name():
    from bilateral.protections.fedavg.local_steps import LocalStepsServer

    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None))
    with pytest.raises(ModelError, match="`1` averages over all batches"):
        LocalStepsServer(model, ModelLayout.of_module(model, torch.randn(2, 3)))


def test_an_audit_says_that_no_attack_is_written_for_changes():
    from bilateral.audit.recording import record

    with pytest.raises(NotAuditableError, match="changes of the model"):
        record(plan(EPOCHS), load_federation(plan(EPOCHS)))
