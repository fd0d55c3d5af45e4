"""Plain answers are the sum of the models' outputs; soft labels and scaling do to them what they say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bilateral.errors import ModelError, PlanError, ProtocolError
from bilateral.learning.hetero.answers import PlainAnswers, soft_labels
from bilateral.learning.hetero.scaling import COMMON_SPREAD, answering_copy
from bilateral.models.zoo import build_model


def _models():
    shape = {"input_shape": (1, 8, 8), "num_outputs": 4}
    return {
        "a": build_model("mlp-3", seed=1, width=8, **shape),
        "b": build_model("convnet", seed=2, width=4, batch_norm=True, **shape),
        "c": build_model("lenet", seed=3, **shape),
    }


def _offered(models):
    answers = PlainAnswers()
    for name, model in models.items():
        answers.offer(name, model, torch.zeros(1, 1, 8, 8))
    return answers


def test_plain_answers_are_the_sum_of_the_outputs_in_eval_mode():
    models, queries = _models(), torch.randn(300, 1, 8, 8)
    models["b"].train()  # in training mode BatchNorm would mix the queries of a batch
    total = _offered(models).summed_logits("q", queries, tuple(models))
    assert models["b"].training
    slow = torch.zeros(300, 4)
    for model in models.values():
        model.eval()
        with torch.no_grad():
            slow += torch.stack([model(query.unsqueeze(0))[0] for query in queries])
    assert torch.allclose(total, slow, atol=1e-4)


def test_nobody_and_oneself_cannot_answer():
    answers, query = _offered(_models()), torch.zeros(1, 1, 8, 8)
    with pytest.raises(PlanError, match="Nobody answers q"):
        answers.summed_logits("q", query, ())
    with pytest.raises(ProtocolError, match="different others to answer a"):
        answers.summed_logits("a", query, ("a", "b"))
    with pytest.raises(ProtocolError, match="different others"):
        answers.summed_logits("q", query, ("b", "b"))
    with pytest.raises(ProtocolError, match="d offered no network"):
        answers.summed_logits("q", query, ("b", "d"))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), num_answers=st.integers(1, 9), temperature=st.floats(0.1, 10))
def test_soft_labels_do_not_depend_on_how_many_said_the_same(seed, num_answers, temperature):
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed))
    labels = soft_labels(num_answers * logits, num_answers, temperature=temperature, are_probabilities=False)
    assert torch.allclose(labels, (logits / temperature).softmax(1), atol=1e-5)
    assert torch.allclose(labels.sum(1), torch.ones(6))
    probabilities = logits.softmax(1)
    assert torch.allclose(
        soft_labels(num_answers * probabilities, num_answers, temperature=temperature, are_probabilities=True),
        probabilities,
        atol=1e-6,
    )


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_scaled_models_have_logits_of_the_common_spread_and_the_same_order(name):
    model, samples = _models()[name].eval(), torch.randn(64, 1, 8, 8)
    scaled = answering_copy(model, "scale", samples)
    with torch.no_grad():
        before, after = model(samples), scaled(samples)
    assert float(after.std(1, correction=0).mean()) == pytest.approx(COMMON_SPREAD, rel=1e-4)
    ratio = after / before
    assert torch.allclose(ratio, ratio.mean().expand_as(ratio), rtol=1e-2)
    assert torch.equal(model(samples), before)  # the client's own model is as it was


def test_the_exact_normalisation_answers_with_probabilities():
    model, samples = _models()["c"].eval(), torch.randn(5, 1, 8, 8)
    assert torch.allclose(answering_copy(model, "softmax", samples)(samples), model(samples).softmax(1), atol=1e-6)


def test_a_network_whose_last_linear_layer_is_not_its_output_is_refused():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.BatchNorm1d(8)).eval()
    network[3].bias.data.fill_(1.0)
    with pytest.raises(ModelError, match="does not scale"):
        answering_copy(network, "scale", torch.randn(9, 1, 8, 8))
    with pytest.raises(ModelError, match="without one"):
        answering_copy(nn.Flatten(), "scale", torch.randn(9, 1, 8, 8))
