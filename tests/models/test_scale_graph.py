"""The scale graph by example: what is scaled, what is pinned and why, what moves, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.models.test_scale_graph_adversarial import Net, flat_net, image_net
from tests.reference.equations import perturb_conv_by_loops
from tests.reference.harness import draw, function_error, perturbed_copy, randomised
from torch import nn

from bilateral.errors import ModelError, UnsupportedLayerError
from bilateral.models.scale_graph import ScaleGraph, positions
from bilateral.models.zoo import build_model

torch.set_num_threads(1)
ZOO = [
    ("mlp-7", {"width": 16}, (10,)),
    ("mlp-3", {"bias": False}, (10,)),
    ("lenet", {}, (1, 16, 16)),
    ("vgg-7", {"width": 8}, (3, 16, 16)),
    ("convnet", {}, (3, 16, 16)),
    *[
        ("resnet-20", {"batch_norm": norm, "shortcut": shortcut, "width": 4}, (3, 16, 16))
        for norm in (True, False)
        for shortcut in ("add", "concat")
    ],
    ("densenet", {"growth": 4, "layers": [2, 2]}, (3, 16, 16)),
    ("densenet", {"growth": 4, "layers": [2, 2], "batch_norm": False}, (3, 16, 16)),
]


def graph_of(model, shape=(3, 6, 6)):
    return ScaleGraph.of(model, torch.zeros(1, *shape))


@pytest.mark.parametrize(("name", "options", "shape"), ZOO)
def test_zoo_model_keeps_its_function_and_all_its_hidden_channels_move(name, options, shape):
    model = build_model(name, input_shape=shape, num_outputs=5, **options)
    graph = graph_of(model, shape)
    assert function_error(model, shape, draws=1, batch=2) < 1e-11
    assert graph.cells.num_movable == graph.cells.num_neurons - 1  # neuron 0 is the input and the outputs


def test_residual_sum_with_the_input_pins_the_branch_and_says_why():
    model = Net(
        lambda m, x: m.head(F.relu(m.a(F.relu(m.b(x))) + x)), a=nn.Linear(4, 5), b=nn.Linear(5, 4), head=nn.Linear(5, 2)
    )
    graph = graph_of(model, (5,))
    assert bool((graph.layout("a.bias").binding.numerator == 0).all())
    assert any("added to a pinned value" in reason for reason in graph.layout("a.weight").pin_reasons)
    assert graph.layout("b.bias").pin_reasons == ()
    assert graph.cells.num_movable == 4  # the neurons of b only


def test_residual_sum_ties_factors_of_both_operands():
    graph = graph_of(image_net(lambda m, x: m.a(x) + m.b(x), 6, a=nn.Conv2d(8, 6, 1), b=nn.Conv2d(8, 6, 1)))
    assert torch.equal(graph.layout("a.bias").binding.numerator, graph.layout("b.bias").binding.numerator)


def test_tied_weights_are_one_parameter_with_one_set_of_factors():
    model = flat_net(lambda m, x: m.b(F.relu(m.a(x))), a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    model.b.weight = model.a.weight
    graph = graph_of(model, (5,))
    assert [p.name for p in graph.parameters].count("a.weight") == 1
    assert "b.weight" not in {p.name for p in graph.parameters}
    assert function_error(model, (5,)) < 1e-12


def test_shared_batch_norm_is_refused_with_its_name():
    model = image_net(lambda m, x: m.norm(F.relu(m.norm(x))), norm=nn.BatchNorm2d(8))
    with pytest.raises(UnsupportedLayerError, match=r"BatchNorm2d `norm`.*more than once.*of its own"):
        graph_of(model)


def test_a_model_that_does_not_end_in_linear_is_refused_with_the_last_layer_and_the_remedy():
    model = Net(lambda m, x: torch.softmax(m.head(x), 1), head=nn.Linear(5, 4))
    with pytest.raises(ModelError, match=r"softmax.*End the model with nn.Linear"):
        graph_of(model, (5,))


def test_a_head_over_tokens_is_refused():
    model = Net(lambda m, x: m.head(x), head=nn.Linear(7, 4))
    with pytest.raises(ModelError, match=r"head.weight.*shape \(2, 3, 7\).*Flatten"):
        graph_of(model, (3, 7))


def test_a_head_whose_output_is_used_twice_is_refused():
    def forward(m, x):
        y = m.head(x)
        y.relu()
        return y

    with pytest.raises(ModelError, match="also used inside the network"):
        graph_of(Net(forward, head=nn.Linear(5, 4)), (5,))


def test_a_head_that_shares_its_weight_is_refused():
    model = Net(lambda m, x: m.head(F.relu(m.first(x))), first=nn.Linear(4, 4), head=nn.Linear(4, 4))
    model.head.weight = model.first.weight
    with pytest.raises(ModelError, match="weight is shared"):
        graph_of(model, (4,))


def test_control_flow_on_values_is_refused_with_a_remedy():
    model = Net(lambda m, x: m.head(x if x.sum() > 0 else -x), head=nn.Linear(5, 4))
    with pytest.raises(ModelError, match=r"cannot be traced.*control flow"):
        graph_of(model, (5,))


@pytest.mark.parametrize(
    ("layer", "call"),
    [
        (nn.InstanceNorm2d(8), lambda m, x: m.odd(x)),
        (nn.LSTMCell(8, 8), lambda m, x: m.odd(x)[0]),
        (nn.EmbeddingBag(8, 8), lambda m, x: m.odd(x)),
        (nn.LocalResponseNorm(2), lambda m, x: m.odd(x)),
    ],
)
def test_an_unsupported_layer_is_named_with_what_is_supported(layer, call):
    model = image_net(call, odd=layer)
    with pytest.raises(UnsupportedLayerError, match=rf"{type(layer).__name__} `odd`.*Supported: Linear"):
        graph_of(model)


def test_padding_with_ones_is_refused():
    with pytest.raises(UnsupportedLayerError, match=r"pads with 1.*Pad with zeros"):
        graph_of(image_net(lambda m, x: F.pad(x, (1, 1), value=1)))


def test_a_layers_weight_that_is_also_used_as_a_value_is_refused_by_name():
    model = image_net(lambda m, x: x + m.first.bias[:, None, None])
    with pytest.raises(UnsupportedLayerError, match=r"parameter `first.bias` is shared.*in another way"):
        graph_of(model)


def test_a_wrong_input_shape_is_refused_with_the_layer():
    with pytest.raises(ModelError, match=r"Linear `first`.*shape"):
        graph_of(flat_net(lambda m, x: x), (7,))


def test_a_model_with_two_inputs_is_refused():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x, y):
            return self.head(x + y)

    with pytest.raises(ModelError, match=r"2 inputs.*exactly one"):
        graph_of(Two(), (3,))


def test_sigmoid_pins_its_input_and_says_why():
    graph = graph_of(flat_net(lambda m, x: torch.sigmoid(x)), (5,))
    assert any("sigmoid" in r and "not positively homogeneous" in r for r in graph.layout("first.weight").pin_reasons)
    assert graph.cells.num_movable == 8  # pinned channels still change places


def test_squeeze_excite_leaves_the_gated_channels_scaled():
    model = image_net(
        lambda m, x: x * torch.sigmoid(m.up(F.relu(m.down(x.mean((2, 3))))))[:, :, None, None],
        down=nn.Linear(8, 3),
        up=nn.Linear(3, 8),
    )
    graph = graph_of(model)
    assert graph.layout("first.weight").pin_reasons == ()
    assert bool((graph.layout("up.bias").binding.numerator == 0).all())
    assert graph.cells.num_movable == 8 + 3


def test_depthwise_convolution_moves_with_its_channels():
    graph = graph_of(image_net(lambda m, x: m.depth(x).relu(), depth=nn.Conv2d(8, 8, 3, groups=8)))
    assert graph.cells.num_movable == 16
    order = draw(graph, 3)[1]
    depth = graph.layout("depth.weight").binding
    assert torch.equal(positions(depth.inputs, order), positions(depth.outputs, order))


def test_grouped_convolution_permutes_groups_and_inside_groups():
    model = image_net(lambda m, x: m.grouped(x).relu(), 12, grouped=nn.Conv2d(8, 12, 3, groups=4))
    graph = graph_of(model)
    assert graph.cells.num_movable == 20
    binding = graph.layout("grouped.weight").binding
    groups_seen, orders_seen = set(), set()
    for seed in range(30):
        exchange = draw(graph, seed)[1]
        into, out = positions(binding.inputs, exchange).view(4, 2), positions(binding.outputs, exchange).view(4, 3)
        assert torch.equal(into.div(2, rounding_mode="floor").unique_consecutive(dim=1)[:, 0], out[:, 0] // 3)
        groups_seen.add(tuple((out[:, 0] // 3).tolist()))
        orders_seen.add(tuple((out % 3)[0].tolist()))
    assert len(groups_seen) > 10
    assert len(orders_seen) == 6
    assert function_error(model, (3, 6, 6)) < 1e-12


def test_group_norm_moves_whole_groups_and_ties_factors_inside():
    model = image_net(lambda m, x: m.norm(x).relu(), norm=nn.GroupNorm(4, 8))
    graph = ScaleGraph.of(model, torch.zeros(1, 3, 6, 6), norm_inputs="scaled")
    assert graph.cells.num_movable == graph_of(model).cells.num_movable == 8
    factors = graph.layout("first.bias").binding.numerator.view(4, 2)
    assert torch.equal(factors[:, 0], factors[:, 1])
    assert len(factors[:, 0].unique()) == 4


def test_channels_flipped_in_space_do_not_change_places_with_others():
    graph = graph_of(image_net(lambda m, x: m.c(torch.cat([x[:, :4].flip(3), x[:, 4:]], 1)), 6, c=nn.Conv2d(8, 6, 3)))
    inputs = graph.layout("c.weight").binding.inputs
    for seed in range(20):
        order = positions(inputs, draw(graph, seed)[1])
        assert set(order[:4].tolist()) == {0, 1, 2, 3}
    assert graph.cells.num_movable == 14


def test_option_a_shortcut_ties_padded_channels_to_the_branch():
    graph = graph_of(
        image_net(lambda m, x: F.pad(x, (0, 0, 0, 0, 2, 2)) + m.a(x), 12, a=nn.Conv2d(8, 12, 3, padding=1))
    )
    tied = graph.layout("a.bias").binding.numerator[2:10]
    assert torch.equal(tied, graph.layout("first.bias").binding.numerator)


def test_unused_parameters_are_left_alone_and_reported():
    graph = graph_of(flat_net(lambda m, x: x, spare=nn.Linear(3, 3)), (5,))
    layout = graph.layout("spare.weight")
    assert layout.kind == "unused"
    assert layout.pin_reasons == ("the network does not use it",)


def test_factors_before_a_normalisation_are_one_or_if_so_wished_at_least_one():
    model = image_net(lambda m, x: m.norm(x), norm=nn.BatchNorm2d(8))
    assert graph_of(model).normalised_classes.tolist() == [0]
    graph = ScaleGraph.of(model, torch.zeros(1, 3, 6, 6), norm_inputs="scaled")
    assert 0 not in graph.normalised_classes.tolist()
    for seed in range(5):
        factors, _ = draw(graph, seed)
        assert float(factors[graph.normalised_classes].min()) >= 1.0
        assert float(factors[0]) == 1.0


def test_perturbed_convolution_equals_the_one_written_out_by_loops():
    model = randomised(image_net(lambda m, x: m.c(x), 6, c=nn.Conv2d(8, 6, 3, groups=2)).double(), 1)
    graph = graph_of(model)
    factors, exchange = draw(graph, 5)
    layout = graph.layout("c.weight").binding
    expected, bias = perturb_conv_by_loops(
        model.c.weight.tolist(),
        model.c.bias.tolist(),
        factors[graph.layout("c.bias").binding.numerator].tolist(),
        factors[graph.layout("first.bias").binding.numerator].tolist(),
        positions(layout.outputs, exchange).tolist(),
        positions(layout.inputs, exchange).tolist(),
        groups=2,
    )
    got = perturbed_copy(model, graph, factors, exchange)
    torch.testing.assert_close(got.c.weight.detach(), torch.tensor(expected).double(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(got.c.bias.detach(), torch.tensor(bias).double(), rtol=1e-6, atol=1e-7)


def test_the_graph_does_not_touch_the_model():
    model = build_model("resnet-20", input_shape=(3, 16, 16), num_outputs=5).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    graph_of(model, (3, 16, 16))
    assert not model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
