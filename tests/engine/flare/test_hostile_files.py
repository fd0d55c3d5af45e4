"""Kits, projects and jobs whose texts are too deep, too long or of another kind."""

import json

import pytest
from tests.fuzz.guard import refusal_of
from tests.reference.work import num_calls
from tests.runs.rounds.test_in_process import plan

from bilateral.documents import MAX_DEPTH
from bilateral.engine.flare.premises import SIMULATION, accepted_plan, plan_of_job
from bilateral.engine.flare.project_file import read_project
from bilateral.engine.flare.site_settings import load_site_settings
from bilateral.engine.kind import HETERO, ROUNDS
from bilateral.engine.remote.hosting import hosted_kind

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", ["x = " + DEEP, "a." * 5000 + "b = 1", "x = " + "9" * 5000], ids=lambda text: text[:5])
def test_settings_of_a_site_too_deep_or_too_long_are_a_deployment_error(tmp_path, text):
    (tmp_path / "bilateral.toml").write_text(text)
    assert refusal_of(lambda: load_site_settings(tmp_path)) == "DeploymentError"


@pytest.mark.parametrize("text", ["[" * 5000, "a: 2020-13-45", "a: " + "9" * 5000, "? []"], ids=lambda text: text[:8])
def test_a_project_that_yaml_stumbles_over_is_a_deployment_error(tmp_path, text):
    (tmp_path / "project.yml").write_text(text)
    assert refusal_of(lambda: read_project(tmp_path / "project.yml")) == "DeploymentError"


@pytest.mark.parametrize("mark", ["[", "{", "- ", "? "])
def test_a_deep_project_takes_no_more_work_than_a_long_one(tmp_path, mark):
    """2,000 brackets took PyYAML a second: for each it looks at all that are open."""
    path = tmp_path / "project.yml"

    def work(depth):
        path.write_text(f"a:\n  {mark * depth}")
        return num_calls(lambda: refusal_of(lambda: read_project(path)))

    assert work(2_000) < 2 * work(MAX_DEPTH + 1)


def test_the_plan_of_a_job_too_deep_or_with_half_a_character_is_a_plan_error(tmp_path, monkeypatch):
    monkeypatch.setenv(SIMULATION, "1")
    (tmp_path / "bilateral.toml").write_text("[plans]\naccepted = []\n")
    settings = load_site_settings(tmp_path)
    values = plan().model_dump(mode="json")
    half = json.dumps({**values, "seed": "\ud800"})
    for text in (DEEP, '{"a":' * 5000 + "1" + "}" * 5000, half, "9" * 5000):
        assert refusal_of(lambda text=text: plan_of_job(hosted_kind(ROUNDS), text)) == "PlanError"
        assert refusal_of(lambda text=text: plan_of_job(hosted_kind(HETERO), text)) == "PlanError"
        assert refusal_of(lambda text=text: accepted_plan(hosted_kind(ROUNDS), text, settings)) == "PlanError"
