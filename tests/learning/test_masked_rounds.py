"""What one client can do to a masked training: cost a round, be named, and be left out. The run goes on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch

from bilateral.data import Split
from bilateral.engine.federation import load_federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint
from bilateral.errors import AuthenticationError, LostSumError, ProtocolError, ThresholdError
from bilateral.learning.adaptive_aggregation import AdaptiveAggregation
from bilateral.learning.aggregation import Incident, PlainAggregation
from bilateral.learning.client import TrainingClient
from bilateral.learning.exchange import SETUP, Dropouts, Enough, LocalExchange, kept_of
from bilateral.learning.masked_aggregation import MaskedAggregation, PairwiseAggregation
from bilateral.learning.uploading import MaskUploader, PairwiseUploader, announce
from bilateral.protections.fedavg.halves import PlainModel
from bilateral.protocols.mask.client import MaskClient
from bilateral.protocols.mask.keys import Identity, KeyRing
from bilateral.protocols.mask.messages import (
    KeyAnnouncement,
    MaskedUpload,
    MaskOpening,
    RangeRefusal,
    RevealedShares,
    SealedShares,
    SurvivorList,
    SurvivorSignature,
)
from bilateral.protocols.mask.server import MaskServer
from bilateral.protocols.mask.settings import MaskSettings
from bilateral.protocols.membership import ClipNorm, KeyRequest
from bilateral.protocols.messages import Upload, UploadShape
from bilateral.protocols.noise.adaptive import AdaptiveClip, AdaptiveNorm
from bilateral.protocols.noise.clipping import ClipSettings
from bilateral.protocols.perturb.messages import SoftmaxQuery
from bilateral.randomness import SeededRandomness

RUN = b"a run"
NAMES = tuple(f"client-{number}" for number in range(1, 7))
SHAPE = UploadShape(1, 3, 0)


class Half:
    """Trains nothing: its upload is the model it was sent, times a number of its own."""

    def __init__(self, name, factor, num_statistics):
        self.name, self._factor, self._num_statistics = name, factor, num_statistics

    def train(self, message, inputs, targets, weight):
        terms = self._factor * message.parameters[None]
        return Upload(message.round_index, weight, terms, torch.zeros(self._num_statistics, dtype=torch.float64))

    def receive(self, message):
        raise AssertionError(message)


class AllSamples:
    def batch(self, round_index):
        return torch.arange(2)


@dataclass
class Federation:
    """Clients under masks and the server's aggregation; `run` is a round as `Training.advance` has it."""

    settings: MaskSettings = field(default_factory=MaskSettings)
    adaptive: bool = False

    def __post_init__(self):
        identities = {name: Identity.generate(SeededRandomness(0, "identity", name)) for name in NAMES}
        self.pinned = {name: identity.public_bytes for name, identity in identities.items()}
        self.rings = {
            name: KeyRing(name, RUN, identities[name], self.pinned, SeededRandomness(0, "keys", name)) for name in NAMES
        }
        self.norms = []
        set_norm = self.norms.append if self.adaptive else None
        split = Split(torch.zeros(2, 1), torch.zeros(2, 1))
        self.clients = {
            name: TrainingClient(
                Half(name, float(number), int(self.adaptive)),
                split,
                AllSamples(),
                SeededRandomness(0),
                uploader=MaskUploader(MaskClient(ring, self.settings, SeededRandomness(1)), ring, set_norm),
                weight=1,
            )
            for number, (name, ring) in enumerate(self.rings.items(), 1)
        }
        shape = replace(SHAPE, num_statistics=int(self.adaptive))
        server = MaskServer(RUN, NAMES, self.settings, pinned=self.pinned)
        self.aggregation = MaskedAggregation(server, RUN, NAMES, shape)
        if self.adaptive:
            norm = AdaptiveNorm(AdaptiveClip(), ClipSettings(1.0, "client"))
            self.aggregation = AdaptiveAggregation(self.aggregation, norm)

    def run(self, round_index, to_server=None, to_client=None, participants=NAMES):
        exchange = Tampering(LocalExchange(self.clients, lambda *_: None), to_server, to_client)
        model = PlainModel(round_index, torch.ones(3, dtype=torch.float64))
        opened = self.aggregation.open(round_index, participants, exchange)
        packets = {name: (*before, model) for name, before in opened.items()}
        replies = exchange(round_index, packets, partial(self.aggregation.take, round_index))
        return self.aggregation.close(round_index, replies, exchange, (model,))


