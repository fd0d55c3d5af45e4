"""The papers' figures come from one file, which is the one that was handed over, and every one of them has a place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import bilateral
from bilateral.bench.accuracy_over_epsilon import Workload, cases_of
from bilateral.engine.plan import RunPlan
from bilateral.reproduce.paper_figures import FILE, paper_figures
from bilateral.reproduce.registry import tables
from bilateral.reproduce.tables import Found
from bilateral.reproduce.tasks.attacks import Attacks
from bilateral.reproduce.tasks.noise import Noise
from bilateral.reproduce.tasks.teaching import Teaching
from bilateral.reproduce.tasks.training import Training
from bilateral.runs.hetero.plan import HeteroPlan
from bilateral.runs.rounds.compare import lanes

HANDED_OVER = Path(__file__).parents[3] / "shared" / "spec" / "paper_results.tsv"
OWN = ("P1\t1\t", "P1\t3\t")
"""Tables that the handed-over file lacks; they were read from the paper."""


def test_no_figure_stands_twice():
    assert max(Counter(one.id for one in paper_figures()).values()) == 1


@pytest.mark.skipif(not HANDED_OVER.exists(), reason="the file that the figures were made from is not beside the tree")
def test_the_figures_are_those_that_were_handed_over():
    stored = (Path(bilateral.__file__).parent / "reproduce" / FILE).read_text(encoding="utf-8").splitlines()
    assert [line for line in stored if not line.startswith(OWN)] == HANDED_OVER.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def designs():
    """Every table in both scales, where no data are: nothing is trained."""
    return {(name, scale): table.design(scale, None) for name, table in tables().items() for scale in ("quick", "full")}


def test_every_cell_is_of_a_row_that_is_done(designs):
    for name, design in designs.items():
        rows = {row.name for row in design.rows} | {""}
        assert {cell.row for cell in design.cells} <= rows, name
        assert len(rows) == len(design.rows) + 1, name


def test_every_judge_can_speak_where_nothing_was_run(designs):
    for design in designs.values():
        findings = [judge(Found(design.cells, {})) for judge in design.judges]
        assert not any(finding.agrees for finding in findings)


def test_rows_of_one_kind_have_pilots_that_are_shorter(designs):
    for design in designs.values():
        for row in design.rows:
            _, times = row.task.pilot()
            assert times >= 1


def test_every_row_is_of_a_valid_plan(designs):
    tried = set()
    for design in designs.values():
        for row in design.rows:
            if row.digest not in tried:
                tried.add(row.digest)
                _expect_valid(row.task)
    assert len(tried) > 100


def _expect_valid(task):
    """Built, and nothing more: a setting that does not exist, or a lane that nobody knows, is an error."""
    if isinstance(task, Teaching):
        for case in task.cases.values():
            HeteroPlan(answers="plain").with_settings({**task.settings, **case})
    elif isinstance(task, Training | Attacks):
        plan = RunPlan().with_settings(dict(task.settings))
        for lane in getattr(task, "lanes", ()):
            plan.with_settings(lanes()[lane])
        for stack in getattr(task, "stacks", {}).values():
            plan.with_settings(dict(stack))
    elif isinstance(task, Noise):
        workload = Workload(task.settings, task.epsilons, task.seeds, {}, {})
        for lane, epsilon in cases_of(workload):
            lane.plan(workload, epsilon, 1)


def test_every_table_says_how_it_differs_from_the_paper(designs):
    for design in designs.values():
        assert design.differs
