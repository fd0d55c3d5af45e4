"""Who is let in to a real deployment on loopback, with mutual TLS; and that its processes end when they should."""

import datetime
import json
import os
import shutil
import socket
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.engine.flare.waiting_job import allow, write_job

from bilateral.engine.flare.admin import Admin, JobState, JobStatus
from bilateral.engine.flare.processes import LocalProcesses, free_ports
from bilateral.engine.flare.provisioning import Deployment, provision
from bilateral.errors import DeploymentError

GOOD, WITHOUT_TRUST, FOREIGN, SELF_SIGNED, PLAIN = "good", "without-trust", "foreign", "self-signed", "plain"
SITES = (GOOD, WITHOUT_TRUST, FOREIGN, SELF_SIGNED, PLAIN)
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
REPOSITORY = Path(__file__).parents[3]


HANG = 900.0
"""Seconds after which what a test waits for will not come any more."""


def wait_until(condition):
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline, f"not so after {HANG:g} seconds"
        time.sleep(0.1)


def take_certificate(source, kit):
    for name in ("client.crt", "client.key"):
        shutil.copy(source / "flare" / "startup" / name, kit / "flare" / "startup" / name)


def write_self_signed(kit):
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, kit.name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, SHA256())
        .public_bytes(Encoding.PEM)
    )
    (kit / "flare" / "startup" / "client.crt").write_bytes(certificate)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (kit / "flare" / "startup" / "client.key").write_bytes(private)
    return certificate


def trust_too(kit, issuer):
    """A hostile site trusts the server, whatever its own certificate is: only the server can turn it away."""
    root = kit / "flare" / "startup" / "rootCA.pem"
    root.write_bytes(issuer + root.read_bytes())


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Kits of which only one is as it was provisioned."""
    (port,) = free_ports(1)
    directory = tmp_path_factory.mktemp("admission")
    ours = provision(Deployment("ours", "localhost", SITES, fed_learn_port=port), directory / "ours")
    other = provision(Deployment("ours", "localhost", SITES, fed_learn_port=port), directory / "other")
    take_certificate(other.sites[WITHOUT_TRUST], ours.sites[WITHOUT_TRUST])
    other_root = (other.server / "flare" / "startup" / "rootCA.pem").read_bytes()
    (ours.sites[WITHOUT_TRUST] / "flare" / "startup" / "rootCA.pem").write_bytes(other_root)
    take_certificate(other.sites[FOREIGN], ours.sites[FOREIGN])
    trust_too(ours.sites[FOREIGN], other_root)
    trust_too(ours.sites[SELF_SIGNED], write_self_signed(ours.sites[SELF_SIGNED]))
    config = ours.sites[PLAIN] / "flare" / "startup" / "fed_client.json"
    config.write_text(config.read_text().replace('"mtls"', '"clear"'))
    for kit in (ours.server, ours.sites[GOOD]):
        allow(kit)
    return ours, other


@pytest.fixture(scope="module")
def deployment(kits):
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with LocalProcesses(kits[0], environment) as started:
        yield started


@pytest.fixture
def processes(deployment):
    """All parties run, whatever another test did to them."""
    if not deployment.is_running("server"):
        deployment.start_server(HANG)
    deployment.start_sites([name for name in SITES if not deployment.is_running(name)])
    return deployment


@pytest.fixture
def admin(kits, processes):
    with Admin(kits[0].admin, timeout=HANG) as session:
        wait_until(lambda: GOOD in session.connected_sites())
        yield session


def expect_no_server(kits):
    """An administrator of a moment's patience: the server is gone before it asks."""
    with Admin(kits[0].admin, timeout=2.0) as hasty, pytest.raises(DeploymentError, match="no connection"):
        hasty.connected_sites()


def log(processes, name):
    return processes.log_file(name).read_text()


def greet(kits, who):
    """What the server answers to the first bytes of HTTP/2, sent over TLS as `who` (None: no certificate)."""
    context = ssl.create_default_context(cafile=str(kits.server / "flare" / "startup" / "rootCA.pem"))
    context.set_alpn_protocols(["h2"])
    if who is not None:
        startup = (who / "flare" if (who / "flare").is_dir() else who) / "startup"  # an administrator's is FLARE's own
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with context.wrap_socket(connection(kits), server_hostname="localhost") as secured:
        return answer(secured)


def connection(kits):
    config = json.loads((kits.server / "flare" / "startup" / "fed_server.json").read_text())
    return socket.create_connection(("localhost", int(config["servers"][0]["admin_port"])), timeout=HANG)


def answer(stream):
    try:
        stream.sendall(HTTP2_GREETING)
        return stream.recv(100)
    except (ssl.SSLError, ConnectionError):
        return b""


