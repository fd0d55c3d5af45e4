"""What a job, or the server itself, may name at a site: live, on three sites with mutual TLS and a budget of 3 rounds.

A FLARE job's directory at a site is WORKSPACE/JOB_ID, and is wiped when the job is deployed. So every name is tried
that could be a directory or file of the site: by an administrator, as `job_id` in a job's meta.json, and by a server
whose operator is dishonest, in every command that takes one.
"""

import base64
import hashlib
import io
import json
import time
import uuid
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from nvflare.private.defs import CellChannel, RequestHeader, SysCommandTopic, TrainingTopic
from tests.engine.flare import hostile_server

from bilateral.engine import kind as kinds
from bilateral.engine.events import read_events
from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.deployment import deploy
from bilateral.engine.flare.job_gate import NOT_AN_ID, NOT_TAKEN
from bilateral.engine.flare.processes import LocalProcesses, free_ports
from bilateral.engine.flare.recipe import make_recipe
from bilateral.engine.flare.site_settings import load_site_settings
from bilateral.engine.flare.submission import submit_run
from bilateral.engine.plan import parse_plan
from bilateral.errors import DeploymentError

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[3]
SITES = ("hospital-a", "hospital-b", "hospital-c")
ROUNDS = 3
SECRET = "the environment of a site is nobody's business"
PROPER = "3e1b4f1c-5a0e-4c1d-9b7a-0123456789ab"
NAMES = (
    *("spent", "data", "local", "startup", "transfer", "audit", "audit.log", "runs", "storage", "flare", "kit"),
    *("identity.key", "bilateral.toml", "log.txt", "pid.fl", "daemon_pid.fl", "process.log"),
    *("", ".", "..", "/", "/tmp", "../data", "../spent", "a/b", "./data", "~", "*", " ", "spent ", "SPENT"),
    *("\uff53\uff50\uff45\uff4e\uff54", "spent\u200b", "d\u0430ta", "\0", "data\0", "a" * 300),
    *("00000000-0000-0000-0000-000000000000", "3e1b4f1c-5a0e-1c1d-9b7a-0123456789ab", PROPER.upper()),
    *(f"{PROPER}\n", f"{PROPER}/..", PROPER.replace("-", ""), f"{{{PROPER}}}", f"urn:uuid:{PROPER}"),
)
PLAN = {
    "data": {
        "name": "npz",
        "options": {"num_outputs": 2},
        "sites": {site: {"path": "train.npz", "part": "train"} for site in SITES},
        "server": {"path": "test.npz", "part": "test"},
    },
    "model": {"name": "mlp-3", "options": {"width": 4}},
    "training": {"rounds": ROUNDS, "loss": "mse", "batch_size": 4, "evaluate_every": ROUNDS},
    "perturbation": {"noise": "offset"},
    "noise": {"mechanism": "sound", "epsilon": 8.0},
    "federation": {"timeout": 300.0, "patience": 30.0},  # nobody is silent here: a busy machine is waited for
}


HANG = 900.0
"""Seconds after which what a test waits for will not come any more."""


def wait_until(condition):
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline, f"not so after {HANG:g} seconds"
        time.sleep(0.1)


def names_in(kit):
    """Every file and folder of a kit, by its name, from the kit and from FLARE's workspace."""
    paths = [path.relative_to(kit) for path in kit.rglob("*")]
    whole = {str(path) for path in paths} | {f"../{path}" for path in paths if path.parts[0] != "flare"}
    inner = {str(path.relative_to("flare")) for path in paths if path.parts[0] == "flare" and path.parts[1:]}
    return {name for name in whole | inner | {path.name for path in paths} if not is_uuid(name.partition("/")[0])}


def write_data(kits):
    random = np.random.default_rng(0)

    def arrays(part, size):
        return {f"x_{part}": random.normal(size=(size, 5)).astype("float32"), f"y_{part}": np.arange(size) % 2}

    np.savez(load_site_settings(kits.server).data_directory / "test.npz", **arrays("test", 20))
    for kit in kits.sites.values():
        np.savez(load_site_settings(kit).data_directory / "train.npz", **arrays("train", 40))


