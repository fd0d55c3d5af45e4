"""The gate before a site's commands, without a network: FLARE's own processors, on a real workspace."""

import argparse
import io
import json
import subprocess
import sys
import uuid
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.training_cmds import DeleteRunNumberProcessor, DeployProcessor
from tests.engine.flare.test_job_names import NAMES, PLAN, PROPER, app_of, named_job

from bilateral.engine.flare.job_content import FILES, MAX_BYTES, check_app
from bilateral.engine.flare.job_gate import (
    COMMANDS,
    NOT_AN_ID,
    NOT_TAKEN,
    GuardedCommand,
    JobGate,
    check_command,
    is_job_id,
)
from bilateral.engine.flare.provisioning import Deployment, provision
from bilateral.engine.plan import parse_plan
from bilateral.errors import PlanError

SECRET = "a secret of the site"
PLANNED = parse_plan(PLAN, "of a test")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return app_of(named_job(tmp_path_factory.mktemp("job"), PLANNED, "first", "unused"))


@pytest.fixture
def kit(tmp_path):
    kits = provision(Deployment("gate", "localhost", ["a"], plans=[PLANNED.fingerprint()]), tmp_path / "gate")
    return kits.sites["a"]


class WorkspaceEngine(ClientEngine):
    """FLARE's client engine with a workspace, and without a connection."""

    def __init__(self, workspace):
        self.args = argparse.Namespace(workspace=str(workspace))


def request(topic, job_id=None, *, body="", **headers):
    message = Message(topic, body)
    if job_id is not None:
        message.set_header(RequestHeader.JOB_ID, job_id)
    for name, value in headers.items():
        message.set_header(getattr(RequestHeader, name), value)
    return message


def files(kit):
    return {str(path.relative_to(kit)) for path in kit.rglob("*")}


def test_flare_makes_ids_that_pass():
    from nvflare.apis.impl.job_def_manager import new_job_id

    assert all(is_job_id(new_job_id()) for _ in range(100))


@pytest.mark.parametrize("name", [*NAMES, None, 7, b"spent", ["spent"], uuid.UUID(PROPER)], ids=repr)
def test_nothing_else_is_a_jobs_id(name):
    assert not is_job_id(name)


@given(st.text())
@settings(deadline=None, derandomize=True, max_examples=300)
def test_no_text_is_a_jobs_id_that_is_not_its_own_uuid(text):
    assert not is_job_id(text) or str(uuid.UUID(text)) == text


@pytest.mark.parametrize("name", ["startup", "local", "transfer"])
def test_without_the_gate_a_command_deletes_a_folder_of_flares_workspace(kit, name):
    """The control: FLARE itself takes any such name. What is ours is elsewhere, so at least that stays."""
    ours = {path for path in files(kit) if not path.startswith("flare/")}
    DeleteRunNumberProcessor().process(request(TrainingTopic.DELETE_RUN, name), WorkspaceEngine(kit / "flare"))
    assert not (kit / "flare" / name).exists()
    assert ours <= files(kit)


@pytest.mark.parametrize("name", NAMES, ids=repr)
@pytest.mark.parametrize("processor", [DeleteRunNumberProcessor, DeployProcessor])
def test_with_the_gate_no_name_deletes_anything(kit, app, processor, name):
    before, guarded = files(kit), GuardedCommand(processor())
    (topic,) = guarded.get_topics()
    asked = request(topic, name, body=app, JOB_META={"name": "x"}, APP_NAME="app")
    reply = guarded.process(asked, WorkspaceEngine(kit / "flare"))
    assert reply.body in (NOT_AN_ID, NOT_TAKEN)
    assert files(kit) == before


@pytest.mark.parametrize(
    "topic",
    [
        TrainingTopic.DELETE_RUN,
        TrainingTopic.CONFIGURE_JOB_LOG,
        TrainingTopic.ABORT_TASK,
        SysCommandTopic.SHELL,
        SysCommandTopic.CONFIGURE_SITE_LOG,
        SysCommandTopic.REPORT_ENV,
        SysCommandTopic.SYS_INFO,
        "whatever",
    ],
)
def test_a_command_that_reads_deletes_or_changes_is_not_taken_even_with_a_proper_id(topic):
    with pytest.raises(PlanError, match="does not take that command"):
        check_command(request(topic, str(uuid.uuid4())))


@pytest.mark.parametrize("topic", sorted(COMMANDS - {TrainingTopic.DEPLOY}))
def test_commands_that_jobs_need_are_taken(topic):
    check_command(request(topic, str(uuid.uuid4())))


def test_an_application_of_ours_is_taken(app):
    job_id = str(uuid.uuid4())
    check_command(request(TrainingTopic.DEPLOY, job_id, body=app, JOB_META={"job_id": job_id}, APP_NAME="app"))


@pytest.mark.parametrize(
    "changed", [{"JOB_META": {"job_id": str(uuid.uuid4())}}, {"JOB_META": "x"}, {"APP_NAME": ".."}]
)
def test_a_jobs_meta_and_application_name_no_other_place(app, changed):
    headers = {"JOB_META": {}, "APP_NAME": "app", **changed}
    with pytest.raises(PlanError):
        check_command(request(TrainingTopic.DEPLOY, str(uuid.uuid4()), body=app, **headers))


