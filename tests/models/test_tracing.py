"""The bookkeeping under the scale graph: identities, roles, and the walk over a traced network."""

from __future__ import annotations

import pytest
import torch
from tests.models.test_scale_graph_adversarial import Net
from torch import nn

from bilateral.errors import ModelError
from bilateral.models.builder import Axis
from bilateral.models.identities import Identities, UnionFind, digest_over, mix, numbered
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.tracing import walk


def test_union_find_remembers_the_first_reason_for_a_pin():
    forest = UnionFind()
    items = forest.fresh(4)
    forest.union(items[:1], items[1:2], "tie")
    forest.pin(items[1:2], "first")
    forest.pin(items[:1], "second")
    assert forest.reason_for_pin(int(items[0])) == "first"
    assert forest.reason_for_pin(int(items[3])) == ""
    assert forest.roots().tolist() == [0, 0, 0, 3, 4]


def test_merge_over_ties_what_differs_along_a_dimension():
    forest = UnionFind()
    items = forest.fresh(6).view(2, 3)
    forest.merge_over(items, [1], "")
    assert forest.roots()[items].tolist() == [[1, 1, 1], [4, 4, 4]]


def test_mix_has_no_collisions_on_small_numbers_and_keeps_expanded_dimensions():
    grid = mix(torch.arange(300)[:, None], torch.arange(300)[None, :])
    assert len(grid.unique()) == 90_000
    wide = mix(torch.arange(3)[:, None].expand(3, 1000), torch.tensor(7))
    assert wide.stride(1) == 0


def test_mix_tells_the_order_of_its_arguments_apart():
    assert int(mix(torch.tensor(1), torch.tensor(2))) != int(mix(torch.tensor(2), torch.tensor(1)))


def test_digest_over_space_tells_orders_apart():
    roles = torch.tensor([[5, 6, 7], [7, 6, 5], [5, 6, 7]])
    digest = digest_over(roles, [1])
    assert digest[0] == digest[2] != digest[1]


def test_numbered_counts_by_first_appearance():
    assert numbered(torch.tensor([9, 4, 9, -1, 4])).tolist() == [0, 1, 0, 2, 1]


def test_copies_count_equal_neurons_in_equal_roles():
    assert Axis(torch.tensor([3, 3, 3, 4]), torch.tensor([0, 1, 0, 0])).copies().tolist() == [0, 0, 1, 0]


def test_by_channel_gives_every_pixel_a_role_and_every_channel_the_same_roles():
    zeros = torch.zeros((), dtype=torch.int64).expand(3)
    ids = Identities.by_channel(Identities(torch.arange(3), torch.arange(3), zeros), (2, 3, 4, 4), torch.tensor(1))
    assert ids.role.stride(1) == 0
    assert len(ids.role[:, 0].unique()) == 32


def test_the_walk_costs_little_memory_for_large_images():
    model = Net(lambda m, x: m.head(m.c(x).relu().mean((2, 3))), c=nn.Conv2d(3, 64, 3), head=nn.Linear(64, 10))
    found = walk(model, torch.zeros(1, 3, 224, 224))
    assert found.head == "head"
    assert found.num_outputs == 10


def test_default_arguments_of_forward_are_used():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x, factor=2.0):
            return self.head(x * factor)

    assert walk(Optional(), torch.zeros(1, 3)).num_outputs == 2


def test_user_subclasses_of_layers_are_traced_through():
    class MyConv(nn.Conv2d):
        pass

    model = Net(lambda m, x: m.head(m.c(x).flatten(1)), c=MyConv(3, 4, 3), head=nn.Linear(64, 2))
    assert walk(model, torch.zeros(1, 3, 6, 6)).builder.bindings["c.weight"].kind == "convolution weight"


class _ModeInNumbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x * (2.0 if self.training else 5.0))


def test_a_number_that_depends_on_the_mode_is_refused():
    with pytest.raises(ModelError, match="something else in training"):
        ScaleGraph.of(_ModeInNumbers(), torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("last", "named"),
    [(nn.Sigmoid(), "Sigmoid `1`"), (nn.Flatten(), "Flatten `1`")],
)
def test_what_ends_the_model_instead_of_a_linear_layer_is_named(last, named):
    with pytest.raises(ModelError) as caught:
        ScaleGraph.of(nn.Sequential(nn.Linear(4, 2), last), torch.zeros(2, 4))
    assert f"not the output of an nn.Linear module, but of {named}. End the model" in str(caught.value)


def test_a_function_that_ends_the_model_is_named():
    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.flatten(self.head(x), 1)

    with pytest.raises(ModelError, match=r"but of `flatten` \(node `flatten`\)\."):
        ScaleGraph.of(Ends(), torch.zeros(2, 4))
