"""Heterogeneous runs on FLARE: server and sites as processes, and the same networks as in one process."""

import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from tests.runs.hetero.harness import PLAN
from tests.runs.hetero.test_conductor import SHORT, comparable, networks

from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.events import read_events
from bilateral.engine.flare.kit_builder import JOB_CLASSES
from bilateral.engine.flare.launch import run_on_flare
from bilateral.engine.flare.premises import SIMULATION, accepted_plan, open_server, open_site, plan_of_job
from bilateral.engine.flare.site_settings import load_site_settings
from bilateral.engine.kind import HETERO
from bilateral.errors import CheckpointError, ModelError, PlanError, SitesMissingError
from bilateral.runs.hetero.in_process import run_hetero
from bilateral.runs.hetero.kind import KIND

SLOW = PLAN.with_settings({"training.epochs": 3000})
"""Training takes so long that a test can kill a site in it."""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def expected_networks(path):
    tensors = load_checkpoint(path / "checkpoint.safetensors").tensors
    return {name: tensor for name, tensor in tensors.items() if name.startswith("model/")}


def children_of(site):
    """Our own children that run as a site."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(argument == f"uid={site}" or Path(argument).name == site for argument in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_the_simulator_ends_with_the_networks_of_the_in_process_run_bit_for_bit(tmp_path):
    seen = []
    there = run_on_flare(KIND, PLAN, "flare-sim", output=tmp_path / "there", on_status=seen.append)
    here = run_hetero(PLAN, output=tmp_path / "here")
    assert there.finished
    assert comparable(there) == comparable(here)
    ours, expected = networks(tmp_path / "there"), expected_networks(tmp_path / "here")
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert seen[-1].stage is None
    files = {file.name for file in (tmp_path / "there").iterdir() if not file.name.startswith(".")}
    assert files == {"plan.toml", "events.jsonl", "checkpoint.safetensors", "result.json", "sites"}


class Killer:
    """Asked again and again whether to stop: never, but it kills client-2 once, when its training has begun."""

    def __init__(self, path):
        self.path = path
        self.killed = []

    def __call__(self):
        if not self.killed and any(event["event"] == "run_started" for event in events(self.path)):
            self.killed = children_of("client-2")
            for process in self.killed:
                os.kill(process.pid, signal.SIGKILL)
        return False


def events(path):
    return list(read_events(path / "events.jsonl"))


def terms(path):
    return [event["term"] for event in events(path) if event["event"] == "run_started"]


@pytest.mark.long
def test_a_site_that_is_killed_in_the_simulator_is_named_and_the_run_goes_on(tmp_path):
    path = tmp_path / "run"
    killer = Killer(path)
    with pytest.raises(SitesMissingError, match="client-2 gave no answer at the stage: training alone"):
        run_on_flare(KIND, SLOW, "flare-sim", output=path, should_stop=killer)
    assert killer.killed
    assert not children_of("client-1")
    assert run_on_flare(KIND, SLOW, "flare-sim", output=path, resume=True).finished
    assert terms(path) == [0, 1]


@pytest.mark.long
def test_a_site_that_is_killed_in_a_deployment_on_loopback_is_started_again_and_the_run_goes_on(tmp_path):
    path, notes = tmp_path / "run", []
    killer = Killer(path)
    assert run_on_flare(KIND, SLOW, "flare-poc", output=path, should_stop=killer, on_note=notes.append).finished
    assert killer.killed
    assert "client-2 ended; it is started again" in notes
    assert terms(path) == sorted(set(terms(path)))
    assert len(terms(path)) > 1


@pytest.mark.long
def test_a_deployment_on_loopback_ends_with_the_same_networks(tmp_path):
    there = run_on_flare(KIND, SHORT, "flare-poc", output=tmp_path / "there")
    run_hetero(SHORT, output=tmp_path / "here")
    ours, expected = networks(tmp_path / "there"), expected_networks(tmp_path / "here")
    assert there.finished
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_what_does_not_fit_is_refused_before_any_process_is_started(tmp_path):
    refused = [
        ({"answers": "plain"}, PlanError, "every query"),
        ({"clients.architectures": [{"name": "mlp-3", "options": {"depth": 1}}]}, ModelError, "depth"),
    ]
    for settings, kind, words in refused:
        with pytest.raises(kind, match=words):
            run_on_flare(KIND, SHORT.with_settings(settings), "flare-sim", output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(PlanError, match="Resuming needs"):
        run_on_flare(KIND, SHORT, "flare-sim", resume=True)
    run_hetero(SHORT, output=tmp_path / "here", training_only=True)
    with pytest.raises(CheckpointError, match="in one process"):
        run_on_flare(KIND, SHORT, "flare-sim", output=tmp_path / "here", resume=True)


def test_the_plan_of_a_job_in_a_simulation_is_the_plan_that_was_sent(monkeypatch):
    monkeypatch.setenv(SIMULATION, "1")
    assert plan_of_job(KIND, SHORT.model_dump_json()) == SHORT
    for text in ("", "[]", "3", '{"seeed": 1}'):
        with pytest.raises(PlanError):
            plan_of_job(KIND, text)


class Kit:
    def __init__(self, root):
        (root / "flare").mkdir()
        (root / "bilateral.toml").write_text('[plans]\naccepted = ["' + "ab" * 32 + '"]\n[server]\nruns = "runs"\n')
        self._root = root

    def get_root_dir(self):
        return str(self._root / "flare")


def test_a_job_in_a_deployment_is_refused_whatever_it_says(tmp_path, monkeypatch):
    monkeypatch.delenv(SIMULATION, raising=False)
    kit, plan, facts = Kit(tmp_path), SHORT.model_dump_json(), '{"dataset": "digits", "num_samples": {}}'
    for refused in (
        lambda: accepted_plan(KIND, plan, load_site_settings(tmp_path)),
        lambda: open_site("client-1", kit, HETERO, plan, facts=facts, stores=str(tmp_path / "out"), data_dir=""),
        lambda: open_server(kit, HETERO, plan, output="run", engine="flare", facts=facts, data_dir=""),
    ):
        with pytest.raises(PlanError, match="for simulations so far"):
            refused()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bilateral.toml", "flare"]


def test_a_job_names_a_kind_of_the_table_and_never_code(tmp_path, monkeypatch):
    monkeypatch.setenv(SIMULATION, "1")
    for name in ("os", "os:system", "bilateral.runs.hetero.kind", "../hetero", "", "Hetero", None):
        with pytest.raises(PlanError, match="no such kind"):
            open_site("client-1", None, name, "{}", facts="{}", stores="", data_dir="")
        with pytest.raises(PlanError, match="no such kind"):
            open_server(None, name, "{}", output="run", engine="flare-sim", facts="{}", data_dir="")


def test_kits_let_jobs_build_one_class_an_end_and_those_of_flare():
    from bilateral.engine.flare.coordinator import Coordinator
    from bilateral.engine.flare.site import Site

    ours = {name for name in JOB_CLASSES if not name.startswith("nvflare.")}
    assert ours == {f"{end.__module__}.{end.__qualname__}" for end in (Coordinator, Site)}
