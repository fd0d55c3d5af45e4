"""Each adversary has its own slice of a run, and nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from bilateral.audit.experiment import EFFORTS, Context
from bilateral.audit.recording import ServerRound
from bilateral.audit.threat import HIDDEN_SEED, client_view, eavesdropper_view, server_view
from bilateral.baselines.fedavg import PlainModel
from bilateral.engine.plan import RunPlan
from bilateral.protocols.perturb.messages import PerturbedModel, SoftmaxQuery
from bilateral.protocols.transport import SERVER
from bilateral.randomness import SeededRandomness

SEED = 918273645
PLAN = RunPlan().with_settings(
    {
        "seed": SEED,
        "federation.clients": 3,
        "training.rounds": 2,
        "training.batch_size": 4,
        "perturbation.softmax": "blinded",
    }
)
ANNA, BERT, CLEO = "client-1", "client-2", "client-3"


@pytest.fixture(scope="module")
def recording():
    return Context(PLAN, EFFORTS["smoke"]).record(PLAN)


def identities(entries):
    return [id(entry) for entry in entries]


def test_a_client_has_what_it_sent_and_received_and_nothing_else(recording):
    view = client_view(recording, BERT)
    assert view.adversary == "curious client" and view.parties == (BERT,)
    assert all({e.sender, e.receiver} == {BERT, SERVER} for e in view.entries)
    assert identities(view.entries) == identities(recording.transcript.seen_by(BERT))
    assert set(view.data) == {BERT} and set(view.batches) == {(BERT, 0), (BERT, 1)}
    assert view.server_rounds == ()


def test_colluding_clients_have_the_union_of_what_each_has(recording):
    view = client_view(recording, ANNA, CLEO)
    alone = [*client_view(recording, ANNA).entries, *client_view(recording, CLEO).entries]
    assert view.adversary == "colluding clients"
    assert sorted(identities(view.entries)) == sorted(identities(alone))
    assert set(view.data) == {ANNA, CLEO}
    assert set(view.batches) == {(name, r) for name in (ANNA, CLEO) for r in (0, 1)}
    assert view.server_rounds == ()


def test_the_server_has_every_message_and_what_it_held_but_no_data(recording):
    view = server_view(recording)
    assert view.adversary == "curious server"
    assert identities(view.entries) == identities(recording.transcript.entries)
    assert view.server_rounds == recording.server_rounds
    assert not view.data and not view.batches


def test_a_server_with_colluding_clients_has_their_data_too(recording):
    view = server_view(recording, [CLEO])
    assert view.adversary == "server with colluding clients"
    assert identities(view.entries) == identities(recording.transcript.entries)
    assert set(view.data) == {CLEO} and set(view.batches) == {(CLEO, 0), (CLEO, 1)}


def test_an_eavesdropper_has_every_message_and_no_secrets(recording):
    view = eavesdropper_view(recording)
    assert identities(view.entries) == identities(recording.transcript.entries)
    assert not view.data and not view.batches and view.server_rounds == ()


def test_messages_are_found_by_kind_round_and_ends(recording):
    view = server_view(recording)
    assert [e.receiver for e, _ in view.messages(PerturbedModel, round_index=1)] == [ANNA, BERT, CLEO]
    [(entry, query)] = view.messages(SoftmaxQuery, round_index=0, sender=BERT)
    assert entry.message is query is view.message(SoftmaxQuery, round_index=0, sender=BERT)
    assert list(view.messages(SoftmaxQuery, receiver=BERT)) == []
    assert view.message(PlainModel, round_index=0) is None
    assert view.server_round(1) is recording.server_rounds[1]


def test_clients_of_another_run_are_refused(recording):
    for make in (lambda: client_view(recording, "client-9"), lambda: server_view(recording, ["client-9"])):
        with pytest.raises(KeyError, match=r"client-9.*they are client-1, client-2, client-3"):
            make()


# --- what is nowhere in a view ---


def walk(value, path, seen):
    """Everything that can be reached from `value` by attributes and items, with the way to it."""
    if id(value) in seen:
        return
    seen[id(value)] = value  # keeps it alive: an id may be used again
    yield path, value
    match value:
        case torch.Tensor() | str() | bytes() | int() | float() | None | torch.dtype() | type():
            return
        case dict():
            parts = [(f"[{key!r}]", item) for key, item in value.items()] + [("(key)", key) for key in value]
        case list() | tuple() | set() | frozenset() | range():
            parts = [(f"[{place}]", item) for place, item in enumerate(value)]
        case np.ndarray():
            parts = [("(array)", torch.from_numpy(value.copy()))] if value.dtype.kind in "iuf" else []
        case _:
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            names = [*getattr(value, "__dict__", {}), *(name for name in slots if hasattr(value, name))]
            parts = [(f".{name}", getattr(value, name)) for name in names if name != "__dict__"]
            parts += [(".__self__", value.__self__)] if hasattr(value, "__self__") else []
            cells = getattr(value, "__closure__", None) or ()
            parts += [(f".__closure__[{place}]", cell.cell_contents) for place, cell in enumerate(cells)]
    for name, item in parts:
        yield from walk(item, path + name, seen)


def reachable(view):
    return list(walk(view, "view", {}))


def rows(tensor, width):
    """Every run of `width` numbers that a sample could lie in, as bytes."""
    if tensor.numel() == 0 or tensor.numel() % width:
        return set()
    return {row.tobytes() for row in tensor.detach().to(torch.float32).reshape(-1, width).numpy()}


def data_of_others(view, recording):
    """Where in the view there is a sample of a client that the adversary is not, or memory shared with one."""
    others = [share.inputs for name, share in recording.shares.items() if name not in view.parties]
    width = others[0][0].numel()
    samples = set().union(*(rows(inputs, width) for inputs in others))
    memory = {inputs.untyped_storage().data_ptr() for inputs in others}
    return [
        path
        for path, found in reachable(view)
        if isinstance(found, torch.Tensor)
        and (rows(found, width) & samples or found.untyped_storage().data_ptr() in memory)
    ]


def seeds(view):
    """Where in the view the run's seed is, or a stream that was derived from it."""
    return [
        path
        for path, found in reachable(view)
        if isinstance(found, SeededRandomness)
        or (isinstance(found, int) and found == SEED)
        or (isinstance(found, str | bytes) and str(SEED) in str(found))
    ]


