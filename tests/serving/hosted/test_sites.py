"""A service over sites: the same integers as in one process, counted once, whoever dies, repeats or speaks nonsense."""

import socket

import pytest
import torch
from tests.serving.harness import NET, inputs, served
from tests.serving.hosted.harness import PLAN, VERSION, Service, soon

from bilateral.engine.events import MessageRefused, SiteMissed, SiteReturned
from bilateral.engine.kind import SiteAround
from bilateral.engine.remote.edge import REFUSED, REPLY
from bilateral.errors import BilateralError, DeploymentError, PlanError, ProtocolError, QuestionLimitError
from bilateral.protocols.mask.messages import KeyAnnouncement
from bilateral.protocols.membership import KeyRequest
from bilateral.protocols.noise.round_counter import MemoryCounter
from bilateral.protocols.transport import SERVER
from bilateral.protocols.wire import decode, encode
from bilateral.randomness import SeededRandomness
from bilateral.serving.asking import AskingSession
from bilateral.serving.dealer import AnswerDealer
from bilateral.serving.hosted.kind import KIND, simulated, simulated_identity
from bilateral.serving.hosted.messages import AskerGone, CallUp, NobodyAsks, SiteHere, WhatNext
from bilateral.serving.hosted.plan import AnswersPlan, ServingPlan, fingerprint_of
from bilateral.serving.messages import (
    AnswersDealt,
    AnswerTurn,
    Ask,
    AskingRequest,
    DealAnswers,
    Joined,
    Refused,
)
from bilateral.serving.server import AnswerServer, Conditions


def in_process(plan=PLAN, client="anna", term=0):
    """The same three parties with the same seeds, and a function call in the place of every line."""
    identities = {name: simulated_identity(plan, name) for name in plan.parties}
    pinned = {name: identity.public_bytes for name, identity in identities.items()}
    dealer = AnswerDealer(plan.dealer, identities[plan.dealer], pinned, simulated(plan, "dealer"))
    server = AnswerServer(
        served(),
        Conditions(plan.questions, plan.reveal),
        plan.dealer,
        dealer.handle,
        {name: MemoryCounter() for name in plan.clients},
        pinned,
        simulated(plan, "server").child("term", term),
    )
    own = server.session(client)
    return AskingSession(client, identities[client], plan.dealer, pinned, SeededRandomness(9), own.handle)


@pytest.fixture
def service(tmp_path):
    with Service(tmp_path).under_way() as found:
        yield found


@pytest.mark.parametrize("reveal", ["logits", "class"])
def test_over_sites_answers_are_the_same_to_the_last_bit(service, reveal):
    here = in_process()
    here.open()
    with service.asking() as there:
        there.open()
        for seed in (1, 2):
            assert torch.equal(there.ask(inputs(8, seed), reveal), here.ask(inputs(8, seed), reveal))
    assert service.used() == {"anna": 16, "carol": 0}


def test_answers_are_those_of_the_model(service):
    with service.asking("carol") as session:
        session.open()
        answers = session.ask(inputs(8, 4), "logits")
    assert float((answers - NET(inputs(8, 4)).detach()).abs().max()) < 2.0**-14


def test_clients_ask_at_the_same_time_and_one_after_the_other(service):
    with service.asking("anna") as anna, service.asking("carol") as carol:
        anna.open(), carol.open()
        for _ in range(2):
            assert anna.ask(inputs(2, 1), "class").tolist() == carol.ask(inputs(2, 1), "class").tolist()
    with service.asking("anna") as again:
        assert again.open().used == 4
    assert service.used() == {"anna": 4, "carol": 4}


def test_what_a_sites_process_carries_has_neither_inputs_nor_answers(service):
    """The site's party in the job has no key, and every word that it carries is masked or sealed for somebody else."""
    with service.asking() as session:
        session.open()
        asked = inputs(4, 7)
        answers = session.ask(asked, "logits")
    door = service.parties["anna"]
    assert not any(type(value).__name__ in ("Identity", "KeyRing") for value in vars(door).values())
    carried = b"".join(packet[0] for site, _, packet in service.sites.calls if site == "anna")
    words = [(row * 2.0**20).round().to(torch.int64) for row in (*asked, *answers)]
    assert not any(word.numpy().tobytes() in carried for row in words for word in row)


