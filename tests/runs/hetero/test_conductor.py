"""Sites and server of a heterogeneous run apart from each other: the same result as in one process, and faults."""

import pytest
import torch
from tests.runs.hetero.harness import (
    PLAN,
    Call,
    HeteroLocalSites,
    conduct,
    dies_at,
)
from tests.runs.rounds.harness import VERSION

from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.events import read_events
from bilateral.engine.remote.edge import REPLY
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import CheckpointError, PlanError, ProtocolError, SitesMissingError
from bilateral.protocols.share.circuit.compiler import compile_model
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.wire import decode, encode
from bilateral.runs.hetero.in_process import run_hetero
from bilateral.runs.hetero.messages import REPLY_OF, Done, HeteroCard, Measured, QueriesReady

SHORT = PLAN.with_settings({"iterations": 1})


def networks(path):
    """Every site's network, from the sites' own directories, named as in a checkpoint of the in-process engine."""
    found = {}
    for folder in sorted((path / "sites").iterdir()):
        tensors = load_checkpoint(folder / "checkpoint.safetensors").tensors
        found |= {f"model/{folder.name}/{k.removeprefix('model/')}": t for k, t in tensors.items() if k != "sums"}
    return found


def sums(path):
    found = {}
    for folder in sorted((path / "sites").iterdir()):
        tensors = load_checkpoint(folder / "checkpoint.safetensors").tensors
        found |= {f"sums/{folder.name}": t for k, t in tensors.items() if k == "sums"}
    return found


def comparable(result):
    return {key: value for key, value in result.as_dict().items() if key not in ("seconds", "output")}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    """The oracle: the same plan with all parties in one process."""
    path = tmp_path_factory.mktemp("hetero") / "run"
    return path, run_hetero(PLAN, output=path)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("hetero") / "short"
    run_hetero(SHORT, output=path)
    return load_checkpoint(path / "checkpoint.safetensors").tensors


def test_sites_end_with_the_networks_of_the_in_process_run_bit_for_bit(tmp_path, in_process):
    path, here = in_process
    seen = []
    there = conduct(PLAN, tmp_path / "run", on_progress=seen.append)
    assert comparable(there) == comparable(here)
    expected = {k: t for k, t in load_checkpoint(path / "checkpoint.safetensors").tensors.items() if "model/" in k}
    ours = networks(tmp_path / "run")
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert seen[-1].share_done == pytest.approx(1.0)
    assert [at.stages_done for at in seen] == sorted(at.stages_done for at in seen)
    assert (tmp_path / "run" / "result.json").exists()


def test_sums_at_the_sites_are_those_of_the_in_process_run_bit_for_bit(tmp_path):
    def stop_after(number, seen):
        return {"on_progress": seen.append, "should_stop": lambda: bool(seen) and seen[-1].stages_done >= number}

    run_hetero(SHORT, output=tmp_path / "here", **stop_after(6, []))
    stopped = conduct(SHORT, tmp_path / "there", **stop_after(6, []))
    assert (stopped.finished, stopped.stages_done) == (False, 6)
    expected = load_checkpoint(tmp_path / "here" / "checkpoint.safetensors").tensors
    ours = sums(tmp_path / "there")
    assert len(ours) == 3
    assert all(torch.equal(ours[name], expected[name]) for name in ours)


@pytest.mark.parametrize("style", ["hardened", "published"])
def test_who_asks_judges_at_the_sites_as_in_one_process_if_the_plan_says_so(tmp_path, style):
    plan = SHORT.with_settings({"style": style})
    here = run_hetero(plan, output=tmp_path / "here")
    sites = HeteroLocalSites(plan, tmp_path / "there")
    there = conduct(plan, tmp_path / "there", sites)
    judged = {site for site, kind, _ in sites.replies if kind == "BlindedValues"}
    assert judged == set(plan.clients.names)
    assert comparable(there) == comparable(here)
    assert 5 in {leak["ledger_line"] for leak in there.as_dict()["guarantee"]["leaks"]}
    expected = load_checkpoint(tmp_path / "here" / "checkpoint.safetensors").tensors
    ours = networks(tmp_path / "there")
    assert all(torch.equal(ours[name], expected[name]) for name in ours)


def test_nobody_judges_unless_the_plan_says_so(tmp_path):
    sites = HeteroLocalSites(SHORT, tmp_path / "run")
    conduct(SHORT, tmp_path / "run", sites)
    assert "BlindedValues" not in {kind for _, kind, _ in sites.replies}


