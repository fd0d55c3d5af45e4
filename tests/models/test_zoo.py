"""The zoo: sizes of well-known networks, what every network promises, and errors that help."""

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from bilateral.errors import ModelError
from bilateral.models.zoo import build_model, model_names

CIFAR = (3, 32, 32)
DIGITS = (1, 8, 8)
RESNETS = tuple(name for name in model_names() if name.startswith("resnet"))
ALLOWED_FUNCTIONS = {"relu", "flatten", "cat", "add"}
ALLOWED_MODULES = (
    nn.Linear,
    nn.Conv2d,
    nn.BatchNorm2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)


def variants():
    """Every name with every combination of its switches, narrow where the default is wide."""
    for bias in (True, False):
        yield from ((f"mlp-{depth}", {"bias": bias, "width": 12}) for depth in (3, 5, 7))
    yield "lenet", {}
    for batch_norm in (True, False):
        yield "vgg-7", {"batch_norm": batch_norm, "width": 8}
        yield "convnet", {"batch_norm": batch_norm}
        yield "densenet", {"batch_norm": batch_norm}
        yield "densenet", {"batch_norm": batch_norm, "growth": 5, "layers": [2, 3]}
        for name in RESNETS:
            yield from ((name, {"batch_norm": batch_norm, "shortcut": s, "width": 8}) for s in ("add", "concat"))


def build(name, options=None, *, input_shape=DIGITS, num_outputs=10, seed=0):
    return build_model(name, input_shape=input_shape, num_outputs=num_outputs, seed=seed, **(options or {}))


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def multiply_accumulates(model, input_shape):
    """Counted by forward hooks: outputs of a layer times the inputs that each of them reads."""
    total = 0

    def count(layer, _, output):
        nonlocal total
        total += output[0].numel() * layer.weight[0].numel()

    handles = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    model.eval()(torch.zeros(1, *input_shape))
    for handle in handles:
        handle.remove()
    return total


@pytest.fixture
def user_module():
    """An importable module `zoo_test_nets` with functions that build (or fail to build) networks."""
    module = types.ModuleType("zoo_test_nets")

    def build_it(input_shape, num_outputs, *, width=5):
        return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, num_outputs))

    def fail():
        raise RuntimeError("no such checkpoint")

    build_it.__module__ = module.__name__
    module.build = build_it
    module.fixed = lambda: nn.Linear(4, 2)
    module.anything = lambda **options: nn.Linear(options["input_shape"][0], options["num_outputs"])
    module.needs_depth = lambda depth: nn.Linear(4, depth)
    module.not_a_network = lambda: {"weights": 1}
    module.fail = fail
    module.constant = 3
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


# Sizes


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (
            "resnet-20",
            272_474,
        ),  # He et al.: 0.27 M, 0.46 M, 0.85 M; ours has 2,752 more for 1x1 shortcuts and their norms
        ("resnet-32", 466_906),
        ("resnet-56", 855_770),
        ("resnet-18", 11_173_962),  # the usual CIFAR-10 ResNet-18
        ("resnet-10", 4_903_242),
    ],
)
def test_resnets_have_the_published_number_of_parameters(name, parameters):
    assert num_parameters(build(name, input_shape=CIFAR)) == parameters


def test_vgg7_and_resnet8_do_the_multiplications_and_relus_that_the_peers_were_measured_on():
    vgg = build("vgg-7", input_shape=CIFAR)
    resnet = build("resnet-8", {"batch_norm": False}, input_shape=CIFAR)
    assert multiply_accumulates(vgg, CIFAR) == 152_805_376
    assert multiply_accumulates(resnet, CIFAR) == 12_501_632
    assert (vgg.head.in_features, resnet.head.in_features) == (4096, 64)
    for network, num_relus in ((vgg, 229_376), (resnet, 73_728)):
        assert count_relus(network, CIFAR) == num_relus
        assert all(m.bias is not None for m in network.modules() if isinstance(m, nn.Conv2d))


def count_relus(model, input_shape):
    counted = 0

    class Counter(fx.Interpreter):
        def call_function(self, target, args, kwargs):
            nonlocal counted
            result = super().call_function(target, args, kwargs)
            counted += result.numel() if target is F.relu else 0
            return result

    Counter(fx.symbolic_trace(model)).run(torch.zeros(1, *input_shape))
    return counted


@pytest.mark.parametrize("depth", [3, 5, 7])
def test_the_number_in_an_mlps_name_counts_its_linear_layers(depth):
    assert sum(isinstance(m, nn.Linear) for m in build(f"mlp-{depth}").modules()) == depth


