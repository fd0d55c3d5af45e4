"""A term over sites, knowing nothing of its kind but its name: what a transport's host does."""

import pytest
import torch
from tests.runs.hetero.harness import PLAN as HETERO_PLAN
from tests.runs.hetero.harness import HeteroLocalSites, facts_of
from tests.runs.rounds.harness import VERSION, LocalSites

from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.events import read_events
from bilateral.engine.kind import ENROLMENT, ServerAround, SiteAround, kind_named
from bilateral.engine.plan import RunPlan
from bilateral.engine.remote.edge import REFUSED, REPLY
from bilateral.engine.term import conduct
from bilateral.errors import SitesMissingError
from bilateral.runs.hetero.in_process import run_hetero
from bilateral.runs.rounds.in_process import run

ROUNDS_PLAN = RunPlan().with_settings(
    {"data.name": "wine", "model.name": "mlp-3", "federation.clients": 3, "training.rounds": 3}
)
SHORT = HETERO_PLAN.with_settings({"iterations": 1})


def tensors_of(path):
    return load_checkpoint(path / "checkpoint.safetensors").tensors


def test_rounds_over_sites_end_with_the_model_of_the_run_in_one_process(tmp_path):
    run(ROUNDS_PLAN, output=tmp_path / "here", reference=False)
    seen = []
    sites = LocalSites(ROUNDS_PLAN)
    path = tmp_path / "there"
    conduct(kind_named("rounds"), ROUNDS_PLAN, path, ServerAround("local", VERSION, sites), seen.append)
    here, there = tensors_of(tmp_path / "here"), tensors_of(path)
    assert here.keys() == there.keys()
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert [at.num_done for at in seen] == [1, 2, 3]


def test_a_heterogeneous_run_over_sites_ends_with_the_result_of_the_run_in_one_process(tmp_path):
    here = run_hetero(SHORT, output=tmp_path / "here")
    path = tmp_path / "there"
    facts = facts_of(SHORT)
    options = {"facts": {"dataset": facts.dataset, "num_samples": facts.num_samples}}
    around = ServerAround("local", VERSION, HeteroLocalSites(SHORT, path), options=options)
    there = conduct(kind_named("hetero"), SHORT, path, around)
    assert there.clients == here.clients


@pytest.mark.parametrize(("name", "plan"), [("rounds", ROUNDS_PLAN), ("hetero", SHORT)])
def test_a_term_without_its_sites_ends_by_name_and_says_so_in_the_log(tmp_path, name, plan):
    class Nobody(LocalSites):
        def __init__(self):
            """No desks."""

        def names(self):
            return []

    options = {"facts": {"dataset": "digits", "num_samples": dict.fromkeys(SHORT.clients.names, 12)}}
    with pytest.raises(SitesMissingError):
        conduct(kind_named(name), plan, tmp_path / "run", ServerAround("local", VERSION, Nobody(), options=options))
    *_, ended = read_events(tmp_path / "run" / "events.jsonl")
    assert (ended["event"], ended["round"], ended["finished"]) == ("run_ended", 0, False)


@pytest.mark.parametrize(("name", "plan"), [("rounds", ROUNDS_PLAN), ("hetero", SHORT)])
@pytest.mark.parametrize("packet", [None, 3, ["text"], [b"nonsense"], [b""] * 3])
@pytest.mark.parametrize("lane", [ENROLMENT, 0, 7, "0", None])
def test_a_site_of_either_kind_refuses_what_is_no_packet_and_never_raises(tmp_path, name, plan, packet, lane):
    kind = kind_named(name)
    member = kind.members(plan)[0]
    party = kind.site(member, plan, SiteAround(VERSION, store=tmp_path))
    answer = party.deliver(lane, 1, packet)
    assert list(answer) == [REFUSED]
    assert REPLY not in answer
    assert party.is_idle()


@pytest.mark.parametrize(("name", "plan"), [("rounds", ROUNDS_PLAN), ("hetero", SHORT)])
def test_a_kind_says_what_it_guarantees_and_who_takes_part(name, plan):
    kind = kind_named(name)
    assert kind.members(plan) == ("client-1", "client-2", "client-3")
    assert kind.guarantee(plan).claims
    assert kind.vocabulary.to_site
    assert kind.vocabulary.to_server