def fingerprints(kit):
    """Every file of a party that is not written by FLARE's own processes as they go."""
    growing = {"process.log", "log.txt", "audit.log", "error_log.txt", "log_error.txt", "pid.fl"}
    files = [path for path in kit.rglob("*") if path.is_file() and path.name not in growing]
    kept = [path for path in files if not any(is_uuid(part) for part in path.relative_to(kit).parts)]
    return {str(path.relative_to(kit)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def is_uuid(text):
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def used(kits):
    found = {}
    for name, kit in kits.sites.items():
        path = load_site_settings(kit).spent_file(parse_plan(PLAN, "of a test"))
        found[name] = json.loads(path.read_text())["rounds"] if path.exists() else None
    return found


def rounds_done(kits):
    """Over all runs at the server."""
    logs = load_site_settings(kits.server).runs_directory.rglob("events.jsonl")
    return sum(event["event"] == "round_done" for log in logs for event in read_events(log))


def app_of(job):
    """The application of a job as FLARE sends it to a site."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path in (job / "app").rglob("*"):
            archive.write(path, path.relative_to(job / "app"))
    return target.getvalue()


@pytest.fixture(scope="module")
def plan():
    return parse_plan(PLAN, "of a test")


@pytest.fixture(scope="module")
def kits(tmp_path_factory, plan):
    folder = tmp_path_factory.mktemp("names")
    deployed = deploy(plan, server="localhost", port=free_ports(1)[0], output=folder / "federation").kits
    write_data(deployed)
    return deployed


@pytest.fixture(scope="module")
def processes(kits):
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", "SITE_SECRET": SECRET}
    with LocalProcesses(kits, environment) as started:
        started.start_server()
        started.start_sites()
        yield started


@pytest.fixture(scope="module")
def spent_budget(kits, processes, plan):
    """All sites have spent their three rounds."""
    with Admin(kits.admin, timeout=HANG) as admin:
        wait_until(lambda: admin.connected_sites() == SITES)
    unhurried = plan.with_settings({"federation.patience": HANG})  # the same plan to the sites; others give up sooner
    submitted = submit_run(kits.admin, unhurried, name="first")
    assert submitted.finished
    assert used(kits) == dict.fromkeys(SITES, ROUNDS)
    assert rounds_done(kits) == ROUNDS
    return submitted


@pytest.fixture(scope="module")
def every_name(kits, spent_budget):
    """By hand, and whatever there is in a kit that has done a job."""
    return [*NAMES, *sorted(names_in(kits.sites[SITES[0]]) - set(NAMES))]


def named_job(folder, plan, run, job_id=None):
    """A job of an accepted plan, under an id that it brings (None: FLARE makes one)."""
    recipe = make_recipe(kinds.ROUNDS, plan, run, engine="flare", min_sites=3, name=f"bilateral-{run}")
    recipe.export(str(folder))
    job = folder / recipe.job_name
    meta = json.loads((job / "meta.json").read_text())
    (job / "meta.json").write_text(json.dumps(meta if job_id is None else {**meta, "job_id": job_id}))
    return job


def submit_and_wait(admin, job):
    """Without a token, which would give the job another id. "" if the server refused it."""
    try:
        job_id = str(admin._ask("take a job", lambda session: session.submit_job(str(job))))
    except DeploymentError:
        return ""
    wait_until(lambda: admin.status(job_id).has_ended)
    return job_id


def test_no_job_id_costs_a_site_anything(kits, processes, every_name, plan, tmp_path):
    assert {"spent", "data", "identity.key", "../spent", "local/resources.json"} <= set(every_name)
    before = {name: fingerprints(kit) for name, kit in kits.sites.items()}
    with Admin(kits.admin, timeout=HANG) as admin:
        for number, name in enumerate(every_name):
            submit_and_wait(admin, named_job(tmp_path / str(number), plan, f"run-{number}", name))
            assert {name: fingerprints(kit) for name, kit in kits.sites.items()} == before, repr(name)
        assert admin.connected_sites() == SITES
    assert used(kits) == dict.fromkeys(SITES, ROUNDS)
    assert rounds_done(kits) == ROUNDS


def test_the_id_of_an_earlier_job_gives_no_round_back(kits, processes, spent_budget, plan, tmp_path):
    """Of FLARE's own form, so that it passes the gate, and FLARE wipes that job's directory."""
    before = {name: fingerprints(kit) for name, kit in kits.sites.items()}
    with Admin(kits.admin, timeout=HANG) as admin:
        submit_and_wait(admin, named_job(tmp_path, plan, "once-more", spent_budget.job_id))
    assert {name: fingerprints(kit) for name, kit in kits.sites.items()} == before
    assert used(kits) == dict.fromkeys(SITES, ROUNDS)
    assert rounds_done(kits) == ROUNDS


REFERENCES = (
    "{$SITE_SECRET}",
    '{{"seed":"{$SITE_SECRET}"}}',
    '{{"federation":{{"timeout":"{$SITE_SECRET}"}}}}',
    '{{"data":{{"name":"{$SITE_SECRET}"}}}}',
    '{{"{$SITE_SECRET}":1}}',
)


OF_AN_APPLICATION = "the job's application has a plan"


def told_to_the_server(kits, words):
    """How often a site's refusal is in the server's log."""
    return (workspace_of(kits.server) / "log.txt").read_text().count(words)


def with_plan(job, text):
    path = job / "app" / "config" / "config_fed_client.json"
    client = json.loads(path.read_text())
    client["components"][0]["args"]["plan"] = text
    path.write_text(json.dumps(client))
    return job


@pytest.mark.parametrize("text", REFERENCES)
def test_no_job_reads_a_sites_environment(kits, processes, spent_budget, plan, tmp_path, text):
    run, before = f"reads-{REFERENCES.index(text)}", told_to_the_server(kits, OF_AN_APPLICATION)
    with Admin(kits.admin, timeout=HANG) as admin:
        assert submit_and_wait(admin, with_plan(named_job(tmp_path, plan, run), text))
    assert told_to_the_server(kits, OF_AN_APPLICATION) > before  # the sites have seen it, and refused it
    told = [path for path in kits.server.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")]
    assert told == []
    assert rounds_done(kits) == ROUNDS


def test_a_spent_budget_stays_spent(kits, processes, spent_budget, plan):
    with suppress(DeploymentError):  # how a run ends that nobody takes part in is no matter here
        submit_run(kits.admin, plan, name="second")
    assert used(kits) == dict.fromkeys(SITES, ROUNDS)
    assert rounds_done(kits) == ROUNDS


class TestDishonestServer:
    """The server's operator has taken away what its kit forbids, and sends to the sites what it likes."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, kits, processes, every_name, tmp_path_factory):
        folder = tmp_path_factory.mktemp("hostile") / "requests"
        resources = workspace_of(kits.server) / "local" / "resources.json"
        honest = resources.read_text()
        hostile_server.install(workspace_of(kits.server), folder)
        restart_server(kits, processes)
        yield folder
        resources.write_text(honest)
        restart_server(kits, processes)

    @pytest.fixture
    def meta(self):
        submitter = {"submitter_name": "admin@bilateral.org", "submitter_org": "bilateral"}
        job = {"name": "first", "resource_spec": {}, "min_clients": 3, "deploy_map": {"app": ["@ALL"]}}
        return {**job, **submitter, "submitter_role": "project_admin"}

    def requests(self, name, meta, app):
        headers = {RequestHeader.JOB_ID: name, RequestHeader.JOB_META: {**meta, "job_id": name}}
        zipped = base64.b64encode(app).decode()
        yield {"topic": TrainingTopic.DEPLOY, "headers": {**headers, RequestHeader.APP_NAME: "app"}, "zip": zipped}
        for topic in (TrainingTopic.START_JOB, TrainingTopic.CHECK_RESOURCE, TrainingTopic.ABORT):
            yield {"topic": topic, "headers": headers, "body": {}}
        yield {"topic": TrainingTopic.DELETE_RUN, "headers": headers, "body": ""}
        yield {"topic": TrainingTopic.CONFIGURE_JOB_LOG, "headers": headers, "body": "DEBUG"}

    def test_no_command_that_names_a_job_costs_a_site_anything(self, kits, folder, every_name, meta, plan, tmp_path):
        app = app_of(named_job(tmp_path, plan, "hostile", "unused"))
        before = {name: fingerprints(kit) for name, kit in kits.sites.items()}
        for name in every_name:
            answers = hostile_server.send(folder, list(self.requests(name, meta, app)), wait_until)
            assert {name: fingerprints(kit) for name, kit in kits.sites.items()} == before, repr(name)
            assert all(set(answer) == set(SITES) for answer in answers), repr(name)
            told = {text["body"] for answer in answers for text in answer.values()}
            assert told <= {NOT_AN_ID, NOT_TAKEN}, repr(name)
        assert used(kits) == dict.fromkeys(SITES, ROUNDS)

    def test_a_job_of_flares_own_form_passes_the_gate_and_still_needs_an_administrators_signature(
        self, folder, meta, plan, tmp_path
    ):
        app = app_of(named_job(tmp_path, plan, "hostile", "unused"))
        answers = hostile_server.send(folder, list(self.requests(str(uuid.uuid4()), meta, app))[:1], wait_until)
        assert [text["body"] for text in answers[0].values()] == [
            "unsigned job rejected - signed deploy is required"
        ] * 3

    @pytest.mark.parametrize(
        ("topic", "body"),
        [
            (SysCommandTopic.SHELL, "cat local/resources.json"),
            (SysCommandTopic.SHELL, "ls -l startup"),
            (SysCommandTopic.SHELL, "tail log.txt"),
            (SysCommandTopic.CONFIGURE_SITE_LOG, "DEBUG"),
            (SysCommandTopic.REPORT_ENV, ""),
            (SysCommandTopic.SYS_INFO, ""),
        ],
    )
    def test_a_site_answers_no_question_about_its_machine(self, folder, topic, body):
        (answers,) = hostile_server.send(folder, [{"topic": topic, "headers": {}, "body": body}], wait_until)
        assert {text["body"] for text in answers.values()} == {NOT_TAKEN}

    @pytest.mark.parametrize(
        ("channel", "topic"),
        [
            ("_net_manager", "config_vars"),
            ("_net_manager", "process_info"),
            ("_net_manager", "stress"),
            (CellChannel.CLIENT_COMMAND, "configure_job_log"),
            (CellChannel.SERVER_COMMAND, "get_task"),
            (CellChannel.CELLNET, "bulk"),
        ],
    )
    def test_a_site_takes_nothing_on_channels_that_are_not_the_servers(self, kits, folder, channel, topic):
        before = refusals(kits)
        (answers,) = hostile_server.send(folder, [{"channel": channel, "topic": topic}], wait_until)
        assert answers == dict.fromkeys(SITES)
        wait_until(lambda: refusals(kits) == {site: number + 1 for site, number in before.items()})


def restart_server(kits, processes):
    processes.restart("server")
    with Admin(kits.admin, timeout=HANG) as admin:
        wait_until(lambda: admin.connected_sites() == SITES)


def refusals(kits):
    """How often each site has refused a message, by its own log."""
    logs = {site: workspace_of(kit) / "log.txt" for site, kit in kits.sites.items()}
    return {site: path.read_text().count("was refused: it came under another name") for site, path in logs.items()}


def workspace_of(kit):
    return kit / "flare" if (kit / "flare").is_dir() else kit
