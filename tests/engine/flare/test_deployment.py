"""The documented deployment, followed by its script: separate processes, mutual TLS, secrets of the parties' own.

`docs/how-to/loopback.sh` takes two to three minutes and checks every step itself; here its traces are looked at.
`submit KIT` of docs/how-to/many-machines.md is among its commands.
"""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from bilateral.engine.events import read_events
from bilateral.engine.federation import member_names
from bilateral.engine.flare.deployment import add_plan, deploy, warnings_of
from bilateral.engine.flare.premises import SIMULATION
from bilateral.engine.flare.provisioning import Kits
from bilateral.engine.flare.site_edge import NOT_ACCEPTED
from bilateral.engine.flare.site_settings import DataSettings, load_site_settings
from bilateral.engine.plan import load_plan, parse_plan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.errors import DataError, DeploymentError, PlanError
from bilateral.runs.rounds.in_process import run

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
SITES = {"hospital-a": 100, "hospital-b": 150, "hospital-c": 205}
HANG = 1500
"""Seconds after which the script does not move any more; it also gives up by itself, and then says at what."""


def shell_environment():
    """An operator's shell: the environment with `bilateral` is active, and nothing says that this is a simulation."""
    kept = {name: value for name, value in os.environ.items() if name not in (SIMULATION, "PYTHONPATH")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def processes_below(folder):
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get("BILATERAL_KIT", ""):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The directory in which the page was followed."""
    folder = tmp_path_factory.mktemp("loopback") / "trial"
    log = folder.with_suffix(".log")
    with log.open("w") as output:
        done = subprocess.run(
            [HOW_TO / "loopback.sh", folder],
            env={**shell_environment(), "LOOPBACK_SECONDS": str(HANG - 300)},
            stdout=output,
            stderr=output,
            timeout=HANG,
            check=False,
        )
    assert done.returncode == 0, log.read_text()[-4000:]
    assert "Everything was as the page says" in log.read_text()
    return folder


def kit(followed, name):
    return followed / "parties" / name


def run_directory(followed, name="first"):
    return kit(followed, "localhost") / "runs" / name


def test_no_process_is_left(followed):
    assert processes_below(followed) == []


def test_the_run_directory_at_the_server_is_complete_and_the_model_trained(followed):
    expected = {"plan.toml", "metrics.csv", "events.jsonl", "privacy.json", "checkpoint.safetensors", "result.json"}
    assert expected <= {path.name for path in run_directory(followed).iterdir()}
    result = json.loads((run_directory(followed) / "result.json").read_text())
    assert result["finished"] is True
    assert result["rounds"] == 40
    assert result["metric_value"] > 0.85  # 63 % are of one class
    assert "ring masks" in result["guarantee"]["protection"]
    rounds = [
        event for event in read_events(run_directory(followed) / "events.jsonl") if event["event"] == "round_done"
    ]
    assert [event["round"] for event in rounds] == list(range(1, 41))
    assert sum(len(event["contributors"]) for event in rounds) >= 3 * 40 - 2


def test_secrets_are_not_those_of_a_simulation(followed, tmp_path):
    plan = load_plan(followed / "plan.toml")
    simulated = SimulatedSecrets(plan.seed, member_names(plan)).pinned()
    for site in SITES:
        pinned = load_site_settings(kit(followed, site)).pinned()
        assert sorted(pinned) == sorted(simulated)
        assert not set(pinned.values()) & set(simulated.values())
    # A simulation begins with the weights of the plan's seed, which all parties know; a deployment must not.
    here = {f"data.sites.{site}.path": str(kit(followed, site) / "data" / "train.npz") for site in SITES}
    here["data.server.path"] = str(kit(followed, "localhost") / "data" / "test.npz")
    short = plan.with_settings({**here, "training.rounds": 1, "training.evaluate_every": 1})
    before = run(short, output=tmp_path / "simulated", reference=False).rows[0]
    with (run_directory(followed) / "metrics.csv").open() as file:
        first = next(csv.DictReader(file))
    assert before["round"] == int(first["round"]) == 0
    assert before["test_loss"] != pytest.approx(float(first["test_loss"]), rel=1e-6)


def test_each_site_opened_its_own_file_and_no_other_party_has_it(followed):
    for site, size in SITES.items():
        logs = "".join(path.read_text() for path in kit(followed, site).rglob("log.txt"))
        assert re.findall(r"(\S+) opened its data: (\d+) samples", logs) == [(site, str(size))]
        with np.load(kit(followed, site) / "data" / "train.npz") as arrays:
            sample = arrays["x_train"][0].tobytes()
        holders = {
            path.relative_to(followed / "parties").parts[0]
            for path in (followed / "parties").rglob("*")
            if path.is_file() and holds(path, sample)
        }
        assert holders == {site}


def holds(path, sample):
    if path.suffix != ".npz":
        return sample in path.read_bytes()
    with np.load(path) as arrays:
        return any(sample in array.tobytes() for array in arrays.values())


def test_a_plan_that_no_operator_accepted_is_refused_by_every_site_and_trains_nothing(followed):
    events = list(read_events(run_directory(followed, "other") / "events.jsonl"))
    refusals = [event for event in events if event["event"] == "message_refused"]
    assert {event["site"] for event in refusals} == set(SITES)
    assert all(NOT_ACCEPTED in event["reason"] for event in refusals)
    assert not [event for event in events if event["event"] == "round_done"]
    logs = "".join(path.read_text() for path in kit(followed, "hospital-a").rglob("log.txt"))
    assert load_plan(followed / "other-plan.toml").fingerprint() in logs  # the site's own log says which
    assert len(re.findall("opened its data", logs)) == 1  # for the accepted plan


def test_the_organiser_keeps_no_identity_key_and_no_party_has_anothers(followed):
    assert not list((followed / "federation").rglob("identity.key"))
    holders = [path.relative_to(followed / "parties").parts[0] for path in (followed / "parties").rglob("identity.key")]
    assert sorted(holders) == sorted(SITES)


def test_the_script_runs_the_commands_of_the_page_as_they_stand():
    page, script = (HOW_TO / "deployment.md").read_text(), (HOW_TO / "loopback.sh").read_text()
    commands = [line for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(commands) >= 7
    lines = [line.strip() for line in script.splitlines()]
    assert [command for command in commands if command not in lines] == []


@pytest.mark.parametrize("words", [[], ["a", "b"]])
def test_the_script_wants_one_directory(words):
    done = subprocess.run(
        [HOW_TO / "loopback.sh", *words], env=shell_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_the_script_touches_no_directory_with_something_in_it(tmp_path):
    (tmp_path / "precious").write_text("data")
    done = subprocess.run(
        [HOW_TO / "loopback.sh", tmp_path], env=shell_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def plan_of(*sites, **sections):
    values = {"data": {"name": "npz", "sites": {site: {"path": "x.npz"} for site in sites}}, **sections}
    return parse_plan(values, "of a test")


class TestDeploy:
    def test_every_kit_accepts_the_plan_and_no_other(self, tmp_path):
        plan = plan_of("a", "b", "c")
        deployed = deploy(plan, server="localhost", port=18301, name="trial", output=tmp_path / "trial")
        other = plan.with_settings({"aggregation.masks": "none"})
        for party in (deployed.kits.server, *deployed.kits.sites.values()):
            load_site_settings(party).check_accepted(plan)
            load_site_settings(party).check_accepted(plan.with_settings({"federation.timeout": 5.0}))
            with pytest.raises(PlanError, match=other.fingerprint()):
                load_site_settings(party).check_accepted(other)

    def test_the_handbook_names_every_kit_and_the_fingerprint(self, tmp_path):
        deployed = deploy(plan_of("a", "b", "c"), server="fl.example.org", output=tmp_path / "fed")
        text = deployed.handbook.read_text()
        assert deployed.plan.fingerprint() in text
        for party in (deployed.kits.server, deployed.kits.admin, *deployed.kits.sites.values()):
            assert f"`{party.relative_to(deployed.kits.directory)}`" in text
        assert all(warning in text for warning in deployed.warnings)
        assert "fl.example.org, port 8002" in text
        assert str(tmp_path) not in text
        assert load_plan(deployed.plan_file) == deployed.plan

    def test_a_larger_plan_adds_its_sites_and_keeps_the_earlier_plan(self, tmp_path):
        small, large = plan_of("a", "b"), plan_of("a", "b", "c")
        before = deploy(small, server="localhost", output=tmp_path / "fed").kits
        after = add_plan(large, tmp_path / "fed").kits
        assert sorted(after.sites) == ["a", "b", "c"]
        assert Kits.open(tmp_path / "fed") == after
        for party in (after.server, *after.sites.values()):
            for plan in (small, large):
                load_site_settings(party).check_accepted(plan)
        with pytest.raises(PlanError):
            load_site_settings(before.sites["a"]).check_accepted(large)
        again = add_plan(large, tmp_path / "fed").kits
        assert load_site_settings(again.server).plans.accepted == (small.fingerprint(), large.fingerprint())

    def test_data_settings_of_a_kit_point_to_its_data_folder(self, tmp_path):
        kits = deploy(plan_of("a", "b"), server="localhost", output=tmp_path / "fed").kits
        for party in (kits.server, *kits.sites.values()):
            assert load_site_settings(party).data == DataSettings(data_dir="data")
            assert load_site_settings(party).data_directory.is_dir()

    @pytest.mark.parametrize("site", ["a b", "server", "ä", "a/b", "localhost"])
    def test_a_site_name_that_flare_does_not_take_leaves_nothing_behind(self, tmp_path, site):
        with pytest.raises((PlanError, DataError)):
            deploy(plan_of("good", site), server="localhost", output=tmp_path / "fed")
        assert not (tmp_path / "fed").exists()

    @pytest.mark.parametrize("path", ["{$HOME}/x.npz", "${secret:a}", "a{b"])
    def test_a_plan_with_what_flare_takes_for_a_reference_is_refused(self, tmp_path, path):
        plan = plan_of("a", "b").with_settings({"data.options": {"path": path}})
        with pytest.raises(PlanError, match="would take for a reference"):
            deploy(plan, server="localhost", output=tmp_path / "fed")
        assert not (tmp_path / "fed").exists()

    def test_the_handbook_says_which_code_an_operator_has_to_allow(self, tmp_path):
        plan = plan_of("a", "b", model={"name": "my_nets:build"})
        deployed = deploy(plan, server="localhost", output=tmp_path / "fed")
        assert 'allowed = ["my_nets:build"]' in deployed.handbook.read_text()
        for party in (deployed.kits.server, *deployed.kits.sites.values()):
            with pytest.raises(PlanError, match="my_nets:build"):
                load_site_settings(party).check_accepted(plan)

    def test_simulated_dropouts_are_refused(self, tmp_path):
        with pytest.raises(PlanError, match="dropout"):
            deploy(plan_of("a", "b", federation={"dropout": 0.1}), server="localhost", output=tmp_path / "fed")

    def test_what_is_no_deployment_cannot_be_added_to(self, tmp_path):
        with pytest.raises(DeploymentError, match="no project file"):
            add_plan(plan_of("a", "b"), tmp_path)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"protection": "fedavg"}, "whole model"),
        ({"aggregation": {"masks": "none"}}, "reads every site's upload"),
        ({"aggregation": {"masks": "float"}}, "Float masks"),
        ({}, "no differential privacy"),
        ({"noise": {"mechanism": "published", "epsilon": 3.0}}, "does not bind the server"),
        ({"noise": {"mechanism": "sound", "epsilon": 8.0}, "training": {"loss": "mse"}}, "how many samples"),
        ({"model": {"name": "my_nets:build"}}, "my_nets:build"),
        ({"aggregation": {"threshold": 0.9}}, "holds up the run"),
    ],
)
def test_a_deployment_says_what_its_plan_does_not_hide(sections, words):
    assert any(words in warning for warning in warnings_of(plan_of("a", "b", "c", **sections), ("a", "b", "c")))


def test_a_plan_without_sites_is_called_a_trial():
    plan = parse_plan({}, "of a test")
    assert any("TRIAL" in warning for warning in warnings_of(plan, member_names(plan)))
    assert not any("TRIAL" in warning for warning in warnings_of(plan_of("a", "b"), ("a", "b")))
