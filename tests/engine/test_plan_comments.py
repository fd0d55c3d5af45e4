"""A plan that is written for people: every setting, each with a comment, and the same plan when it is read again."""

from __future__ import annotations

import re

import pytest

from bilateral.documents import parse_toml
from bilateral.engine import plan_comments
from bilateral.engine.plan import RunPlan, parse_plan, plan_with_comments
from bilateral.runs.hetero import plan as hetero
from bilateral.runs.hetero.plan import HeteroPlan, hetero_plan_with_comments, parse_hetero_plan

SETTINGS = [
    {},
    {"model.options": {"width": 8, "batch_norm": True}, "federation.clients": 3, "noise.epsilon": 2.5},
    {"data.sites": {"a": {"path": 'with "quotes" # and more'}, "b": {}}, "data.server": {"path": "c"}},
    {"protection": "sealed", "federation.dealer": "auditor", "perturbation.scale_range": (0.5, 2.0)},
]
MIXED = {"clients.architectures": [{"name": "mlp-3", "options": {"width": 4}}, {"name": "lenet"}], "style": "hardened"}


def settings_of(kind, path=()):
    for name, field in kind.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        yield from settings_of(field.annotation, (*path, name)) if inner else [".".join((*path, name))]


@pytest.mark.parametrize("settings", SETTINGS)
def test_what_is_written_is_the_plan(settings):
    plan = RunPlan().with_settings(settings)
    assert parse_plan(parse_toml(plan_with_comments(plan)), "x") == plan


@pytest.mark.parametrize("settings", [{}, MIXED])
def test_what_is_written_is_the_heterogeneous_plan(settings):
    plan = HeteroPlan().with_settings(settings)
    values = parse_toml(hetero_plan_with_comments(plan))
    assert values.pop("kind") == "hetero"
    assert parse_hetero_plan(values, "x") == plan


@pytest.mark.parametrize(
    ("kind", "text"), [(RunPlan, plan_with_comments(RunPlan())), (HeteroPlan, hetero_plan_with_comments(HeteroPlan()))]
)
def test_every_setting_stands_there_with_a_comment(kind, text):
    section, shown = "", {}
    for line in text.splitlines():
        if found := re.match(r"\[(\w+)\]$", line):
            section = f"{found[1]}."
        elif found := re.match(r"(?:# )?(?:\[\w+\.)?(\w+)(?: =.*|\]) +# (.+)$", line):
            shown[section + found[1]] = found[2]
        elif found := re.match(r"(\w+) = \[$", line):  # one line an element, and the comment behind the last
            shown[section + found[1]] = "several lines"
    assert set(settings_of(kind)) <= set(shown)
    assert all(shown.values())


@pytest.mark.parametrize(("kind", "said"), [(RunPlan, plan_comments._SAID), (HeteroPlan, hetero._SAID)])
def test_comments_are_about_settings_that_there_are(kind, said):
    assert set(said) <= set(settings_of(kind))
