"""Sealed rounds over sites, without FLARE: the same integers as in one process, and what a dealer's absence costs."""

import json
import re
from dataclasses import replace

import pytest
import torch
from tests.protections.sealed.harness import plan_of
from tests.runs.rounds.harness import LocalSites, conduct, silent_at
from tests.runs.rounds.test_deployed_secrets import OwnSites, conduct_deployed

from bilateral.engine.events import read_events
from bilateral.engine.federation import load_server_view
from bilateral.engine.remote.edge import REFUSED, REPLY
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.errors import SitesMissingError
from bilateral.protocols.wire import decode, encode
from bilateral.runs.rounds.enrolment import Briefing, SiteCard
from bilateral.runs.rounds.in_process import run

NAMED = {"federation.dealer": "auditor"}


def of(path, kind):
    return [event for event in read_events(path / "events.jsonl") if event["event"] == kind]


def digests(path):
    return [event["gradient_digest"] for event in of(path, "round_done")]


@pytest.mark.parametrize("dealer", ["rotating", "auditor"])
def test_sites_train_the_same_model_to_the_last_integer(tmp_path, dealer):
    plan = plan_of(**{"federation.dealer": dealer})
    here = run(plan, output=tmp_path / "here", reference=False)
    there = conduct(plan, tmp_path / "there")
    assert digests(tmp_path / "here") == digests(tmp_path / "there")
    assert here.metrics == there.metrics
    sent = [(result.transcript.bytes_up, result.transcript.bytes_down) for result in (here, there)]
    assert sent[0] == sent[1]
    assert json.loads((tmp_path / "there" / "result.json").read_text())["dealer"] == dealer


@pytest.mark.parametrize("dealer", ["rotating", "auditor"])
def test_a_deployment_whose_parties_draw_their_own_secrets_trains(tmp_path, dealer):
    plan = plan_of(**{"federation.dealer": dealer, "training.batch_size": 0})
    sites = OwnSites(plan)
    result = conduct_deployed(plan, tmp_path / "run", sites)
    assert result.finished
    assert of(tmp_path / "run", "message_refused") == []
    assert len(set(digests(tmp_path / "run"))) == plan.training.rounds


def test_a_site_that_was_told_another_number_of_samples_of_others_opens_no_box(tmp_path):
    """It computes other terms, so it is in no sum with the rest."""
    plan = plan_of(**{"federation.clients": 5, "federation.patience": 0.1, "training.rounds": 1})
    sites = OwnSites(plan)

    def lie(site, briefing):
        counts = (briefing.num_samples[0], 5 * briefing.num_samples[1], *briefing.num_samples[2:])
        return replace(briefing, num_samples=counts) if site == "client-1" else briefing

    sites.lie = lie
    conduct_deployed(plan, tmp_path / "run", sites)
    assert "client-1" in {event["site"] for event in of(tmp_path / "run", "message_refused")}
    assert all("client-1" not in event["contributors"] for event in of(tmp_path / "run", "round_done"))


def test_the_dealer_tells_no_samples_and_the_others_do(tmp_path):
    plan = plan_of(**NAMED)
    sites = LocalSites(plan)
    cards = {name: decode(desk.introduce()[REPLY], [SiteCard], name).num_samples for name, desk in sites.desks.items()}
    assert cards.pop("auditor") == 0
    assert all(cards.values())


@pytest.mark.parametrize("stage", ["dealing", "a sealed step"])
def test_a_site_that_dies_in_a_round_is_out_of_it(tmp_path, stage):
    plan = plan_of(**{"federation.clients": 8, "federation.timeout": 5})
    conduct(plan, tmp_path / "run", LocalSites(plan, silent_at("client-2", stage, {1})))
    contributors = [len(event["contributors"]) for event in of(tmp_path / "run", "round_done")]
    # Whose dealer is missing is missing too; who is silent at dealing sits the round out.
    assert contributors == [8, 6 if stage == "dealing" else 7, 8]


def test_a_round_without_the_named_dealer_fails_by_name_and_waits_for_it(tmp_path):
    plan = plan_of(**{**NAMED, "training.rounds": 4})
    conduct(plan, tmp_path / "run", LocalSites(plan, silent_at("auditor", "dealing", {1})))
    (failed,) = of(tmp_path / "run", "round_failed")
    assert failed["round"] == 2
    assert "auditor, who deals, did not answer" in failed["reason"]
    assert [event["site"] for event in of(tmp_path / "run", "site_missed")] == ["auditor"]
    assert [event["site"] for event in of(tmp_path / "run", "site_returned")] == ["auditor"]
    assert [event["round"] for event in of(tmp_path / "run", "round_done")] == [1, 3, 4]


def test_a_term_without_the_named_dealer_does_not_begin(tmp_path):
    plan = plan_of(**NAMED)
    with pytest.raises(SitesMissingError, match="auditor, who deals, is not ready"):
        conduct(plan, tmp_path / "run", LocalSites(plan, here=("client-1", "client-2", "client-3")))


def test_a_dealer_that_stays_away_ends_the_run_by_name_with_its_checkpoint(tmp_path):
    plan = plan_of(**{**NAMED, "federation.patience": 0.5, "training.rounds": 4})
    sites = LocalSites(plan, silent_at("auditor", "dealing", range(1, 100)))
    alive = sites.ping

    def ping(site):
        return None if site == "auditor" else alive(site)

    sites.ping = ping
    with pytest.raises(SitesMissingError, match="Round 3 needs auditor, who deals, and it is not there"):
        conduct(plan, tmp_path / "run", sites)
    assert [event["round"] for event in of(tmp_path / "run", "round_done")] == [1]


def briefing(plan, **changes):
    view = load_server_view(plan)
    problem = view.problem
    facts = Briefing(
        plan.digest(),
        SimulatedSecrets(plan.seed, plan.parties(view.names)).run_id,
        0,
        tuple(view.names),
        (100,) * len(view.names),
        problem.dataset,
        problem.task,
        problem.input_shape,
        problem.num_outputs,
        problem.loss,
        problem.class_names,
        problem.columns,
        problem.input_dtype,
        problem.schema.inputs,
        torch.zeros(0, dtype=torch.float64),
    )
    return replace(facts, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan_digest": "0" * 16}, "another plan"),
        ({"members": ("client-1", "client-2", "auditor")}, "of the plan"),
        ({"num_samples": (0, 0)}, "not every site's"),
        ({"task": "espionage"}, "not known here|not the plan's"),
        ({"loss": "hinge"}, "not the plan's"),
        ({"input_shape": ()}, "do not fit"),
        ({"input_shape": (-3,)}, "do not fit"),
        ({"input_shape": (1 << 38,)}, "do not fit"),
        ({"num_outputs": 0}, "do not fit"),
    ],
)
def test_a_dealer_that_is_told_nonsense_refuses(changes, said):
    plan = plan_of(**NAMED)
    desk = LocalSites(plan, here=("auditor",)).desks["auditor"]
    answer = desk.brief(encode(briefing(plan, **changes)))
    assert re.search(said, answer[REFUSED])
    assert REPLY in desk.brief(encode(briefing(plan)))