ALL_VIEWS = {
    "curious client": lambda r: client_view(r, BERT),
    "colluding clients": lambda r: client_view(r, ANNA, CLEO),
    "curious server": server_view,
    "server with colluding clients": lambda r: server_view(r, [CLEO]),
    "eavesdropper": eavesdropper_view,
}


@pytest.mark.parametrize(
    "adversary",
    ALL_VIEWS,
)
def test_no_view_has_the_seed_or_anothers_data(recording, adversary):
    view = ALL_VIEWS[adversary](recording)
    assert view.adversary == adversary
    assert data_of_others(view, recording) == []
    assert seeds(view) == []
    assert view.facts.plan.seed == HIDDEN_SEED


def test_the_search_for_seeds_and_data_finds_them_where_they_are(recording):
    """The test above can fail: it looks into messages, modules, closures and the server's halves."""
    view = client_view(recording, BERT)
    leaky = dataclasses.replace(view, data={BERT: recording.shares[BERT], "note": [recording.shares[ANNA].inputs[3:5]]})
    assert data_of_others(leaky, recording) == ["view.data['note'][0]"]
    copied = dataclasses.replace(view, data={BERT: recording.shares[BERT], "note": recording.shares[CLEO].inputs * 1})
    assert data_of_others(copied, recording) == ["view.data['note']"]
    module = nn.Linear(2, 2)
    module.register_buffer("kept", recording.shares[ANNA].inputs[0].double())
    hidden = dataclasses.replace(view, server_rounds=(module,))
    assert len(data_of_others(hidden, recording)) == 1
    knowing = dataclasses.replace(view, facts=dataclasses.replace(view.facts, plan=recording.plan))
    assert seeds(knowing) and not seeds(view)
    stream = SeededRandomness(SEED, "server")
    assert seeds(dataclasses.replace(view, data={"draw": lambda: stream.uniform(1)}))
    assert seeds(dataclasses.replace(view, data={"draw": stream.uniform}))


def test_a_client_without_secrets_cannot_reach_the_servers_half(recording):
    for view in (client_view(recording, ANNA, BERT), eavesdropper_view(recording)):
        found = [found for _, found in reachable(view)]
        assert not any(isinstance(one, ServerRound) for one in found)
        assert not any(one is recording.model or one is recording.initial for one in found)


# --- what everybody knows ---


def test_the_architecture_that_everybody_knows_has_no_weights(recording):
    architecture = client_view(recording, ANNA).facts.network(torch.zeros(recording.graph.num_parameters))
    assert all(not parameter.any() for parameter in architecture.parameters())
    found = [tensor for _, tensor in reachable(client_view(recording, ANNA).facts) if isinstance(tensor, nn.Parameter)]
    assert found and all(not parameter.any() for parameter in found)
    assert any(parameter.any() for parameter in recording.initial.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_with_the_true_parameters_computes_the_true_function(recording, dtype):
    facts = client_view(recording, ANNA).facts
    true = recording.graph.flatten(dict(recording.model.named_parameters()), dtype)
    built = facts.network(true)
    assert torch.equal(recording.graph.flatten(dict(built.named_parameters()), dtype), true)
    assert next(built.parameters()).dtype == dtype
    inputs = recording.test.inputs[:20]
    torch.testing.assert_close(built(inputs.to(dtype)).float(), recording.model(inputs), rtol=1e-4, atol=1e-5)
    assert not torch.equal(facts.network(true)(inputs.to(dtype)), facts.network(0.5 * true)(inputs.to(dtype)))


def test_networks_do_not_share_parameters_with_each_other_or_with_the_vector(recording):
    facts = client_view(recording, ANNA).facts
    vector = torch.ones(recording.graph.num_parameters)
    first, second = facts.network(vector), facts.network(2 * vector)
    vector.zero_()
    assert all(torch.equal(p, torch.ones_like(p)) for p in first.parameters())
    assert all(torch.equal(p, torch.full_like(p, 2.0)) for p in second.parameters())


def test_facts_say_what_is_public(recording):
    facts = eavesdropper_view(recording).facts
    assert facts.clients == (ANNA, BERT, CLEO)
    assert (facts.loss, facts.input_shape, facts.num_outputs) == ("ce", (1, 8, 8), 10)
    assert facts.plan == PLAN.with_settings({"seed": HIDDEN_SEED})
    assert facts.perturbation == PLAN.perturbation.settings("ce")
