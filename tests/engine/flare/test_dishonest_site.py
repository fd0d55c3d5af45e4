"""A site that speaks as somebody else, live with mutual TLS: with its own token, and with one that it had before.

A token that is no longer registered is still signed by the server, and FLARE binds it to no origin.
"""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    StreamHeaderKey,
)
from nvflare.private.defs import CellChannel, SysCommandTopic, TrainingTopic
from tests.engine.flare import hostile_site
from tests.engine.flare.test_job_names import HANG, wait_until, workspace_of

from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.processes import LocalProcesses, free_ports
from bilateral.engine.flare.provisioning import Deployment, provision
from bilateral.engine.flare.sender_check import Envelope, check_for, server_takes, site_takes

REPOSITORY = Path(__file__).parents[3]
HOSTILE, VICTIM = "hostile", "victim"
live = pytest.mark.long


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    return provision(
        Deployment("d", "localhost", [HOSTILE, VICTIM], fed_learn_port=free_ports(1)[0]), folder / "federation"
    )


@pytest.fixture(scope="module")
def folder(kits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "requests"
    hostile_site.install(workspace_of(kits.sites[HOSTILE]), folder)
    return folder


@pytest.fixture(scope="module")
def tokens(kits, folder):
    """The hostile site has come twice. Its first token is not registered any more."""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"}
    with LocalProcesses(kits, environment) as processes, Admin(kits.admin, timeout=HANG) as admin:
        processes.start_server()
        processes.start_sites()
        wait_until(lambda: admin.connected_sites() == (HOSTILE, VICTIM))
        wait_until(lambda: len(list(folder.glob("*.token"))) == 1)
        processes.restart(HOSTILE)
        wait_until(lambda: len(list(folder.glob("*.token"))) == 2)
        old, new = (json.loads(path.read_text()) for path in sorted(folder.glob("*.token")))
        assert old["token"] != new["token"]
        yield {"old": old, "new": new}


def send(folder, channel, topic, body, headers):
    """Have the hostile site send something to the victim. What comes back is no matter: see `records`."""
    name = uuid.uuid4().hex
    request = {"target": VICTIM, "channel": channel, "topic": topic, "body": body, "headers": headers}
    (folder / f"{name}.writing").write_text(json.dumps(request))
    (folder / f"{name}.writing").rename(folder / f"{name}.request")
    wait_until((folder / f"{name}.reply").exists)


class Records:
    """What the parties themselves write down: refusals by the server and the victim, commands that the victim took."""

    def __init__(self, kits):
        self._logs = [workspace_of(kit) / "log.txt" for kit in (kits.server, kits.sites[VICTIM])]
        self._audit = workspace_of(kits.sites[VICTIM]) / "audit.log"

    def refused(self):
        return sum(path.read_text().count("was refused: it came under another name") for path in self._logs)

    def taken(self):
        return self._audit.read_text().count("[A:") if self._audit.exists() else 0


@live
@pytest.mark.parametrize("origin", [HOSTILE, "server", VICTIM, f"{HOSTILE}.job", "server.job"])
@pytest.mark.parametrize("token", ["old", "new"])
@pytest.mark.parametrize(
    ("channel", "topic", "body"),
    [
        (CellChannel.CLIENT_MAIN, SysCommandTopic.SHELL, "cat local/resources.json"),
        (CellChannel.CLIENT_MAIN, TrainingTopic.CHECK_STATUS, ""),
        ("_net_manager", "config_vars", ""),
        (CellChannel.CLIENT_MAIN, TrainingTopic.SHUTDOWN, ""),
    ],
)
def test_a_site_takes_nothing_from_another_site(kits, folder, tokens, channel, topic, body, token, origin):
    """It is refused on its way, and the victim has not taken it: waits for the one or the other, however long."""
    records = Records(kits)
    refused, taken = records.refused(), records.taken()
    send(folder, channel, topic, body, hostile_site.as_whom(HOSTILE, tokens[token], origin))
    wait_until(lambda: records.refused() > refused or records.taken() > taken)
    assert (records.refused(), records.taken()) == (refused + 1, taken)


@live
def test_the_record_of_commands_is_one(kits, tokens):
    """The control: a command of the server's is in the victim's record."""
    records = Records(kits)
    before = records.taken()
    with Admin(kits.admin, timeout=HANG) as admin:
        admin.sites_running("none")
    wait_until(lambda: records.taken() > before)


def test_a_job_process_has_the_checks_before_it_makes_a_cell(kits):
    """FLARE's start of a job process at a site, on a real kit, in a process of its own."""
    code = (
        "import argparse, sys\n"
        "from nvflare.apis.workspace import Workspace\n"
        "from nvflare.fuel.f3.cellnet.core_cell import CoreCell\n"
        "from nvflare.private.fed.app.fl_conf import FLClientStarterConfiger\n"
        "args = argparse.Namespace(job_id='3e1b4f1c-5a0e-4c1d-9b7a-0123456789ab', workspace=sys.argv[1],\n"
        "    sp_scheme='grpc', sp_target='localhost:1', parent_url='tcp://localhost:2', parent_conn_sec='')\n"
        "options = ['secure_train=true', 'uid=victim', 'org=bilateral', 'config_folder=config']\n"
        "assert not hasattr(CoreCell.start, 'is_guarded')\n"
        "FLClientStarterConfiger(Workspace(sys.argv[1], 'victim', 'config'), args, options).configure()\n"
        "assert CoreCell.start.is_guarded\n"
    )
    workspace = str(workspace_of(kits.sites[VICTIM]))
    subprocess.run([sys.executable, "-c", code, workspace], check=True, cwd=workspace)


SESSION = "_admin_3f0c9f2e-6f0a-4c1d-9b7e-2d8a1c5e7b90"


HEART_BEAT = (CellChannel.SERVER_MAIN, "heart_beat")
COMMAND = (CellChannel.CLIENT_MAIN, "admin")
CALL = ("collab", "call")
ADMIN = "admin@bilateral.org"


@pytest.mark.parametrize(
    ("origin", "certificate", "own"),
    [
        ("a", "a", True),
        ("a.3e1b4f1c", "a", True),
        ("b", "a", False),
        ("b.3e1b4f1c", "a", False),
        ("server", "a", False),
        ("server.3e1b4f1c", "a", False),
        ("ab", "a", False),
        ("", "a", False),
        ("server", "server", False),
        (SESSION, "a", False),
        (SESSION, ADMIN, True),
        (f"{SESSION}.a", ADMIN, False),
        ("_admin_1", ADMIN, False),
        (ADMIN, ADMIN, False),
        ("server", ADMIN, False),
        ("a", ADMIN, False),
    ],
)
@pytest.mark.parametrize("asks", [HEART_BEAT, None])
def test_the_server_takes_what_comes_under_the_certificates_own_name(origin, certificate, own, asks):
    assert server_takes(Envelope(origin, "server", asks), certificate) == own
    assert not server_takes(Envelope(origin, "b", asks), certificate)


@pytest.mark.parametrize(
    ("asks", "by_site", "by_admin"),
    [
        (HEART_BEAT, True, True),
        ((CellChannel.SERVER_COMMAND, "get_task"), True, False),
        ((CellChannel.SERVER_COMMAND, "submit_update"), True, False),
        ((CellChannel.SERVER_COMMAND, "app_command"), False, False),
        ((CellChannel.SERVER_COMMAND, "abort"), False, False),
        ((CellChannel.SERVER_PARENT_LISTENER, "update_run_status"), False, False),
        ((CellChannel.HCI, "command"), False, True),
        ((CellChannel.CELLNET, "bye"), True, True),
        ((CellChannel.CELLNET, "bulk"), False, False),
        (("_net_manager", "stop"), False, False),
        (COMMAND, False, False),
        (CALL, False, False),
        (("", ""), False, False),
    ],
)
def test_sites_and_administrators_ask_the_server_what_is_theirs_to_ask(asks, by_site, by_admin):
    """A bulk is messages in a message, of any channel: none of our parties sends one."""
    assert server_takes(Envelope("a", "server", asks), "a") == by_site
    assert server_takes(Envelope(SESSION, "server", asks), ADMIN) == by_admin


@pytest.mark.parametrize(
    ("origin", "asks", "taken"),
    [
        ("server", COMMAND, True),
        ("server.3e1b4f1c", CALL, True),
        ("server", None, True),
        ("server", (CellChannel.CELLNET, "bye"), True),
        ("server", (CellChannel.CELLNET, "bulk"), False),
        ("server", ("_net_manager", "config_vars"), False),
        ("server", (CellChannel.CLIENT_COMMAND, "abort"), False),
        ("server", (CellChannel.SERVER_COMMAND, "get_task"), False),
        ("server.3e1b4f1c", (CellChannel.CLIENT_COMMAND, "configure_job_log"), False),
        ("server", ("", ""), False),
        ("a", (CellChannel.CLIENT_COMMAND, "abort"), True),
        ("a.3e1b4f1c", (CellChannel.SERVER_COMMAND, "get_task"), True),
        ("b", COMMAND, False),
        ("b.3e1b4f1c", CALL, False),
        ("b", None, False),
        (SESSION, COMMAND, False),
        ("", COMMAND, False),
    ],
)
def test_a_site_takes_messages_of_its_own_and_of_the_server_on_the_servers_channels(origin, asks, taken):
    assert site_takes(Envelope(origin, "a.3e1b4f1c", asks), "a") == taken


def cell_message(channel, topic, **headers):
    named = {MessageHeaderKey.ORIGIN: "server", MessageHeaderKey.DESTINATION: "a", MessageHeaderKey.MSG_TYPE: "req"}
    named |= {MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
    return Message({**named, **{getattr(StreamHeaderKey, name): value for name, value in headers.items()}})


@pytest.mark.parametrize(
    ("message", "taken"),
    [
        (cell_message(*COMMAND), True),
        (cell_message("_net_manager", "config_vars"), False),
        (cell_message(STREAM_CHANNEL, STREAM_DATA_TOPIC, CHANNEL="collab", TOPIC="call"), True),
        (cell_message(STREAM_CHANNEL, STREAM_DATA_TOPIC, CHANNEL=CellChannel.CLIENT_COMMAND, TOPIC="abort"), False),
        (cell_message(STREAM_CHANNEL, STREAM_DATA_TOPIC), False),
        (cell_message(STREAM_CHANNEL, STREAM_ACK_TOPIC), True),
        (cell_message("_net_manager", "config_vars", CHANNEL="collab", TOPIC="call"), False),
        (Message({}), False),
    ],
)
def test_a_stream_is_judged_by_what_it_is_for(message, taken):
    assert (check_for("a")(message) is None) == taken


def test_every_cell_of_a_site_and_the_servers_own_have_a_check_and_others_none():
    """A server's job processes are reached through the server's cell only."""
    assert all(check_for(cell) for cell in ("server", "a", "a.3e1b4f1c"))
    assert not any(check_for(cell) for cell in ("server.3e1b4f1c", SESSION))
    assert all(check_for(cell).__name__ for cell in ("server", "a"))  # FLARE asks for it, and drops all without one
