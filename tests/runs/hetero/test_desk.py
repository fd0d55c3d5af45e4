"""A site of a heterogeneous run, alone: what it takes, what it refuses, and what it does not say."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.hetero.harness import PLAN
from tests.runs.rounds.harness import VERSION

from bilateral.engine.remote.edge import REFUSED, REPLY
from bilateral.errors import CheckpointError, PlanError
from bilateral.protocols.mask.keys import KeyDirectory
from bilateral.protocols.share.prediction.messages import SessionNotice, SessionRequest, SummedLogits
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode, encode
from bilateral.randomness import SeededRandomness
from bilateral.runs.hetero.desk import HeteroSiteDesk
from bilateral.runs.hetero.keys import SimulatedKeys
from bilateral.runs.hetero.messages import (
    REPLY_OF,
    GetReady,
    HeteroBriefing,
    Introduce,
    KeepAnswers,
    Retrain,
    TrainAlone,
)
from bilateral.runs.hetero.parties import answerers_of
from bilateral.runs.hetero.secure_answers import agreed_keys
from bilateral.runs.hetero.state import ClientState, SiteStore

SOME = PLAN.with_settings({"clients.number": 5, "queries.fraction": 0.5, "iterations": 1})


class Site:
    """A desk, and the number of the next packet."""

    def __init__(self, path, plan=SOME, name="client-1", **settings):
        self.desk = HeteroSiteDesk(name, plan, path, version=VERSION, **settings)
        self.number = 0

    def tell(self, *messages):
        self.number += 1
        answer = self.desk.deliver(0, self.number, [encode(message) for message in messages])
        if REFUSED in answer:
            self.number = self.desk._num_packets
            return answer[REFUSED]
        return [
            decode(data, [REPLY_OF[type(message)]], "site")
            for data, message in zip(answer[REPLY], messages, strict=True)
        ]

    def join(self, plan=SOME):
        assert not isinstance(self.tell(Introduce()), str)
        keys = SimulatedKeys(plan, 0)
        assert not isinstance(self.tell(HeteroBriefing(plan.digest(), 0, keys.run_id)), str)
        assert not isinstance(self.tell(roster_of(keys, keys.names)), str)
        return self


def roster_of(keys, names):
    directory = KeyDirectory(keys.run_id, keys.names, keys.pinned())
    for name in names:
        directory.register(name, keys.ring(name).announce())
    return directory.roster()


def test_keys_of_the_first_term_are_those_of_the_in_process_engine():
    keys, rings = SimulatedKeys(SOME, 0), agreed_keys([SERVER, *SOME.clients.names], SeededRandomness(7, "answers"))
    for name, ring in rings.items():
        assert keys.ring(name).announce() == ring.announce()
    assert keys.run_id != SimulatedKeys(SOME, 1).run_id
    assert keys.pinned() == SimulatedKeys(SOME, 1).pinned()


def test_packets_are_taken_in_order_each_once(tmp_path):
    site = HeteroSiteDesk("client-1", SOME, tmp_path, version=VERSION)
    introduce = [encode(Introduce())]
    assert "expected packet 1" in site.deliver(0, 2, introduce)[REFUSED]
    assert REPLY in site.deliver(0, 1, introduce)
    assert "expected packet 2" in site.deliver(0, 1, introduce)[REFUSED]
    assert REPLY in site.deliver(0, 2, introduce * 3)
    assert len(site.deliver(0, 3, introduce * 3)[REPLY]) == 3


@pytest.mark.parametrize("number", [True, None, "1", 1.0, -1, 0])
def test_a_packet_without_a_number_is_refused(tmp_path, number):
    desk = HeteroSiteDesk("client-1", SOME, tmp_path, version=VERSION)
    assert "expected packet 1" in desk.deliver(0, number, [encode(Introduce())])[REFUSED]


@settings(max_examples=60, deadline=None)
@given(
    packet=st.one_of(
        st.none(),
        st.binary(max_size=60),
        st.lists(st.one_of(st.binary(max_size=80), st.integers(), st.none()), max_size=3),
        st.lists(st.binary(max_size=40).map(lambda junk: encode(TrainAlone()) + junk), min_size=1, max_size=2),
        st.lists(st.just(encode(KeepAnswers(1))), min_size=1, max_size=2),
    )
)
def test_nothing_that_a_server_sends_makes_a_site_raise_or_advance(tmp_path_factory, packet):
    desk = HeteroSiteDesk("client-1", SOME, tmp_path_factory.mktemp("site"), version=VERSION)
    answer = desk.deliver(0, 1, packet)
    assert list(answer) == [REFUSED]
    assert desk._member is None or desk._member.state.stage == 0
    assert desk.is_idle()


def test_commands_out_of_order_are_refused_by_name(tmp_path):
    site = Site(tmp_path)
    assert "has done 0 of its stages" in site.tell(TrainAlone())  # its data are not open yet
    site.tell(Introduce())
    assert "no keys" in site.tell(GetReady(1))
    assert "not briefed" in site.tell(roster_of(SimulatedKeys(SOME, 0), SimulatedKeys(SOME, 0).names))
    site.join()
    for command in (GetReady(1), KeepAnswers(1), Retrain(1)):
        assert "has done 0 of its stages" in site.tell(command)
    for command in (Retrain(0), GetReady(0), GetReady(-3), KeepAnswers(2)):
        assert "iterations 1 to 1" in site.tell(command)
    (measured,) = site.tell(TrainAlone())
    assert 0 <= float(measured.accuracy) <= 1
    for command in (TrainAlone(), Retrain(1)):
        assert "has done 1 of its stages" in site.tell(command)
    assert "has answers to 0 of its queries" in site.tell(KeepAnswers(1))
    assert site.tell(GetReady(1))[0].num_queries == SOME.queries.number


def test_a_briefing_is_taken_once_and_only_of_this_plan_and_run(tmp_path):
    site, keys = Site(tmp_path), SimulatedKeys(SOME, 0)
    assert "another plan" in site.tell(HeteroBriefing(PLAN.digest(), 0, keys.run_id))
    assert "another run" in site.tell(HeteroBriefing(SOME.digest(), 1, keys.run_id))
    assert "terms count from 0" in site.tell(HeteroBriefing(SOME.digest(), -1, keys.run_id))
    assert not isinstance(site.tell(HeteroBriefing(SOME.digest(), 0, keys.run_id)), str)
    assert "one briefing" in site.tell(HeteroBriefing(SOME.digest(), 0, keys.run_id))


def test_a_roster_without_all_parties_makes_the_site_leave_for_good(tmp_path):
    site, keys = Site(tmp_path), SimulatedKeys(SOME, 0)
    site.tell(Introduce())
    site.tell(HeteroBriefing(SOME.digest(), 0, keys.run_id))
    assert "other parties than the plan" in site.tell(roster_of(keys, ["client-1", "client-2", SERVER]))
    assert "has left this term" in site.tell(Introduce())


def test_only_the_plans_clients_ask_and_answer(tmp_path):
    askers_of = {
        name: [other for other in SOME.clients.names if other != name and name in answerers_of(SOME, other, 1)]
        for name in SOME.clients.names
    }
    me = max(askers_of, key=lambda name: len(askers_of[name]))
    site = Site(tmp_path, name=me).join()
    site.tell(TrainAlone())
    assert "not told to get ready" in site.tell(SessionRequest(bytes(16), askers_of[me][0]))
    site.tell(GetReady(1))
    askers = askers_of[me]
    strangers = [name for name in (*SOME.clients.names, "mallory", SERVER) if name not in askers]
    assert len(strangers) >= 3
    for number, name in enumerate(strangers):
        assert "does not answer" in site.tell(SessionRequest(bytes([1, number] * 8), name))
    (model,) = site.tell(SessionRequest(bytes([2] * 16), askers[0]))
    chosen = answerers_of(SOME, me, 1)
    assert len(chosen) == 2
    for number, name in enumerate(set(SOME.clients.names) - set(chosen)):
        assert "does not ask" in site.tell(SessionNotice(bytes([3, number] * 8), name, model.circuit))
    first = SessionNotice(bytes([4] * 16), chosen[0], model.circuit)
    assert not isinstance(site.tell(first), str)
    assert "does not ask" in site.tell(SessionNotice(bytes([5] * 16), chosen[0], model.circuit))
    logits = torch.zeros(4, 10, dtype=torch.int64)
    for names in ((bytes([4] * 16),), (bytes([4] * 16), bytes([4] * 16)), ()):
        assert "all answers only" in site.tell(SummedLogits(names, (0,) * len(names), 16, logits))


def test_errors_about_the_sites_own_data_stay_in_its_log(tmp_path, caplog):
    secret_place = tmp_path / "very-private-place"
    secret_place.mkdir()
    plan = SOME.with_settings({"data.name": "cifar10"})
    site = Site(tmp_path / "state", plan, data_dir=secret_place)
    with caplog.at_level(logging.ERROR, logger="bilateral.site"):
        said = site.tell(Introduce())
    assert said == "MissingDataError at client-1; its own log says more."
    assert "very-private-place" in caplog.text


def test_a_state_of_another_plan_is_refused_and_left_alone(tmp_path):
    SiteStore(tmp_path, PLAN).save(ClientState(1, {"w": torch.ones(2)}, None, [0.5], [0]))
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    assert Site(tmp_path).tell(Introduce()) == "CheckpointError at client-1; its own log says more."
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_a_site_goes_on_from_what_it_kept(tmp_path):
    site = Site(tmp_path).join()
    (measured,) = site.tell(TrainAlone())
    again = Site(tmp_path)
    (card,) = again.tell(Introduce())
    assert (card.stage, card.accuracies.tolist(), card.num_queries) == (1, [float(measured.accuracy)], (0,))
    ours, theirs = site.desk._member.client.state_tensors(), again.desk._member.client.state_tensors()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@settings(max_examples=20, deadline=None)
@given(stage=st.integers(0, 5), width=st.integers(1, 4), data=st.data())
def test_a_state_comes_back_as_it_was_kept(tmp_path_factory, stage, width, data):
    store = SiteStore(tmp_path_factory.mktemp("store"), PLAN)
    measures = (stage + 1) // 2
    accuracies = data.draw(st.lists(st.floats(0, 1), min_size=measures, max_size=measures))
    sums = torch.randn(width, 3) if stage in (2, 4) else None
    store.save(ClientState(stage, {"w": torch.full((width,), float(stage))}, sums, accuracies, [4] * measures))
    found = store.load()
    assert (found.stage, list(found.accuracies), list(found.num_queries)) == (stage, accuracies, [4] * measures)
    assert torch.equal(found.model["w"], torch.full((width,), float(stage)))
    assert (found.sums is None) if sums is None else torch.equal(found.sums, sums)


@pytest.mark.parametrize("state", [ClientState(2, {}, None, [0.5], [0]), ClientState(1, {}, None, [], [])])
def test_a_state_that_no_site_keeps_is_refused(tmp_path, state):
    SiteStore(tmp_path, PLAN).save(state)
    with pytest.raises(CheckpointError, match="not a state"):
        SiteStore(tmp_path, PLAN).load()


def test_a_plan_in_the_clear_and_a_stranger_have_no_desk(tmp_path):
    with pytest.raises(PlanError, match="every query"):
        Site(tmp_path, SOME.with_settings({"answers": "plain"}))
    with pytest.raises(PlanError, match="no client of this run"):
        Site(tmp_path, name="client-9")
