"""Answers on shares are the network's own; of a class nothing but the class; and out of range there is none."""

import pytest
import torch
from tests.protocols.share.serving.harness import asked, samples
from torch import nn

from bilateral.errors import DataError, MalformedMessageError, ModelError, NumericalRangeError, UnsupportedLayerError
from bilateral.protocols.share.circuit.served import compile_served
from bilateral.protocols.share.serving.parties import AnsweringParty, AskingParty, plain_answers
from bilateral.protocols.share.serving.terms import REVEALS, QuestionTerms

ERROR = 2.0**-14


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(torch.cat([x + self.inner(x), x], dim=1))
        return self.last(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


NETWORKS = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 3)), (5,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 3)), (5,)),
    "pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(),
            nn.Flatten(),
            nn.Linear(36, 3),
        ),
        (1, 8, 8),
    ),
    "residual": (Residual, (1, 6, 6)),
    "ends in an average": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        (1, 5, 5),
    ),
    "ends in a ReLU": (lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU()), (5,)),
}


def built(name):
    torch.manual_seed(3)
    build, shape = NETWORKS[name]
    net = build().double()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 2)
    return net.eval(), shape


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_are_those_of_the_network(name):
    net, shape = built(name)
    inputs = samples(7, *shape, seed=1)
    found = asked(net, samples(9, *shape), 7).run(inputs)
    assert found.dtype == torch.float64
    assert float((found - net(inputs).detach()).abs().max()) < ERROR


@pytest.mark.parametrize("name", NETWORKS)
def test_a_class_is_that_of_the_network(name):
    net, shape = built(name)
    inputs = samples(7, *shape, seed=1)
    outputs = net(inputs)
    top = outputs.topk(2, dim=1).values
    found = asked(net, samples(9, *shape), 7, "class").run(inputs)
    clear = top[:, 0] - top[:, 1] > 2 * ERROR
    assert clear.any()
    assert torch.equal(found[clear], outputs.argmax(1)[clear])


@pytest.mark.parametrize("reveal", REVEALS)
@pytest.mark.parametrize("name", NETWORKS)
def test_all_that_is_said_of_a_question_has_room_in_one_message_of_its_terms(name, reveal):
    """Far more than a turn of it: frames are refused by this limit, without the megabyte for facts."""
    net, shape = built(name)
    question = asked(net, samples(9, *shape), 64, reveal)
    question.run(samples(64, *shape, seed=1))
    room = question.terms.most_bytes - (1 << 20)
    for said in (question.told_by_client, question.told_by_server, question.dealt):
        assert sum(part.numel() * part.itemsize for part in said) <= room < 1 << 28


@pytest.mark.parametrize("num_outputs", [2, 3, 4, 5, 6, 7, 9])
def test_of_equal_logits_the_first_is_the_class(num_outputs):
    net = nn.Sequential(nn.Linear(1, num_outputs), nn.ReLU()).double()
    for largest in range(num_outputs):
        with torch.no_grad():
            net[0].weight.zero_()
            net[0].bias.copy_(torch.where(torch.arange(num_outputs) >= largest, 1.0, -1.0))
        found = asked(net, samples(2, 1), 2, "class", seed=largest).run(samples(2, 1, seed=1))
        assert found.tolist() == [largest] * 2, f"{num_outputs} outputs, equal from {largest} on"


def test_the_plain_answers_are_those_on_shares():
    net, shape = built("pooled")
    inputs = samples(4, *shape, seed=2)
    question = asked(net, samples(4, *shape), 4)
    plain, _ = plain_answers(question.terms, question.model, inputs)
    assert float((plain - question.run(inputs)).abs().max()) < ERROR


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1, 2), nn.Linear(2, 2)

    def forward(self, x):
        y = self.first(x)
        return self.last(torch.relu(y + y))