def test_flares_client_process_asks_guarded_processors_only():
    """In a process of its own: the list of processors is one for all."""
    code = (
        "from bilateral.engine.flare.job_gate import GuardedCommand, JobGate\n"
        "from nvflare.private.fed.app.deployer.base_client_deployer import BaseClientDeployer\n"
        "JobGate(); JobGate()\n"
        "found = BaseClientDeployer().req_processors\n"
        "assert found and all(type(one) is GuardedCommand for one in found)\n"
        "assert not any(type(one._inner) is GuardedCommand for one in found)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_kit_has_the_gate(kit):
    for party in kit.parent.iterdir():
        if (party / "flare").is_dir():
            resources = json.loads((party / "flare" / "local" / "resources.json").read_text())
            paths = [part["path"] for part in resources["components"]]
            assert f"{JobGate.__module__}.JobGate" in paths


@pytest.mark.parametrize(("meta", "blocked"), [({}, False), ({"job_id": str(uuid.uuid4())}, False), (None, True)])
def test_the_server_takes_jobs_without_an_id_or_with_one_of_flares(meta, blocked):
    assert bool(reason_for(meta)) == blocked


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_the_server_refuses_a_job_that_brings_an_id(name):
    assert reason_for({"job_id": name}) == NOT_AN_ID


def reason_for(meta):
    before, start = list(ClientRequestProcessors.request_processors), CoreCell.start
    context = FLContext()
    context.set_prop(FLContextKey.JOB_META, meta, private=True, sticky=False)
    JobGate().handle_event(EventType.SUBMIT_JOB, context)
    ClientRequestProcessors.request_processors[:], CoreCell.start = before, start
    return context.get_prop(FLContextKey.JOB_BLOCK_REASON)


def zipped(contents):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in contents:
            archive.writestr(name, text)
    return target.getvalue()


def with_settings(app, **changes):
    """The application with other arguments of the site."""
    with zipfile.ZipFile(io.BytesIO(app)) as archive:
        contents = {name: archive.read(name).decode() for name in FILES}
    client = json.loads(contents[FILES[0]])
    client["components"][0]["args"].update(changes)
    contents[FILES[0]] = json.dumps(client)
    return zipped(contents.items())


class TestApplications:
    REFERENCES = (
        "{$SITE_SECRET}",
        " {$SITE_SECRET}",
        '{{"seed":"{$SITE_SECRET}"}}',
        '{"seed":"{$SITE_SECRET}"}',
        '{"seed":"\\u007b$SITE_SECRET\\u007d"}',
        '{"seed":1,"a{b":2}',
        "${secret:x}",
        "{@x:a={$SITE_SECRET}}",
        "[1]",
        "{",
        "",
    )

    @pytest.mark.parametrize("text", REFERENCES)
    def test_a_plan_that_refers_to_something_of_the_site_is_refused_and_not_quoted(self, app, text):
        with pytest.raises(PlanError) as caught:
            check_app(with_settings(app, plan=text))
        assert "SITE_SECRET" not in str(caught.value)

    @pytest.mark.parametrize("changes", [{"data_dir": "{$HOME}"}, {"{x}": "y"}, {"reference": {"a": ["{SITE_NAME}"]}}])
    def test_no_other_argument_refers_to_anything(self, app, changes):
        with pytest.raises(PlanError, match="refers to settings"):
            check_app(with_settings(app, **changes))

    @pytest.mark.parametrize(
        "name",
        [
            "config/config_fed_client.conf",
            "config/config_fed_client.yml",
            "config/comm_config.json",
            "config/resources.json",
            "custom/code.py",
            "custom/",
            "../../bilateral.toml",
            "/etc/passwd",
            "config/config_fed_client.json",
        ],
    )
    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_a_file_that_no_recipe_of_ours_writes_is_refused(self, name):
        with pytest.raises(PlanError, match="has other files"):
            check_app(zipped([(one, "{}") for one in (*FILES, name)]))

    def test_a_file_is_missing(self):
        with pytest.raises(PlanError, match="has other files"):
            check_app(zipped([(FILES[0], "{}")]))

    def test_a_small_archive_cannot_ask_for_much_memory(self):
        data = zipped([(FILES[0], " " * (MAX_BYTES + 1)), (FILES[1], "{}")])
        assert len(data) < 10_000
        with pytest.raises(PlanError, match="more than"):
            check_app(data)

    @pytest.mark.parametrize("data", [None, "text", b"", b"PK\x03\x04", b"\0" * 100, {"a": 1}])
    def test_what_is_no_archive_is_refused(self, data):
        with pytest.raises(PlanError, match="archive"):
            check_app(data)

    @pytest.mark.parametrize(
        "text", ["", "{", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")]
    )
    def test_what_is_no_json_is_refused(self, text):
        with pytest.raises(PlanError):
            check_app(zipped([(FILES[0], text), (FILES[1], "{}")]))

    @given(st.data())
    @settings(deadline=None, derandomize=True, max_examples=200)
    def test_an_archive_with_changed_bytes_is_taken_or_refused_and_nothing_else(self, app, data):
        changed = bytearray(app)
        for place in data.draw(st.lists(st.integers(0, len(app) - 1), min_size=1, max_size=8)):
            changed[place] = data.draw(st.integers(0, 255))
        try:
            check_app(bytes(changed))
        except PlanError as error:
            assert str(error).startswith("the job's application")
