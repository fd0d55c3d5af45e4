"""A client's stages: what they depend on, what they learn, what they refuse."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bilateral.data import Split, load_dataset
from bilateral.errors import CheckpointError, DataError, ModelError, ProtocolError
from bilateral.learning.hetero.client import AnsweredQueries, HeteroClient
from bilateral.learning.hetero.settings import (
    HeteroSettings,
    LocalTrainingSettings,
    QuerySettings,
    RetrainingSettings,
)
from bilateral.models.zoo import build_model
from bilateral.randomness import SeededRandomness

SETTINGS = HeteroSettings(
    LocalTrainingSettings(epochs=8, batch_size=10, learning_rate=0.03),
    QuerySettings(number=30),
    RetrainingSettings(epochs=6, batch_size=20),
)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


def _client(digits, *, settings=SETTINGS, name="a", model="lenet", start=0, seed=5, count=40):
    network = build_model(model, input_shape=(1, 8, 8), num_outputs=10, seed=1)
    own = digits.train.subset(torch.arange(start, start + count))
    return HeteroClient(name, own, network, 10, settings, SeededRandomness(seed, name))


def _same(first, second):
    return all(torch.equal(t, second[key]) for key, t in first.items())


def _stages(client, answered=None):
    client.local_train()
    queries = client.make_queries(1)
    sums = client.answering_model()(queries) * 2 if answered is None else answered
    client.retrain(AnsweredQueries(queries, sums, 2), 1)
    return client.state_tensors()


def test_every_stage_depends_on_the_clients_data_model_randomness_and_the_stages_number_only(digits):
    alone = _stages(_client(digits))
    torch.manual_seed(99)  # nothing is drawn from torch's own generator
    before = torch.random.get_rng_state()
    client, other = _client(digits), _client(digits, name="b", start=60)
    other.local_train()
    other.make_queries(1)
    assert _same(alone, _stages(client))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("selection", ["random", "margin", "entropy", "k-center", "icd"])
def test_make_queries_gives_the_same_queries_again_until_the_model_changes(digits, selection):
    queries = replace(SETTINGS.queries, selection=selection)
    client = _client(digits, settings=replace(SETTINGS, queries=queries))
    first = client.make_queries(1)
    assert first.shape == (30, 1, 8, 8)
    assert torch.equal(first, client.make_queries(1))
    assert not torch.equal(first, client.make_queries(2))


def test_local_training_learns_the_own_samples(digits):
    client = _client(digits)
    own = digits.train.subset(torch.arange(40))
    before = client.evaluate(own)["test_accuracy"]
    client.local_train()
    assert client.evaluate(own)["test_accuracy"] > max(0.7, before)


def test_retraining_learns_what_the_others_say(digits):
    """Others know the true labels of the queries: the client must come closer to them on fresh samples."""
    private = replace(SETTINGS.queries, pool="private")
    client = _client(digits, settings=replace(SETTINGS, queries=private, retraining=RetrainingSettings(epochs=15)))
    client.local_train()
    rest = digits.train.subset(torch.arange(100, 500))
    before = client.evaluate(digits.test)["test_accuracy"]
    sums = 3 * 8.0 * F.one_hot(rest.targets, 10).float()  # three answerers that are sure and right
    client.retrain(AnsweredQueries(rest.inputs, sums, 3), 1)
    assert client.evaluate(digits.test)["test_accuracy"] > before + 0.1


def test_without_weight_on_private_data_only_the_answers_are_learned(digits):
    settings = replace(SETTINGS, retraining=replace(SETTINGS.retraining, private_weight=0.0, epochs=40))
    client = _client(digits, settings=settings)
    queries = client.make_queries(1)
    wrong = torch.zeros(len(queries), 10)
    wrong[:, 3] = 20.0
    client.retrain(AnsweredQueries(queries, wrong, 1), 1)
    predicted = client.answering_model()(queries).argmax(1)
    assert float((predicted == 3).float().mean()) > 0.9


def test_max_steps_bounds_the_work_whatever_the_number_of_queries(digits):
    settings = replace(SETTINGS, retraining=replace(SETTINGS.retraining, max_steps=1, learning_rate=1e-3))
    client = _client(digits, settings=settings)
    before = client.state_tensors()
    client.retrain(AnsweredQueries(client.make_queries(1), torch.zeros(30, 10), 1), 1)
    largest = max(float((t - before[key]).abs().max()) for key, t in client.state_tensors().items())
    assert 0 < largest <= 1.001e-3  # one step of Adam moves no weight by more than its learning rate


def test_the_answering_model_is_a_frozen_copy(digits):
    client = _client(digits)
    answering = client.answering_model()
    before = answering(digits.test.inputs[:5])
    client.local_train()
    assert torch.equal(before, answering(digits.test.inputs[:5]))
    assert not answering.training
    assert not any(p.requires_grad for p in answering.parameters())
    assert all(p.is_contiguous() for p in answering.parameters())


def test_a_state_that_is_put_back_goes_on_as_before(digits):
    client, again = _client(digits), _client(digits)
    client.local_train()
    again.load_state_tensors(client.state_tensors())
    queries = client.make_queries(1)
    for one in (client, again):
        one.retrain(AnsweredQueries(queries, torch.ones(30, 10), 1), 1)
    assert _same(client.state_tensors(), again.state_tensors())


def test_a_state_of_another_network_is_refused(digits):
    other = _client(digits, model="mlp-3")
    with pytest.raises(CheckpointError, match="another one than the plan's"):
        _client(digits).load_state_tensors(other.state_tensors())


@pytest.mark.parametrize("answers", [torch.zeros(29, 10), torch.zeros(30, 9), torch.zeros(30)])
def test_answers_of_another_shape_are_refused(digits, answers):
    client = _client(digits)
    with pytest.raises(ProtocolError, match=r"expected answers of shape \[30, 10\]"):
        client.retrain(AnsweredQueries(client.make_queries(1), answers, 2), 1)


def test_answers_that_are_not_finite_are_refused(digits):
    client = _client(digits)
    with pytest.raises(ProtocolError, match="finite"):
        client.retrain(AnsweredQueries(client.make_queries(1), torch.full((30, 10), torch.nan), 2), 1)


def test_unfit_clients_are_refused(digits):
    with pytest.raises(DataError, match="at least 2"):
        _client(digits, count=1)
    real_targets = Split(torch.randn(5, 1, 8, 8), torch.randn(5, 1))
    network = build_model("lenet", input_shape=(1, 8, 8), num_outputs=10)
    with pytest.raises(DataError, match="regression"):
        HeteroClient("a", real_targets, network, 10, SETTINGS, SeededRandomness(0))
    with pytest.raises(ModelError, match="7 outputs"):
        HeteroClient("a", digits.train.subset(torch.arange(9)), network, 7, SETTINGS, SeededRandomness(0))


def test_the_features_are_what_goes_into_the_output_layer():
    from bilateral.learning.hetero.fitting import logits_and_features

    model = build_model("lenet", input_shape=(1, 8, 8), num_outputs=10, seed=3)
    inputs = torch.randn(300, 1, 8, 8)
    logits, features = logits_and_features(model, inputs)
    assert features.shape == (300, 84)
    assert torch.allclose(model.head(features), logits, atol=1e-5)
    assert torch.allclose(nn.Module.__call__(model, inputs), logits, atol=1e-5)


@pytest.mark.parametrize("most", [None, 9])
def test_the_control_takes_as_many_steps_on_its_own_samples_and_learns_nothing_from_answers(digits, monkeypatch, most):
    steps, seen = [], []

    def watched(model, samples, course, generator):
        steps.append(course.num_steps(len(samples)))
        seen.append(samples)

    monkeypatch.setattr("bilateral.learning.hetero.client.fit", watched)
    for from_answers in (True, False):
        retraining = replace(SETTINGS.retraining, from_answers=from_answers, max_steps=most)
        client = _client(digits, settings=replace(SETTINGS, retraining=retraining))
        queries = client.make_queries(1)
        client.retrain(AnsweredQueries(queries, torch.zeros(len(queries), 10), 3), 1)
    assert steps[0] == steps[1] > 0
    assert len(seen[0]) == 40 + len(queries)
    assert torch.equal(seen[1].inputs, seen[0].inputs[:40])
    assert len(seen[1]) == 40
