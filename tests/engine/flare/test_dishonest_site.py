"""A site that speaks as somebody else, live with mutual TLS: with its own token, and with one that it had before.

A token that is no longer registered is still signed by the server, and FLARE binds it to no origin.
"""

import json
import uuid
from pathlib import Path

import pytest
from nvflare.private.defs import CellChannel, SysCommandTopic, TrainingTopic
from tests.engine.flare import hostile_site
from tests.engine.flare.test_job_names import wait_until, workspace_of

from bilateral.engine.flare.admin import Admin
from bilateral.engine.flare.processes import LocalProcesses, free_ports
from bilateral.engine.flare.provisioning import Deployment, provision
from bilateral.engine.flare.sender_check import check_for, is_own_origin, may_send_to_site

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
    with LocalProcesses(kits, environment) as processes, Admin(kits.admin) as admin:
        processes.start_server()
        processes.start_sites()
        wait_until(lambda: admin.connected_sites() == (HOSTILE, VICTIM))
        wait_until(lambda: len(list(folder.glob("*.token"))) == 1)
        processes.restart(HOSTILE)
        wait_until(lambda: len(list(folder.glob("*.token"))) == 2)
        old, new = (json.loads(path.read_text()) for path in sorted(folder.glob("*.token")))
        assert old["token"] != new["token"]
        yield {"old": old, "new": new}


def ask(folder, topic, body, headers):
    name = uuid.uuid4().hex
    request = {"target": VICTIM, "topic": topic, "body": body, "headers": headers}
    (folder / f"{name}.writing").write_text(json.dumps(request))
    (folder / f"{name}.writing").rename(folder / f"{name}.request")
    wait_until((folder / f"{name}.reply").exists)
    return json.loads((folder / f"{name}.reply").read_text())


def taken(kits, topic):
    """How many commands of a topic the victim has taken, by its own record."""
    record = workspace_of(kits.sites[VICTIM]) / "audit.log"
    return record.read_text().count(f"[A:{topic}]") if record.exists() else 0


@live
@pytest.mark.parametrize("origin", [HOSTILE, "server", VICTIM, f"{HOSTILE}.job", "server.job"])
@pytest.mark.parametrize("token", ["old", "new"])
@pytest.mark.parametrize(
    ("topic", "body"),
    [
        (SysCommandTopic.SHELL, "cat local/resources.json"),
        (TrainingTopic.CHECK_STATUS, ""),
        (TrainingTopic.SHUTDOWN, ""),
    ],
)
def test_a_site_takes_no_command_from_another_site(kits, folder, tokens, topic, body, token, origin):
    before = taken(kits, topic)
    answer = ask(folder, topic, body, hostile_site.as_whom(HOSTILE, tokens[token], origin))
    assert answer["body"] is None
    assert taken(kits, topic) == before


@live
def test_the_record_of_commands_is_one(kits, tokens):
    """The control: a command of the server's is in the victim's record."""
    with Admin(kits.admin) as admin:
        before = taken(kits, TrainingTopic.CHECK_STATUS)
        admin.sites_running("none")
        wait_until(lambda: taken(kits, TrainingTopic.CHECK_STATUS) > before)


SESSION = f"_admin_{uuid.uuid4()}"


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
        (SESSION, "admin@bilateral.org", True),
        (f"{SESSION}.a", "admin@bilateral.org", False),
        ("_admin_1", "admin@bilateral.org", False),
        ("admin@bilateral.org", "admin@bilateral.org", False),
        ("server", "admin@bilateral.org", False),
        ("a", "admin@bilateral.org", False),
    ],
)
def test_an_origin_is_ones_own_by_the_certificate(origin, certificate, own):
    assert is_own_origin(origin, certificate) == own


@pytest.mark.parametrize(
    ("origin", "asks", "taken"),
    [
        ("server", CellChannel.CLIENT_MAIN, True),
        ("server.3e1b4f1c", "collab", True),
        ("server", None, True),
        ("server", "_net_manager", False),
        ("server", CellChannel.CLIENT_COMMAND, False),
        ("server", CellChannel.SERVER_COMMAND, False),
        ("server.3e1b4f1c", CellChannel.CLIENT_COMMAND, False),
        ("server", "", False),
        ("a", CellChannel.CLIENT_COMMAND, True),
        ("a.3e1b4f1c", CellChannel.SERVER_COMMAND, True),
        ("b", CellChannel.CLIENT_MAIN, False),
        ("b.3e1b4f1c", "collab", False),
        ("b", None, False),
        (SESSION, CellChannel.CLIENT_MAIN, False),
        ("", CellChannel.CLIENT_MAIN, False),
    ],
)
def test_a_site_takes_messages_of_its_own_and_of_the_server_on_the_servers_channels(origin, asks, taken):
    assert may_send_to_site("a", origin, asks) == taken


def test_every_cell_of_a_site_and_the_servers_own_have_a_check_and_others_none():
    """A server's job processes are reached through the server's cell only."""
    assert all(check_for(cell) for cell in ("server", "a", "a.3e1b4f1c"))
    assert not any(check_for(cell) for cell in ("server.3e1b4f1c", SESSION))
