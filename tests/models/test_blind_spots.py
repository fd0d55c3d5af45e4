"""What a trace of the calls does not show, though the plain network does it: kept right, or refused by name.

The oracle is plain autograd in float64 on the user's own module, in the modes that the user chose.
"""

from __future__ import annotations

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from tests.models.test_scale_graph_adversarial import Net
from tests.reference.harness import randomised, relative_error, run_round
from torch import fx, nn
from torch.nn.utils import parametrizations, prune, weight_norm

from bilateral.errors import BilateralError, ModelError, UnsupportedLayerError
from bilateral.models.coverage import inspect
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.transitional import expand
from bilateral.protocols.perturb.export import perturbed_state
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

IMAGE, FLAT = (3, 6, 6), (5,)
EXACT = 1e-9


def images(middle, *, features=4, **layers):
    """conv to 4 channels, relu, `middle`, mean over space, head."""
    return Net(
        lambda m, x: m.head(middle(m, m.c(x).relu()).mean((2, 3))),
        c=nn.Conv2d(3, 4, 3, padding=1),
        head=nn.Linear(features, 3),
        **layers,
    )


def recovery_error(model, shape=IMAGE, loss="ce", noise="activation", seed=0):
    """How far the recovered gradient is from autograd on a copy of the very same module, modes and all."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(6, *shape, generator=generator).double()
    targets = torch.randint(3, (6,), generator=generator)
    if loss == "mse":
        targets = torch.randn(6, 3, generator=generator).double()
    settings = PerturbationSettings(loss, noise)
    torch.manual_seed(seed)  # what forward draws
    got = run_round(copy.deepcopy(model), settings, [(inputs, targets)], shape)[0].gradient
    plain = copy.deepcopy(model)
    torch.manual_seed(seed)
    outputs = plain(inputs)
    lost = F.cross_entropy(outputs, targets) if loss == "ce" else F.mse_loss(outputs, targets)
    names = dict(plain.named_parameters())
    found = torch.autograd.grad(lost, [p for p in names.values() if p.requires_grad])
    trained = dict(zip([n for n, p in names.items() if p.requires_grad], found, strict=True))
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    expected = graph.flatten({n: trained.get(n, torch.zeros_like(p)) for n, p in names.items()}, torch.float64)
    return relative_error(got, expected)


def export_error(model, shape=IMAGE):
    """How far an exported model's outputs are from the true ones, in evaluation mode."""
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    exported, plain = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    exported.load_state_dict(perturbed_state(model, graph, SeededRandomness(1)))
    inputs = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0)).double()
    return relative_error(exported(inputs), plain(inputs))


# --- BatchNorm that stays in evaluation mode ---


class Frozen(Net):
    """The usual idiom of transfer learning: BatchNorm keeps the statistics that it came with."""

    def train(self, mode=True):
        super().train(mode)
        self.n.eval()
        return self


def frozen_by_override():
    return Frozen(
        lambda m, x: m.head(m.d(m.n(m.c(x)).relu()).relu().mean((2, 3))),
        c=nn.Conv2d(3, 4, 3),
        n=nn.BatchNorm2d(4),
        d=nn.Conv2d(4, 5, 1),
        head=nn.Linear(5, 3),
    )


def frozen_by_hand():
    model = images(lambda m, x: m.n(x).relu(), n=nn.BatchNorm2d(4)).train()
    model.n.eval()
    return model


@pytest.mark.parametrize("make", [frozen_by_override, frozen_by_hand])
@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("noise", ["activation", "offset"])
def test_batch_norm_that_stays_in_evaluation_mode_is_recovered_exactly(make, loss, noise):
    model = randomised(make().double(), 0)
    model.train() if make is frozen_by_override else None
    assert recovery_error(model, loss=loss, noise=noise) < EXACT
    assert export_error(model) < EXACT


def test_an_override_of_train_holds_before_train_was_ever_called():
    model = randomised(frozen_by_override().double(), 0)
    assert ScaleGraph.of(model, torch.zeros(2, *IMAGE)).statistics == ()


def test_batch_norm_in_evaluation_mode_takes_a_batch_of_one_and_uploads_no_statistics():
    model = randomised(frozen_by_hand().double(), 0)
    batch = torch.randn(1, *IMAGE).double(), torch.tensor([1])
    update, _ = run_round(model, PerturbationSettings(), [batch], IMAGE)
    assert update.statistics.numel() == 0