@dataclass
class Tampering:
    """An exchange that changes messages on their way; None is a message that never comes."""

    inner: LocalExchange
    to_server: object
    to_client: object

    def __call__(self, round_index, packets, respond=None):
        if self.to_client is not None:
            packets = {name: tuple(self.to_client(name, m) for m in packet) for name, packet in packets.items()}
        silent = set()

        def heard(name, reply):
            changed = reply if self.to_server is None else self.to_server(name, reply)
            if changed is None:
                silent.add(name)
                return ()
            packet = () if respond is None else respond(name, changed)
            return packet or Enough.keeping(kept_of(packet, changed))

        replies = self.inner(round_index, packets, heard)
        return {name: reply for name, reply in replies.items() if name not in silent}


def of_one(name, kind, change):
    """Change what one client sends, where it is of one kind."""
    return lambda sender, m: change(m) if sender == name and isinstance(m, kind) else m


def assert_sum(total, names):
    numbers = [int(name.removeprefix("client-")) for name in names]
    assert total.contributors == tuple(names)
    assert total.terms.tolist() == [[float(sum(numbers))] * 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, signature=bytes(64)),
        lambda m: replace(m, client="client-1"),
        lambda m: SurvivorSignature(0, 0, m.signature),
        lambda _: None,
    ],
    ids=["signature", "name", "type", "silence"],
)
def test_one_bad_announcement_does_not_end_a_run(change):
    federation = Federation()
    others = NAMES[:2] + NAMES[3:]
    assert_sum(federation.run(0, of_one("client-3", KeyAnnouncement, change)), others)
    assert_sum(federation.run(1), others)
    assert all(i.client == "client-3" and i.round_index == SETUP for i in federation.aggregation.incidents)


def test_another_identity_than_the_pinned_one_costs_only_the_client_that_announces_it():
    federation = Federation()
    stranger = KeyRing("client-3", RUN, Identity.generate(SeededRandomness(9)), {}, SeededRandomness(9))
    total = federation.run(0, of_one("client-3", KeyAnnouncement, lambda _: stranger.announce()))
    assert_sum(total, NAMES[:2] + NAMES[3:])


def test_with_a_floor_the_setup_is_repeated_for_the_missing_until_there_are_enough():
    federation, asked = Federation(MaskSettings(min_in_sum=5)), []

    def only_two(name, message):
        return message if name in NAMES[:2] or not isinstance(message, KeyAnnouncement) else None

    with pytest.raises(ThresholdError, match="Expected announced keys of 5 or more clients, got 2"):
        federation.run(0, only_two)

    def listen(name, message):
        asked.extend([name] if isinstance(message, KeyRequest) else [])
        return message

    assert_sum(federation.run(1, to_client=listen), NAMES)
    assert asked == list(NAMES[2:])
    assert not federation.aggregation.incidents


def test_a_client_that_deals_garbage_fails_one_round_by_name_and_is_left_out_afterwards():
    federation = Federation()
    garbage = of_one("client-1", SealedShares, lambda m: replace(m, sealed=tuple(bytes(len(s)) for s in m.sealed)))
    with pytest.raises(ThresholdError, match="client-2 could not open the shares of client-1"):
        federation.run(0, garbage)
    for round_index in (1, 2):
        assert_sum(federation.run(round_index, garbage), NAMES[1:])
    assert {incident.client for incident in federation.aggregation.incidents} == {"client-1"}


def test_garbage_for_one_recipient_costs_that_recipient_one_round():
    federation = Federation()
    garbage = of_one("client-1", SealedShares, lambda m: replace(m, sealed=(bytes(len(m.sealed[0])), *m.sealed[1:])))
    assert_sum(federation.run(0, garbage), (NAMES[0], *NAMES[2:]))
    assert_sum(federation.run(1), NAMES[1:])


