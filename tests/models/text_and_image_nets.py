"""Small Transformers, recurrent and gated networks, and how far what is recovered of them is from plain autograd."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from tests.reference.harness import randomised, relative_error
from torch import nn

from bilateral.models.integer_inputs import integers_below
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protocols.messages import aggregate
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.export import perturbed_state
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

TOKENS = torch.zeros(1, 7, dtype=torch.int64)
IMAGES = torch.zeros(1, 3, 6, 6)
LINES = torch.zeros(1, 5, 8)


class Net(nn.Module):
    """Layers by name, and `forward` as a function of them and of the input; outputs 3 numbers."""

    def __init__(self, compute, features=8, **layers):
        super().__init__()
        self.compute = compute
        for name, layer in layers.items():
            if isinstance(layer, torch.Tensor) and not isinstance(layer, nn.Parameter):
                self.register_buffer(name, layer)
            else:
                setattr(self, name, layer)
        self.head = nn.Linear(features, 3)

    def forward(self, x):
        return self.head(self.compute(self, x))


def on_lines(middle, features=8, **layers):
    """Tokens of 8 channels from a Linear, `middle`, mean over tokens."""
    return Net(lambda m, x: middle(m, m.first(x)).mean(1), features, first=nn.Linear(8, 8), **layers)


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x):
    return x.transpose(1, 2).flatten(2)


class ViT(nn.Module):
    def __init__(self, size=16, heads=4, layers=2, *, norm_first=True, dropout=0.0):
        super().__init__()
        self.patch = nn.Conv2d(3, size, 2, 2)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, size)), nn.Parameter(torch.zeros(1, 10, size))
        layer = nn.TransformerEncoderLayer(
            size, heads, 2 * size, dropout, "gelu", batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 3)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.encoder(x)[:, 0]))


class Text(nn.Module):
    """A Transformer over tokens; 0 fills up. The mean over what is no filling, or the first token."""

    def __init__(self, size=8, heads=2, *, places="parameter", masked=True, first=False, padding=None, nested=False):
        super().__init__()
        self.places_by, self.masked, self.first = places, masked, first
        self.words = nn.Embedding(11, size, padding_idx=padding)
        if places == "parameter":
            self.places = nn.Parameter(torch.zeros(7, size))
        elif places != "none":
            self.places = nn.Embedding(9, size)
            self.register_buffer("numbers", torch.arange(9))
        layer = nn.TransformerEncoderLayer(size, heads, 2 * size, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.head = nn.Linear(size, 3)

    def forward(self, tokens):
        x = self.words(tokens) * math.sqrt(8)
        if self.places_by == "parameter":
            x = x + self.places
        elif self.places_by == "arange":
            x = x + self.places(torch.arange(tokens.size(1), device=tokens.device))
        elif self.places_by == "buffer":
            x = x + self.places(self.numbers[: tokens.size(1)])
        x = self.encoder(x, src_key_padding_mask=(tokens == 0) if self.masked else None)
        if self.first:
            return self.head(x[:, 0])
        if not self.masked:
            return self.head(x.mean(1))
        kept = (tokens != 0).unsqueeze(-1).to(x.dtype)
        return self.head((x * kept).sum(1) / kept.sum(1).clamp(min=1))


class Recurrent(nn.Module):
    def __init__(self, kind, *, last, layers=2, bidirectional=True):
        super().__init__()
        width = 10 if bidirectional else 5
        self.words, self.last = nn.Embedding(11, 6), last
        self.layer = kind(6, 5, layers, batch_first=True, bidirectional=bidirectional)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, tokens):
        outputs, ends = self.layer(self.words(tokens))
        if self.last:
            return self.head(self.norm(outputs[:, -1]).relu())
        ends = ends[0] if isinstance(self.layer, nn.LSTM) else ends
        return self.head(self.norm(torch.cat([ends[-2], ends[-1]], 1)).relu())


def batch(graph, example, count=6):
    generator = torch.Generator().manual_seed(3)
    shape = (count, *example.shape[1:])
    if graph.vocabulary is None:
        inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    else:
        inputs = integers_below(graph.vocabulary, torch.rand(shape, generator=generator))
    return inputs, torch.randint(3, (count,), generator=generator), torch.randn(count, 3, generator=generator).double()


def recovery_errors(made, example, loss="ce", noise="activation", *, seed=0, norm_inputs="exact"):
    """(of the recovered gradient, of an export's outputs) against plain autograd on the module itself, in float64."""
    model = randomised(copy.deepcopy(made).double(), seed)
    graph = ScaleGraph.of(model, example, norm_inputs=norm_inputs)
    inputs, labels, numbers = batch(graph, example)
    targets = labels if loss == "ce" else numbers
    settings = PerturbationSettings(loss, noise, norm_inputs=norm_inputs)
    server = PerturbServer(model, graph, settings, SeededRandomness(seed, "server"))
    client = PerturbClient("client", model, graph, settings, SeededRandomness(seed, "client"))
    upload = client.train(server.start_round(0), inputs, targets, len(inputs))
    got = server.recover(aggregate({"client": upload}, 0)).gradient
    plain = copy.deepcopy(model).train()
    lost = F.cross_entropy(plain(inputs), targets) if loss == "ce" else F.mse_loss(plain(inputs), targets)
    lost.backward()
    found = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in plain.named_parameters()}
    exported, own = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    exported.load_state_dict(perturbed_state(model, graph, SeededRandomness(seed)))
    return (
        relative_error(got, graph.flatten(found, torch.float64)),
        relative_error(exported(inputs).detach(), own(inputs).detach()),
    )
