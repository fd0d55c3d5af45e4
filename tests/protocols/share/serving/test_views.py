"""What each party of a question sees: uniform numbers, one count of zero, and at the asking party its answer."""

import pytest
import torch
from scipy import stats
from tests.protocols.share.serving.harness import asked, samples
from tests.protocols.share.statistics import LEVEL, assert_uniform
from torch import nn

from bilateral.protocols.share.serving.terms import QuestionTerms

BATCH = 64


def net(scale=1.0):
    torch.manual_seed(5)
    found = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 16)).double()
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.mul_(scale)
    return found


def words(parts):
    return torch.cat([part.reshape(-1) for part in parts])


@pytest.mark.parametrize("reveal", ["logits", "class"])
@pytest.mark.parametrize(("scale", "size"), [(1.0, 1.0), (0.0, 0.0), (2.0, 3.0)])
def test_all_that_is_opened_is_uniform_whatever_is_asked_of_whatever_model(reveal, scale, size):
    question = asked(net(scale), samples(8, 1, 8, 8), BATCH, reveal)
    assert question.run(samples(BATCH, 1, 8, 8, seed=2, scale=size)) is not None
    *told, answers = question.told_by_server
    assert answers.numel() == BATCH * (16 if reveal == "logits" else 1)
    assert_uniform(words(question.told_by_client))
    assert_uniform(words(told))


def test_what_is_told_of_an_answer_is_uniform_without_the_share_of_who_asks():
    linear = nn.Sequential(nn.Linear(4, 16)).double()
    question = asked(linear, samples(8, 4), 256)
    question.run(samples(256, 4, seed=1))
    assert_uniform(question.told_by_server[-1])


def test_masked_weights_are_uniform_to_who_asks_and_what_is_dealt_to_who_answers():
    question = asked(net(0.0), samples(8, 1, 8, 8), BATCH)
    assert_uniform(words(question.weights))
    for dtype in (torch.int64, torch.int32):
        assert_uniform(words([part for part in question.dealt if part.dtype == dtype]))


def test_logits_come_with_noise_that_is_uniform_below_the_last_place_and_nothing_else():
    """So what the client is told can be made up from its logits to 40 bits."""
    torch.manual_seed(7)
    linear = nn.Sequential(nn.Linear(4, 8)).double()
    inputs = samples(512, 4, seed=3)
    question = asked(linear, samples(8, 4), 512)
    assert isinstance(question.terms, QuestionTerms) and question.terms.noise_bits == 20
    found = (question.run(inputs) * 2.0**40).round().long()
    layer = question.model.layers[0]
    exact = (inputs * 2.0**20).round().long() @ layer.weight.T + layer.bias
    noise = found - exact
    assert int(noise.min()) >= 0 and int(noise.max()) < 1 << 20
    assert stats.kstest(noise.reshape(-1).double().numpy() / 2**20, "uniform").pvalue > LEVEL
    low = (found & ((1 << 20) - 1)).reshape(-1).double().numpy() / 2**20
    assert stats.kstest(low, "uniform").pvalue > LEVEL, "the lower bits of a logit are noise alone"


def test_the_noise_is_drawn_from_a_seed_of_the_server_alone():
    linear = nn.Sequential(nn.Linear(4, 8)).double()
    one, other = (asked(linear, samples(8, 4), 2, seed=0) for _ in range(2))
    other.answering._role._own = b"9" * 32
    inputs = samples(2, 4)
    assert not torch.equal(one.run(inputs), other.run(inputs))