@pytest.mark.parametrize(
    ("kind", "nth", "replied", "stage"),
    [
        ("Introduce", 1, False, "enrolment"),
        ("HeteroBriefing", 1, False, "key agreement"),
        ("Roster", 1, True, "key agreement"),
        ("TrainAlone", 1, False, "training alone"),
        ("TrainAlone", 1, True, "training alone"),
        ("GetReady", 1, False, "making queries, iteration 1"),
        ("SessionRequest", 1, False, "answering client-1, iteration 1"),
        ("BatchRequest", 1, False, "answering client-1, iteration 1"),  # it deals while the one before it is answered
        ("ServerTurn", 2, False, "answering client-[13], iteration 1"),
        ("SummedLogits", 1, True, "answering client-2, iteration 1"),
        ("KeepAnswers", 1, False, "answering client-2, iteration 1"),
        ("KeepAnswers", 1, True, "answering client-2, iteration 1"),
        ("Retrain", 1, False, "retraining, iteration 1"),
        ("Retrain", 1, True, "retraining, iteration 1"),
    ],
)
def test_a_site_that_dies_in_a_stage_ends_the_term_by_name_and_the_next_term_goes_on(
    tmp_path, short_run, kind, nth, replied, stage
):
    path = tmp_path / "run"
    fault = dies_at("client-2", kind, nth, replied=replied)
    with pytest.raises(SitesMissingError, match=f"client-2 gave no answer at the stage: {stage}"):
        conduct(SHORT, path, _sites(path, fault=fault))
    missed = [event for event in read_events(path / "events.jsonl") if event["event"] == "site_missed"]
    assert [(event["site"], event["reason"]) for event in missed] == [("client-2", "gone")]
    assert not (path / "result.json").exists()
    trained = []

    def count(call: Call) -> None:
        if call.kind in ("TrainAlone", "Retrain") and not call.replied:
            trained.append((call.site, call.kind))

    assert conduct(SHORT, path, _sites(path, fault=count)).finished
    if replied and kind in ("TrainAlone", "Retrain"):
        assert ("client-2", kind) not in trained  # it was done, only the reply was lost
    ours = networks(path)
    expected = {name: tensor for name, tensor in short_run.items() if name.startswith("model/")}
    assert ours.keys() == expected.keys()
    # Other keys in the second term: sums differ by the last place of the truncations, and no more.
    assert all(torch.allclose(ours[name].double(), expected[name].double(), atol=1e-3) for name in expected)


def _sites(path, plan=SHORT, **settings):
    return HeteroLocalSites(plan, path, **settings)


def test_a_run_that_was_stopped_between_any_two_stages_goes_on(tmp_path, short_run):
    for number in (0, 4):
        path, seen = tmp_path / f"run-{number}", []
        stopped = conduct(
            SHORT, path, on_progress=seen.append, should_stop=lambda n=number, s=seen: s[-1].stages_done >= n
        )
        assert (stopped.stages_done, stopped.finished) == (number, False)
        again = conduct(SHORT, path)
        assert again.finished
        assert again.seconds > stopped.seconds
        assert all(torch.allclose(t, short_run[name], atol=1e-3) for name, t in networks(path).items())


def test_a_stop_file_stops_the_run_after_the_stage_at_hand(tmp_path):
    path = tmp_path / "run"

    def ask_to_stop(call: Call) -> None:
        if call.kind == "TrainAlone":
            (path / "stop").touch()

    assert conduct(SHORT, path, _sites(path, fault=ask_to_stop)).stages_done == 3


def test_a_finished_run_reports_the_same_again_and_trains_nobody(tmp_path):
    path = tmp_path / "run"
    first = conduct(SHORT, path)
    sites = _sites(path)
    assert comparable(conduct(SHORT, path, sites)) == comparable(first)
    assert {kind for _, kind, _ in sites.replies} == {"Introduce", "HeteroBriefing", "Roster"}


def test_every_term_has_its_own_keys(tmp_path):
    path, seen = tmp_path / "run", []
    for _ in range(2):
        sites = _sites(path)
        conduct(SHORT, path, sites, should_stop=lambda: True)
        seen.append([data for _, kind, data in sites.replies if kind == "HeteroBriefing"])
    assert not set(seen[0]) & set(seen[1])


def test_a_site_that_lost_its_state_is_refused_by_name(tmp_path):
    path = tmp_path / "run"
    conduct(SHORT, path)
    (path / "sites" / "client-2" / "checkpoint.safetensors").unlink()
    with pytest.raises(CheckpointError, match="client-2 has done 0 of its stages, 3 by what the server kept"):
        conduct(SHORT, path)


def test_a_run_of_the_in_process_engine_is_refused_by_name(tmp_path):
    run_hetero(SHORT, output=tmp_path / "run", training_only=True)
    with pytest.raises(CheckpointError, match="in one process"):
        conduct(SHORT, tmp_path / "run")


