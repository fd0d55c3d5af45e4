import pytest
import torch
from torch import nn

from bilateral.learning.optimiser import OptimiserSettings, ServerOptimiser
from bilateral.models.scale_graph import ScaleGraph


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        (OptimiserSettings("sgd", 0.1, 0.9, 1e-3), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3)),
        (OptimiserSettings("adam", 0.01), lambda p: torch.optim.Adam(p, 0.01)),
    ],
)
def test_a_flat_gradient_gives_the_step_that_torch_gives(settings, reference):
    model, plain = _model(), _model()
    graph = ScaleGraph.of(model, torch.zeros(2, 3))
    ours, theirs = ServerOptimiser(model, graph, settings), reference(plain.parameters())
    for step in range(3):
        gradient = torch.linspace(-1, 1, graph.num_parameters, dtype=torch.float64) * (step + 1)
        ours.step(gradient, step, 10)
        for name, value in graph.unflatten(gradient).items():
            dict(plain.named_parameters())[name].grad = value.float()
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_restored_state_goes_on_as_if_never_interrupted():
    settings = OptimiserSettings("adam", 0.01)
    model = _model()
    graph = ScaleGraph.of(model, torch.zeros(2, 3))
    gradient = torch.linspace(-1, 1, graph.num_parameters, dtype=torch.float64)
    optimiser = ServerOptimiser(model, graph, settings)
    optimiser.step(gradient, 0, 4)
    copy = _model()
    copy.load_state_dict(model.state_dict())
    restored = ServerOptimiser(copy, graph, settings)
    restored.load_state_tensors(optimiser.state_tensors())
    optimiser.step(-gradient, 1, 4)
    restored.step(-gradient, 1, 4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), copy.parameters(), strict=True))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25]), ("step", [1, 1, 0.1, 0.01])],
)
def test_schedules_follow_their_definition(schedule, expected):
    settings = OptimiserSettings(learning_rate=1.0, schedule=schedule)
    assert [settings.rate(r, 4) for r in range(4)] == pytest.approx(expected)


def test_cosine_ends_near_zero_and_warmup_starts_low():
    settings = OptimiserSettings(learning_rate=1.0, schedule="cosine", warmup_rounds=5)
    rates = [settings.rate(r, 100) for r in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[-1] < 1e-3
    assert max(rates) <= 1.0
