"""What a round keeps in memory, counted in the bytes of living arrays: not a matter of the allocator or the machine."""

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint
from bilateral.learning.exchange import LocalExchange
from bilateral.protocols.mask.kept_upload import LEAST_BYTES
from bilateral.protocols.mask.messages import MaskedUpload


def _has_memory(thing):
    """Not so the stand-ins of tracers, which other tests of the same process may have left: they have no storage."""
    if type(thing) not in (torch.Tensor, torch.nn.Parameter) or torch._is_functional_tensor(thing):
        return False
    return thing.layout == torch.strided and thing.device.type == "cpu"


@pytest.fixture(autouse=True)
def all_that_was_there_before_is_left_out():
    """Whatever earlier tests of this process left alive is neither counted nor gone through again and again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _living_bytes(dtype):
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if _has_memory(thing) and thing.dtype == dtype:
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def _round(clients):
    plan = RunPlan().with_settings(
        {
            "model.name": "mlp-3",
            "model.options": {"width": 64},
            "federation.clients": clients,
            "training.rounds": 1,
        }
    )
    blueprint = make_blueprint(plan, load_federation(plan))
    training = blueprint.server()
    before = _living_bytes(torch.int64)  # what the server drew
    num_values = blueprint.layout.num_parameters
    kept = []

    def record(round_index, sender, receiver, message):
        if isinstance(message, MaskedUpload):
            new = {place: size for place, size in _living_bytes(torch.int64).items() if place not in before}
            kept.append(sum(size for size in new.values() if size >= 8 * num_values))

    exchange = blueprint.local_exchange(record)
    assert isinstance(exchange, LocalExchange)
    training.advance(0, blueprint.federation.names, exchange)
    assert len(kept) == clients
    return max(kept) / (8 * num_values), exchange


def test_masked_uploads_are_added_up_as_they_come_and_not_kept():
    """At any time the one that has just come is alive, and what the server's secrets have of that size."""
    few, _ = _round(3)
    many, _ = _round(6)
    assert many < few + 0.5


def test_the_clients_of_a_simulation_have_one_model_between_them():
    _, exchange = _round(6)
    places = {tuple(p.data_ptr() for p in client.half._model.parameters) for client in exchange.clients.values()}
    assert len(places) == 1


def test_stand_ins_of_tracers_are_not_counted():
    with FakeTensorMode():
        fake = torch.ones(1000, dtype=torch.int64)
    functional = torch._to_functional_tensor(torch.ones(1000, dtype=torch.int64))
    meta = torch.ones(1000, dtype=torch.int64, device="meta")
    before = _living_bytes(torch.int64)
    real = torch.ones(1000, dtype=torch.int64)
    assert set(_living_bytes(torch.int64)) - set(before) == {real.data_ptr()}
    assert not any(map(_has_memory, (fake, functional, meta)))


def test_what_clients_keep_until_the_end_of_a_round_does_not_grow_with_their_number():
    """Large uploads: all floats that are alive when the last upload has come, in uploads."""
    found = [_floats_at_the_last_upload(clients) for clients in (3, 7)]
    assert found[1] < found[0] + 0.5


def _floats_at_the_last_upload(clients):
    plan = RunPlan().with_settings(
        {
            "protection": "masks",
            "model.name": "mlp-3",
            "model.options": {"width": 512},
            "federation.clients": clients,
            "training.rounds": 1,
        }
    )
    blueprint = make_blueprint(plan, load_federation(plan))
    training, num_values, uploads, kept = blueprint.server(), blueprint.layout.num_parameters, [], []
    assert 4 * num_values > LEAST_BYTES

    def record(round_index, sender, receiver, message):
        if isinstance(message, MaskedUpload):
            uploads.append(sender)
            if len(uploads) == clients:
                kept.append(sum(size for size in _living_bytes(torch.float32).values() if size >= 4 * num_values))

    training.advance(0, blueprint.federation.names, blueprint.local_exchange(record))
    assert len(set(uploads)) == len(uploads) == clients
    return kept[0] / (4 * num_values)
