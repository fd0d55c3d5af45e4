"""The same plan and seed on every engine: in one process, on FLARE's simulator, on a FLARE deployment on loopback.

Bit for bit, with one thread a process on every side: the sum of many floats depends on how many threads made it.
"""

import pytest
import torch
from tests.runs.rounds.test_in_process import plan

from bilateral.engine.checkpoint import load_checkpoint
from bilateral.engine.events import read_events
from bilateral.engine.flare.launch import run_on_flare
from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import PlanError
from bilateral.runs.rounds.in_process import run
from bilateral.runs.rounds.kind import KIND

CHOSEN = plan(
    federation__clients=3, training__rounds=5, training__evaluate_every=2, aggregation__width="auto"
)  # the first round in a ring of 64 bits, the others in one of 40


def gradients(path):
    """The digest of every round's recovered gradient."""
    return [e["gradient_digest"] for e in read_events(path / "events.jsonl") if e["event"] == "round_done"]


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    path = tmp_path_factory.mktemp("engines") / "run"
    return path, run(CHOSEN, output=path)


FILES = {"plan.toml", "metrics.csv", "events.jsonl", "privacy.json", "checkpoint.safetensors", "result.json"}


def expect_the_same(path, expected, there, run):
    """Gradients of all rounds, the checkpoint, the figures of the result and the files of two runs."""
    assert there.finished
    assert gradients(run) == gradients(path)
    assert len(set(gradients(path))) == CHOSEN.training.rounds
    ours, theirs = (load_checkpoint(p / "checkpoint.safetensors").tensors for p in (path, run))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for key in ("metrics", "difference_to_fedavg", "megabytes_up", "megabytes_down", "metrics_of_fedavg"):
        assert there.values[key] == expected[key]
    assert {file.name for file in run.iterdir() if not file.name.startswith(".")} == FILES


@pytest.mark.long
@pytest.mark.parametrize("engine", ["flare-sim", "flare-poc"])
def test_an_engine_recovers_the_same_gradients_and_ends_with_the_same_model(tmp_path, in_process, engine, monkeypatch):
    """From the first round on; by default, that which was stopped is gone on with (below)."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path, here = in_process
    there = run_on_flare(KIND, CHOSEN, engine, output=tmp_path / "run")
    expect_the_same(path, here.as_dict(), there, tmp_path / "run")


def test_a_run_that_was_stopped_in_one_process_goes_on_in_the_simulator_with_the_same_gradients_and_model(
    tmp_path, in_process, monkeypatch
):
    """Stopped after two rounds and gone on with, here and there: three rounds are FLARE's, and all that is kept."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole, _ = in_process
    for name in ("here", "there"):
        stops = iter([False, True])
        run(CHOSEN, output=tmp_path / name, should_stop=lambda stops=stops: next(stops))
    here = run(CHOSEN, output=tmp_path / "here", resume=True)
    there = run_on_flare(KIND, CHOSEN, "flare-sim", output=tmp_path / "there", resume=True)
    expect_the_same(tmp_path / "here", here.as_dict(), there, tmp_path / "there")
    assert gradients(tmp_path / "there") == gradients(whole)


def test_simulated_dropouts_are_refused_where_sites_can_really_die(tmp_path):
    with pytest.raises(PlanError, match="in-process"):
        run_on_flare(KIND, plan(federation__dropout=0.1), "flare-sim", output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_resuming_with_another_plan_is_refused(in_process):
    path, _ = in_process
    other = CHOSEN.with_settings({"seed": 3})
    with pytest.raises(Exception, match="another plan"):
        run_on_flare(KIND, other, "flare-sim", output=path, resume=True)
    assert RunDirectory(path).result.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "site_metrics"), [("flare-sim", "stay"), ("flare-poc", "share"), ("flare-poc", "stay")]
)
def test_local_steps_are_the_same_in_one_process_and_on_flare(tmp_path, monkeypatch, engine, site_metrics):
    """And sites tell what they measured if the plan says so; what stays is in no file of the server's."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    local = {
        "protection": "masks",
        "training.local_epochs": 1,
        "training.server_optimiser": "yogi",
        "training.rounds": 3,
        "evaluation.site_holdout": 0.2,
        "evaluation.site_metrics": site_metrics,
    }
    chosen = CHOSEN.with_settings(local)
    here = run(chosen, output=tmp_path / "here", reference=False)
    there = run_on_flare(KIND, chosen, engine, output=tmp_path / "there", options={"reference": False})
    assert there.finished
    ours, theirs = (load_checkpoint(tmp_path / p / "checkpoint.safetensors").tensors for p in ("here", "there"))
    assert any("second" in name for name in ours)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert there.values["told_by_sites"] == here.told_by_sites
    tells = site_metrics == "share"
    assert set(here.told_by_sites) == ({"client-1", "client-2", "client-3"} if tells else set())
    files = [file.read_bytes() for file in (tmp_path / "there").rglob("*") if file.is_file()]
    assert any(b"site_loss" in content for content in files) is tells
