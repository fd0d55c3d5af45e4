"""What a party does with the plan that a job brings: fingerprint first, and nothing of it is quoted."""

import json

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.engine.flare.premises import accepted_plan, kit_settings
from bilateral.engine.flare.site_edge import NOT_ACCEPTED, ask_desk
from bilateral.engine.flare.site_settings import load_site_settings
from bilateral.engine.plan import RunPlan, fingerprint_of, parse_plan
from bilateral.engine.remote.edge import REFUSED
from bilateral.errors import DataError, DeploymentError, PlanError, PlanNotAcceptedError
from bilateral.protocols.transport import SERVER
from bilateral.runs.rounds.kind import KIND

SECRET = "a secret of the site"
PLAN = parse_plan({"data": {"name": "npz", "sites": {"a": {}, "b": {}}}, "noise": {"delta": 1e-7}}, "of a test")
OWN_CODE = PLAN.with_settings({"data.name": "my_clinic.data:load", "model.name": "my_clinic.nets:build"})


def settings_for(tmp_path, *plans, code=()):
    values = {"plans": {"accepted": [plan.fingerprint() for plan in plans]}, "code": {"allowed": list(code)}}
    (tmp_path / "bilateral.toml").write_text(tomli_w.dumps(values))
    return load_site_settings(tmp_path)


def test_an_accepted_plan_is_taken_with_any_waiting_times(tmp_path):
    other_times = PLAN.with_settings({"federation.timeout": 3.0, "federation.patience": 9.0})
    assert accepted_plan(KIND, other_times.model_dump_json(), settings_for(tmp_path, PLAN)) == other_times


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(0, 2**31),
            "noise.delta": st.floats(1e-12, 0.1),
            "training.learning_rate": st.floats(1e-9, 10.0),
            "data.options": st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.booleans()),
            "perturbation.softmax": st.sampled_from(["blinded", "local"]),
            "federation.timeout": st.floats(0.1, 1e6),
        },
    )
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_a_fingerprint_is_the_same_before_a_plan_is_read(changes):
    plan = PLAN.with_settings(changes)
    assert fingerprint_of(json.loads(plan.model_dump_json())) == plan.fingerprint()


def test_a_fingerprint_changes_with_what_a_plan_means_and_not_with_new_settings():
    """What norms get was not a setting once, and "scaled" is what was done."""
    before = "93255874bdd8542cd39c5c1027afa56def9d48c14e5b4a94eec03867d6992e9d"
    assert RunPlan().with_settings({"perturbation.norm_inputs": "scaled"}).fingerprint() == before
    assert RunPlan().fingerprint() == "69e3d3258afa7f62473fcdae284fb8089400d08b71fd2b189ad1aba87c340bb6"


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps([SECRET]),
        json.dumps({"seed": SECRET}),
        json.dumps({SECRET: 1}),
        json.dumps({"data": {"name": SECRET}}),
        json.dumps({"data": SECRET, "federation": SECRET, "perturbation": SECRET}),
        json.dumps({**PLAN.model_dump(mode="json"), "federation": {"timeout": SECRET}}),
        json.dumps({**PLAN.model_dump(mode="json"), SECRET: SECRET}),
        "{" * 100_000,
    ],
)
def test_no_error_quotes_what_a_job_brought(tmp_path, text):
    with pytest.raises(PlanError) as caught:
        accepted_plan(KIND, text, settings_for(tmp_path, PLAN))
    assert SECRET not in str(caught.value)


def test_a_waiting_time_that_is_none_is_refused_without_quoting_it(tmp_path):
    values = PLAN.model_dump(mode="json")
    values["federation"]["timeout"] = SECRET  # left out of the fingerprint
    with pytest.raises(PlanError, match="not as this version writes it") as caught:
        accepted_plan(KIND, json.dumps(values), settings_for(tmp_path, PLAN))
    assert SECRET not in str(caught.value)


def test_the_fingerprint_is_asked_before_the_plan_is_read(tmp_path, monkeypatch):
    def fail(*_):
        raise AssertionError("the plan was read")

    monkeypatch.setattr("bilateral.runs.rounds.kind.parse_plan", fail)
    with pytest.raises(PlanNotAcceptedError):
        accepted_plan(KIND, PLAN.with_settings({"seed": 1}).model_dump_json(), settings_for(tmp_path, PLAN))


class TestCode:
    def test_an_accepted_plan_runs_no_code_that_the_operator_has_not_named(self, tmp_path):
        with pytest.raises(PlanNotAcceptedError, match=r'my_clinic.data:load", "my_clinic.nets:build".*under \[code\]'):
            accepted_plan(KIND, OWN_CODE.model_dump_json(), settings_for(tmp_path, OWN_CODE))

    @pytest.mark.parametrize("name", ["os:system", "my_clinic.data:load ", "my_clinic.data:other", "my_clinic.data"])
    def test_a_name_must_be_the_very_one(self, tmp_path, name):
        allowed = settings_for(tmp_path, OWN_CODE, code=[name, "my_clinic.nets:build"])
        with pytest.raises(PlanNotAcceptedError, match=r"my_clinic\.data:load"):
            accepted_plan(KIND, OWN_CODE.model_dump_json(), allowed)

    def test_code_that_the_operator_has_named_is_taken(self, tmp_path):
        allowed = settings_for(tmp_path, OWN_CODE, code=["my_clinic.data:load", "my_clinic.nets:build"])
        assert accepted_plan(KIND, OWN_CODE.model_dump_json(), allowed) == OWN_CODE

    def test_nothing_is_imported_before(self, tmp_path, monkeypatch):
        (tmp_path / "boasting.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        plan = PLAN.with_settings({"data.name": "boasting:load"})
        with pytest.raises(PlanNotAcceptedError):
            accepted_plan(KIND, plan.model_dump_json(), settings_for(tmp_path, plan))
        assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PlanError(SECRET, remedy=SECRET), "PlanError at the site; its own log says more."),
        (PlanNotAcceptedError(SECRET), NOT_ACCEPTED),
        (DataError(SECRET), "DataError at the site; its own log says more."),
        (DeploymentError(SECRET), "DeploymentError at the site; its own log says more."),
        (ValueError(SECRET), "an internal error at the site; its own log says more."),
    ],
)
def test_why_a_desk_was_not_opened_is_told_in_fixed_words(error, told):
    def closed():
        raise error

    assert ask_desk(SERVER, closed, lambda desk: {}) == {REFUSED: told}


class Workspace:
    def __init__(self, root):
        self._root = root

    def get_root_dir(self):
        return str(self._root)


def test_a_kit_of_an_earlier_version_is_refused_with_what_to_do(tmp_path):
    for folder in ("startup", "local"):
        (tmp_path / folder).mkdir()
    for name in ("resources.json", "bilateral.toml"):
        (tmp_path / "local" / name).write_text("")
    for read in (
        lambda: kit_settings(Workspace(tmp_path)),
        lambda: load_site_settings(tmp_path),
        lambda: load_site_settings(tmp_path / "local" / "bilateral.toml"),
    ):
        with pytest.raises(DeploymentError, match=r"kit of an earlier version.*bilateral deploy.*again"):
            read()


def test_a_kit_is_found_beside_flares_workspace(tmp_path):
    (tmp_path / "flare").mkdir()
    (tmp_path / "bilateral.toml").write_text('[data]\ndata_dir = "data"\n')
    assert kit_settings(Workspace(tmp_path / "flare")).data_directory == tmp_path / "data"
