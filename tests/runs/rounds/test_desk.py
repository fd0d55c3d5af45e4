"""A site against a server that sends what it should not, and what the server hears of the site's troubles."""

import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runs.rounds.harness import VERSION, LocalSites
from tests.runs.rounds.test_in_process import plan

from bilateral.data import Dataset, Split
from bilateral.engine.federation import load_server_view
from bilateral.engine.kind import ENROLMENT
from bilateral.engine.remote.edge import REFUSED, REPLY
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.setup import make_blueprint
from bilateral.protocols.mask.messages import KeyAnnouncement, Roster
from bilateral.protocols.membership import KeyRequest
from bilateral.protocols.wire import decode, encode
from bilateral.runs.rounds.desk import SiteDesk
from bilateral.runs.rounds.enrolment import BRIEF, Briefing, SiteCard

CHOSEN = plan(federation__clients=3)
SECRET = "patient 4711"
HANG = 900.0
"""Seconds after which a test that waits has stopped for good."""


def desk(name="client-1", chosen=CHOSEN, **settings):
    make_secrets = lambda briefing: SimulatedSecrets(chosen.seed, briefing.members, briefing.term)  # noqa: E731
    return SiteDesk(name, chosen, make_secrets, version=VERSION, **settings)


def briefing(chosen=CHOSEN, **changes):
    view = load_server_view(chosen)
    secrets = SimulatedSecrets(chosen.seed, view.names)
    facts = Briefing(
        chosen.digest(),
        secrets.run_id,
        0,
        tuple(view.names),
        (0,) * len(view.names),
        view.problem.dataset,
        view.problem.task,
        view.problem.input_shape,
        view.problem.num_outputs,
        view.problem.loss,
        view.problem.class_names,
        view.problem.columns,
        view.problem.input_dtype,
        view.problem.schema.inputs,
        torch.zeros(0, dtype=torch.float64),
    )
    return replace(facts, **changes)


def briefed():
    one = desk()
    assert REPLY in one.brief(encode(briefing()))
    return one


def test_a_site_says_what_it_runs_and_no_number_of_samples():
    card = decode(desk().introduce()[REPLY], [SiteCard], "client-1")
    assert card == SiteCard(CHOSEN.digest(), VERSION, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan_digest": "0" * 16}, "another plan"),
        ({"members": ("client-1", "client-1", "client-2")}, "of the plan"),
        ({"members": ("client-1", "client-2")}, "of the plan"),
        ({"members": ("client-1",), "num_samples": (0,)}, "of the plan"),
        ({"members": ("client-1", "client-2", "client-4")}, "of the plan"),
        ({"num_samples": (0, 0)}, "not every site's"),
        ({"num_samples": (5, 0, 0)}, "another number of samples for client-1"),
        ({"task": "espionage"}, "names task 'espionage'"),
        ({"loss": "hinge"}, "not the plan's"),
        ({"loss": "mse"}, "not the plan's"),
        ({"input_shape": ()}, "do not fit"),
        ({"input_shape": (1 << 38,)}, "its own log says more"),
        ({"num_outputs": 0}, "do not fit"),
        ({"num_outputs": 3}, "its own log says more"),
        ({"term_scales": torch.zeros(2, 2, dtype=torch.float64)}, "do not fit"),
    ],
)
def test_a_briefing_that_does_not_fit_is_refused(changes, said):
    one = desk()
    answer = one.brief(encode(briefing(**changes)))
    assert said in answer[REFUSED]
    assert "was not briefed" in one.deliver(0, 1, [encode(KeyRequest(b"r" * 16))])[REFUSED]


@pytest.mark.parametrize("data", [b"", b"BLT1", "text", None, 7, encode(KeyRequest(b"r"))])
def test_a_briefing_that_is_none_is_refused(data):
    assert REFUSED in desk().brief(data)


@pytest.mark.parametrize(
    ("lane", "ticket", "packet"),
    [
        (0, 1, b"bytes"),
        (0, 1, ["text"]),
        (0, 1, [b"BLT1", None]),
        (0, 1, None),
        (0, 1, []),
        (0, 1, [b"BLT1"]),
        (0, 1, [encode(SiteCard("", "", 0))]),
        (0, 1, [encode(KeyAnnouncement(b"r" * 16, "client-1", b"", b"", b""))]),
        ("0", 1, [encode(KeyRequest(b"r" * 16))]),
        (True, 1, [encode(KeyRequest(b"r" * 16))]),
        (0, 1.0, [encode(KeyRequest(b"r" * 16))]),
        (1, 1, [encode(KeyRequest(b"r" * 16))]),
        (-1, 1, [encode(KeyRequest(b"r" * 16))]),
        (0, 1, [encode(KeyRequest(b"another run"))]),
    ],
)
def test_a_packet_that_makes_no_sense_is_refused_and_the_site_goes_on(lane, ticket, packet):
    one = briefed()
    assert list(one.deliver(lane, ticket, packet)) == [REFUSED]
    run_id = SimulatedSecrets(CHOSEN.seed, ("client-1", "client-2", "client-3")).run_id
    assert REPLY in one.deliver(0, 2, [encode(KeyRequest(run_id))])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=200), max_size=3), st.booleans())