def test_the_server_never_receives_a_query_a_weight_or_a_logit(tmp_path):
    """Everything that came to the server, element by element: what is private agrees with it no more than chance."""
    path = tmp_path / "run"
    secrets = []

    def remember(call: Call) -> None:
        if call.kind == "GetReady" and call.replied:
            desk = sites.desks[call.site]
            compiled = compile_model(desk._member.client.answering_model(), desk._samples)
            secrets.extend(tensor for layer in compiled.layers for tensor in (layer.weight, layer.bias))
            secrets.extend(desk._member.client.model.state_dict().values())
            queries = desk._member.client.make_queries(1)
            secrets.extend((queries, ring.encode(queries.double(), compiled.circuit.values[0].fraction_bits)))
        if call.kind == "KeepAnswers" and call.replied:
            secrets.append(sites.desks[call.site]._member.state.sums)

    sites = _sites(path, fault=remember)
    conduct(SHORT, path, sites)
    types = {kind.__name__: reply for kind, reply in REPLY_OF.items()}
    received = [decode(data, [types[kind]], site) for site, kind, data in sites.replies]
    arrays = [tensor for message in received for tensor in _tensors(message)]
    assert all(array.dtype in (torch.int64, torch.int32) or array.numel() <= 2 for array in arrays)  # accuracies
    compared = [_agreement(array, secret) for array in arrays for secret in secrets if _comparable(array, secret)]
    assert len(compared) > 50
    assert max(compared) < 0.5
    assert all(_agreement(secret, secret) == 1.0 for secret in secrets)  # what a leak would look like


def _comparable(array, secret):
    return secret.numel() >= 8 and array.numel() == secret.numel()


def _agreement(array, secret):
    """Which part of the elements are the same."""
    return float((array.reshape(-1).double() == secret.reshape(-1).double()).double().mean())


def _tensors(message):
    values = [part for value in vars(message).values() for part in (value if isinstance(value, tuple) else (value,))]
    return [value for value in values if isinstance(value, torch.Tensor)]


def one_number(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        ("TrainAlone", {REPLY: [b"BLT1 nonsense"]}, "client-3.*cut off or too long"),
        ("TrainAlone", {REPLY: [encode(Done())]}, "expected one of Measured"),
        ("TrainAlone", {REPLY: []}, "client-3 sent 0 replies to 1 messages"),
        ("TrainAlone", {REPLY: encode(Done())}, "neither messages nor a refusal"),
        ("TrainAlone", {}, "no answer of a site"),
        ("TrainAlone", ["x"], "no answer of a site"),
        ("TrainAlone", {REPLY: [encode(Measured(one_number(1.5), 0))]}, "client-3.*accuracies"),
        ("TrainAlone", {REPLY: [encode(Measured(one_number(float("nan")), 0))]}, "client-3.*accuracies"),
        ("TrainAlone", {REPLY: [encode(Measured(torch.zeros(3), 0))]}, "client-3.*accuracies"),
        ("TrainAlone", {REPLY: [encode(Measured(one_number(0.5), 4))]}, "client-3 said 4 queries; expected 0 to 0"),
        ("Retrain", {REPLY: [encode(Measured(one_number(0.5), 0))]}, "client-3 said 0 queries; expected 1 to 4"),
        ("GetReady", {REPLY: [encode(QueriesReady(10**9))]}, "client-3 said 1000000000 queries"),
        ("GetReady", {REPLY: [encode(QueriesReady(-1))]}, "client-3 said -1 queries"),
        ("Introduce", {REPLY: [encode(HeteroCard("x", VERSION, 0, torch.empty(0), ()))]}, "another plan"),
        (
            "Introduce",
            {REPLY: [encode(HeteroCard(SHORT.digest(), "0.0", 0, torch.empty(0), ()))]},
            "client-3 runs bilateral 0.0",
        ),
        (
            "Introduce",
            {REPLY: [encode(HeteroCard(SHORT.digest(), VERSION, 99, torch.empty(0), ()))]},
            "client-3 has done 99 stages",
        ),
        (
            "Introduce",
            {REPLY: [encode(HeteroCard(SHORT.digest(), VERSION, 1, one_number([2.0]), (0,)))]},
            "client-3.*accuracies",
        ),
        (
            "Introduce",
            {REPLY: [encode(HeteroCard(SHORT.digest(), VERSION, 1, one_number([0.5]), (77,)))]},
            "client-3.*numbers of queries",
        ),
    ],
)
def test_a_malformed_reply_is_refused_by_name(tmp_path, kind, answer, words):
    path = tmp_path / "run"

    def tamper(call: Call, honest: dict) -> dict:
        return answer if (call.site, call.kind) == ("client-3", kind) else honest

    with pytest.raises(ProtocolError, match=words):
        conduct(SHORT, path, _sites(path, tamper=tamper))
    ended = list(read_events(path / "events.jsonl"))[-1]
    assert (ended["event"], ended["finished"]) == ("run_ended", False)


def test_a_site_that_did_not_come_is_named(tmp_path):
    path = tmp_path / "run"
    sites = _sites(path)
    del sites.desks["client-2"]
    with pytest.raises(SitesMissingError, match="client-2 did not come"):
        conduct(SHORT, path, sites)


def test_answers_in_the_clear_and_another_plan_s_directory_are_refused(tmp_path):
    plain = SHORT.with_settings({"answers": "plain"})
    RunDirectory.create(tmp_path / "plain", plain)
    with pytest.raises(PlanError, match="every query"):
        conduct(plain, tmp_path / "plain", _sites(tmp_path))
    RunDirectory.create(tmp_path / "other", PLAN)
    with pytest.raises(CheckpointError, match="another plan"):
        conduct(SHORT, tmp_path / "other", _sites(tmp_path))