def test_a_garbage_escrow_loses_one_round_and_its_owner_is_left_out_afterwards():
    federation = Federation()

    def bad_escrow(name, message):
        if name != "client-1":
            return message
        if isinstance(message, SealedShares):
            return replace(message, escrow=bytes(len(message.escrow)))
        return None if isinstance(message, MaskedUpload) else message

    with pytest.raises(LostSumError, match="escrow of client-1 does not open"):
        federation.run(0, bad_escrow)
    assert_sum(federation.run(1, bad_escrow), NAMES[1:])


def test_a_wrong_upload_loses_its_round_and_the_survivors_are_listed():
    federation = Federation()
    wrong = of_one("client-1", MaskedUpload, lambda m: replace(m, values=m.values + 12345678901234567))
    with pytest.raises(LostSumError, match="one of client-1, client-2, client-3, client-4, client-5, client-6 did not"):
        federation.run(0, wrong)
    assert_sum(federation.run(1), NAMES)


@pytest.mark.parametrize("kind", [SealedShares, MaskedUpload, SurvivorSignature, RevealedShares])
def test_a_message_of_another_type_or_round_is_an_incident_at_every_stage(kind):
    for change in (lambda m: KeyRequest(b""), lambda m: replace(m, round_index=7)):
        federation = Federation()
        total = federation.run(0, of_one("client-2", kind, change))
        assert set(total.contributors) >= set(NAMES) - {"client-2"}
        (incident,) = federation.aggregation.incidents
        assert (incident.round_index, incident.client) == (0, "client-2")


def test_a_client_that_refuses_again_and_again_is_left_out_after_three_attempts():
    federation, seen = Federation(), []

    def stubborn(name, message):
        if name == "client-1" and isinstance(message, MaskedUpload | RangeRefusal):
            seen.append(message.attempt)
            return RangeRefusal(0, message.attempt, (0,), (21 + message.attempt,))
        return message

    assert_sum(federation.run(0, stubborn), NAMES[1:])
    assert seen == [0, 1, 2]
    assert federation.aggregation.incidents == [
        Incident(0, "client-1", "RangeRefusal from client-1 could not be granted; it is left out of the round.")
    ]


def test_different_models_for_different_clients_give_no_sum():
    def split(name, message):
        is_other = isinstance(message, PlainModel) and name != "client-4"
        return replace(message, parameters=torch.zeros(3, dtype=torch.float64)) if is_other else message

    federation = Federation()
    with pytest.raises(ThresholdError, match="Expected at least 5 signatures on the list of survivors, got 1"):
        federation.run(0, to_client=split)
    assert {incident.client for incident in federation.aggregation.incidents} == set(NAMES) - {"client-4"}


def test_what_a_client_refuses_of_the_server_stops_the_run_loudly():
    def other_list(name, message):
        is_victim = name == "client-2" and isinstance(message, SurvivorList)
        return replace(message, sharers=NAMES[:5], survivors=NAMES[:5]) if is_victim else message

    with pytest.raises(AuthenticationError, match="client-2: SurvivorList from the server"):
        Federation().run(0, to_client=other_list)


def test_clients_that_were_shown_different_openings_complain_and_no_sum_comes_out():
    def other_format(name, message):
        is_victim = name == "client-2" and isinstance(message, MaskOpening)
        return replace(message, fraction_bits=(20, 20)) if is_victim else message

    federation = Federation()
    with pytest.raises(ThresholdError, match="client-1 could not open the shares of client-2"):
        federation.run(0, to_client=other_format)


