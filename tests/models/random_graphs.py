"""A hypothesis strategy for random networks of everything that the scale graph supports.

A network is a list of steps over a stack of values; residual sums and concatenations reach back into the stack. Steps
are plain data and closures, so `torch.fx` can trace them and hypothesis can shrink them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from tests.reference.harness import randomised
from torch import nn


class RandomNet(nn.Module):
    """Runs its steps; each step maps the list of earlier values to a new one."""

    def __init__(self, layers, steps, head, description):
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.steps = steps
        self.head = head
        self.description = description

    def forward(self, x):
        values = [x]
        for step in self.steps:
            values.append(step(self.layers, values))
        return self.head(values[-1])

    def __repr__(self):
        return " -> ".join(self.description)


@dataclass
class _Workshop:
    """What is built so far: shapes without the batch dimension, layers, steps."""

    draw: object
    shapes: list = field(default_factory=list)
    layers: dict = field(default_factory=dict)
    steps: list = field(default_factory=list)
    description: list = field(default_factory=list)

    @property
    def shape(self):
        return self.shapes[-1]

    def integer(self, low, high):
        return self.draw(st.integers(low, high))

    def flag(self):
        return self.draw(st.booleans())

    def choose(self, options):
        return self.draw(st.sampled_from(list(options)))

    def register(self, layer):
        name = f"layer{len(self.layers)}"
        self.layers[name] = layer
        return name

    def then(self, text, step):
        """Append a step; its output's shape is found by running it."""
        values = [torch.zeros(2, *shape) for shape in self.shapes]
        with torch.no_grad():
            result = step(nn.ModuleDict(self.layers).eval(), values)
        self.steps.append(step)
        self.shapes.append(tuple(result.shape[1:]))
        self.description.append(text)

    def layer(self, layer):
        name = self.register(layer)
        self.then(str(layer), lambda layers, values: layers[name](values[-1]))

    def function(self, text, function):
        self.then(text, lambda layers, values: function(values[-1]))


def _linear(w):
    w.layer(nn.Linear(w.shape[-1], w.integer(3, 8), bias=w.flag()))


