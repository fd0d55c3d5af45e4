"""Signs as the querying party reads them: all in the published comparison, none in the hardened one."""

from __future__ import annotations

import pytest
import torch
from tests.audit.shared_samples import asked, some_queries

from bilateral.audit.shared_recording import querying_view
from bilateral.audit.shared_truth import compared_numbers
from bilateral.audit.shared_views import blinded_numbers
from bilateral.audit.topics.shared.attacks.activation_signs import read_by_vote, read_once
from bilateral.protocols.share.gates.styles import HARDENED, PUBLISHED


def readings(style, repeats=5):
    runs = asked(style, answerers=("anna",), queries=some_queries(60), repeats=repeats)
    views = [blinded_numbers(querying_view(run), run.sessions[0]) for run in runs]
    truth = compared_numbers(runs[0].models["anna"], runs[0].queries)
    return views, truth


@pytest.mark.parametrize("vote", [False, True])
def test_published_signs_are_read_in_place(vote):
    views, truth = readings(PUBLISHED)
    for place, t in enumerate(truth):
        read = read_by_vote([view[place] for view in views]) if vote else read_once(views[0][place])
        assert (read.active == (t >= 0)).double().mean() > 0.99


@pytest.mark.parametrize("vote", [False, True])
def test_hardened_signs_are_coin_flips(vote):
    views, truth = readings(HARDENED)
    right = torch.cat(
        [
            (
                (read_by_vote([view[i] for view in views]) if vote else read_once(views[0][i])).active == (t >= 0)
            ).flatten()
            for i, t in enumerate(truth)
        ]
    )
    assert abs(right.double().mean() - 0.5) < 5 * 0.5 / len(right) ** 0.5


def test_votes_average_sizes_in_place():
    numbers = torch.tensor([[4, -16]])
    read = read_by_vote([numbers, 4 * numbers])
    assert read.active.tolist() == [[True, False]]
    assert read.log_size.tolist() == [[3.0, 5.0]]