def test_the_clipping_norm_is_part_of_what_clients_must_have_in_common():
    federation = Federation(adaptive=True)
    federation.run(0)
    assert federation.norms == [1.0] * 6

    def other_norm(name, message):
        is_victim = name == "client-2" and isinstance(message, ClipNorm)
        return replace(message, norm=message.norm * 2) if is_victim else message

    with pytest.raises(LostSumError):  # its masks do not cancel
        federation.run(1, to_client=other_norm)
    (incident,) = federation.aggregation.incidents
    assert incident.client == "client-2"
    assert "not its signature" in incident.reason


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: replace(m, round_index=3), "client-1: expected a clipping norm of round 0 .* got one of round 3"),
        (lambda m: replace(m, norm=torch.tensor(float("nan"))), "client-1: expected a clipping norm above 0"),
        (lambda m: replace(m, norm=torch.zeros(2)), "client-1: expected a clipping norm above 0"),
    ],
)
def test_a_clipping_norm_that_makes_no_sense_is_refused_before_the_training(change, match):
    federation = Federation(adaptive=True)
    with pytest.raises(ProtocolError, match=match):
        federation.run(0, to_client=lambda _, m: change(m) if isinstance(m, ClipNorm) else m)
    assert federation.norms == []


def test_a_plan_without_adaptive_clipping_takes_no_norm_and_one_with_it_wants_one():
    uploader = Federation().clients["client-1"]._uploader
    uploader.handle(ClipNorm(0, torch.tensor(1.0)))
    with pytest.raises(ProtocolError, match="client-1: expected no clipping norm"):
        uploader.bind(PlainModel(0, torch.zeros(3)))
    with pytest.raises(ProtocolError, match=r"client-1: expected a clipping norm .* got none"):
        Federation(adaptive=True).clients["client-1"]._uploader.bind(PlainModel(0, torch.zeros(3)))


def test_errors_about_keys_and_members_name_the_client():
    ring = Federation().rings["client-1"]
    with pytest.raises(ProtocolError, match="client-1: the server asks for keys of another run"):
        announce(ring, KeyRequest(b"other"))
    pairwise = PairwiseUploader(ring, lambda upload, *_: upload)
    with pytest.raises(ProtocolError, match="client-1: the server did not say who takes part in round 4"):
        pairwise.finish(Upload(4, 1, torch.zeros(1, 3), torch.zeros(0)))


def test_in_the_clear_a_reply_that_is_no_upload_is_an_incident_and_pairwise_it_fails_the_round():
    replies = {name: Upload(0, 1, torch.ones(1, 3), torch.zeros(0)) for name in NAMES[:2]} | {
        "client-3": KeyRequest(b"")
    }
    plain = PlainAggregation(SHAPE)
    assert plain.close(0, replies, None, ()).contributors == NAMES[:2]
    assert [incident.client for incident in plain.incidents] == ["client-3"]
    pairwise = PairwiseAggregation(RUN, NAMES, SHAPE)
    pairwise._expected = set(NAMES[:3])
    with pytest.raises(ThresholdError, match="no upload from client-3"):
        pairwise.close(0, replies, None, ())


@dataclass
class Mangled:
    """A client whose questions have lost most of their samples."""

    client: TrainingClient

    def handle(self, packet):
        reply = self.client.handle(packet)
        if isinstance(reply, SoftmaxQuery):
            return replace(reply, blinded_exponentials=reply.blinded_exponentials[:3])
        return reply


@pytest.mark.parametrize("masks", ["ring", "none"])
def test_a_question_that_makes_no_sense_costs_its_sender_the_round_and_nobody_else(masks):
    settings = {
        "model.name": "mlp-3",
        "data.name": "breast-cancer",
        "federation.clients": 5,
        "aggregation.masks": masks,
        "perturbation.softmax": "blinded",
    }
    plan = RunPlan().with_settings(settings)
    federation = load_federation(plan)
    blueprint, names = make_blueprint(plan, federation), federation.names
    training, exchange = blueprint.server(), blueprint.local_exchange(lambda *_: None)
    exchange.clients = {**exchange.clients, names[1]: Mangled(exchange.clients[names[1]])}
    assert training.advance(0, names, exchange) == (names[0], *names[2:])
    (incident,) = training.aggregation.incidents
    assert (incident.round_index, incident.client) == (0, names[1])
    assert f"SoftmaxQuery from {names[1]}" in incident.reason


def test_a_simulated_client_can_die_before_each_of_the_five_replies_of_a_round():
    dropouts = Dropouts(1.0, SeededRandomness(0))
    assert {dropouts.replies_before_death(r, name) for r in range(20) for name in NAMES} == {0, 1, 2, 3, 4}
