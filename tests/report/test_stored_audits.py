"""docs/leakage.md and the stored audits it is made of: neither may drift from the other, nor from the judge."""

from __future__ import annotations

import json
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from bilateral.audit.auditor import stored_result
from bilateral.audit.ledger import LEDGER
from bilateral.audit.scores import AUC, RECONSTRUCTED, SSIM, TPR_AT_1
from bilateral.audit.verdict import OWN, judge
from bilateral.cli.options import parse_setting
from bilateral.engine.plan import RunPlan
from bilateral.report.frame import flat
from bilateral.report.leakage_command import command_for
from bilateral.report.leakage_page import leakage_page, pictures_beside
from bilateral.runs.hetero.plan import HeteroPlan

DOCS = Path(__file__).parents[2] / "docs"
STORED = sorted((DOCS / "audits").glob("*/audit.json"))
NAMES = [path.parent.name for path in STORED]


@cache
def stored(name):
    return stored_result(DOCS / "audits" / name / "audit.json")


def rows(name, tests, words, *, adaptive=None):
    found = [one for one in stored(name).evidence if one.tests == tests and words in one.attack]
    return [one for one in found if adaptive is None or one.adaptive == adaptive]


def words(name):
    return {verdict.tests: verdict.verdict for verdict in stored(name).verdicts}


def test_the_page_is_what_the_stored_audits_give():
    results = [(name, stored(name)) for name in NAMES]
    pictures = {path.parent.name: pictures_beside(path) for path in STORED}
    assert (DOCS / "leakage.md").read_text() == leakage_page(results, pictures)


@pytest.mark.parametrize("name", NAMES)
def test_stored_verdicts_are_those_of_the_judge(name):
    values = json.loads((DOCS / "audits" / name / "audit.json").read_text())
    assert values == json.loads(json.dumps(stored(name).as_dict()))


@pytest.mark.parametrize("name", NAMES)
def test_the_command_that_is_printed_makes_the_stored_plan_again(name):
    """Settings that came later stand at their defaults: what a plan was stored with, its command gives back."""
    typed = shlex.split(command_for(stored(name), "out"))
    assert typed[:2] == ["bilateral", "audit"] and "plan.toml" not in typed
    settings = dict(parse_setting(word) for before, word in pairwise(typed) if before == "--set")
    plan = (HeteroPlan() if "--hetero" in typed else RunPlan()).with_settings(settings).model_dump(mode="json")
    assert {key: value for key, value in flat(stored(name).plan) if dict(flat(plan)).get(key) != value} == {}


def test_positive_controls_of_gradient_inversion_pass_their_gates_on_fedavg():
    for name in ("default", "cifar10-convnet"):
        for one in rows(name, "single uploads", "gradient matching"):
            assert one.positive.of(RECONSTRUCTED).mean >= 0.6
            assert one.positive.of(SSIM).median >= 0.7
            assert len(one.positive.of(SSIM).values) >= 20


def test_positive_controls_of_lira_pass_their_gates_on_fedavg():
    for name in ("default", "cifar10-lenet"):
        found = rows(name, 1, "LiRA")
        assert len(found) == 4
        for one in found:
            assert one.positive.of(AUC).mean >= 0.85
            assert one.positive.of(TPR_AT_1).mean >= 0.2
            assert len(one.positive.of(AUC).values) >= 5


def test_the_server_is_at_chance_against_masked_uploads():
    for name in ("default", "cifar10-convnet"):
        found = [judge(one) for one in rows(name, "single uploads", "gradient matching")]
        assert "broken" not in {one.verdict for one in found}
        assert "holds" in {one.verdict for one in found if one.evidence.adaptive}  # of many rows some are suspicious
    for one in rows("default", "single uploads", "source of a sample"):
        low, high = one.target.of(AUC).interval
        assert low - 1e-3 <= 0.5 <= high + 1e-3  # one sum scores all clients alike, and rounding orders equal scores
    assert words("default")["single uploads"] == "holds"


def test_every_line_of_the_ledger_is_broken_somewhere():
    found = {tests for name in NAMES for tests, verdict in words(name).items() if verdict == "broken"}
    assert found >= set(LEDGER)


def test_what_the_papers_claim_is_reported_broken():
    assert all(words("default")[line] == "broken" for line in (1, 2, 7, 9, 15))
    assert all(words("published-exchange")[line] == "broken" for line in (1, 2, 7, 8, 9, 10, 15, 16))
    assert not {8, 10, 16} & set(words("default"))
    assert words("published")[3] == words("published")[4] == "broken"
    assert words("published")["published differential privacy"] == "broken"
    assert words("unmasked")[3] == words("float-masks")[6] == words("hetero-published")[5] == "broken"
    (fitted,) = rows("default", 1, "fitted to 100 labelled samples of its own")
    assert fitted.target.scores[0].mean >= 0.95
    (solved,) = rows("published-exchange", 2, "a linear system for the group blinders")
    assert max(solved.target.scores[0].values) < 1e-6
    (computed,) = rows("default", 2, "without the noise that comes with the model")
    assert max(computed.target.scores[0].values) < 1e-6
    for term in rows("published", 3, "term `", adaptive=True):
        assert term.target.scores[0].mean > 60


def test_claims_that_are_asked_about_hold():
    for name in ("default", "published-exchange", "mse", "sound", "hetero", "hetero-hardened"):
        own = [verdict for verdict in stored(name).verdicts if verdict.claimed_by == OWN]
        assert own
        assert {verdict.verdict for verdict in own} == {"holds"}, name