def test_a_model_that_came_in_evaluation_mode_as_a_whole_is_trained():
    model = images(lambda m, x: m.n(x).relu(), n=nn.BatchNorm2d(4)).eval()
    assert [s.module for s in ScaleGraph.of(model, torch.zeros(2, *IMAGE)).statistics] == ["n"]


@pytest.mark.parametrize("make", [frozen_by_override, frozen_by_hand])
def test_transitional_layers_keep_batch_norm_in_evaluation_mode(make):
    model = randomised(make().double(), 0)
    assert ScaleGraph.of(expand(model, torch.zeros(2, *IMAGE)), torch.zeros(2, *IMAGE)).statistics == ()


# --- constants that tell channels apart ---

CONSTANT = torch.tensor([0.1, 0.7, 1.5, 3.0]).view(1, 4, 1, 1)
WITH_CONSTANTS = {
    "clamp by keyword": lambda m, x: torch.clamp(x, min=m.k),
    "clamp by place": lambda m, x: x.clamp(m.k, m.k + 1),
    "power": lambda m, x: (x + 0.1) ** m.k,
    "torch.pow": lambda m, x: torch.pow(x + 0.1, m.k),
    "sum": lambda m, x: x + m.k,
    "product": lambda m, x: m.k * x,
    "made in forward": lambda m, x: x * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).view(1, 4, 1, 1),
    "computed from a buffer": lambda m, x: x - m.k.exp().sqrt(),
}


@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_a_constant_of_each_channel_keeps_the_channels_in_place(name):
    model = randomised(images(lambda m, x: WITH_CONSTANTS[name](m, x).relu(), k=CONSTANT).double(), 0)
    assert recovery_error(model) < EXACT
    assert export_error(model) < EXACT


@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: torch.where(m.k > 1, x, m.k),
        lambda m, x: torch.maximum(x, m.k),
        lambda m, x: torch.minimum(m.k, x),
        lambda m, x: x.masked_fill(m.k > 1, 0.0),
        lambda m, x: torch.addcmul(x, x, m.k),
        lambda m, x: torch.lerp(x, m.k, 0.3),
        lambda m, x: F.prelu(x, m.k.flatten()),
        lambda m, x: F.threshold(x, 0.5, 1.0),
        lambda m, x: torch.clamp(x, max=m.k.expand(2, 4, 1, 1)[:, :, :, 0]),
    ],
)
def test_what_else_takes_a_constant_is_right_or_refused(use):
    model = randomised(images(use, k=CONSTANT).double(), 0)
    try:
        error = recovery_error(model)
    except BilateralError:
        return
    assert error < EXACT