@pytest.mark.parametrize("name", RESNETS)
def test_the_number_in_a_resnets_name_counts_its_layers_without_shortcuts(name):
    layers = [
        path
        for path, module in build(name, {"width": 4}).named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "projection" not in path
    ]
    assert len(layers) == int(name.removeprefix("resnet-"))


@pytest.mark.parametrize("name", RESNETS)
def test_concatenating_resnets_are_about_as_large_as_additive_ones(name):
    sizes = [num_parameters(build(name, {"shortcut": s, "width": 16})) for s in ("add", "concat")]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.15)


# What every network promises


def test_every_name_is_covered_by_the_variants_below():
    assert {name for name, _ in variants()} == set(model_names())


@pytest.mark.parametrize(("name", "options"), list(variants()), ids=str)
def test_every_network_is_traceable_ends_in_its_head_and_has_relu_as_nonlinearity(name, options):
    model = build(name, options, num_outputs=7)
    samples = torch.randn(3, *DIGITS, generator=torch.Generator().manual_seed(1))
    model.eval()
    output = model(samples)
    assert output.shape == (3, 7)
    assert torch.isfinite(output).all()

    traced = fx.symbolic_trace(model)
    assert torch.equal(traced(samples), output)
    (result,) = [node for node in traced.graph.nodes if node.op == "output"]
    head = result.args[0]
    assert (head.op, head.target) == ("call_module", "head")
    assert type(model.head) is nn.Linear
    for node in traced.graph.nodes:
        if node.op == "call_module":
            assert isinstance(traced.get_submodule(node.target), ALLOWED_MODULES)
        elif node.op == "call_function":
            assert node.target.__name__ in ALLOWED_FUNCTIONS
            assert not node.kwargs.get("inplace", False)
        else:
            assert node.op in {"placeholder", "output"}


@pytest.mark.parametrize(("name", "options"), list(variants()), ids=str)
def test_every_parameter_gets_a_gradient(name, options):
    model = build(name, options)
    samples = torch.randn(4, *DIGITS, generator=torch.Generator().manual_seed(1))
    F.cross_entropy(model(samples), torch.arange(4)).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(("name", "options"), list(variants()), ids=str)
def test_convolutions_have_biases_exactly_where_there_is_no_batch_norm(name, options):
    model = build(name, options)
    has_norm = any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert has_norm == options.get("batch_norm", False)
    assert all((m.bias is None) == has_norm for m in model.modules() if isinstance(m, nn.Conv2d))


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("input_shape", [(1, 28, 28), (4, 17, 12)])
def test_images_of_odd_and_unequal_sides_fit(name, input_shape):
    model = build(name, input_shape=input_shape, num_outputs=1).eval()
    assert model(torch.zeros(2, *input_shape)).shape == (2, 1)


@pytest.mark.parametrize("shortcut", ["add", "concat"])
@pytest.mark.parametrize("name", ["resnet-8", "resnet-20", "resnet-56"])
def test_without_batch_norm_logits_start_at_a_trainable_size_at_any_depth(name, shortcut):
    model = build(name, {"batch_norm": False, "shortcut": shortcut})
    samples = torch.randn(16, *DIGITS, generator=torch.Generator().manual_seed(1))
    assert 0.05 < model(samples).std() < 5