def test_only_a_site_with_a_certificate_of_this_deployment_is_let_in(kits, processes, admin):
    # They try again and again: what the first time did not do, the third might.
    wait_until(lambda: log(processes, WITHOUT_TRUST).count("CERTIFICATE_VERIFY_FAILED") >= 3)
    wait_until(lambda: log(processes, "server").count("CERTIFICATE_VERIFY_FAILED") >= 6)  # foreign and self-signed
    wait_until(lambda: log(processes, "server").count("WRONG_VERSION_NUMBER") >= 3)  # no TLS at all
    assert admin.connected_sites() == (GOOD,)
    for name in (WITHOUT_TRUST, FOREIGN, SELF_SIGNED, PLAIN):
        assert "Successfully registered" not in log(processes, name)
        assert f"New client {name}" not in log(processes, "server")
    assert "Successfully registered" in log(processes, GOOD)


def test_the_server_itself_refuses_wrong_certificates_none_and_plain_text(kits, processes, admin):
    ours, other = kits
    assert greet(ours, ours.sites[GOOD])
    assert greet(ours, ours.admin)
    for stranger in (None, other.sites[GOOD], other.admin, ours.sites[SELF_SIGNED]):
        assert greet(ours, stranger) == b""
    with connection(ours) as plain:
        assert answer(plain) == b""


def test_an_administrator_of_another_deployment_is_refused(kits, processes, admin, capfd):
    with (
        Admin(kits[1].admin, timeout=3.0) as stranger,
        pytest.raises(DeploymentError, match="no connection to the FLARE server"),
    ):
        stranger.connected_sites()
    assert capfd.readouterr().out == ""


def test_a_job_that_brings_code_is_refused(processes, admin, tmp_path):
    job_id = admin.submit(write_job(tmp_path / "job", code="print('here')"))
    wait_until(lambda: admin.status(job_id).has_ended)
    assert admin.status(job_id) == JobStatus(JobState.FAILED, "FINISHED:FAILED_TO_RUN")
    wait_until(lambda: "BYOC not permitted" in log(processes, "server"))  # written after the status is set
    assert processes.pids(GOOD) == processes.pids(GOOD)[:1]


def test_the_status_of_a_job_that_nobody_knows_is_an_error(admin):
    with pytest.raises(DeploymentError, match="JobNotFound"):
        admin.status("3e1b4f1c-0000-0000-0000-000000000000")


def test_processes_of_a_killed_party_are_all_gone_and_the_party_can_come_back(kits, processes, admin, tmp_path):
    job_id = admin.submit(write_job(tmp_path / "job"))
    wait_until(lambda: len(processes.pids(GOOD)) == 2 and len(processes.pids("server")) == 2)
    wait_until(lambda: admin.status(job_id).state is JobState.RUNNING)
    assert admin.sites_running(job_id) == {GOOD: True}
    assert admin.connected_sites() == (GOOD,)

    processes.kill("server")
    assert processes.pids("server") == ()
    assert not processes.is_running("server")
    assert len(processes.pids(GOOD)) == 2
    expect_no_server(kits)

    processes.restart("server", HANG)
    wait_until(lambda: admin.connected_sites() == (GOOD,))
    assert admin.status(job_id) == JobStatus(JobState.FAILED, "LOST")
    wait_until(lambda: len(processes.pids(GOOD)) == 1)  # the site ends the job that its server does not know

    processes.kill(GOOD)
    assert processes.pids(GOOD) == ()
    before = log(processes, "server").count(f"New client {GOOD}")
    processes.restart(GOOD)
    wait_until(lambda: log(processes, "server").count(f"New client {GOOD}") == before + 1)


def test_a_party_is_not_started_twice_and_an_unknown_one_not_at_all(processes, admin):
    with pytest.raises(DeploymentError, match="running already"):
        processes.start("server")
    with pytest.raises(DeploymentError, match=r"no party 'nobody'.*server, good"):
        processes.start("nobody")


def test_nothing_is_left_after_the_end(kits, processes, admin, tmp_path):
    admin.submit(write_job(tmp_path / "job"))
    wait_until(lambda: len(processes.pids(GOOD)) == 2 and len(processes.pids("server")) == 2)
    processes.stop()
    assert {name: processes.pids(name) for name in processes.names} == dict.fromkeys(processes.names, ())
    expect_no_server(kits)


def test_a_server_that_cannot_start_says_why(tmp_path):
    broken = provision(Deployment("broken", "localhost", ["a"], fed_learn_port=free_ports(1)[0]), tmp_path / "broken")
    (broken.server / "flare" / "startup" / "fed_server.json").write_text(
        '{"servers": [{"service": {"target": "localhost:1"}}]}'
    )
    with LocalProcesses(broken) as processes, pytest.raises(DeploymentError, match=r"ended while it started.*Error"):
        processes.start_server()


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("SUBMITTED", JobState.SUBMITTED),
        ("DISPATCHED", JobState.SUBMITTED),
        ("RUNNING", JobState.RUNNING),
        ("FINISHED:COMPLETED", JobState.FINISHED),
        ("FINISHED:ABORTED", JobState.FAILED),
        ("FINISHED:EXECUTION_EXCEPTION", JobState.FAILED),
        ("FINISHED:CAN_NOT_SCHEDULE", JobState.FAILED),
    ],
)
def test_states_of_jobs(text, state):
    status = JobStatus.of(text)
    assert (status.state, status.text) == (state, text)
    assert status.has_ended == text.startswith("FINISHED")
