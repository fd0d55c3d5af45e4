"""A server and clients that were built apart, each from its own data and the public facts alone."""

from dataclasses import replace

import pytest
import torch
from tests.engine.test_stacks import SOUND
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.federation import Federation, load_federation, load_server_view, load_site_share
from bilateral.engine.secrets import OwnSecrets
from bilateral.engine.setup import make_blueprint, reference_plan
from bilateral.errors import DataError, PlanError, ProtocolError
from bilateral.learning.exchange import LocalExchange
from bilateral.learning.problem import Member
from bilateral.learning.training import relative_difference
from bilateral.protections.spoken_messages import to_client, to_server
from bilateral.protocols.mask.keys import Identity
from bilateral.protocols.noise.round_counter import FileCounter
from bilateral.protocols.wire import decode, encode
from bilateral.randomness import SecureRandomness

ROUNDS = 4
PUBLISHED = {"training__loss": "mse", "noise__epsilon": 5.0}
BATCH_NORM = {"data__name": "digits", "model__name": "resnet-8", "model__options": {"width": 2}}
STACKS = {
    "fedavg": {"protection": "fedavg"},
    "fedavg with ring masks": {"protection": "fedavg", "aggregation__masks": "ring"},
    "perturbation alone": {"aggregation__masks": "none"},
    "perturbation and masks, cross entropy": {},
    "perturbation and masks, squared error": {"training__loss": "mse"},
    "batch statistics": BATCH_NORM,
    "float masks": {"aggregation__masks": "float"},
    "sound, a sample": SOUND,
    "sound, a client": {**SOUND, "noise__unit": "client"},
    "sound, adaptive": {**SOUND, "noise__adaptive_clip": True},
    "sound, no perturbation": {**SOUND, "protection": "fedavg"},
    "published": {**PUBLISHED, "noise__mechanism": "published"},
    "mp-cdp": {**PUBLISHED, "noise__mechanism": "mp-cdp"},
    "mp-dp-naive": {**PUBLISHED, "noise__mechanism": "mp-dp-naive"},
    "half of six clients": {
        "federation__clients": 6,
        "federation__participation": 0.5,
    },
}


class OverTheWire:
    """A client behind bytes."""

    def __init__(self, client):
        self.client = client

    def handle(self, packet):
        received = [decode(encode(message), to_client(), "server") for message in packet]
        return decode(encode(self.client.handle(received)), to_server(), self.client.name)


def train(training, clients, names, rounds=ROUNDS):
    exchange = LocalExchange(clients, lambda *_: None)
    for round_index in range(rounds):
        training.advance(round_index, names, exchange)
    return training.model.state_dict()


def server_view(chosen, counts=None):
    """What a server's process has: its own data, and what the sites told."""
    view = load_server_view(chosen)
    assert not view.shares
    return view if counts is None else view.with_members(counts)


def site_view(chosen, view, name):
    """What a site's process has: the public facts, and its own share; none of the server's inputs."""
    told = make_blueprint(chosen, view).term_scales
    problem = replace(view.problem, examples=torch.zeros_like(view.problem.examples), term_scales=told)
    return Federation(problem, view.members, {name: load_site_share(chosen, name)})


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("name", STACKS)
def test_sides_that_were_built_apart_train_the_same_model_bit_for_bit(name):
    chosen = plan(**STACKS[name])
    together = load_federation(chosen)
    names, everyone = together.names[:3], together.names
    whole = make_blueprint(chosen, together)
    expected = train(whole.server(), whole.local_exchange(lambda *_: None).clients, names)

    view = server_view(chosen, {member.name: member.num_samples for member in together.members})
    apart = {one: make_blueprint(chosen, site_view(chosen, view, one)) for one in everyone}
    clients = {one: OverTheWire(blueprint.client(one)) for one, blueprint in apart.items()}
    server = make_blueprint(chosen, view)
    assert_equal(train(server.server(), clients, names), expected)
    assert server.privacy == whole.privacy == apart[names[0]].privacy
    assert server.guarantee == whole.guarantee == apart[names[0]].guarantee


def test_the_server_needs_nobodys_sample_counts_unless_samples_are_accounted_for():
    for name in ("perturbation and masks, cross entropy", "float masks", "sound, a client"):
        chosen = plan(**STACKS[name])
        assert all(member.num_samples == 0 for member in server_view(chosen).members)
        make_blueprint(chosen, server_view(chosen)).server()


@pytest.mark.parametrize("name", ["sound, a sample", "published", "mp-cdp", "mp-dp-naive"])
def test_sample_counts_that_were_not_told_are_missed_by_name(name):
    chosen = plan(**STACKS[name])
    with pytest.raises(PlanError, match="client-2 did not tell"):
        make_blueprint(chosen, server_view(chosen, {"client-1": 5, "client-2": 0, "client-3": 7}))