def test_resnet20_without_batch_norm_trains():
    model = build("resnet-20", {"batch_norm": False, "width": 8})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    labels = torch.arange(20) % 4
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(4, *DIGITS, generator=generator)[labels]
    samples = samples + 0.3 * torch.randn(20, *DIGITS, generator=generator)
    losses = []
    for _ in range(25):
        loss = F.cross_entropy(model(samples), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


# Seeds


@pytest.mark.parametrize("name", ["mlp-3", "lenet", "resnet-8", "densenet"])
def test_initial_weights_depend_on_the_seed_only(name):
    first = build(name, seed=5).state_dict()
    torch.rand(3)
    again, other = build(name, seed=5).state_dict(), build(name, seed=6).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize("name", ["mlp-3", "resnet-8", "zoo_test_nets:build"])
def test_building_draws_nothing_from_the_global_generator(name, user_module):
    before = torch.random.get_rng_state()
    build(name, input_shape=(64,) if ":" in name else DIGITS, seed=5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_failed_build_leaves_the_global_generator_alone(user_module):
    before = torch.random.get_rng_state()
    with pytest.raises(ModelError):
        build("zoo_test_nets:fail")
    assert torch.equal(before, torch.random.get_rng_state())


# A user's own network


def test_a_users_function_gets_the_shape_the_outputs_and_the_options(user_module):
    model = build("zoo_test_nets:build", {"width": 9}, input_shape=(4,), num_outputs=2, seed=3)
    again = build("zoo_test_nets:build", {"width": 9}, input_shape=(4,), num_outputs=2, seed=3)
    assert [tuple(p.shape) for p in model.parameters()] == [(9, 4), (9,), (2, 9), (2,)]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_users_function_need_not_take_the_shape_or_may_take_anything(user_module):
    assert build("zoo_test_nets:fixed").out_features == 2
    assert build("zoo_test_nets:anything", {"colour": "red"}, input_shape=(6,)).in_features == 6
    assert build("zoo_test_nets:needs_depth", {"depth": 3}).out_features == 3
    assert build("torch.nn:Linear", {"in_features": 3, "out_features": 2}).in_features == 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("zoo_test_nets:", {}, "package.module:function"),
        ("no_such_package.nets:build", {}, "PYTHONPATH"),
        ("zoo_test_nets:biuld", {}, "no 'biuld'.*defined there: build"),
        ("zoo_test_nets:constant", {}, "got int"),
        ("zoo_test_nets:not_a_network", {}, r"torch\.nn\.Module, got dict"),
        ("zoo_test_nets:fail", {}, "RuntimeError: no such checkpoint"),
        ("zoo_test_nets:needs_depth", {}, "missing a required argument: 'depth'"),
        ("zoo_test_nets:build", {"widht": 3}, "among: width; got widht"),
    ],
)
def test_a_wrong_user_function_is_refused_with_the_reason(user_module, name, options, message):
    with pytest.raises(ModelError, match=message):
        build(name, options)


# Errors


def test_an_unknown_name_is_answered_with_the_list_and_a_close_match():
    with pytest.raises(ModelError) as caught:
        build("ResNet20")
    assert "Did you mean 'resnet-20'?" in str(caught.value)
    assert all(name in str(caught.value) for name in model_names())
    with pytest.raises(ModelError) as caught:
        build("xyzzy")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet-20", {"depth": 3}, "among: width, batch_norm, shortcut; got depth"),
        ("mlp-3", {"batch_norm": True}, "among: width, bias; got batch_norm"),
        ("lenet", {"width": 3}, "among: none; got width"),
        ("resnet-8", {"shortcut": "sum"}, "'add' or 'concat', got 'sum'"),
        ("resnet-8", {"shortcut": "concat", "width": 5}, "even width.*got 5.*width=6"),
        ("resnet-8", {"width": 0}, "width to be a whole number of at least 1, got 0"),
        ("vgg-7", {"width": "64"}, "width to be a whole number of at least 1, got '64'"),
        ("convnet", {"batch_norm": "no"}, "batch_norm to be true or false, got 'no'"),
        ("mlp-5", {"bias": 1}, "bias to be true or false, got 1"),
        ("densenet", {"layers": ()}, "layers to be a list"),
        ("densenet", {"layers": 4}, "layers to be a list"),
        ("densenet", {"layers": [4, 0]}, "every number in layers.*got 0"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_accepted(name, options, message):
    with pytest.raises(ModelError, match=message):
        build(name, options)


@pytest.mark.parametrize("name", [name for name in model_names() if not name.startswith("mlp")])
def test_flat_input_is_refused_by_convolutional_networks(name):
    with pytest.raises(ModelError, match=rf"{name} expected images .*got input shape \(13,\)\. Use an mlp"):
        build(name, input_shape=(13,))


@pytest.mark.parametrize(
    ("name", "size", "smallest"),
    [
        ("lenet", 4, 8),
        ("vgg-7", 7, 8),
        ("convnet", 3, 4),
        ("resnet-20", 3, 4),
        ("resnet-18", 4, 8),
        ("densenet", 2, 4),
    ],
)
def test_too_small_images_are_refused_and_the_smallest_accepted(name, size, smallest):
    with pytest.raises(ModelError, match=f"at least {smallest}x{smallest} pixels, got {size}x{size} pixels"):
        build(name, input_shape=(1, size, size))
    model = build(name, input_shape=(1, smallest, smallest)).eval()
    assert model(torch.zeros(2, 1, smallest, smallest)).shape == (2, 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_shape": ()}, "shape of one sample"),
        ({"input_shape": 64}, "shape of one sample"),
        ({"input_shape": (1, 8, 0)}, "every number in input_shape.*got 0"),
        ({"input_shape": (8.0,)}, "every number in input_shape"),
        ({"num_outputs": 0}, "num_outputs.*got 0"),
        ({"seed": -1}, "seed.*got -1"),
        ({"seed": "7"}, "seed.*got '7'"),
    ],
)
def test_impossible_shapes_outputs_and_seeds_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        build("mlp-3", **changes)
