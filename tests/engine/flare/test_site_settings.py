import re

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.engine.flare.kit_builder import write_new_identity
from bilateral.engine.flare.site_settings import DataSettings, SiteSettings, load_site_settings
from bilateral.engine.plan import parse_plan
from bilateral.errors import DeploymentError, PlanError
from bilateral.protocols.mask.keys import is_signed

KEY = "ab" * 32


def write(kit, text):
    path = kit / "bilateral.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


values = st.recursive(
    st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=6,
)


@given(
    options=st.dictionaries(st.text(min_size=1), values, max_size=4),
    data_dir=st.none() | st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1),
    keys=st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True), st.binary(min_size=32, max_size=32)),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_every_setting_survives_toml(tmp_path_factory, options, data_dir, keys):
    data = DataSettings(options=options, data_dir=data_dir)
    pinned = {name: key.hex() for name, key in keys.items()}
    kit = tmp_path_factory.mktemp("kit")
    found = load_site_settings(
        write(kit, tomli_w.dumps({"data": data.model_dump(exclude_none=True), "identities": pinned}))
    )
    assert found.data == data
    assert found.pinned() == keys


def test_relative_paths_are_relative_to_the_kit_wherever_one_reads_from(tmp_path, monkeypatch):
    path = write(tmp_path / "kit", '[data]\ndata_dir = "mine"\n[server]\nruns = "runs"\n')
    monkeypatch.chdir(tmp_path)
    for found in (load_site_settings("kit"), load_site_settings("kit/bilateral.toml"), load_site_settings(path)):
        assert found.data_directory == tmp_path / "kit" / "mine"
        assert found.runs_directory == tmp_path / "kit" / "runs"


def test_an_absolute_data_directory_stays_as_it_is(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    found = load_site_settings(write(tmp_path / "kit", tomli_w.dumps({"data": {"data_dir": str(elsewhere)}})))
    assert found.data_directory == elsewhere


def test_no_data_directory_is_none(tmp_path):
    assert load_site_settings(write(tmp_path, "")).data_directory is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[data]\ndatadir = 'x'\n", r"data\.datadir.*not a setting"),
        ("[server]\nruns = 3\n", r"server\.runs"),
        (f"[identities]\nsite-1 = '{KEY[:-1]}'\n", r"identities\.site-1"),
        (f"[identities]\nsite-1 = '{KEY.upper()}'\n", r"identities\.site-1"),
        (f"[identities]\nsite-1 = '''{KEY}\n'''\n", r"identities\.site-1"),
        ("[data\n", "not a readable TOML"),
        ("[plans]\naccepted = ['abc']\n", r"plans\.accepted"),
        (f"[plans]\naccepted = '{KEY}'\n", r"plans\.accepted"),
        ("whatever = 1\n", "whatever.*not a setting"),
    ],
)
def test_wrong_settings_are_refused_by_name_and_file(tmp_path, text, problem):
    path = write(tmp_path, text)
    with pytest.raises(DeploymentError, match=problem) as caught:
        load_site_settings(path)
    assert str(path) in str(caught.value)


def test_missing_settings_say_who_writes_them(tmp_path):
    with pytest.raises(DeploymentError, match="bilateral deploy"):
        load_site_settings(tmp_path)


def test_a_server_has_no_identity_and_a_site_no_runs(tmp_path):
    with pytest.raises(DeploymentError, match=r"no section \[identity\]"):
        load_site_settings(write(tmp_path, "[server]\n")).identity()
    with pytest.raises(DeploymentError, match=r"no section \[server\]"):
        _ = load_site_settings(write(tmp_path, "[identity]\n")).runs_directory


