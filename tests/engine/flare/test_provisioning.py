import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.security.security import FLAuthorizer
from nvflare.utils.job_launcher_utils import get_client_job_args

from bilateral.engine.flare.provisioning import Deployment, Kits, extend, project_text, provision
from bilateral.engine.flare.site_settings import DataSettings, ServerSettings, load_site_settings
from bilateral.errors import DeploymentError, PlanError
from bilateral.protocols.noise.round_counter import FileCounter

SITES = ("site-1", "site-2")
DEPLOYMENT = Deployment(
    "trial",
    "localhost",
    SITES,
    fed_learn_port=18102,
    data_settings={"site-2": DataSettings(options={"part": 2}, data_dir="patients")},
    server_settings=ServerSettings(runs="all-runs"),
    server_data=DataSettings(options={"test": True}),
    plans=("ab" * 32,),
)


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    return provision(DEPLOYMENT, tmp_path_factory.mktemp("provisioned") / "trial")


def parties(kits):
    return [kits.server, *kits.sites.values()]


def workspace_of(kit):
    """FLARE's part of a party's kit; an administrator's kit is FLARE's own."""
    return kit / "flare" if (kit / "flare").is_dir() else kit


def certificate(kit, name="client"):
    return x509.load_pem_x509_certificate((workspace_of(kit) / "startup" / f"{name}.crt").read_bytes())


def public_keys(kits):
    return {name: load_site_settings(kit).identity().public_bytes for name, kit in kits.sites.items()}


def test_each_party_has_its_own_settings(kits):
    assert load_site_settings(kits.server).data.options == {"test": True}
    assert load_site_settings(kits.server).runs_directory == kits.server / "all-runs"
    assert load_site_settings(kits.sites["site-1"]).data == DataSettings(data_dir="data")
    assert (kits.sites["site-1"] / "data").is_dir()
    assert load_site_settings(kits.sites["site-2"]).data_directory == kits.sites["site-2"] / "patients"
    holders = [path for path in kits.server.parent.rglob("*") if path.is_file() and b"patients" in path.read_bytes()]
    assert holders == [kits.sites["site-2"] / "bilateral.toml"]


def test_every_kit_accepts_the_plans_of_the_deployment(kits):
    assert all(load_site_settings(kit).plans.accepted == ("ab" * 32,) for kit in parties(kits))


def test_every_kit_pins_every_site(kits):
    expected = public_keys(kits)
    assert sorted(expected) == sorted(SITES)
    assert len(set(expected.values())) == len(SITES)
    assert all(load_site_settings(kit).pinned() == expected for kit in parties(kits))


def test_a_private_identity_key_is_in_its_sites_kit_only_and_for_its_owner_only(kits):
    for name, kit in kits.sites.items():
        key_file = kit / "identity.key"
        secret = key_file.read_bytes().strip()
        everything = [path for path in kits.directory.rglob("*") if path.is_file()]
        assert [path for path in everything if secret in path.read_bytes()] == [key_file], name
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600


def test_nothing_of_ours_is_below_flares_workspace(kits):
    for kit in parties(kits):
        here = {path.name for path in kit.iterdir()}
        of_a_site = {"identity.key", "spent"} if kit != kits.server else set()
        assert here == {"bilateral.toml", "data", "flare"} | of_a_site
        assert {"startup", "local", "transfer"} <= {path.name for path in (kit / "flare").iterdir()}


def test_every_site_has_a_counter_at_zero_for_every_plan_and_the_server_none(kits):
    for kit in kits.sites.values():
        (counter,) = (kit / "spent").iterdir()
        assert counter.name == f"{'ab' * 32}.json"
        assert FileCounter(counter).used == 0
    assert not (kits.server / "spent").exists()