def test_a_buffer_in_a_float64_model_is_accepted():
    model = images(lambda m, x: x * m.k, k=CONSTANT).double()
    assert inspect(model, torch.zeros(1, *IMAGE)).num_outputs == 3


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda m, x: torch.lerp(x, m.k, 0.3), "`lerp`.*no rule for it"),
        (lambda m, x: torch.where(m.k > 1, x, m.k), "`where`.*no rule for it"),
        (lambda m, x: x * m.k.type_as(x), "`type_as`.*called on a constant"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_call_with_a_constant_that_torch_takes_is_not_refused_for_its_shape(use, reason, dtype):
    """Which it was, since the walk had the constant in another precision or on another device."""
    model = images(use, k=CONSTANT).to(dtype)
    assert model(torch.randn(2, *IMAGE, dtype=dtype)).shape == (2, 3)
    with pytest.raises(UnsupportedLayerError, match=reason):
        inspect(model, torch.zeros(1, *IMAGE))


def test_a_constant_of_another_shape_is_refused_with_a_typed_error():
    model = Net(
        lambda m, x: m.head(torch.clamp(m.c(x), min=m.k).mean((2, 3))),
        c=nn.Conv2d(3, 1, 3),
        k=CONSTANT,
        head=nn.Linear(4, 2),
    )
    with pytest.raises(UnsupportedLayerError, match="shape"):
        inspect(model, torch.zeros(1, *IMAGE))


def test_numbers_that_forward_draws_are_called_so():
    for draw in (lambda m, x: x + torch.randn(1, 4, 1, 1), lambda m, x: x * random.random()):
        with pytest.raises(ModelError, match="each time"):
            inspect(images(draw), torch.zeros(1, *IMAGE))


# --- hooks, parametrizations, functions with a backward pass of their own ---


def hooked(register):
    model = images(lambda m, x: m.a(x), a=nn.ReLU())
    register(model)
    return model


HOOKS = {
    "forward hook of the root": lambda m: m.register_forward_hook(lambda mod, a, out: out * 2),
    "forward pre-hook of the root": lambda m: m.register_forward_pre_hook(lambda mod, a: (a[0].tanh(),)),
    "forward hook of a layer": lambda m: m.c.register_forward_hook(lambda mod, a, out: out.tanh()),
    "full backward hook": lambda m: m.a.register_full_backward_hook(lambda mod, i, o: (i[0].sign(),)),
    "full backward pre-hook": lambda m: m.a.register_full_backward_pre_hook(lambda mod, o: (o[0].sign(),)),
    "hook of a parameter": lambda m: m.c.weight.register_hook(torch.sign),
    "pruning": lambda m: prune.random_unstructured(m.c, "weight", 0.5),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_refused_by_name(name):
    with pytest.raises(ModelError, match="hook"):
        inspect(hooked(HOOKS[name]), torch.zeros(1, *IMAGE))


def test_a_hook_on_an_activation_is_refused_by_name():
    def middle(m, x):
        x.register_hook(torch.sign)
        return x

    with pytest.raises(ModelError, match="hook"):
        inspect(images(middle), torch.zeros(1, *IMAGE))


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrizations_are_refused_by_name(wrap):
    with pytest.raises(ModelError, match="parametri"):
        inspect(hooked(lambda m: wrap(m.c)), torch.zeros(1, *IMAGE))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_old_weight_norm_is_refused_by_name():
    with pytest.raises(ModelError, match="hook"):
        inspect(hooked(lambda m: weight_norm(m.c)), torch.zeros(1, *IMAGE))


class SignedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 1.0 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sign()


def test_a_backward_pass_of_its_own_is_refused_by_name():
    with pytest.raises(ModelError, match="SignedGradient"):
        inspect(images(lambda m, x: SignedGradient.apply(x)), torch.zeros(1, *IMAGE))


def test_a_computation_that_the_trace_does_not_show_is_refused():
    def middle(m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.d(x).float()

    with pytest.raises(ModelError, match="trace"):
        inspect(images(middle, d=nn.Conv2d(4, 4, 1)), torch.zeros(1, *IMAGE))


# --- the number of samples ---


@pytest.mark.parametrize(
    "middle",
    [
        lambda m, x: x + (x.size(0) - 2),
        lambda m, x: x + (x.shape[0] - 2),
        lambda m, x: x * (3 - x.size(0)),
        lambda m, x: x[:2],
        lambda m, x: F.leaky_relu(x, 0.1 * (x.size(0) - 2)),
        lambda m, x: x[:, : x.size(0) + 1].repeat_interleave(2, 1)[:, :4],
        lambda m, x: x + x.shape[0] // 8,
        lambda m, x: x + 0.5 * (x.shape[0] > 16),
        lambda m, x: x * (1 + (x.size(0) - 2) * (x.size(0) - 3)),
        lambda m, x: torch.roll(x, x.shape[0], 1),
        lambda m, x: torch.roll(x, x.shape[0] // 8, 1),
        lambda m, x: F.pad(x[:, :3], (0, 0, 0, 0, 0, 1), value=x.shape[0] // 8),
        lambda m, x: x[:, : 4 + x.shape[0] // 8],
        lambda m, x: x.narrow(1, x.shape[0] // 8, 4),
        lambda m, x: x.view(x.shape[0] + 0 * x.shape[0] // 8, 4, 6, 6),
        lambda m, x: x.view(9 * x.shape[0] // 8, -1, 6, 6),
        lambda m, x: x + x.size(1 + x.shape[0] // 8),
        lambda m, x: x + (torch.ones(x.shape[0]).sum() - 2),
        lambda m, x: x + torch.full((1,), x.shape[0] // 8),
        lambda m, x: x.expand(x.shape[0], 4, 6, 6) + x.numel() // 1024,
    ],
)
def test_what_depends_on_the_number_of_samples_is_refused_by_name(middle):
    with pytest.raises(ModelError, match="number of samples"):
        inspect(images(middle), torch.zeros(1, *IMAGE))


@pytest.mark.parametrize(
    "flat",
    [
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.shape[0], -1),
        lambda x: x.view(-1, 64),
        lambda x: x.flatten(1)[: x.size(0)],
        lambda x: x.view(x.size(0), 4, 16).expand(x.size(0), 4, 16).flatten(1),
        lambda x: x.view(x.shape[0] * 4, 16).view(x.shape[0], -1),
        lambda x: x.reshape(x.size(0) * x.size(1) // 4, -1),
        lambda x: x.view(x.shape[:2] + (16,)).view(x.shape[0], 64),  # noqa: RUF005 (a proxy)
        lambda x: x.flatten(0, 1).view(x.numel() // 64, 64),
    ],
)
def test_shapes_may_name_the_number_of_samples(flat):
    model = Net(lambda m, x: m.head(flat(m.c(x).relu())), c=nn.Conv2d(3, 4, 3), head=nn.Linear(64, 3))
    assert recovery_error(randomised(model.double(), 0)) < EXACT


# --- what an object has that its class does not ---


@pytest.mark.parametrize("path", ["", "c", "act"])
def test_a_forward_that_was_replaced_on_an_object_is_refused_by_name(path):
    model = images(lambda m, x: m.act(x), act=nn.ReLU())
    module = model.get_submodule(path)
    before = module.forward
    module.forward = lambda x: before(x).clamp(max=5.0)
    with pytest.raises(ModelError, match="`forward` was replaced"):
        inspect(model, torch.zeros(1, *IMAGE))


def test_a_layer_called_dropout_does_not_hide_a_switch_before_it():
    model = images(lambda m, x: m.dropout(2 * x if m.training else x), dropout=nn.Dropout(0.5))
    with pytest.raises(ModelError, match="something else in training"):
        inspect(model, torch.zeros(1, *IMAGE))


# --- stochastic depth and factors of channels, as in EfficientNet and ConvNeXt ---


def stochastic_depth(input, p, mode, training=True):
    """torchvision's function, written out: torchvision marks it for torch.fx in the same way."""
    if not training or p == 0.0:
        return input
    size = [input.shape[0]] + [1] * (input.ndim - 1) if mode == "row" else [1] * input.ndim
    noise = torch.empty(size, dtype=input.dtype, device=input.device)
    return input * noise.bernoulli_(1.0 - p).div_(1.0 - p)


stochastic_depth.__module__ = "torchvision.ops.stochastic_depth"
fx.wrap("stochastic_depth")


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_stochastic_depth_is_recovered_exactly(mode):
    def middle(m, x):
        return x + stochastic_depth(m.d(x), 0.5, mode, m.training)

    model = randomised(images(middle, d=nn.Conv2d(4, 4, 1)).double(), 0)
    for seed in range(4):  # rows are dropped in some draws and kept in others
        assert recovery_error(model, seed=seed) < EXACT


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (1,), (), (1, 1, 1, 1)])
@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_a_parameter_that_multiplies_channels_is_recovered_exactly(shape, loss):
    for use in (lambda m, x: m.d(x * m.p).relu(), lambda m, x: m.d(torch.mul(m.p, x)) + x * m.p):
        model = images(use, d=nn.Conv2d(4, 4, 1), p=nn.Parameter(torch.ones(shape)))
        assert recovery_error(randomised(model.double(), 0), loss=loss) < EXACT


def test_a_parameter_that_multiplies_channels_moves_with_them():
    model = images(lambda m, x: m.d(x * m.p).relu(), d=nn.Conv2d(4, 4, 1), p=nn.Parameter(torch.ones(4, 1, 1)))
    row = next(row for row in inspect(model, torch.zeros(1, *IMAGE)).rows if row.name == "p")
    assert (row.kind, row.num_moved) == ("channel factor", 4)


# --- true reasons ---


def test_a_switch_by_the_mode_is_told_from_numbers_made_anew():
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(5, 2)

        def forward(self, x):
            return self.head(x * 2 if self.training else x)

    with pytest.raises(ModelError, match="something else in training than in evaluation"):
        inspect(Switch(), torch.zeros(1, *FLAT))


def window_attention(x, training):
    return x.softmax(1) if training else x


fx.wrap("window_attention")


def test_a_function_without_a_rule_is_named_though_it_is_told_the_mode():
    with pytest.raises(
        UnsupportedLayerError, match=r"window_attention.*no rule.*marked for torch.fx .*wrap.*Write it out"
    ):
        inspect(images(lambda m, x: window_attention(x, m.training)), torch.zeros(1, *IMAGE))


def test_a_model_without_values_is_refused_by_name():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ModelError, match="meta"):
        inspect(model, torch.zeros(1, *FLAT))


def test_rounding_to_a_lower_precision_inside_the_network_is_refused():
    model = images(lambda m, x: x.float().double()).double()
    with pytest.raises(UnsupportedLayerError, match="rounds"):
        inspect(model, torch.zeros(1, *IMAGE))


def test_an_example_without_a_batch_dimension_is_refused_with_a_typed_error():
    with pytest.raises(ModelError):
        inspect(images(lambda m, x: x), torch.zeros(()))
