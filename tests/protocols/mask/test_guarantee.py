"""The numbers in the guarantee, each against what happens."""

from __future__ import annotations

import re

import pytest
import torch
from tests.protocols.mask.harness import BEFORE_UPLOAD, NAMES, Group, upload_of

from bilateral.protocols.mask.guarantee import guarantee
from bilateral.protocols.mask.neighbours import failure_probabilities
from bilateral.protocols.mask.settings import MaskSettings

torch.set_num_threads(1)


def colluders_allowed(stated):
    found = re.search(r"(no|at most \d+) participants? colludes? with it", stated.claims[0].assumption)
    return 0 if found[1] == "no" else int(found[1].removeprefix("at most "))


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_with_as_many_colluders_as_stated_two_honest_uploads_remain_and_with_one_more_an_upload_is_read(count):
    """The server leaves out as many honest clients as it may; colluders subtract what is theirs."""
    group = Group(NAMES[:count])
    allowed = colluders_allowed(guarantee(group.settings, count))
    fewest = group.settings.threshold_of(count)
    uploads = {name: upload_of(0, number) for number, name in enumerate(group.names)}
    total, _ = group.run(0, uploads, (dict.fromkeys(group.names[fewest:], BEFORE_UPLOAD),))
    assert len(total.contributors) - allowed >= 2
    colluders, victim = group.names[: allowed + 1], group.names[allowed + 1]
    rest = total.terms - sum(uploads[name].weight * uploads[name].terms.double() for name in colluders)
    weight = total.total_weight - sum(uploads[name].weight for name in colluders)
    torch.testing.assert_close(rest / weight, uploads[victim].terms.double(), rtol=0, atol=1e-4)


def test_a_floor_counts_in_the_claims_but_colluders_never_reach_the_threshold_of_shares():
    stated = guarantee(MaskSettings(min_in_sum=9), 10)
    assert "at least 9 of the 10" in stated.claims[0].what
    assert colluders_allowed(stated) == 6
    assert colluders_allowed(guarantee(MaskSettings(), 10)) == 5


def test_a_sparse_graph_is_claimed_with_the_probability_that_it_has_and_too_few_neighbours_are_flagged():
    good, weak = guarantee(MaskSettings(), 100), guarantee(MaskSettings("n-out", 4), 40)
    assert "too few" not in good.claims[0].assumption
    assert "num_neighbours = 4 is too few" in weak.claims[0].assumption
    for stated, count, chosen in ((good, 100, MaskSettings().num_chosen(100)), (weak, 40, 4)):
        found = float(re.search(r"probability up to (\S+) a round", stated.claims[0].assumption)[1])
        failure = failure_probabilities(count, chosen, 2 / 3, collusion=0.2, dropout=0.1).privacy
        assert found == pytest.approx(failure, rel=0.5)
        assert colluders_allowed(stated) == count // 5
        assert "does not choose by the graph" in stated.claims[1].assumption
    assert "graph" not in guarantee(MaskSettings(), 10).claims[1].assumption


def test_two_lists_need_as_many_signers_of_both_as_stated():
    for count in (2, 3, 5, 10, 31):
        needed = int(re.search(r"fewer than (\d+) of", guarantee(MaskSettings(), count).claims[1].assumption)[1])
        quorum = MaskSettings().threshold_of(count)
        both = next(b for b in range(count + 1) if 2 * quorum <= count + b)
        assert needed == both


def test_weights_are_not_claimed_where_the_server_sees_the_batch():
    assert "every upload and weight;" in guarantee(MaskSettings(), 5).claims[0].what
    assert "every upload;" in guarantee(MaskSettings(), 5, shows_batch=True).claims[0].what


def test_the_sum_is_not_claimed_to_be_hidden_from_clients():
    claim = guarantee(MaskSettings(), 5).claims[2]
    assert "sum" not in claim.what
    assert "at most 2 of them" in claim.assumption


@pytest.mark.parametrize(
    ("count", "colluding", "pooling"),
    [
        (2, "and no participant colludes with it (", "then none of them may pool"),
        (3, "and at most 1 participant colludes with it (", "then at most 1 of them may pool"),
        (5, "and at most 2 participants collude with it (", "then at most 2 of them may pool"),
    ],
)
def test_small_numbers_are_said_in_plain_words(count, colluding, pooling):
    single, _, others = guarantee(MaskSettings(), count).claims
    assert colluding in single.assumption
    assert pooling in others.assumption
