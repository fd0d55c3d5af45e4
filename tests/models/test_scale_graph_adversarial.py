"""Networks built to fool the scale graph. Each must either be refused or keep its function exactly."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from tests.reference.harness import function_error
from torch import nn

from bilateral.errors import ModelError, UnsupportedLayerError
from bilateral.models.scale_graph import ScaleGraph

torch.set_num_threads(1)
IMAGE = (3, 6, 6)
FLAT = (5,)


class Net(nn.Module):
    """Layers by name, and `forward` as a function of them and of the input."""

    def __init__(self, compute, **layers):
        super().__init__()
        self.compute = compute
        for name, layer in layers.items():
            if isinstance(layer, nn.Parameter):
                self.register_parameter(name, layer)
            elif isinstance(layer, torch.Tensor):
                self.register_buffer(name, layer)
            else:
                setattr(self, name, layer)

    def forward(self, x):
        return self.compute(self, x)


def image_net(middle, features=8, **layers):
    """conv to 8 channels, `middle`, mean over space, head: `features` is what `middle` leaves as channels."""
    return Net(
        lambda m, x: m.head(middle(m, m.first(x)).flatten(2).mean(2)),
        first=nn.Conv2d(3, 8, 3, padding=1),
        head=nn.Linear(features, 4),
        **layers,
    )


def flat_net(middle, features=8, **layers):
    return Net(lambda m, x: m.head(middle(m, m.first(x))), first=nn.Linear(5, 8), head=nn.Linear(features, 4), **layers)


def _interleaved(m, x, other):
    """Halves of two versions of one value, in crossed order: same counts of every neuron, other places."""
    y = other(x)
    return torch.cat([x[:, :4].flatten(1), y[:, 4:].flatten(1), y[:, :4].flatten(1), x[:, 4:].flatten(1)], 1)


def _same_copy_twice_through_norm(m, x):
    y = m.norm(torch.cat([x, x], 1))
    return torch.cat([y[:, 8:9], y[:, 1:2], y[:, :1], y[:, 9:10], y[:, 2:8], y[:, 10:]], 1)


def _product_in_place(gate, x):
    gate.mul_(x)
    return F.relu(gate)


def _overwritten_after_the_head(m, x):
    hidden = m.first(x)
    outputs = m.head(hidden)
    hidden.relu_()
    return outputs


def _squeeze_excite(m, x):
    gate = torch.sigmoid(m.up(F.relu(m.down(x.mean((2, 3))))))
    return x * gate[:, :, None, None]


EXACT = {
    "relu after neg": image_net(lambda m, x: F.relu(-x)),
    "negative factor then max pool": image_net(lambda m, x: F.max_pool2d(-2.5 * x, 2)),
    "add to itself": image_net(lambda m, x: F.relu(x + x)),
    "add of its flip": image_net(lambda m, x: F.relu(x + x.flip(3))),
    "add of channel flip": image_net(lambda m, x: F.relu(x + x.flip(1))),
    "subtract a channel roll": image_net(lambda m, x: F.relu(x - torch.roll(x, 1, 1))),
    "cat of the same tensor twice": image_net(lambda m, x: F.relu(torch.cat([x, x], 1)), 16),
    "crelu": image_net(lambda m, x: F.relu(torch.cat([x, -x], 1)), 16),
    "crossed halves of x and relu x": flat_net(lambda m, x: _interleaved(m, x, F.relu), 16),
    "crossed halves of x and -x": flat_net(lambda m, x: F.relu(_interleaved(m, x, torch.neg)), 16),
    "crossed halves of x and max pool": Net(
        lambda m, x: m.head(_interleaved(m, m.first(x), lambda v: F.max_pool2d(v, 3, 1, 1))),
        first=nn.Conv2d(3, 8, 3, padding=1),
        head=nn.Linear(2 * 8 * 36, 4),
    ),
    "half of the channels flipped in space": image_net(
        lambda m, x: m.conv(torch.cat([x[:, :4].flip(3), x[:, 4:]], 1)), 6, conv=nn.Conv2d(8, 6, 3)
    ),
    "half flipped, then pooled and flattened": Net(
        lambda m, x: m.head(F.max_pool2d(torch.cat([m.first(x)[:, :4].flip(3), m.first(x)[:, 4:]], 1), 2).flatten(1)),
        first=nn.Conv2d(3, 8, 3, padding=1),
        head=nn.Linear(72, 4),
    ),
    "half of the channels transposed in space, batch norm": image_net(
        lambda m, x: m.conv(m.norm(torch.cat([x[:, :4].transpose(2, 3), x[:, 4:]], 1))),
        6,
        conv=nn.Conv2d(8, 6, 3),
        norm=nn.BatchNorm2d(8),
    ),
    "half of the channels from the other sample": image_net(lambda m, x: torch.cat([x[:, :4].flip(0), x[:, 4:]], 1)),
    "batch norm of a doubled tensor, copies crossed": flat_net(
        _same_copy_twice_through_norm, 16, norm=nn.BatchNorm1d(16)
    ),
    "prelu of a doubled tensor, copies crossed": flat_net(_same_copy_twice_through_norm, 16, norm=nn.PReLU(16)),
    "layer norm of a doubled tensor, copies crossed": flat_net(
        _same_copy_twice_through_norm, 16, norm=nn.LayerNorm(16)
    ),
    "group norm of a doubled tensor, copies crossed": flat_net(
        _same_copy_twice_through_norm, 16, norm=nn.GroupNorm(4, 16)
    ),
    "slices used apart": image_net(
        lambda m, x: torch.cat([m.a(x[:, :3]), m.b(x[:, 3:])], 1), 7, a=nn.Conv2d(3, 2, 3), b=nn.Conv2d(5, 5, 3)
    ),
    "overlapping slices": image_net(
        lambda m, x: torch.cat([m.a(x[:, :5]), m.b(x[:, 3:])], 1), 7, a=nn.Conv2d(5, 2, 3), b=nn.Conv2d(5, 5, 3)
    ),
    "every other channel": image_net(lambda m, x: m.a(x[:, ::2]), 5, a=nn.Conv2d(4, 5, 3)),
    "channels chosen by a buffer": image_net(
        lambda m, x: m.a(x[:, m.index]), 5, a=nn.Conv2d(4, 5, 3), index=torch.tensor([6, 1, 1, 3])
    ),
    "chunk": image_net(lambda m, x: F.relu(x.chunk(2, 1)[0]) + x.chunk(2, 1)[1], 4),
    "split with names": image_net(
        lambda m, x: torch.cat(tensors=torch.split(tensor=x, split_size_or_sections=[3, 5], dim=1), dim=1)
    ),
    "unbind and stack": image_net(lambda m, x: torch.stack(x.unbind(1)[::-1], 1)),
    "stack as the last dimension": flat_net(lambda m, x: torch.stack([x, F.relu(x)], dim=2).flatten(1), 16),
    "softmax over a slice of channels": image_net(
        lambda m, x: torch.cat([x[:, :4].softmax(1), torch.tanh(x[:, 4:])], 1)
    ),
    "log softmax over a slice of features": flat_net(
        lambda m, x: torch.cat([F.log_softmax(x[:, :4], 1), torch.tanh(x[:, 4:])], 1)
    ),
    "layer norm without weights over a slice": flat_net(
        lambda m, x: torch.cat([m.norm(x[:, :4]), F.relu(x[:, 4:])], 1), norm=nn.LayerNorm(4, elementwise_affine=False)
    ),
    "group norm without weights over a slice": image_net(
        lambda m, x: torch.cat([m.norm(x[:, :4]), F.relu(x[:, 4:])], 1), norm=nn.GroupNorm(1, 4, affine=False)
    ),
    "group norm over uneven channels": image_net(
        lambda m, x: F.relu(m.norm(torch.cat([x, x[:, :4]], 1))), 12, norm=nn.GroupNorm(3, 12)
    ),
    "grouped conv of a doubled tensor": image_net(
        lambda m, x: m.conv(torch.cat([x, F.relu(x.flip(1))], 1)), 8, conv=nn.Conv2d(16, 8, 3, groups=4)
    ),
    "grouped conv of a rotated doubled tensor": image_net(
        lambda m, x: m.conv(torch.cat([x[:, :4], F.relu(x[:, 4:]), F.relu(x[:, :4]), x[:, 4:]], 1)),
        8,
        conv=nn.Conv2d(16, 8, 3, groups=2),
    ),
    "channels last before linear": Net(
        lambda m, x: m.head(m.mlp(m.first(x).permute(0, 2, 3, 1)).relu().flatten(1)),
        first=nn.Conv2d(3, 8, 3),
        mlp=nn.Linear(8, 6),
        head=nn.Linear(96, 4),
    ),
    "tokens, layer norm, mean over tokens": Net(
        lambda m, x: m.head(m.norm(m.mlp(m.first(x).flatten(2).transpose(1, 2))).mean(1)),
        first=nn.Conv2d(3, 8, 3),
        mlp=nn.Linear(8, 6),
        norm=nn.LayerNorm(6),
        head=nn.Linear(6, 4),
    ),
    "linear over tokens (mixer)": Net(
        lambda m, x: m.head(m.b(F.relu(m.a(m.first(x).flatten(2))).transpose(1, 2)).flatten(1)),
        first=nn.Conv2d(3, 8, 3),
        a=nn.Linear(16, 5),
        b=nn.Linear(8, 6),
        head=nn.Linear(30, 4),
    ),
    "tokens in mixed order, then flattened": Net(
        lambda m, x: m.head(
            torch.cat([m.mlp(m.first(x).permute(0, 2, 3, 1))[..., :3].flip(1), m.first(x).permute(0, 2, 3, 1)], 3)
            .relu()
            .flatten(1)
        ),
        first=nn.Conv2d(3, 8, 3),
        mlp=nn.Linear(8, 6),
        head=nn.Linear(16 * 11, 4),
    ),
    "mean over channels": image_net(lambda m, x: m.conv(x.mean(1, keepdim=True)), 5, conv=nn.Conv2d(1, 5, 3)),
    "mean over channels subtracted": image_net(lambda m, x: F.relu(x - x.mean(dim=1, keepdim=True))),
    "amax over channels": image_net(lambda m, x: m.conv(x.amax(1, keepdim=True)), 5, conv=nn.Conv2d(1, 5, 3)),
    "sum over one spatial dimension": image_net(lambda m, x: torch.sum(input=x, dim=3, keepdim=False)),
    "mean by its numpy names": image_net(lambda m, x: x.mean(axis=(2, 3), keepdims=True)),
    "layer norm over channels and space": image_net(lambda m, x: F.relu(m.norm(x)), norm=nn.LayerNorm([8, 6, 6])),
    "conv over a viewed linear output": Net(
        lambda m, x: m.head(m.conv(m.first(x).view(-1, 2, 3, 4)).relu().flatten(1)),
        first=nn.Linear(5, 24),
        conv=nn.Conv2d(2, 3, 2),
        head=nn.Linear(18, 4),
    ),
    "linear over pairs of features": flat_net(
        lambda m, x: m.pair(x.view(-1, 4, 2)).relu().flatten(1), 12, pair=nn.Linear(2, 3)
    ),
    "batch and tokens merged and parted": Net(
        lambda m, x: m.head(m.mlp(m.first(x).flatten(2).transpose(1, 2).reshape(-1, 8)).reshape(x.shape[0], -1)),
        first=nn.Conv2d(3, 8, 3),
        mlp=nn.Linear(8, 6),
        head=nn.Linear(96, 4),
    ),
    "builtin sum": image_net(lambda m, x: F.relu(sum([x, m.a(x), x])), a=nn.Conv2d(8, 8, 1)),
    "layer norm over the shape of x": flat_net(lambda m, x: F.layer_norm(x, x.shape[1:], eps=0.0).relu()),
    "a stack summed": flat_net(lambda m, x: torch.stack([x, m.a(x)], 1).sum(1).relu(), a=nn.Linear(8, 8)),
    "windows added": image_net(lambda m, x: F.relu(x[..., :3] - x[..., 3:])),
    "one tensor added in two orders": image_net(
        lambda m, x: m.b(torch.cat([m.a(x) + x.flip(1), x, m.a(x)], 1)), 5, a=nn.Conv2d(8, 8, 1), b=nn.Conv2d(24, 5, 1)
    ),
    "broadcast add over space": image_net(lambda m, x: F.relu(x + x.mean((2, 3), keepdim=True))),
    "broadcast add over features": flat_net(lambda m, x: F.relu(x + m.one(x)), one=nn.Linear(8, 1)),
    "broadcast product over features": flat_net(lambda m, x: F.relu(x) * m.one(x), one=nn.Linear(8, 1)),
    "squeeze and excite": image_net(_squeeze_excite, down=nn.Linear(8, 3), up=nn.Linear(3, 8)),
    "x times x": image_net(lambda m, x: x * x),
    "x squared": image_net(lambda m, x: x**2),
    "swish by hand": image_net(lambda m, x: x * torch.sigmoid(x)),
    "product of two branches": image_net(lambda m, x: m.a(x) * m.b(x), 6, a=nn.Conv2d(8, 6, 1), b=nn.Conv2d(8, 6, 1)),
    "gate used again": image_net(lambda m, x: x * m.a(x) + m.a(x), a=nn.Conv2d(8, 8, 1)),
    "a number added": image_net(lambda m, x: F.relu(x + 0.5)),
    "a number minus x": image_net(lambda m, x: F.relu(1 - x)),
    "x over a number": image_net(lambda m, x: F.relu(x / 3)),
    "a buffer added": image_net(lambda m, x: F.relu(x + m.c), c=torch.randn(8, 1, 1)),
    "a buffer as factor": image_net(lambda m, x: F.relu(x * m.c), c=torch.randn(8, 1, 1)),
    "a scalar buffer as factor": image_net(lambda m, x: F.relu(x * m.c), c=torch.tensor(-2.0)),
    "add with alpha": image_net(lambda m, x: torch.add(x, m.a(x), alpha=-0.3), a=nn.Conv2d(8, 8, 1)),
    "add by keyword": image_net(lambda m, x: torch.add(input=x, other=m.a(x)), a=nn.Conv2d(8, 8, 1)),
    "mul by keyword": image_net(lambda m, x: torch.mul(input=x, other=-2)),
    "flatten by keyword": flat_net(lambda m, x: torch.flatten(input=F.relu(input=x), start_dim=1)),
    "module called by keyword": image_net(lambda m, x: m.a(input=x), 5, a=nn.Conv2d(8, 5, 1)),
    "permute and reshape by keyword": image_net(
        lambda m, x: torch.reshape(input=torch.permute(input=x, dims=(0, 2, 3, 1)), shape=(-1, 36, 8)).transpose(1, 2)
    ),
    "functional dropout": image_net(lambda m, x: F.dropout(F.relu(x), 0.5, training=False)),
    "in-place relu and sum": image_net(lambda m, x: F.relu(m.a(x), inplace=True).add_(x), a=nn.Conv2d(8, 8, 1)),
    "residual in place": image_net(lambda m, x: operator.iadd(m.a(F.relu(x)), x).relu_(), a=nn.Conv2d(8, 8, 1)),
    "relu module in place": image_net(lambda m, x: m.relu(m.a(x)), 8, a=nn.Conv2d(8, 8, 1), relu=nn.ReLU(inplace=True)),
    "shuffled channels": image_net(
        lambda m, x: m.b(m.shuffle(m.a(x))),
        8,
        a=nn.Conv2d(8, 8, 3, groups=4),
        shuffle=nn.ChannelShuffle(4),
        b=nn.Conv2d(8, 8, 1, groups=2),
    ),
    "pixel shuffle and back": image_net(
        lambda m, x: m.down(F.relu(m.up(x))) + m.b(x),
        up=nn.PixelShuffle(2),
        down=nn.PixelUnshuffle(2),
        b=nn.Conv2d(8, 8, 1),
    ),
    "pixel shuffle": image_net(lambda m, x: m.b(m.up(x)), 3, up=nn.PixelShuffle(2), b=nn.Conv2d(2, 3, 3)),
    "option A shortcut": image_net(
        lambda m, x: F.relu(F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)) + m.a(x)), 12, a=nn.Conv2d(8, 12, 3, 2, 1)
    ),
    "padded channels added to each other": image_net(
        lambda m, x: m.b(torch.cat([F.pad(x, (0, 0, 0, 0, 0, 2)), x[:, :2]], 1)), 4, b=nn.Conv2d(12, 4, 1)
    ),
    "padding shrinks space": image_net(lambda m, x: F.pad(x, (-1, -1, 0, 2))),
    "reflect padding": image_net(lambda m, x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "one channel everywhere": Net(
        lambda m, x: m.head(m.norm(m.first(x)).relu().flatten(1)),
        first=nn.Conv2d(3, 1, 3),
        norm=nn.BatchNorm2d(1),
        head=nn.Linear(16, 1),
    ),
    "input added twice": Net(
        lambda m, x: m.head(F.relu(m.first(x) + x) + x), first=nn.Linear(5, 5), head=nn.Linear(5, 4)
    ),
    "input joined": Net(
        lambda m, x: m.head(torch.cat([x, F.relu(m.first(x)), x], 1)), first=nn.Linear(5, 8), head=nn.Linear(18, 4)
    ),
    "linear applied three times": flat_net(lambda m, x: m.a(F.relu(m.a(F.relu(m.a(x))))), a=nn.Linear(8, 8)),
    "shared conv on two orders of channels": image_net(
        lambda m, x: m.a(x) + m.a(F.relu(x.flip(1))), a=nn.Conv2d(8, 8, 1)
    ),
    "shared linear on flattened and flipped space": Net(
        lambda m, x: m.head(F.relu(m.a(m.first(x).flatten(1)) + m.a(m.first(x).flip(3).flatten(1)))),
        first=nn.Conv2d(3, 4, 3),
        a=nn.Linear(64, 6),
        head=nn.Linear(6, 4),
    ),
    "shared prelu": image_net(lambda m, x: m.p(m.a(m.p(x))), p=nn.PReLU(8), a=nn.Conv2d(8, 8, 1)),
    "no layer but the head": Net(lambda m, x: m.head(x), head=nn.Linear(5, 4)),
    "unused parameter": flat_net(lambda m, x: F.relu(x), spare=nn.Linear(3, 3)),
    "repeat and expand": flat_net(lambda m, x: x.repeat(1, 2) + x.unsqueeze(1).expand(-1, 2, -1).flatten(1), 16),
    "repeat interleave": flat_net(lambda m, x: F.relu(x).repeat_interleave(2, dim=1), 16),
    "upsample and add": image_net(lambda m, x: F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0) + x),
    "adaptive pooling by keyword": image_net(lambda m, x: F.adaptive_avg_pool2d(input=x, output_size=(2, 2))),
    "conv without batch norm statistics": image_net(
        lambda m, x: m.norm(x).relu(), norm=nn.BatchNorm2d(8, track_running_stats=False)
    ),
    "functional batch norm": image_net(lambda m, x: F.batch_norm(x, None, None, training=True, eps=1e-30)),
    "division by an activation": image_net(lambda m, x: x / (1 + x.exp())),
    "a bare parameter as factor of pixels": image_net(lambda m, x: x * m.p, p=nn.Parameter(torch.ones(8, 6, 6))),
    "a bare parameter added": image_net(lambda m, x: x + m.p, p=nn.Parameter(torch.ones(8, 1, 1))),
    "matrix product": image_net(lambda m, x: torch.matmul(x, x)),
    "view by type and size methods": flat_net(lambda m, x: x.view(x.size(0), -1).type_as(x).to(x.dtype).contiguous()),
}


@pytest.mark.parametrize("name", EXACT)
def test_function_is_kept_by(name):
    shape = FLAT if isinstance(getattr(EXACT[name], "first", EXACT[name].head), nn.Linear) else IMAGE
    assert function_error(EXACT[name], shape, draws=6) < 1e-11


REFUSED = {
    "x used after relu_ of a slice": image_net(lambda m, x: (x[:, :2].relu_(), m.a(x))[1], 5, a=nn.Conv2d(8, 5, 1)),
    "x used after relu in place": image_net(lambda m, x: F.relu(x, inplace=True) + 1.5 * x),
    "gate used after a product in place": image_net(
        lambda m, x: _product_in_place(torch.sigmoid(x), m.a(x)), a=nn.Conv2d(8, 8, 1)
    ),
    "a power with an activation as exponent": image_net(lambda m, x: torch.pow(2.0, x)),
    "clamp by an activation": image_net(lambda m, x: torch.clamp(x.tanh(), max=m.a(x)), a=nn.Conv2d(8, 8, 1)),
    "division rounded down": image_net(lambda m, x: torch.div(x, 2, rounding_mode="floor")),
    "conversion to integers": image_net(lambda m, x: x.to(torch.int32).float()),
    "a number computed from a weight": image_net(lambda m, x: x * m.first.weight.abs().mean()),
    "a weight added": image_net(lambda m, x: x + m.first.bias[:, None, None]),
    "max pool over features": flat_net(lambda m, x: F.max_pool1d(x, 3, 1, 1)),
    "average pool over features": flat_net(lambda m, x: m.pool(x), pool=nn.AvgPool1d(3, 1, 1)),
    "pool of an image without batch": flat_net(
        lambda m, x: m.pool(x.view(-1, 2, 4)).flatten(1), pool=nn.MaxPool2d(3, 1, 1)
    ),
    "reflect padding of features": flat_net(lambda m, x: F.pad(x, (1, 1), mode="reflect"), 10),
    "mean over the batch": flat_net(lambda m, x: x - x.mean(0, keepdim=True)),
    "stack as a new batch dimension": flat_net(lambda m, x: torch.stack([x, x], dim=-3)[0]),
    "cat along the batch": flat_net(lambda m, x: torch.cat([x, x])[:2]),
    "maximum over a dimension": image_net(lambda m, x: torch.max(x, 1)[0]),
    "comparison": image_net(lambda m, x: torch.where(x > 0, x, 0.1 * x)),
    "padding with ones": image_net(lambda m, x: F.pad(x, (1, 1, 1, 1), value=1.0)),
    "padding module with ones": image_net(lambda m, x: m.pad(x), pad=nn.ConstantPad2d(1, 1.0)),
    "shared batch norm": image_net(lambda m, x: m.n(F.relu(m.n(x))), n=nn.BatchNorm2d(8)),
    "an unknown keyword": image_net(lambda m, x: torch.mean(x, (2, 3), dtype=torch.int64)),
    "samples joined into one": flat_net(lambda m, x: x.view(-1, 16), 16),
    "head input overwritten": Net(_overwritten_after_the_head, first=nn.Linear(5, 8), head=nn.Linear(8, 4)),
    "head called by keyword": Net(lambda m, x: m.head(input=m.first(x)), first=nn.Linear(5, 8), head=nn.Linear(8, 4)),
    "instance norm": image_net(lambda m, x: m.n(x), n=nn.InstanceNorm2d(8)),
    "a weight with a hook": image_net(lambda m, x: m.a(x), a=nn.utils.weight_norm(nn.Conv2d(8, 8, 1))),
    "a weight with a parametrization": image_net(
        lambda m, x: m.a(x), a=nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1))
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    model = REFUSED[name]
    shape = FLAT if isinstance(model.first, nn.Linear) else IMAGE
    with pytest.raises(ModelError) as caught:
        ScaleGraph.of(model, torch.zeros(2, *shape))
    assert caught.value.remedy


def test_refuses_a_head_whose_bias_is_shared():
    model = Net(lambda m, x: m.head(m.first(x)), first=nn.Linear(5, 5), head=nn.Linear(5, 5))
    model.head.bias = model.first.bias
    with pytest.raises(ModelError, match="shared"):
        ScaleGraph.of(model, torch.zeros(2, 5))


def test_refuses_a_model_that_trains_and_evaluates_differently():
    model = Net(
        lambda m, x: m.head(F.relu(m.first(x)) if m.training else torch.tanh(m.first(x))),
        first=nn.Linear(5, 8),
        head=nn.Linear(8, 4),
    )
    with pytest.raises(ModelError, match="train"):
        ScaleGraph.of(model, torch.zeros(2, 5))


def test_builtin_sum_does_not_pin():
    graph = ScaleGraph.of(EXACT["builtin sum"], torch.zeros(1, *IMAGE))
    assert graph.layout("a.weight").pin_reasons == ()


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2)),
        torch.jit.script(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))),
    ],
    ids=["lazy", "scripted"],
)
def test_refuses_modules_that_cannot_be_walked(model):
    with pytest.raises(ModelError):
        ScaleGraph.of(model, torch.zeros(2, 5))


def test_refusals_are_of_a_type_that_callers_can_catch():
    assert issubclass(UnsupportedLayerError, ModelError)
