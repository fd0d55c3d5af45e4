"""What the server of a heterogeneous run keeps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.hetero.harness import PLAN

from bilateral.engine.run_directory import RunDirectory
from bilateral.errors import CheckpointError
from bilateral.runs.hetero.messages import HeteroCard
from bilateral.runs.hetero.record import HeteroRecord, PublicFacts, SiteRecord
from bilateral.runs.hetero.steps import num_measured, num_stages, stages_of

FACTS = PublicFacts("digits", {"client-1": 10, "client-2": 14, "client-3": 12})
NAMES = tuple(FACTS.num_samples)
STAGES = st.tuples(*[st.integers(0, num_stages(PLAN))] * 3)


def record_at(stages, answered=0.0):
    sites = {
        name: SiteRecord(stage, [0.25 * n for n in range(num_measured(stage))], [4] * num_measured(stage))
        for name, stage in zip(NAMES, stages, strict=True)
    }
    return HeteroRecord(PLAN, FACTS, 2, 1.5, answered, sites)


@settings(max_examples=40, deadline=None)
@given(stages=STAGES)
def test_a_record_comes_back_as_it_was_kept(tmp_path_factory, stages):
    directory = RunDirectory.create(tmp_path_factory.mktemp("record") / "run", PLAN)
    record = record_at(stages, 0.5)
    record.save(directory)
    assert HeteroRecord.load(PLAN, FACTS, directory) == record


@given(stages=STAGES)
def test_progress_is_the_work_of_the_stages_that_are_done(stages):
    own = dict.fromkeys(NAMES, 0)
    done = work = total = 0.0
    first_left = None
    for stage in stages_of(PLAN, FACTS.num_samples):  # slow and obvious: count every client's stages as they come
        total += stage.work
        if own[stage.client] < stages[NAMES.index(stage.client)]:
            done, work = done + 1, work + stage.work
        elif first_left is None:
            first_left = stage
        own[stage.client] += 1
    found = record_at(stages).progress()
    assert (found.stages_done, found.num_stages, found.stage) == (done, 15, first_left)
    assert found.share_done == pytest.approx(work / total)
    assert record_at(stages).finished == (found.stage is None)
    assert record_at(stages).stages_done == done


def test_queries_that_are_answered_count_as_a_part_of_the_stage():
    work = [stage.work for stage in stages_of(PLAN, FACTS.num_samples)]
    found = record_at((2, 1, 1), 0.25).progress()
    assert str(found.stage) == "client-2 asks, iteration 1"
    assert found.share_done == pytest.approx((sum(work[:4]) + 0.25 * work[4]) / sum(work))
    assert record_at((1, 0, 0), 0.25).progress() == record_at((1, 0, 0)).progress()  # nobody asks yet


@given(kept=st.integers(0, 5), told=st.integers(0, 5))
def test_a_site_may_be_one_stage_ahead_of_the_server_and_no_more(kept, told):
    record = record_at((kept, 0, 0))
    accuracies = torch.full((num_measured(told),), 0.5, dtype=torch.float64)
    card = HeteroCard(PLAN.digest(), "v", told, accuracies, (4,) * num_measured(told))
    if told in (kept, kept + 1):
        record.take_card("client-1", card)
        assert record.sites["client-1"] == SiteRecord(told, accuracies.tolist(), [4] * num_measured(told))
    else:
        with pytest.raises(CheckpointError, match="client-1 has done"):
            record.take_card("client-1", card)