def test_nobody_else_on_the_machine_sees_the_root_key(kits):
    assert stat.S_IMODE(kits.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((kits.directory / "trial" / "state").stat().st_mode) == 0o700


def test_all_parties_speak_mutual_tls_with_certificates_of_one_root(kits):
    for kit in (*parties(kits), kits.admin):
        (config,) = (json.loads(path.read_text()) for path in (workspace_of(kit) / "startup").glob("fed_*.json"))
        part = config.get("admin") or config.get("client") or config["servers"][0]
        assert part["connection_security"] == "mtls"
        mine = certificate(kit, "server" if kit == kits.server else "client")
        root = x509.load_pem_x509_certificate((workspace_of(kit) / "startup" / "rootCA.pem").read_bytes())
        mine.verify_directly_issued_by(root)
        assert [name.value for name in mine.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [kit.name]
        assert root == x509.load_pem_x509_certificate((kits.server / "flare" / "startup" / "rootCA.pem").read_bytes())


def test_a_site_starts_jobs_as_processes_alone_whatever_a_jobs_meta_asks_for(kits):
    """FLARE offers a job's meta to every launcher of a kit (containers, clusters), and this one takes its id alone."""
    for kit in kits.sites.values():
        resources = json.loads((kit / "flare" / "local" / "resources.json").read_text())
        paths = [part["path"] for part in resources["components"]]
        assert sorted(path.rpartition(".")[2] for path in paths) == [
            *("ClientProcessJobLauncher", "GPUResourceConsumer", "GPUResourceManager", "JobGate")
        ]
        assert resources["components"][0]["args"]["num_of_gpus"] == 0  # none to reserve
    context = FLContext()
    arguments = dict.fromkeys(get_client_job_args(), ("-x", "y"))
    context.set_prop(FLContextKey.JOB_PROCESS_ARGS, arguments, private=True, sticky=False)
    commands = {
        ClientProcessJobLauncher().get_command({"job_id": "3e1b4f1c-5a0e-4c1d-9b7a-0123456789ab", **asked}, context)
        for asked in ({}, {"launcher_spec": {"a": {"docker": {"image": "x"}}}}, {"study": "../x"}, {"byoc": True})
    }
    assert len(commands) == 1


@pytest.mark.parametrize("path", ["os.system", "subprocess.Popen", "bilateral.engine.flare.processes.LocalProcesses"])
def test_a_job_cannot_build_other_classes_than_ours(kits, path):
    for kit in parties(kits):
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            ComponentPathAuthorizer().authorize_component_config(
                {"path": path}, workspace=Workspace(str(kit / "flare"))
            )


@pytest.mark.parametrize(
    "path",
    [
        "nvflare.collab.runtime.controller.CollabController",
        "nvflare.collab.runtime.executor.CollabExecutor",
        "bilateral.engine.flare.coordinator.Coordinator",
        "bilateral.engine.flare.site.Site",
    ],
)
def test_a_job_can_build_our_classes(kits, path):
    for kit in parties(kits):
        ComponentPathAuthorizer().authorize_component_config({"path": path}, workspace=Workspace(str(kit / "flare")))


@pytest.mark.parametrize(
    ("right", "allowed"),
    [
        ("submit_job", True),
        ("view", True),
        ("abort_job", True),
        ("app_command", True),
        ("byoc", False),
        ("cat", False),
        ("clone_job", False),
    ],
)
def test_no_administrator_may_send_code_or_read_files_of_a_party(kits, right, allowed):
    admin = Person("admin@bilateral.org", "bilateral", "project_admin")
    for kit in parties(kits):
        policy = json.loads((kit / "flare" / "local" / "authorization.json").read_text())
        context = AuthzContext(user=admin, submitter=admin, right=right)
        assert FLAuthorizer("bilateral", policy).authorize(context)[0] == allowed


def test_logs_and_data_of_a_site_stay_there(kits):
    for kit in kits.sites.values():
        resources = json.loads((kit / "flare" / "local" / "resources.json").read_text())
        assert resources["allow_log_streaming"] is False
        assert "site_log_streamer" not in [component["id"] for component in resources["components"]]


def test_a_server_keeps_its_jobs_in_its_kit_wherever_that_is_moved(kits):
    text = (kits.server / "flare" / "local" / "resources.json").read_text()
    assert "/tmp" not in text
    assert str(kits.directory) not in text
    assert (
        'export BILATERAL_KIT="$(dirname "$SOURCE_WORKSPACE")"'
        in (kits.server / "flare" / "startup" / "sub_start.sh").read_text()
    )


def test_start_scripts_are_whole(kits):
    for kit in parties(kits):
        for script in (workspace_of(kit) / "startup").glob("*.sh"):
            assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
            assert os.access(script, os.X_OK)


def test_kits_are_found_again(kits):
    assert Kits.open(kits.directory) == kits


def test_provisioning_prints_nothing(tmp_path, capfd):
    provision(Deployment("quiet", "127.0.0.1", ["a"]), tmp_path / "quiet")
    assert capfd.readouterr() == ("", "")


@given(
    names=st.lists(st.from_regex(r"[a-z0-9_-]{1,12}", fullmatch=True), min_size=1, max_size=5, unique=True),
    options=st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans()), max_size=3),
    ports=st.tuples(st.integers(1, 65535), st.none() | st.integers(1, 65535)),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_the_project_file_says_what_the_deployment_says(names, options, ports):
    some = {names[0]: DataSettings(options=options)}
    text = project_text(
        Deployment("x", "host", names, fed_learn_port=ports[0], admin_port=ports[1], data_settings=some)
    )
    server, *sites, admin = yaml.safe_load(text)["participants"]
    assert [site["name"] for site in sites] == names
    assert {site["type"] for site in sites} == {"client"}
    assert sites[0].get("bilateral", {}).get("data", {}).get("options", {}) == options
    assert (server["name"], server["fed_learn_port"], server.get("admin_port")) == ("host", *ports)
    assert (admin["type"], admin["role"]) == ("admin", "project_admin")


class TestRefusals:
    @pytest.mark.parametrize(
        "name", ["", "a b", "a/b", "..", "a.b", "a\n", " a", "ä", "server", "Server", "a" * 64, "a@b", '"', "a:b"]
    )
    def test_names_that_flare_does_not_take(self, tmp_path, name):
        with pytest.raises(PlanError, match="site's name"):
            provision(Deployment("x", "localhost", ["good", name]), tmp_path / "x")
        assert not (tmp_path / "x").exists()

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"sites": ["a", "b", "a"]}, "'a' is given twice"),
            ({"sites": ["a", "A"]}, "'A' is given twice"),
            ({"sites": ["localhost"]}, "'localhost' is given twice"),
            ({"sites": []}, "one or more sites"),
            ({"sites": "site"}, "list of one or more"),
            ({"data_settings": {"c": DataSettings()}}, "'c', but no such site"),
            ({"server_host": "not a host"}, "server's host"),
            ({"organisation": "an org"}, "organisation"),
            ({"admin": "root"}, "e-mail"),
            ({"name": "../x"}, "deployment's name"),
            ({"fed_learn_port": 0}, "port between"),
            ({"admin_port": 70000}, "port between"),
            ({"scheme": "ftp"}, "scheme 'ftp'"),
            ({"plans": ["ab" * 31]}, "fingerprint of 64"),
            ({"plans": ["ab" * 32 + "\n"]}, "fingerprint of 64"),
        ],
    )
    def test_what_makes_no_sense(self, tmp_path, change, problem):
        values = {"name": "x", "server_host": "localhost", "sites": ["a", "b"], **change}
        with pytest.raises(PlanError, match=problem):
            provision(Deployment(**values), tmp_path / "x")
        assert not (tmp_path / "x").exists()

    def test_a_directory_with_something_in_it(self, tmp_path):
        (tmp_path / "precious").write_text("data")
        with pytest.raises(PlanError, match="empty directory"):
            provision(DEPLOYMENT, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["precious"]

    def test_opening_what_is_no_deployment(self, tmp_path):
        with pytest.raises(DeploymentError, match="no project file"):
            Kits.open(tmp_path)
        (tmp_path / "project.yml").write_text("[1, 2]")
        with pytest.raises(DeploymentError, match="not a FLARE project file"):
            Kits.open(tmp_path)
        (tmp_path / "project.yml").write_text(project_text(DEPLOYMENT))
        with pytest.raises(DeploymentError, match=r"no kits.*nvflare provision"):
            Kits.open(tmp_path)


class TestLaterChanges:
    @pytest.fixture
    def before(self, tmp_path):
        return provision(DEPLOYMENT, tmp_path / "trial")

    def unchanged(self, before, after):
        for name in SITES:
            old, new = before.sites[name], after.sites[name]
            assert old != new
            assert certificate(old) == certificate(new)
            assert load_site_settings(old).identity().public_bytes == load_site_settings(new).identity().public_bytes
            assert load_site_settings(old).data == load_site_settings(new).data

    def test_an_added_site_is_pinned_by_all_and_the_others_keep_their_keys(self, before):
        after = extend(before.directory, {"site-3": DataSettings(options={"part": 3})})
        self.unchanged(before, after)
        assert sorted(after.sites) == ["site-1", "site-2", "site-3"]
        assert all(load_site_settings(kit).pinned() == public_keys(after) for kit in parties(after))
        assert load_site_settings(after.sites["site-3"]).data.options == {"part": 3}
        assert load_site_settings(after.server).runs_directory.name == "all-runs"
        certificate(after.sites["site-3"]).verify_directly_issued_by(
            x509.load_pem_x509_certificate((before.server / "flare" / "startup" / "rootCA.pem").read_bytes())
        )

    def test_a_plan_is_added_once_and_the_rest_of_the_project_file_stays(self, before):
        lines = before.project_file.read_text().splitlines()
        for _ in range(2):
            after = extend(before.directory, plans=["cd" * 32])
            assert all(load_site_settings(kit).plans.accepted == ("ab" * 32, "cd" * 32) for kit in parties(after))
        changed = before.project_file.read_text().splitlines()
        assert len(changed) == len(lines)
        assert [(old, new) for old, new in zip(lines, changed, strict=True) if old != new] == [
            (f'      plans: ["{"ab" * 32}"]', f'      plans: ["{"ab" * 32}", "{"cd" * 32}"]')
        ]

    def test_a_budget_begins_once_and_no_later_kit_brings_it_again(self, before):
        after = extend(before.directory, {"site-3": DataSettings()}, ["cd" * 32])
        found = {name: sorted(path.stem for path in (kit / "spent").iterdir()) for name, kit in after.sites.items()}
        assert found == {"site-1": ["cd" * 32], "site-2": ["cd" * 32], "site-3": ["ab" * 32, "cd" * 32]}
        again = extend(before.directory)
        assert [kit for kit in again.sites.values() if (kit / "spent").exists()] == []

    def test_after_an_update_from_an_earlier_version_keys_are_kept_and_no_budget_begins_anew(self, before):
        for kit in parties(before):  # as earlier versions laid it out
            for path in (kit / "flare").iterdir():
                path.rename(kit / path.name)
            (kit / "flare").rmdir()
            for name in ("bilateral.toml", "identity.key"):
                if (kit / name).exists():
                    (kit / name).rename(kit / "local" / name)
        (before.directory / "trial" / "state" / "bilateral_counters.json").unlink()
        with pytest.raises(DeploymentError, match="kit of an earlier version"):
            Kits.open(before.directory)
        keys = {name: (kit / "local" / "identity.key").read_text() for name, kit in before.sites.items()}
        after = extend(before.directory, plans=["cd" * 32])
        assert {name: (kit / "identity.key").read_text() for name, kit in after.sites.items()} == keys
        for kit in after.sites.values():
            assert [path.stem for path in (kit / "spent").iterdir()] == ["cd" * 32]

    @pytest.mark.parametrize("change", [("      plans: [", "      plans:  ["), ("participants:", "participants :")])
    def test_a_project_file_of_another_layout_is_left_alone(self, before, change):
        text = before.project_file.read_text().replace(*change)
        before.project_file.write_text(text)
        with pytest.raises(DeploymentError, match="laid out"):
            extend(before.directory, {"site-3": DataSettings()}, ["cd" * 32])
        assert before.project_file.read_text() == text

    @pytest.mark.parametrize("name", ["site-1", "SITE-1", "localhost", "a b", "server"])
    def test_a_site_that_cannot_be_added_changes_nothing(self, before, name):
        text = before.project_file.read_text()
        with pytest.raises(PlanError):
            extend(before.directory, {name: DataSettings()})
        assert before.project_file.read_text() == text
        assert Kits.open(before.directory) == before

    def test_a_private_key_that_was_handed_out_and_deleted_is_not_replaced(self, before):
        for kit in before.sites.values():
            (kit / "identity.key").unlink()
        pinned = load_site_settings(before.server).pinned()
        after = extend(before.directory, {"site-3": DataSettings()})
        assert not (after.sites["site-1"] / "identity.key").exists()
        assert {name: load_site_settings(after.server).pinned()[name] for name in SITES} == pinned

    def test_a_key_of_somebody_else_is_noticed(self, before):
        first, second = (before.sites[name] / "identity.key" for name in SITES)
        first.write_bytes(second.read_bytes())
        with pytest.raises(DeploymentError, match="not the one that was pinned for site-1"):
            extend(before.directory, {"site-3": DataSettings()})

    def test_flares_own_command_makes_the_same_kits(self, before, tmp_path):
        command = Path(sys.executable).parent / "nvflare"
        done = subprocess.run(
            [command, "provision", "-p", "project.yml", "-w", ".", "--force"],
            cwd=before.directory,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        after = Kits.open(before.directory)
        self.unchanged(before, after)
        for old, new in zip(parties(before), parties(after), strict=True):
            for path in (
                "flare/local/resources.json",
                "flare/local/authorization.json",
                "bilateral.toml",
                "flare/startup/sub_start.sh",
            ):
                assert (old / path).read_text() == (new / path).read_text()