class TestCounts:
    def test_limits_are_each_clients_own_and_last(self, tmp_path):
        with Service(tmp_path).under_way() as service, service.asking() as session:
            session.open()
            for _ in range(2):
                session.ask(inputs(8), "class")
            with pytest.raises(QuestionLimitError, match="anna has asked 16 of 20 questions, so 8 more are too many"):
                session.ask(inputs(8), "class")
        with Service(tmp_path).under_way() as service, service.asking() as session:
            assert session.open().used == 16
            session.ask(inputs(4), "class")
            assert service.used() == {"anna": 20, "carol": 0}

    def test_a_question_is_counted_before_it_is_dealt_for(self, tmp_path):
        seen = []

        def between(site, packet):
            if site == "auditor" and isinstance(decode(packet[0], service.parties[site].types, SERVER), DealAnswers):
                seen.append(service.used()["anna"])
            return packet

        service = Service(tmp_path, between=between)
        with service.under_way(), service.asking() as session:
            session.open()
            session.ask(inputs(3), "class")
        assert seen == [3]

    def test_a_run_that_everybody_has_asked_all_of_is_finished(self, tmp_path):
        plan = PLAN.model_copy(update={"clients": ("anna",), "answers": AnswersPlan(questions=4)})
        service = Service(tmp_path, plan)
        with service.under_way(), service.asking() as session:
            session.open()
            session.ask(inputs(4), "class")
            assert service.run._is_finished()
        result = service.run.result(None)
        assert result.finished and result.as_dict()["questions"] == {"anna": 4}
        assert list(service.run.steps()) == []

    def test_no_one_else_spends_ones_questions(self, service):
        """Carol's kit at anna's door: the identity is not anna's, and the server hears it."""
        stolen = service.kit("anna")
        carols = service.kit("carol")
        mixed = type(stolen)(**{**vars(stolen), "identity": carols.identity})
        with service.asking(kit=mixed) as session, pytest.raises(BilateralError):
            session.open()
            session.ask(inputs(1), "class")
        assert service.used() == {"anna": 0, "carol": 0}

    def test_nobody_comes_in_without_the_doors_token(self, service):
        kit = service.kit()
        wrong = type(kit)(**{**vars(kit), "token": "00" * 32})
        with service.asking(kit=wrong) as session, pytest.raises(DeploymentError, match="turned this kit away"):
            session.open()
        named = type(kit)(**{**vars(service.kit("carol")), "port": kit.port})
        with service.asking(kit=named) as session, pytest.raises(DeploymentError, match="turned this kit away"):
            session.open()
        assert oct((service.folder / "sites" / "anna" / "kit.json").stat().st_mode)[-3:] == "600"
        assert oct((service.folder / "sites" / "anna").stat().st_mode)[-3:] == "700"

    def test_a_visitor_that_says_nothing_keeps_nobody_out(self, service):
        silent = [socket.create_connection(("127.0.0.1", service.kit().port)) for _ in range(3)]
        with service.asking() as session:
            session.open()
            assert len(session.ask(inputs(1), "class")) == 1
        assert all(one.getpeername() for one in silent), "they are still at the door"
        for one in silent:
            one.close()


class TestDeath:
    def test_an_asker_that_dies_has_spent_its_questions_and_the_next_one_is_heard(self, service):
        with service.asking() as session:
            session.open()
            told = []

            def tell(message, say=session._tell):
                if isinstance(message, AnswerTurn):
                    raise KeyboardInterrupt
                told.append(message)
                return say(message)

            session._tell = tell
            with pytest.raises(KeyboardInterrupt):
                session.ask(inputs(2), "class")
        with service.asking() as session:
            assert session.open().used == 2
            assert len(session.ask(inputs(2), "class")) == 2

    def test_a_dealer_that_dies_costs_what_was_asked_and_no_more(self, service):
        with service.asking() as session:
            session.open()
            service.sites.dead.add("auditor")
            with pytest.raises(ProtocolError, match="auditor, who deals, gave no answer"):
                session.ask(inputs(2), "class")
            assert service.used()["anna"] == 2
        with service.asking() as session, pytest.raises(ProtocolError, match="auditor"):
            session.open()
        service.sites.dead.clear()
        with service.asking() as session:
            session.open()
            assert len(session.ask(inputs(2), "class")) == 2
        soon(lambda: service.events(SiteMissed))
        assert {event.site for event in service.events(SiteMissed)} == {"auditor"}

    def test_a_site_that_dies_holds_up_nobody_else(self, service, monkeypatch):
        monkeypatch.setattr("bilateral.serving.hosted.server.RETRY_SECONDS", 0.05)
        service.sites.dead.add("anna")
        soon(lambda: [event for event in service.events(SiteMissed) if event.site == "anna"])
        with service.asking("carol") as session:
            session.open()
            assert len(session.ask(inputs(2), "class")) == 2
        service.sites.dead.clear()
        soon(lambda: service.events(SiteReturned))
        with service.asking("anna") as session:
            session.open()
            assert len(session.ask(inputs(2), "class")) == 2

    def test_a_service_begins_with_those_who_come(self, tmp_path):
        with Service(tmp_path, come=("carol", "auditor")).under_way() as service, service.asking("carol") as session:
            assert service.run.members == ("carol", "auditor")
            session.open()
            assert len(session.ask(inputs(2), "class")) == 2
        alone = Service(tmp_path, come=("carol",))
        with alone.under_way(), alone.asking("carol") as session, pytest.raises(ProtocolError, match="is not there"):
            session.open()

    def test_an_asker_that_keeps_the_server_waiting_is_sent_away(self, tmp_path):
        service = Service(tmp_path)
        service.parties["anna"]._patience = 0.3
        with service.under_way(), service.asking("anna") as session:
            session.open()
            soon(lambda: service.parties["anna"]._asker is None)
            with pytest.raises(BilateralError):
                session.ask(inputs(1), "class")
        assert service.used()["anna"] == 0

    def test_when_a_term_ends_no_new_question_is_counted(self, service):
        with service.asking() as session:
            session.open()
            service.run._stop.set()
            with pytest.raises(ProtocolError, match=r"The service rests: nothing was counted.*--resume"):
                session.ask(inputs(2), "class")
        assert service.used()["anna"] == 0


