"""Where secrets come from, in a simulation and in a deployment."""

import hashlib

import pytest
import torch
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.federation import load_federation
from bilateral.engine.secrets import OwnSecrets, SimulatedSecrets
from bilateral.engine.setup import make_blueprint
from bilateral.errors import AuthenticationError, ProtocolError
from bilateral.protocols.mask.keys import Identity, KeyDirectory
from bilateral.randomness import SecureRandomness, SeededRandomness

NAMES = ("anna", "bela", "cleo")


def simulated(term=0, seed=3):
    return SimulatedSecrets(seed, NAMES, term)


def announced(secrets):
    return {name: secrets.key_ring(name).announce() for name in NAMES}


def test_term_0_of_a_simulation_is_the_same_whenever_it_is_run():
    assert simulated().run_id == simulated().run_id
    assert announced(simulated()) == announced(simulated())
    assert simulated().stream("noise", "anna").random_bytes(9) == simulated().stream("noise", "anna").random_bytes(9)


def test_a_later_term_has_another_run_id_other_agreement_keys_and_masks_and_the_same_identities():
    terms = [simulated(term) for term in range(3)]
    assert len({secrets.run_id for secrets in terms}) == 3
    assert len({announced(secrets)["anna"].agreement_key for secrets in terms}) == 3
    assert len({secrets.stream("masks", "anna").random_bytes(32) for secrets in terms}) == 3
    assert len({announced(secrets)["anna"].identity_key for secrets in terms}) == 1
    assert terms[0].pinned() == terms[1].pinned()


def test_what_decides_the_model_is_the_same_in_every_term_of_a_simulation():
    for labels in (("server",), ("client", "anna"), ("noise", "anna"), ("batches", "anna")):
        assert len({simulated(term).stream(*labels).random_bytes(32) for term in range(3)}) == 1
    assert simulated(0).training_stream("anna").random_bytes(9) == simulated(1).training_stream("anna").random_bytes(9)


def test_another_seed_gives_other_secrets():
    assert simulated(seed=3).run_id != simulated(seed=4).run_id
    assert simulated(seed=3).pinned() != simulated(seed=4).pinned()


def test_a_simulation_has_keys_of_its_own_clients_only():
    with pytest.raises(ProtocolError, match="'dora' is no client of this run"):
        simulated().key_ring("dora")


@pytest.mark.parametrize("kind", ["simulated", "own"])
def test_rings_of_one_term_accept_each_other(kind):
    rings = [simulated(1).key_ring(name) for name in NAMES] if kind == "simulated" else own_rings()
    pinned = {ring.name: ring.announce().identity_key for ring in rings}
    directory = KeyDirectory(rings[0].run_id, NAMES, pinned)
    for ring in rings:
        directory.register(ring.name, ring.announce())
    for ring in rings:
        ring.accept(directory.roster())
    assert rings[0].pair_secret("bela") == rings[1].pair_secret("anna")


def identities():
    made = {name: Identity.generate(SeededRandomness(0, name)) for name in NAMES}
    return made, {name: identity.public_bytes for name, identity in made.items()}


def own_rings():
    made, pinned = identities()
    return [OwnSecrets(bytes(32), pinned, name, made[name]).key_ring(name) for name in NAMES]


def test_a_client_gets_keys_of_its_own_and_of_nobody_else():
    made, pinned = identities()
    anna = OwnSecrets(bytes(32), pinned, "anna", made["anna"])
    assert anna.key_ring("anna").announce().identity_key == pinned["anna"]
    with pytest.raises(ProtocolError, match="keys of 'bela' were asked for at anna"):
        anna.key_ring("bela")


def test_the_server_gets_nobodys_keys():
    _, pinned = identities()
    server = OwnSecrets(bytes(32), pinned)
    assert server.pinned() == pinned
    with pytest.raises(ProtocolError, match="asked for at the server"):
        server.key_ring("anna")


def test_a_client_whose_identity_is_not_the_pinned_one_is_told_so():
    made, pinned = identities()
    with pytest.raises(AuthenticationError, match="anna: the identity key of this machine is not the one"):
        OwnSecrets(bytes(32), pinned, "anna", made["bela"])
    with pytest.raises(AuthenticationError, match="dora"):
        OwnSecrets(bytes(32), pinned, "dora", made["bela"])


def test_a_name_without_an_identity_is_refused():
    _, pinned = identities()
    with pytest.raises(ProtocolError, match="together, or neither"):
        OwnSecrets(bytes(32), pinned, "anna")


def test_a_deployment_draws_every_secret_from_the_operating_system():
    made, pinned = identities()
    secrets = OwnSecrets(bytes(32), pinned, "anna", made["anna"])
    assert isinstance(secrets.stream("server"), SecureRandomness)
    assert isinstance(secrets.training_stream("anna"), SecureRandomness)
    keys = {secrets.key_ring("anna").announce().agreement_key for _ in range(3)}
    assert len(keys) == 3


def test_secrets_do_not_show():
    made, pinned = identities()
    secrets = OwnSecrets(bytes(32), pinned, "anna", made["anna"])
    assert "object at" in repr(secrets)
    assert "object at" in repr(simulated())


def test_in_a_deployment_the_initial_weights_are_the_servers_secret():
    chosen = plan()
    federation = load_federation(chosen)
    identities = {name: Identity.generate(SeededRandomness(1, name)).public_bytes for name in federation.names}
    known = make_blueprint(chosen, federation).server().weights()
    hidden = [
        make_blueprint(chosen, federation, OwnSecrets(b"r" * 32, identities)).server().weights() for _ in range(2)
    ]
    assert not torch.equal(hidden[0], known)
    assert not torch.equal(hidden[0], hidden[1])
    assert torch.equal(known, make_blueprint(chosen, federation).server().weights())


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_run_id_has_the_length_of_a_hash(length):
    with pytest.raises(ProtocolError, match=f"run id of 32 bytes, got {length}"):
        OwnSecrets(bytes(length), {})


def test_no_part_of_a_bound_run_id_is_cut_off():
    secrets = OwnSecrets(bytes(32), {})
    secrets.bind(b"facts")
    assert secrets.run_id == hashlib.sha256(bytes(32) + b"facts").digest()
    assert len(simulated().run_id) == 32
