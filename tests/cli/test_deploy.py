"""`bilateral deploy`, `submit` and `sites`: what they print, and what they say when something is wrong.

It runs what docs/how-to/deployment.md prints of it.
"""

import json
import stat

import pytest

from bilateral import RunPlan, run
from bilateral.engine.flare import submission
from bilateral.engine.flare.deployment import deploy
from bilateral.engine.flare.processes import free_ports
from bilateral.engine.plan import load_plan

PLAN = """\
[data]
name = "npz"
[data.sites.hospital-a]
path = "train.npz"
[data.sites.hospital-b]
path = "train.npz"
[data.sites.hospital-c]
path = "train.npz"
[model]
name = "mlp-3"
"""


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    return "plan.toml"


def test_deploy_prints_kits_fingerprint_limits_and_the_next_step(bilateral, plan, tmp_path):
    outcome = bilateral("deploy", plan, "--server", "fl.example.org", "--output", "fed")
    assert outcome.code == 0
    words = " ".join(outcome.out.split())
    for expected in (
        load_plan(plan).fingerprint(),
        "fed/federation/prod_00/hospital-b",
        "[data] in bilateral.toml",
        "flare/startup/start.sh",
        "bilateral submit fed/federation/prod_00/admin@bilateral.org fed/plan.toml",
        "no differential privacy",
        "fed/README.md",
    ):
        assert expected in words
    assert stat.S_IMODE((tmp_path / "fed").stat().st_mode) == 0o700


def test_deploy_prints_the_documented_object(bilateral, plan):
    values = bilateral("deploy", plan, "--server", "localhost", "--name", "trial", "--json").json
    assert set(values) == {
        "directory", "fingerprint", "server_kit", "site_kits", "admin_kit", "plan", "handbook", "warnings",
    }  # fmt: skip
    assert sorted(values["site_kits"]) == ["hospital-a", "hospital-b", "hospital-c"]
    assert values["directory"].endswith("/trial")


def test_a_larger_plan_updates_a_deployment(bilateral, plan, tmp_path):
    first = bilateral("deploy", plan, "--server", "localhost", "--output", "fed", "--json").json
    (tmp_path / "larger.toml").write_text(PLAN + '[data.sites.hospital-d]\npath = "train.npz"\n')
    second = bilateral("deploy", "larger.toml", "--update", "fed", "--json").json
    assert sorted(second["site_kits"]) == ["hospital-a", "hospital-b", "hospital-c", "hospital-d"]
    assert second["fingerprint"] != first["fingerprint"]
    assert "prod_01" in second["server_kit"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "Expected --server"),
        (("--server", "not a host"), "server's host"),
        (("--server", "localhost", "--port", 0), "port between"),
        (("--server", "localhost", "--name", "../x"), "deployment's name"),
        (("--server", "hospital-a"), "given twice"),
        (("--server", "localhost", "--output", "."), "empty directory"),
        (("--update", "nothing"), "no project file"),
        (("--update", "fed", "--port", 5), "--update keeps"),
    ],
)
def test_what_cannot_be_deployed_is_said_in_one_line(bilateral, plan, words, problem):
    outcome = bilateral("deploy", plan, *words)
    assert outcome.code == 2
    assert problem in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err


def test_a_plan_for_simulations_is_refused(bilateral, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN + "[federation]\ndropout = 0.1\n")
    outcome = bilateral("deploy", "plan.toml", "--server", "localhost")
    assert outcome.code == 2
    assert "dropout" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed")
    (folder / "plan.toml").write_text(PLAN)
    plan, (port,) = load_plan(folder / "plan.toml"), free_ports(1)
    return deploy(plan, server="localhost", port=port, output=folder / "fed").kits


class TestSubmit:
    def test_only_an_administrators_kit_will_do(self, bilateral, plan, kits):
        for kit in ("nothing", kits.sites["hospital-a"], kits.server):
            for words in (("submit", kit, plan), ("sites", kit)):
                outcome = bilateral(*words)
                assert outcome.code == 2
                assert "not an administrator's kit" in outcome.err

    @pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b"])
    def test_a_run_has_a_plain_name(self, bilateral, plan, kits, name):
        outcome = bilateral("submit", kits.admin, plan, "--name", name or " ")
        assert outcome.code == 2
        assert "run's name" in outcome.err

    def test_a_server_that_is_not_there_is_named(self, bilateral, plan, kits):
        config = json.loads((kits.admin / "startup" / "fed_admin.json").read_text())["admin"]
        outcome = bilateral("submit", kits.admin, plan, "--quiet", "--json")
        assert outcome.code == 2
        assert f"localhost:{config['port']}" in outcome.err
        assert outcome.out == ""

    @pytest.mark.parametrize("words", [(), ("--json",)])
    def test_a_run_whose_every_round_failed_is_an_error(self, bilateral, plan, kits, monkeypatch, words):
        small = {"data.name": "breast-cancer", "model.name": "mlp-3", "model.options": {"width": 4}}
        done = run(RunPlan().with_settings({**small, "training.rounds": 2, "protection": "masks"}), save=False)
        values = {
            **done.as_dict(),
            "rounds_failed": [{"round_index": index, "reason": "Too few."} for index in range(2)],
        }
        monkeypatch.setattr(submission, "submit_run", lambda *_, **__: submission.Submitted("first", "job", values))
        outcome = bilateral("submit", kits.admin, plan, "--quiet", *words)
        assert outcome.code == 2
        assert outcome.err.startswith(
            "Error: All 2 rounds failed, so the model is untrained; the last one so: Too few."
        )
        if words:
            assert outcome.json["rounds"] == 2


@pytest.mark.parametrize("command", ["deploy", "submit", "sites"])
def test_help_has_examples(bilateral, command):
    outcome = bilateral(command, "--help")
    assert outcome.code == 0
    assert "Examples" in outcome.out