class TestMalformed:
    """A server that speaks nonsense to a site, and sites that do to the server."""

    def party(self, tmp_path, name="anna"):
        party = KIND.site(name, PLAN, SiteAround(VERSION, store=tmp_path / name))
        assert party.deliver(0, 1, [encode(CallUp(PLAN.digest(), VERSION))]).keys() == {REPLY}
        return party

    @pytest.mark.parametrize("name", ["anna", "auditor"])
    @pytest.mark.parametrize(
        "packet",
        [None, [], b"", [b""], [b"nonsense"], ["text"], [1], [encode(Joined())] * 2, [encode(AskerGone())],
         [encode(SiteHere("", ""))], [encode(AskingRequest())]],
    )  # fmt: skip
    def test_no_packet_makes_a_site_raise(self, tmp_path, name, packet):
        assert self.party(tmp_path, name).deliver(0, 2, packet).keys() == {REFUSED}

    @pytest.mark.parametrize("number", [1, 0, -1, None, "2", 2.0, True])
    @pytest.mark.parametrize("name", ["anna", "auditor"])
    def test_no_packet_is_taken_twice(self, tmp_path, name, number):
        party = self.party(tmp_path, name)
        message = WhatNext(0) if name == "anna" else KeyRequest(bytes(32))
        assert party.deliver(0, number, [encode(message)]).keys() == {REFUSED}
        assert party.deliver(0, 2, [encode(message)]).keys() == {REPLY}

    @pytest.mark.parametrize(
        "call", [CallUp("another", VERSION), CallUp(PLAN.digest(), "0.0"), WhatNext(0), KeyRequest(bytes(32))]
    )
    @pytest.mark.parametrize("name", ["anna", "auditor"])
    def test_a_site_takes_part_in_its_own_plan_alone(self, tmp_path, name, call):
        party = KIND.site(name, PLAN, SiteAround(VERSION, store=tmp_path / name))
        assert party.deliver(0, 1, [encode(call)]).keys() == {REFUSED}

    def test_a_door_at_which_nobody_asks_carries_nothing(self, tmp_path):
        party = self.party(tmp_path)
        (found,) = party.deliver(0, 2, [encode(WhatNext(0))])[REPLY]
        assert decode(found, (NobodyAsks,), "anna") == NobodyAsks()
        (found,) = party.deliver(0, 3, [encode(KeyRequest(bytes(32)))])[REPLY]
        assert decode(found, (AskerGone,), "anna") == AskerGone()

    def test_a_dealer_deals_nothing_to_a_server_that_repeats_itself(self, tmp_path):
        party = self.party(tmp_path, "auditor")
        for number, run_id in ((2, bytes(32)), (3, bytes(32))):
            (found,) = party.deliver(0, number, [encode(KeyRequest(run_id))])[REPLY]
        reply = decode(found, (Refused, KeyAnnouncement), "auditor")
        assert isinstance(reply, Refused) and "had its keys before" in reply.reason

    @pytest.mark.parametrize(
        "answer",
        [None, {}, [], {REPLY: []}, {REPLY: [b"nonsense"]}, {REPLY: [b""] * 2}, {REFUSED: "no"}, {REFUSED: 1},
         {REPLY: ["text"]}, {REPLY: [encode(WhatNext(1))]}, {REPLY: [encode(Ask(0, 1, "class"))]},
         {REPLY: [encode(AnswersDealt(0, bytes(32), b"", ()))]}, {REPLY: [bytes(1 << 24)]}],
    )  # fmt: skip
    def test_a_site_that_answers_nonsense_costs_nobody_a_question(self, tmp_path, monkeypatch, answer):
        monkeypatch.setattr("bilateral.serving.hosted.server.RETRY_SECONDS", 0.05)
        lies = {"anna": False}
        service = Service(tmp_path, back=lambda site, found: answer if lies.get(site) else found)
        with service.under_way():
            lies["anna"] = True
            with service.asking("carol") as session:
                session.open()
                assert len(session.ask(inputs(2), "class")) == 2
            lies["anna"] = False
            assert service.used() == {"anna": 0, "carol": 2}
            with service.asking("anna") as session:
                session.open()
                session.ask(inputs(1), "class")

    def test_a_site_with_another_plan_or_version_has_no_part(self, tmp_path):
        other = PLAN.model_copy(update={"answers": AnswersPlan(questions=21)})
        service = Service(tmp_path)
        service.parties["carol"].close()
        service.parties["carol"] = KIND.site("carol", other, SiteAround(VERSION, store=tmp_path / "sites" / "carol"))
        with service.under_way():
            assert service.run.members == ("anna", "auditor")
        assert [event.site for event in service.events(MessageRefused)] == ["carol"]

    def test_a_reordered_or_replayed_turn_is_refused_and_gives_nothing(self, tmp_path):
        """What the door carries twice, the server takes once."""
        service = Service(tmp_path)
        with service.under_way(), service.asking() as session:
            session.open()
            say = session._tell

            def twice(message):
                reply = say(message)
                if isinstance(message, AnswerTurn):
                    again = say(message)
                    assert isinstance(again, Refused), "the same turn again"
                    return again
                return reply

            session._tell = twice
            with pytest.raises(ProtocolError):
                session.ask(inputs(2), "class")
        assert service.used()["anna"] == 2