class TestPlans:
    PLAN = parse_plan({"data": {"sites": {"a": {}, "b": {}}}}, "of a test")

    def accepting(self, kit, *fingerprints):
        return load_site_settings(write(kit, tomli_w.dumps({"plans": {"accepted": list(fingerprints)}, "server": {}})))

    def test_a_plan_that_the_operator_agreed_to_is_accepted(self, tmp_path):
        self.accepting(tmp_path, "cd" * 32, self.PLAN.fingerprint()).check_accepted(self.PLAN)

    @pytest.mark.parametrize(
        "change",
        [
            {"aggregation.masks": "none"},
            {"protection": "fedavg"},
            {"data.name": "os:system"},
            {"data.sites": {"a": {"path": "/etc"}, "b": {}}},
            {"seed": 1},
        ],
    )
    def test_any_other_plan_is_refused_and_the_remedy_is_the_line_to_add(self, tmp_path, change):
        other = self.PLAN.with_settings(change)
        with pytest.raises(PlanError, match=rf'add "{other.fingerprint()}" to `accepted` under \[plans\]'):
            self.accepting(tmp_path, self.PLAN.fingerprint()).check_accepted(other)

    def test_settings_without_plans_accept_none(self, tmp_path):
        with pytest.raises(PlanError, match=r"\(0 are\)"):
            load_site_settings(write(tmp_path, "")).check_accepted(self.PLAN)

    def test_waiting_longer_is_the_same_plan(self, tmp_path):
        longer = self.PLAN.with_settings({"federation.patience": 9.0, "federation.timeout": 9.0})
        self.accepting(tmp_path, self.PLAN.fingerprint()).check_accepted(longer)

    def test_a_checkpoint_is_bound_to_the_start_of_the_fingerprint(self):
        assert re.fullmatch("[0-9a-f]{64}", self.PLAN.fingerprint())
        assert self.PLAN.fingerprint().startswith(self.PLAN.digest())
        assert len(self.PLAN.digest()) == 16

    @pytest.mark.parametrize("name", ["first", "2026-11-16", "a.b_c-1", "A"])
    def test_a_run_has_a_directory_of_its_name(self, tmp_path, name):
        assert self.accepting(tmp_path).run_directory(name) == tmp_path / "runs" / name

    @pytest.mark.parametrize(
        "name", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", "a b", ".x", "-x", "a\n", "x" * 101, None]
    )
    def test_a_run_name_leads_nowhere_else(self, tmp_path, name):
        with pytest.raises(PlanError, match="run's name"):
            self.accepting(tmp_path).run_directory(name)

    def test_rounds_are_counted_apart_for_each_plan(self, tmp_path):
        found = self.accepting(tmp_path)
        other = self.PLAN.with_settings({"seed": 1})
        assert found.spent_file(self.PLAN) == tmp_path / "spent" / f"{self.PLAN.fingerprint()}.json"
        assert found.spent_file(self.PLAN) != found.spent_file(other)


class TestIdentity:
    @pytest.fixture
    def kit(self, tmp_path):
        write(tmp_path, '[identity]\nkey_file = "identity.key"\n')
        return tmp_path

    def test_the_key_read_back_signs_as_the_one_written(self, kit):
        written = write_new_identity(kit / "identity.key")
        found = load_site_settings(kit).identity()
        assert found.public_bytes == written.public_bytes
        assert is_signed(written.public_bytes, found.sign(b"message"), b"message")

    def test_a_new_key_never_replaces_one(self, kit):
        write_new_identity(kit / "identity.key")
        with pytest.raises(FileExistsError):
            write_new_identity(kit / "identity.key")

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o644, 0o777])
    def test_a_key_that_others_can_read_is_refused(self, kit, mode):
        path = kit / "identity.key"
        write_new_identity(path)
        path.chmod(mode)
        with pytest.raises(DeploymentError, match=f"{mode:o}.*chmod 600") as caught:
            load_site_settings(kit).identity()
        assert path.read_text().strip() not in str(caught.value)

    @pytest.mark.parametrize("content", ["", "ab" * 31, "ab" * 33, "AB" * 32, "zz" * 32, "ab" * 16 + "\n" + "ab" * 16])
    def test_a_malformed_key_is_refused_and_not_shown(self, kit, content):
        path = kit / "identity.key"
        path.write_text(content)
        path.chmod(0o600)
        with pytest.raises(DeploymentError, match="hexadecimal") as caught:
            load_site_settings(kit).identity()
        assert not content or content not in str(caught.value)

    def test_a_missing_key_is_named(self, kit):
        with pytest.raises(DeploymentError, match=r"no identity key.*identity\.key"):
            load_site_settings(kit).identity()


def test_settings_of_nothing_are_the_defaults():
    assert SiteSettings().data == DataSettings()
    assert SiteSettings().pinned() == {}