def test_no_bytes_make_a_site_raise(parts, with_magic):
    packet = [b"BLT1" + part if with_magic else part for part in parts]
    assert list(ANY_DESK.deliver(0, 10**6, packet)) == [REFUSED]


ANY_DESK = briefed()


def test_a_server_that_shows_false_keys_is_left_for_good():
    chosen = CHOSEN
    names = ("client-1", "client-2", "client-3")
    secrets = SimulatedSecrets(chosen.seed, names)
    one = briefed()
    cards = {name: secrets.key_ring(name).announce() for name in names}
    false = SimulatedSecrets(99, names).key_ring("client-2").announce()
    cards["client-2"] = replace(false, run_id=secrets.run_id)
    roster = Roster(
        secrets.run_id,
        names,
        tuple(cards[n].agreement_key for n in names),
        tuple(cards[n].identity_key for n in names),
        tuple(cards[n].signature for n in names),
    )
    assert "has left this term" in one.deliver(0, 1, [encode(roster)])[REFUSED]
    assert "has left this term" in one.deliver(0, 2, [encode(KeyRequest(secrets.run_id))])[REFUSED]
    assert "briefed before" in one.brief(encode(briefing()))[REFUSED]


def test_a_second_briefing_in_a_term_is_refused():
    one = briefed()
    assert "briefed before" in one.brief(encode(briefing()))[REFUSED]


def broken_data(**_):
    raise RuntimeError(f"could not parse the record of {SECRET}")


def one_class(**_):
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    ones = torch.ones(20, dtype=torch.long)
    mixed = torch.arange(20) % 2
    return Dataset("one", "classification", Split(x, ones), Split(x, mixed), num_outputs=2)


@pytest.mark.parametrize("loader", ["broken_data", "one_class"])
def test_what_is_wrong_with_a_sites_data_stays_in_its_own_log(loader, caplog):
    chosen = plan(data__name=f"tests.runs.rounds.test_desk:{loader}", federation__clients=2)
    (said,) = desk(chosen=chosen).introduce().values()
    assert SECRET not in said
    assert "class 1" not in said
    assert "its own log says more" in said
    assert SECRET in caplog.text or "class 1" in caplog.text


def test_of_packets_that_wait_only_the_newest_is_worked_on():
    one = briefed()
    started, go_on = threading.Event(), threading.Event()
    work = one._clients[0].handle

    def slowly(packet):
        started.set()
        assert go_on.wait(HANG)
        return work(packet)

    one._clients[0].handle = slowly
    run_id = SimulatedSecrets(CHOSEN.seed, ("client-1", "client-2", "client-3")).run_id
    answers = {}

    def deliver(ticket):
        answers[ticket] = one.deliver(0, ticket, [encode(KeyRequest(run_id))])

    threads = [threading.Thread(target=deliver, args=(1,))]
    threads[0].start()
    assert started.wait(HANG)
    assert not one.is_idle()
    threads += [threading.Thread(target=deliver, args=(ticket,)) for ticket in (2, 3)]
    for thread in threads[1:]:
        thread.start()
    while one._newest < 3:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert REPLY in answers[1]
    assert "a later packet" in answers[2][REFUSED]
    assert REPLY in answers[3]
    assert one.is_idle()


def test_scales_of_terms_that_make_no_sense_are_refused_under_sound_noise():
    chosen = plan(
        training__loss="mse",
        perturbation__noise="offset",
        noise__mechanism="sound",
        noise__noise_multiplier=1.0,
        noise__unit="client",
    )
    told = make_blueprint(chosen, load_server_view(chosen)).term_scales
    good = torch.tensor(told, dtype=torch.float64)
    assert REPLY in desk(chosen=chosen).brief(encode(briefing(chosen, term_scales=good)))
    for bad in (good[:1], -good, good * float("inf"), good * float("nan")):
        assert "scales of terms" in desk(chosen=chosen).brief(encode(briefing(chosen, term_scales=bad)))[REFUSED]


def test_a_site_that_is_asked_to_train_beside_has_two_clients():
    sites = LocalSites(CHOSEN, reference=True)
    sites.call("client-1", ENROLMENT, BRIEF, [encode(briefing())], 1.0)
    assert len(sites.desks["client-1"]._clients) == 2


def test_a_refusal_does_not_repeat_a_long_list_of_names():
    answer = desk().brief(encode(briefing(members=("somebody else",) * 10_000)))
    assert len(answer[REFUSED]) < 2_000
