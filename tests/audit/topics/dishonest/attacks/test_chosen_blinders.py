"""One sample's gradient out of the sum, by a server that chooses its blinders: real clients, an autograd oracle."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.dishonest.attacks.chosen_blinders import answer_about, gradient_of_chosen, towards_likeliest
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint
from bilateral.protocols.messages import Upload, aggregate
from bilateral.protocols.perturb.cross_entropy import LARGEST_BLINDER
from bilateral.protocols.perturb.messages import SoftmaxQuery

torch.set_num_threads(1)
VICTIM, SAMPLE = "client-2", 3


class Round:
    """Round 0 of a plan with bare uploads. `honest`: the server draws its blinders."""

    def __init__(self, settings, *, honest=False):
        published = {"aggregation.masks": "none", "perturbation.softmax": "blinded", "training.batch_size": 8}
        self.plan = RunPlan().with_settings({**published, **settings})
        federation = Context(self.plan, EFFORTS["smoke"]).federation()
        blueprint = make_blueprint(self.plan, federation)
        training = blueprint.server()
        self.half, self.model, self.graph = training.server, training.model, training.layout
        self.settings = self.plan.perturbation.settings("ce")
        exchange = blueprint.local_exchange(lambda *_: None)
        message = self.half.start_round(0)
        uploads = exchange(0, dict.fromkeys(federation.names, (message,)), self.draw if honest else self.choose)
        assert all(isinstance(one, Upload) for one in uploads.values())
        self.total = aggregate(uploads, 0)
        self.batches = {name: exchange.clients[name].batch(0) for name in federation.names}
        self.weights = {name: len(share) for name, share in federation.shares.items()}

    def draw(self, sender, question):
        return (self.half.answer(sender, question),) if isinstance(question, SoftmaxQuery) else ()

    def choose(self, sender, question):
        if not isinstance(question, SoftmaxQuery):
            return ()
        return (answer_about(question, self.half.secrets, self.settings, SAMPLE if sender == VICTIM else None),)

    def found(self):
        return gradient_of_chosen(self.half, self.settings, self.total)

    def gradient(self, name, chosen, label=None):
        """The oracle: autograd of the true model, on one sample or on a client's batch."""
        batch = self.batches[name]
        self.model.train()
        outputs = self.model(batch.inputs)
        targets = batch.targets if label is None else torch.full_like(batch.targets, label)
        rows = range(len(batch)) if chosen is None else [chosen]
        loss = F.cross_entropy(outputs[rows], targets[rows])
        parameters = dict(self.model.named_parameters())
        found = torch.autograd.grad(loss, list(parameters.values()))
        return self.graph.flatten(dict(zip(parameters, found, strict=True)), torch.float64)

    def likeliest(self):
        return int(self.model(self.batches[VICTIM].inputs)[SAMPLE].argmax())


def distance(one, other):
    """Of directions: the factor is not read."""
    return float((one / one.norm() - other / other.norm()).norm())


PLANS = [
    {"model.name": "mlp-3", "model.options": {"width": 16}},
    {"model.name": "mlp-3", "model.options": {"width": 16}, "perturbation.noise": "offset"},
    {"model.name": "mlp-3", "model.options": {"width": 16}, "perturbation.partitions": 3},
    {"model.name": "lenet"},
]


@pytest.mark.parametrize("settings", PLANS)
def test_the_chosen_samples_gradient_stands_alone_in_the_sum_of_all_clients(settings):
    played = Round(settings)
    assert len(played.batches) > 2
    assert distance(played.found(), played.gradient(VICTIM, SAMPLE, played.likeliest())) < 1e-4
    assert distance(played.found(), played.gradient(VICTIM, SAMPLE + 1, played.likeliest())) > 0.3


@pytest.mark.parametrize("settings", PLANS[:2])
def test_with_blinders_that_are_drawn_it_is_lost_among_the_others(settings):
    played = Round(settings, honest=True)
    assert distance(played.found(), played.gradient(VICTIM, SAMPLE, played.likeliest())) > 0.3


@pytest.mark.parametrize("settings", PLANS)
def test_nobody_is_told_anything_wrong_and_the_model_learns_as_ever(settings):
    """The recovered mean is the exact one: neither clients nor the accuracy of the model give the server away."""
    played = Round(settings)
    weighted = [weight * played.gradient(name, None) for name, weight in played.weights.items()]
    exact = sum(weighted) / sum(played.weights.values())
    assert torch.allclose(played.half.recover(played.total).gradient, exact, atol=1e-6)


@pytest.mark.parametrize("largest", [0.101, 0.2, 0.5, 0.9, 1 - 1e-9, 1.0])
def test_chosen_blinders_are_within_the_range_of_honest_ones(largest):
    softmax = torch.full((10,), (1 - largest) / 9, dtype=torch.float64)
    softmax[4] = largest
    blinders = towards_likeliest(softmax)
    assert float(blinders.abs().max()) < LARGEST_BLINDER
    cotangent = softmax * (1 - torch.exp(-blinders))
    wanted = softmax - F.one_hot(torch.tensor(4), 10)  # the cross entropy's, with the likeliest label
    assert torch.allclose(cotangent, wanted * cotangent[4] / wanted.min().clamp(max=-1e-30), atol=1e-12)