class LastSum(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Linear(1, 2)

    def forward(self, x):
        y = self.only(x)
        y = y + y
        return y + y


def filled(net, number=32.0):
    """All weights the same, and no biases."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(number if parameter.dim() > 1 else 0.0)
    return net.double()


BEYOND = {
    "a ReLU": (filled(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2))), (4,), "logits"),
    "a LeakyReLU": (filled(nn.Sequential(nn.Linear(4, 2), nn.LeakyReLU(), nn.Linear(2, 2))), (4,), "logits"),
    "a maximum": (
        filled(nn.Sequential(nn.Conv2d(1, 1, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 2))),
        (1, 3, 3),
        "logits",
    ),
    "a sum": (filled(Sum()), (1,), "logits"),
    "a hidden layer": (filled(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))), (4,), "logits"),
    "the choice of a class of sums": (filled(LastSum()), (1,), "class"),
    "the choice of a class": (filled(nn.Sequential(nn.Linear(4, 2))), (4,), "class"),
}


@pytest.mark.parametrize("gate", BEYOND)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_number_that_leaves_its_range_ends_in_an_error_on_both_sides(gate, sign):
    net, shape, reveal = BEYOND[gate]
    inputs = samples(3, *shape, scale=0.1)
    inputs[1] = sign * 1020.0
    question = asked(net, samples(4, *shape), 3, reveal)
    assert question.run(inputs) is None
    assert set(question.errors) == {"server", "client"}
    for error in question.errors.values():
        assert isinstance(error, NumericalRangeError) and "left their range" in str(error) and error.remedy
    assert question.told_by_server[-1].numel() == 1, "the last word is the count, not an answer"


def test_a_large_logit_is_right_since_nothing_compares_it():
    net = filled(nn.Sequential(nn.Linear(4, 2)), 1.0)
    inputs = torch.full((1, 4), 1020.0, dtype=torch.float64)
    assert float((asked(net, samples(4, 4), 1).run(inputs) - 4080.0).abs().max()) < 2.0**-19


@pytest.mark.parametrize("largest", [1025.0, float("inf"), float("nan")])
def test_inputs_beyond_the_range_are_refused_before_anything_is_told(largest):
    question = asked(built("mlp")[0], samples(4, 5), 1)
    with pytest.raises(NumericalRangeError, match="takes inputs up to 1024"):
        question.run(torch.full((1, 5), largest, dtype=torch.float64))
    assert not question.told_by_client


def test_inputs_of_another_shape_are_refused():
    with pytest.raises(DataError, match=r"Expected inputs of shape \(2, 5\)"):
        asked(built("mlp")[0], samples(4, 5), 2).run(samples(3, 5))


def test_a_network_that_cannot_be_served_is_refused_by_name():
    net = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 2))
    with pytest.raises(UnsupportedLayerError, match=r"Sigmoid.* cannot be served on shares") as caught:
        compile_served(net, samples(2, 4))
    assert "Supported" in caught.value.remedy


def test_a_single_output_has_no_class():
    circuit = compile_served(nn.Sequential(nn.Linear(4, 1)).double(), samples(2, 4)).circuit
    with pytest.raises(ModelError, match="ask for logits"):
        QuestionTerms(circuit, 1, reveal="class")


@pytest.mark.parametrize(("count", "reveal"), [(0, "logits"), (-1, "logits"), (1, "weights"), (1 << 40, "class")])
def test_impossible_terms_are_refused(count, reveal):
    circuit = compile_served(built("mlp")[0], samples(2, 5)).circuit
    with pytest.raises(ModelError, match="No question"):
        QuestionTerms(circuit, count, reveal=reveal)


def test_terms_have_different_names():
    circuit = compile_served(built("mlp")[0], samples(2, 5)).circuit
    named = {QuestionTerms(circuit, n, reveal=r).digest for n in (1, 2) for r in ("logits", "class")}
    assert len(named) == 4


def changed(parts, change):
    return {
        "one less": parts[:-1],
        "one more": (*parts, parts[-1]),
        "another shape": (parts[0][..., :-1], *parts[1:]),
        "another type": (parts[0].to(torch.float64), *parts[1:]),
    }[change]


@pytest.mark.parametrize("change", ["one less", "one more", "another shape", "another type"])
@pytest.mark.parametrize("sender", ["server", "dealer"])
def test_what_is_malformed_is_refused_by_the_name_of_its_sender(sender, change):
    question = asked(built("mlp")[0], samples(4, 5), 2)
    with pytest.raises(MalformedMessageError, match=f"from {sender}"):
        if sender == "server":
            weights = changed(question.weights, change)
            AskingParty(question.terms, weights, b"1" * 32, b"2" * 32, first="server")
        else:
            dealt, seeds = changed(question.dealt, change), (b"1" * 32, b"2" * 32, b"3" * 32)
            AnsweringParty(question.terms, question.model, dealt, *seeds, dealer="dealer")