class TestPlans:
    def test_a_dealer_is_a_third_party(self):
        for clients, dealer in ((("anna",), "anna"), (("anna", "Anna"), "bob"), (("anna", "bob"), "BOB")):
            with pytest.raises(PlanError, match="need different names"):
                KIND.parse(
                    {"run": "first", "clients": clients, "dealer": dealer, "answers": {"questions": 3}}, "of a test"
                )

    @pytest.mark.parametrize("run", ["", "..", "../first", "a/b", ".first", "a" * 101, "first\n"])
    def test_a_run_is_a_plain_name(self, run):
        with pytest.raises(PlanError):
            KIND.parse({"run": run, "clients": ["anna"], "dealer": "bob", "answers": {"questions": 3}}, "of a test")

    @pytest.mark.parametrize("client", ["", "..", "a/b", "../spent", "a.json", "a" * 64, "a\n"])
    def test_a_clients_name_leads_nowhere(self, client):
        with pytest.raises(PlanError):
            KIND.parse({"run": "first", "clients": [client], "dealer": "bob", "answers": {"questions": 3}}, "of a test")

    def test_a_fingerprint_is_of_everything_but_waiting_and_of_this_kind_alone(self):
        same = PLAN.model_copy(update={"patience": 3.0})
        assert same.fingerprint() == PLAN.fingerprint() == fingerprint_of(PLAN.model_dump(mode="json"))
        changes = {"run": "b", "clients": ("anna",), "dealer": "eve", "answers": AnswersPlan(questions=21), "seed": 4}
        assert {*changes, "patience"} == set(ServingPlan.model_fields)
        plans = [PLAN, *(PLAN.model_copy(update={name: value}) for name, value in changes.items())]
        plans.append(PLAN.model_copy(update={"answers": AnswersPlan(questions=20, reveal="class")}))
        assert len({plan.fingerprint() for plan in plans}) == len(plans)
        from bilateral.engine.plan import fingerprint_of as of_rounds

        assert of_rounds(PLAN.model_dump(mode="json")) != PLAN.fingerprint()

    def test_a_plan_goes_through_its_file(self, tmp_path):
        from bilateral.engine.kind import read_any

        (tmp_path / "plan.toml").write_text(KIND.dump(PLAN))
        assert read_any(tmp_path / "plan.toml") == (KIND, PLAN)