def test_a_client_that_told_another_number_of_samples_than_it_has_is_refused():
    chosen = plan(**SOUND)
    view = site_view(chosen, server_view(chosen, {"client-1": 5, "client-2": 6, "client-3": 7}), "client-1")
    with pytest.raises(DataError, match=r"client-1 has \d+ samples, and 5 were told"):
        make_blueprint(chosen, view).client("client-1")


def test_a_client_is_built_only_where_its_data_are():
    chosen = plan()
    blueprint = make_blueprint(chosen, site_view(chosen, server_view(chosen), "client-1"))
    with pytest.raises(DataError, match="data of client-2 are not here"):
        blueprint.client("client-2")
    with pytest.raises(PlanError, match="'client-9' is no client of this run"):
        blueprint.client("client-9")


def test_a_site_has_no_test_data_to_show():
    chosen = plan()
    with pytest.raises(DataError, match="test data are at the server"):
        _ = site_view(chosen, server_view(chosen), "client-1").test_data


def test_training_a_server_leaves_the_blueprint_as_it_was():
    blueprint = make_blueprint(chosen := plan(), federation := load_federation(chosen))
    first = train(blueprint.server(), blueprint.local_exchange(lambda *_: None).clients, federation.names)
    second = train(blueprint.server(), blueprint.local_exchange(lambda *_: None).clients, federation.names)
    assert_equal(first, second)


def own_secrets(names):
    """Secrets of a deployment: the server's, and every client's."""
    identities = {name: Identity.generate(SecureRandomness()) for name in names}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    run_id = SecureRandomness().random_bytes(32)
    of_clients = {name: OwnSecrets(run_id, pinned, name, identities[name]) for name in names}
    return OwnSecrets(run_id, pinned), of_clients


@pytest.mark.parametrize(
    "settings", [{}, {"training__loss": "mse"}, {"aggregation__masks": "float"}], ids=["ce", "mse", "float"]
)
def test_with_secrets_of_their_own_the_parties_end_where_fedavg_ends(settings):
    # All samples in every round: a deployment deals its batches by secrets of its own, and FedSGD's would be others.
    chosen = plan(**settings, training__dtype="float64", training__batch_size=0)
    view = server_view(chosen)
    of_server, of_clients = own_secrets(view.names)
    clients = {
        name: OverTheWire(make_blueprint(chosen, site_view(chosen, view, name), of_clients[name]).client(name))
        for name in view.names
    }
    training = make_blueprint(chosen, view, of_server).server()
    bare = make_blueprint(reference_plan(chosen), load_federation(chosen))
    fedavg = bare.server()
    fedavg.model.load_state_dict(training.model.state_dict())  # the server's initial weights are its secret
    train(training, clients, view.names)
    train(fedavg, bare.local_exchange(lambda *_: None).clients, view.names)
    assert relative_difference(training.weights(), fedavg.weights()) < 1e-5


def test_with_secrets_of_their_own_two_runs_of_a_private_plan_differ():
    """Nothing that a claim rests on comes from the plan's seed, which everybody knows."""
    chosen = plan(**SOUND)
    told = {member.name: member.num_samples for member in load_federation(chosen).members}
    view = server_view(chosen, told)
    of_server, of_clients = own_secrets(view.names)
    results = []
    for _ in range(2):
        clients = {
            name: make_blueprint(chosen, site_view(chosen, view, name), of_clients[name]).client(name)
            for name in view.names
        }
        results.append(train(make_blueprint(chosen, view, of_server).server(), clients, view.names, 1))
    assert any(not torch.equal(results[0][key], results[1][key]) for key in results[0])


def test_a_site_that_starts_again_goes_on_with_its_budget(tmp_path):
    chosen = plan(**SOUND, training__rounds=2)
    federation = load_federation(chosen)
    names, spent = federation.names, tmp_path / "client-1.json"
    FileCounter.create(spent)

    def term(rounds):
        blueprint = make_blueprint(chosen, federation)
        clients = {name: blueprint.client(name) for name in names}
        clients["client-1"] = blueprint.client("client-1", counter=FileCounter(spent))
        train(blueprint.server(), clients, names, rounds)

    term(1)
    assert FileCounter(spent).used == 1
    term(1)
    with pytest.raises(ProtocolError, match="client-1 has taken part in 2 rounds, which is all"):
        term(1)


def test_data_of_another_problem_are_refused_by_the_sites_name():
    chosen = plan()
    view = server_view(chosen)
    share = load_site_share(chosen, "client-1")
    cases = [
        replace(share, inputs=share.inputs[:, :7]),
        replace(share, num_outputs=3),
        replace(share, task="regression"),
    ]
    for wrong in cases:
        with pytest.raises(
            DataError, match=r"client-1: (a sample has the shape \[7\]|there are 3 outputs|the task is regression)"
        ):
            make_blueprint(chosen, Federation(view.problem, (Member("client-1"),), {"client-1": wrong}))