def _conv(w):
    channels, dims = w.shape[0], len(w.shape) - 1
    kind = nn.Conv1d if dims == 1 else nn.Conv2d
    groups = w.choose([g for g in (1, 2, channels) if channels % g == 0])
    out = groups * w.integer(1, max(1, 8 // groups))
    kernel, stride, dilation = w.integer(1, 3), w.integer(1, 2), w.integer(1, 2)
    mode = w.choose(["zeros", "zeros", "circular"])
    padding = dilation * (kernel - 1) // 2 + (0 if min(w.shape[1:]) > 2 else 1)
    if mode == "circular" and padding > min(w.shape[1:]):
        mode = "zeros"
    if min(w.shape[1:]) + 2 * padding < dilation * (kernel - 1) + 1:
        kernel = 1
    w.layer(kind(channels, out, kernel, stride, padding, dilation, groups, bias=w.flag(), padding_mode=mode))


def _transposed(w):
    channels, dims = w.shape[0], len(w.shape) - 1
    if max(w.shape[1:]) > 6:
        return
    kind = nn.ConvTranspose1d if dims == 1 else nn.ConvTranspose2d
    groups = w.choose([g for g in (1, 2) if channels % g == 0])
    w.layer(kind(channels, groups * w.integer(1, 3), 2, stride=w.integer(1, 2), groups=groups, bias=w.flag()))


def _activation(w):
    channels = w.shape[0]
    choice = w.integer(0, 8)
    if choice == 0:
        w.layer(nn.ReLU())
    elif choice == 1:
        w.layer(nn.LeakyReLU(0.2))
    elif choice == 2:
        w.layer(nn.PReLU(w.choose([1, channels])))
    elif choice == 3:
        w.function("F.relu", F.relu)
    elif choice == 4:
        w.function("x.relu()", lambda x: x.relu())
    elif choice == 5:
        w.function("F.leaky_relu", lambda x: F.leaky_relu(x, 0.1))
    elif choice == 6:
        w.function("abs", torch.abs)
    elif choice == 7:
        w.function("-1.5 x", lambda x: -1.5 * x)
    else:
        w.layer(nn.ReLU(inplace=False))
        w.layer(nn.Dropout(0.0))
        w.layer(nn.Identity())


def _norm(w):
    channels = w.shape[0]
    options = ["batch", "group", "layer"]
    kind = w.choose(options)
    if kind == "batch":
        affine, tracked = w.flag(), True
        norm = nn.BatchNorm2d if len(w.shape) == 3 else nn.BatchNorm1d
        w.layer(norm(channels, affine=affine, track_running_stats=tracked))
    elif kind == "group" and (len(w.shape) > 1 or channels > 2):
        groups = w.choose([g for g in (1, 2, channels) if channels % g == 0 and (len(w.shape) > 1 or channels > g)])
        w.layer(nn.GroupNorm(groups, channels, affine=w.flag()))
    elif torch.Size(w.shape).numel() > 2:
        w.layer(nn.LayerNorm(list(w.shape), elementwise_affine=w.flag()))


def _pool(w):
    dims = len(w.shape) - 1
    module = w.flag()
    if min(w.shape[1:]) >= 2:
        name = w.choose(["Max", "Avg"])
        if module:
            w.layer(getattr(nn, f"{name}Pool{dims}d")(2, stride=w.integer(1, 2)))
        else:
            function = getattr(F, f"{name.lower()}_pool{dims}d")
            stride = w.integer(1, 2)
            w.function(function.__name__, lambda x: function(x, 2, stride=stride))
    else:
        w.layer(getattr(nn, f"Adaptive{w.choose(['Avg', 'Max'])}Pool{dims}d")(2))


def _space(w):
    dims = len(w.shape) - 1
    choice = w.integer(0, 5)
    if choice == 0:
        w.function("zero pad", lambda x: F.pad(x, (1, 0) * dims))
    elif choice == 1 and max(w.shape[1:]) <= 4:
        w.layer(nn.Upsample(scale_factor=2, mode=w.choose(["nearest", "linear" if dims == 1 else "bilinear"])))
    elif choice == 2:
        w.function("flip space", lambda x: x.flip(-1))
    elif choice == 3 and min(w.shape[1:]) > 2:
        w.function("crop", lambda x: x[..., 1:])
    elif choice == 4 and dims == 2:
        w.function("transpose space", lambda x: x.transpose(2, 3))
    else:
        w.function("subtract mean over space", lambda x: x - x.mean(dim=-1, keepdim=True))


def _channels(w):
    channels, dims = w.shape[0], len(w.shape) - 1
    choice = w.integer(0, 9)
    half = channels // 2
    if choice == 0 and channels <= 8:
        before = w.integer(0, 2)
        w.function("zero channels", lambda x: F.pad(x, (0, 0) * dims + (before, 2)))
    elif choice == 1 and channels > 3:
        w.function("first channels", lambda x: x[:, : channels - 1])
    elif choice == 2 and channels % 2 == 0:
        w.function("halves added", lambda x: x.chunk(2, 1)[0] + F.relu(x.chunk(2, 1)[1]))
    elif choice == 3 and half:
        w.function("one half relu", lambda x: torch.cat([F.relu(x[:, :half]), x[:, half:]], 1))
    elif choice == 4 and channels <= 6:
        w.function("crelu", lambda x: F.relu(torch.cat([x, -x], dim=1)))
    elif choice == 5:
        w.function("flip channels", lambda x: torch.flip(x, [1]))
    elif choice == 6 and dims == 2 and channels % 2 == 0:
        w.layer(nn.ChannelShuffle(2))
    elif choice == 7 and dims == 2 and channels % 4 == 0 and max(w.shape[1:]) <= 4:
        w.layer(nn.PixelShuffle(2))
    elif choice == 8 and dims and half:
        w.function("half flipped", lambda x: torch.cat([x[:, :half].flip(-1), x[:, half:]], 1))
    elif channels <= 4:
        w.function("doubled", lambda x: torch.cat((x, x), 1))


def _squeeze_excite(w):
    channels, dims = w.shape[0], len(w.shape) - 1
    down, up = w.register(nn.Linear(channels, 3)), w.register(nn.Linear(3, channels))
    space = list(range(2, 2 + dims))

    def step(layers, values):
        x = values[-1]
        pooled = x.mean(space) if space else x
        gate = torch.sigmoid(layers[up](F.relu(layers[down](pooled))))
        return x * gate.reshape(gate.shape[0], channels, *[1] * dims)

    w.then("squeeze and excite", step)


def _residual(w):
    if len(w.shape) == 3 and w.flag():  # the classic block around two convolutions
        channels, start = w.shape[0], len(w.shapes) - 1
        w.layer(nn.Conv2d(channels, 4, 3, padding=1))
        w.layer(nn.ReLU())
        w.layer(nn.Conv2d(4, channels, 3, padding=1, bias=w.flag()))
        w.then("add shortcut", lambda layers, values: values[-1] + values[start])
        return
    same = [i for i, shape in enumerate(w.shapes) if shape == w.shape]
    index = w.choose(same)
    choice = w.integer(0, 2)
    if choice == 0:
        w.then(f"add {index}", lambda layers, values: values[-1] + values[index])
    elif choice == 1:
        w.then(f"sub {index}", lambda layers, values: torch.sub(values[-1], values[index], alpha=0.5))
    else:

        def in_place(layers, values):
            out = values[-1] * 1.0
            out += values[index]
            return out

        w.then(f"+= {index}", in_place)


def _concatenate(w):
    fitting = [i for i, s in enumerate(w.shapes) if len(s) == len(w.shape) and s[1:] == w.shape[1:]]
    fitting = [i for i in fitting if w.shapes[i][0] + w.shape[0] <= 12]
    if fitting:
        index = w.choose(fitting)
        w.then(f"cat {index}", lambda layers, values: torch.cat([values[index], values[-1]], dim=1))


def _shared(w):
    """The same layer twice, on the same number of channels."""
    channels, dims = w.shape[0], len(w.shape) - 1
    layer = nn.Linear(channels, channels) if dims == 0 else (nn.Conv1d, nn.Conv2d)[dims - 1](channels, channels, 1)
    name = w.register(layer)
    w.then("shared", lambda layers, values: layers[name](F.relu(layers[name](values[-1]))))


def _flatten(w):
    choice = w.integer(0, 4)
    if choice == 0:
        w.layer(nn.Flatten())
    elif choice == 1:
        w.function("view", lambda x: x.reshape(x.size(0), -1))
    elif choice == 2:
        w.function("mean over space", lambda x: x.flatten(2).mean(2))
    elif choice == 3:
        w.function("channels last", lambda x: torch.flatten(x.movedim(1, -1), 1))
    else:
        w.function("sum over space", lambda x: torch.sum(torch.flatten(x, start_dim=2), dim=2))


def _pinned(w):
    w.function("tanh", torch.tanh) if w.flag() else w.layer(nn.GELU())


_ANYWHERE = (_activation, _norm, _channels, _residual, _concatenate, _shared, _squeeze_excite, _pinned)
_IN_SPACE = (_conv, _conv, _conv, _transposed, _pool, _space)
_FLAT = (_linear, _linear)


@st.composite
def networks(draw, max_steps=6, norms=True):
    """(network in float64 with random parameters, input shape)"""
    shape = draw(st.sampled_from([(3, 6, 6), (2, 5, 4), (3, 7), (5,)]))
    w = _Workshop(draw, shapes=[shape])
    first = {1: _linear, 2: _conv, 3: _conv}[len(shape)]
    first(w)
    anywhere = [s for s in _ANYWHERE if norms or s is not _norm]
    for _ in range(draw(st.integers(1, max_steps))):
        options = [*anywhere, *(_IN_SPACE if len(w.shape) > 1 else _FLAT)]
        w.choose(options)(w)
    if len(w.shape) > 1:
        _flatten(w)
    if draw(st.booleans()):
        _linear(w)
        _activation(w)
    head = nn.Linear(w.shape[0], draw(st.integers(2, 5)))
    model = RandomNet(w.layers, w.steps, head, w.description)
    return randomised(model.double(), draw(st.integers(0, 1000))), shape
