"""Attention, tables, bare parameters, gates and recurrent layers: exact against plain autograd, or refused truly."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.models.text_and_image_nets import (
    IMAGES,
    LINES,
    TOKENS,
    Net,
    Recurrent,
    Text,
    ViT,
    batch,
    join_heads,
    on_lines,
    recovery_errors,
    split_heads,
)
from tests.reference.harness import draw, perturbed_copy, randomised, relative_error
from torch import nn

from bilateral.errors import DataError, ModelError, UnsupportedLayerError
from bilateral.models.coverage import coverage, inspect
from bilateral.models.scale_graph import ScaleGraph
from bilateral.models.spelled_out import SPELLED_OUT
from bilateral.protocols.perturb.check_arithmetic import CheckArithmetic
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings

torch.set_num_threads(1)
EXACT = 1e-11


def parameter(*sizes):
    return nn.Parameter(torch.zeros(*sizes))


def projections(inner=8, *, bias=True):
    return {name: nn.Linear(8, inner, bias=bias) for name in ("q", "k", "v")}


def attend(parts):
    return F.scaled_dot_product_attention(parts[0], parts[1], parts[2])


def written_out(m, x, heads=2, mask=None):
    q, k, v = (split_heads(layer(x), heads) for layer in (m.q, m.k, m.v))
    scores = q @ k.transpose(-2, -1) / 2
    return join_heads((scores if mask is None else scores + mask).softmax(-1) @ v)


def unpacked(m, x):
    out, _ = m.a(x, x, x)
    return out


def fifth_power(m, x):
    y = m.a(x)
    return (y * y) * (y * y) * y


def cosine(m, x):
    q, k, v = (split_heads(layer(x), 2) for layer in (m.q, m.k, m.v))
    q, k = q / q.square().sum(-1, keepdim=True).sqrt(), k / k.square().sum(-1, keepdim=True).sqrt()
    return join_heads((q @ k.mT * m.t.exp()).softmax(-1) @ v)


def rotated(x, m):
    return x * m.cos + torch.cat([-x[..., 2:], x[..., :2]], -1) * m.sin


def experts(m, x):
    weights = torch.softmax(m.route(x), -1)
    return (torch.stack([m.a(x), m.b(x)], -1) * weights[..., None, :]).sum(-1)


CAUSAL = torch.full((5, 5), float("-inf")).triu(1).double()

ATTENTION = {
    "three projections": on_lines(written_out, **projections()),
    "without biases": on_lines(written_out, **projections(bias=False)),
    "one head": on_lines(lambda m, x: written_out(m, x, 1), **projections()),
    "heads of one channel": on_lines(lambda m, x: written_out(m, x, 8), **projections()),
    "a constant mask": on_lines(lambda m, x: written_out(m, x, mask=m.mask), mask=CAUSAL, **projections()),
    "a constant bias of each head": on_lines(
        lambda m, x: written_out(m, x, mask=m.mask), mask=torch.randn(2, 5, 5).double(), **projections()
    ),
    "a learned bias of each head": on_lines(
        lambda m, x: written_out(m, x, mask=m.bias), bias=parameter(2, 5, 5), **projections()
    ),
    "a table of relative positions": on_lines(
        lambda m, x: written_out(m, x, mask=m.table[m.index].permute(2, 0, 1)),
        table=parameter(9, 2),
        index=torch.arange(5)[:, None] - torch.arange(5) + 4,
        **projections(),
    ),
    "one fused projection": on_lines(
        lambda m, x: join_heads(attend(m.qkv(x).reshape(x.size(0), 5, 3, 2, 4).permute(2, 0, 3, 1, 4))),
        qkv=nn.Linear(8, 24),
    ),
    "a fused projection, head by head": on_lines(
        lambda m, x: join_heads(attend(split_heads(m.qkv(x), 2).chunk(3, -1))),
        qkv=nn.Linear(8, 24),
    ),
    "causal": on_lines(
        lambda m, x: join_heads(
            F.scaled_dot_product_attention(*(split_heads(p(x), 2) for p in (m.q, m.k, m.v)), is_causal=True)
        ),
        **projections(),
    ),
    "einsum": on_lines(
        lambda m, x: torch.einsum(
            "bhij,bjhd->bihd",
            torch.einsum("bihd,bjhd->bhij", m.q(x).unflatten(-1, (2, 4)), m.k(x).unflatten(-1, (2, 4))).softmax(-1),
            m.v(x).unflatten(-1, (2, 4)),
        ).flatten(2),
        **projections(),
    ),
    "keys shared by all heads": on_lines(
        lambda m, x: join_heads(
            F.scaled_dot_product_attention(
                split_heads(m.q(x), 2), m.k(x).unsqueeze(1).expand(-1, 2, -1, -1), split_heads(m.v(x), 2)
            )
        ),
        q=nn.Linear(8, 8),
        k=nn.Linear(8, 4),
        v=nn.Linear(8, 8),
    ),
    "queries are keys": on_lines(
        lambda m, x: join_heads(F.scaled_dot_product_attention(*(split_heads(p(x), 2) for p in (m.q, m.q, m.v)))),
        q=nn.Linear(8, 8),
        v=nn.Linear(8, 8),
    ),
    "values are the stream itself": on_lines(
        lambda m, x: torch.softmax(m.q(x) @ m.k(x).mT, -1) @ x, q=nn.Linear(8, 3), k=nn.Linear(8, 3)
    ),
    "without a softmax": on_lines(lambda m, x: (m.q(x) @ m.k(x).mT) @ m.v(x), **projections()),
    "over channels": on_lines(lambda m, x: (torch.softmax(m.q(x).mT @ m.k(x), -1) @ m.v(x).mT).mT, **projections()),
    "heads mixed by a convolution": on_lines(
        lambda m, x: join_heads(
            m.mix(split_heads(m.q(x), 2) @ split_heads(m.k(x), 2).mT).softmax(-1) @ split_heads(m.v(x), 2)
        ),
        mix=nn.Conv2d(2, 2, 1),
        **projections(),
    ),
    "relu attention": on_lines(lambda m, x: F.relu(m.q(x) @ m.k(x).mT) @ m.v(x) / 5, **projections()),
    "normalised queries and keys": on_lines(
        lambda m, x: join_heads(
            F.scaled_dot_product_attention(
                m.nq(split_heads(m.q(x), 2)), m.nk(split_heads(m.k(x), 2)), split_heads(m.v(x), 2)
            )
        ),
        nq=nn.LayerNorm(4),
        nk=nn.LayerNorm(4),
        **projections(),
    ),
    "cosine with a learned temperature": on_lines(cosine, t=parameter(2, 1, 1), **projections()),
    "rotary positions": on_lines(
        lambda m, x: join_heads(
            F.scaled_dot_product_attention(
                *(rotated(split_heads(p(x), 2), m) for p in (m.q, m.k)), split_heads(m.v(x), 2)
            )
        ),
        cos=torch.randn(5, 4).cos().double(),
        sin=torch.randn(5, 4).sin().double(),
        **projections(),
    ),
    "a gate of each head": on_lines(
        lambda m, x: join_heads(
            split_heads(written_out(m, x), 2) * torch.sigmoid(m.gate(x)).transpose(1, 2)[..., None]
        ),
        gate=nn.Linear(8, 2),
        **projections(),
    ),
    "the mean of all heads": on_lines(lambda m, x: split_heads(written_out(m, x), 2).mean(1), 4, **projections()),
    "heads in another order afterwards": on_lines(
        lambda m, x: join_heads(split_heads(written_out(m, x), 2).flip(1)) + m.o(x), o=nn.Linear(8, 8), **projections()
    ),
    "learned queries look at the tokens": Net(
        lambda m, x: m.attend(m.queries.expand(x.size(0), -1, -1), m.first(x), m.first(x))[0].flatten(1),
        24,
        first=nn.Linear(8, 8),
        queries=parameter(1, 3, 8),
        attend=nn.MultiheadAttention(8, 2, batch_first=True),
    ),
    "learned queries through a layer": Net(
        lambda m, x: torch.softmax(m.q(m.queries) @ m.first(x).mT, -1).matmul(m.first(x)).flatten(1),
        24,
        first=nn.Linear(8, 8),
        queries=parameter(3, 5),
        q=nn.Linear(5, 8),
    ),
    "multi-head attention of torch": on_lines(
        lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, batch_first=True)
    ),
    "its outputs unpacked": on_lines(unpacked, a=nn.MultiheadAttention(8, 2, batch_first=True, bias=False)),
    "tokens first": on_lines(
        lambda m, x: m.a(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1), need_weights=False)[0].transpose(
            0, 1
        ),
        a=nn.MultiheadAttention(8, 4),
    ),
    "keys from elsewhere": on_lines(
        lambda m, x: m.a(x, m.b(x), m.b(x))[0], a=nn.MultiheadAttention(8, 2, batch_first=True), b=nn.Linear(8, 8)
    ),
    "keys of another size": on_lines(
        lambda m, x: m.a(x, m.b(x), m.b(x))[0],
        a=nn.MultiheadAttention(8, 2, kdim=3, vdim=3, batch_first=True),
        b=nn.Linear(8, 3),
    ),
    "a mask of booleans": on_lines(
        lambda m, x: m.a(x, x, x, attn_mask=m.mask)[0],
        a=nn.MultiheadAttention(8, 2, batch_first=True),
        mask=torch.ones(5, 5).triu(1).bool(),
    ),
    "the causal hint": on_lines(
        lambda m, x: m.a(x, x, x, attn_mask=m.mask, is_causal=True, need_weights=False)[0],
        a=nn.MultiheadAttention(8, 2, batch_first=True),
        mask=CAUSAL,
    ),
    "a decoder layer": on_lines(
        lambda m, x: m.d(x, m.b(x)),
        d=nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True),
        b=nn.Linear(8, 8),
    ),
    "a decoder, norm first": on_lines(
        lambda m, x: m.d(x, m.b(x), tgt_mask=m.mask),
        d=nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True, norm_first=True), 2),
        b=nn.Linear(8, 8),
        mask=CAUSAL,
    ),
    "layers with shared weights": on_lines(
        lambda m, x: m.e(m.e(x)), e=nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    ),
}

GATES = {
    "glu": on_lines(lambda m, x: F.glu(m.a(x)), 6, a=nn.Linear(8, 12)),
    "glu layer over tokens and channels": on_lines(lambda m, x: m.g(m.a(x)), 6, a=nn.Linear(8, 12), g=nn.GLU()),
    "swiglu": on_lines(lambda m, x: m.c(F.silu(m.a(x)) * m.b(x)), 8, **{n: nn.Linear(8, 8) for n in "abc"}),
    "swiglu, fused": on_lines(
        lambda m, x: m.c(F.silu(m.a(x).chunk(2, -1)[0]) * m.a(x).chunk(2, -1)[1]),
        8,
        a=nn.Linear(8, 12),
        c=nn.Linear(6, 8),
    ),
    "a bilinear gate": on_lines(lambda m, x: m.c(m.a(x) * m.b(x)), 8, **{n: nn.Linear(8, 8) for n in "abc"}),
    "a product of three": on_lines(
        lambda m, x: m.c(m.a(x) * m.b(x) * m.a(x).relu()), 8, **{n: nn.Linear(8, 8) for n in "abc"}
    ),
    "a product added to its factor": on_lines(
        lambda m, x: m.c(m.a(x) * m.b(x) + m.a(x)), 8, **{n: nn.Linear(8, 8) for n in "abc"}
    ),
    "powers of two that grow": on_lines(fifth_power, a=nn.Linear(8, 8)),
    "one gate for all channels": on_lines(lambda m, x: m.a(x) * m.g(x), a=nn.Linear(8, 8), g=nn.Linear(8, 1)),
    "divided by a sum": on_lines(lambda m, x: m.a(x) / (m.b(x).abs() + 1), a=nn.Linear(8, 8), b=nn.Linear(8, 8)),
    "divided by its own size": on_lines(lambda m, x: m.a(x) / m.a(x).abs().sum(-1, keepdim=True), a=nn.Linear(8, 8)),
    "one over it": on_lines(lambda m, x: 1 / (m.a(x).abs() + m.b(x).abs()), a=nn.Linear(8, 8), b=nn.Linear(8, 8)),
    "softmax by hand": on_lines(lambda m, x: m.a(x).exp() / m.a(x).exp().sum(1, keepdim=True), a=nn.Linear(8, 8)),
    "experts with soft routes": on_lines(experts, route=nn.Linear(8, 2), a=nn.Linear(8, 8), b=nn.Linear(8, 8)),
    "pooling by learned weights": Net(
        lambda m, x: (m.first(x) * m.score(m.first(x)).softmax(1)).sum(1),
        first=nn.Linear(8, 8),
        score=nn.Linear(8, 1),
    ),
    "pooling by a product": Net(
        lambda m, x: (m.score(m.first(x)).softmax(1).mT @ m.first(x)).flatten(1),
        16,
        first=nn.Linear(8, 8),
        score=nn.Linear(8, 2),
    ),
    "bilinear pooling": Net(lambda m, x: (m.a(x).mT @ m.b(x)).flatten(1), 12, a=nn.Linear(8, 3), b=nn.Linear(8, 4)),
}

BARE = {
    "places": on_lines(lambda m, x: F.relu(x + m.p), p=parameter(5, 8)),
    "one place for all channels": on_lines(lambda m, x: F.relu(x + m.p), p=parameter(5, 1)),
    "a bias": on_lines(lambda m, x: F.relu(x + m.p), p=parameter(8)),
    "a number": on_lines(lambda m, x: F.relu(x + m.p), p=parameter(1)),
    "subtracted": on_lines(lambda m, x: F.relu(m.p - x), p=parameter(1, 5, 8)),
    "used twice": on_lines(
        lambda m, x: F.relu(x + m.p) * torch.sigmoid(m.a(x) + m.p), p=parameter(8), a=nn.Linear(8, 8)
    ),
    "used in two orders": on_lines(
        lambda m, x: F.relu(x + m.p) + m.a(x + m.p.flip(0)), p=parameter(8), a=nn.Linear(8, 8)
    ),
    "a factor of places and channels": on_lines(lambda m, x: F.relu(x * m.p), p=parameter(5, 8)),
    "half of it used": on_lines(lambda m, x: F.relu(x + m.p[:, 1:6]), p=parameter(1, 9, 8)),
    "two of them joined": on_lines(
        lambda m, x: F.relu(torch.cat([m.t, m.s], 1).expand(x.size(0), -1, -1) + m.a(x).mean(1, keepdim=True)),
        t=parameter(1, 1, 8),
        s=parameter(1, 2, 8),
        a=nn.Linear(8, 8),
    ),
    "a token behind the others": on_lines(
        lambda m, x: m.a(torch.cat([x, m.t.expand(x.size(0), -1, -1)], 1).relu()),
        t=parameter(1, 1, 8),
        a=nn.Linear(8, 8),
    ),
    "channels joined": on_lines(
        lambda m, x: torch.cat([x, m.t.expand(x.size(0), 5, -1)], 2).relu(), 11, t=parameter(1, 1, 3)
    ),
    "through a softmax": on_lines(lambda m, x: x * torch.softmax(m.t, 0)[:, None], t=parameter(5)),
    "through exp": on_lines(lambda m, x: x * m.t.exp(), t=parameter(8)),
    "a weight by columns": on_lines(lambda m, x: (x @ m.w).relu(), 4, w=parameter(8, 4)),
    "a weight of each head": on_lines(
        lambda m, x: torch.einsum("bic,hcd->bihd", x, m.w).flatten(2), w=parameter(2, 8, 4)
    ),
    "a parameter on the left": on_lines(lambda m, x: (m.w @ x).relu(), w=parameter(4, 5)),
    "a parameter of three dimensions": on_lines(lambda m, x: (x @ m.w).relu(), 4, w=parameter(1, 8, 4)),
    "a parameter's gram matrix": on_lines(lambda m, x: (x @ (m.w @ m.w.T)).relu(), w=parameter(8, 4)),
    "a frozen one": on_lines(lambda m, x: F.relu(x + m.p), p=nn.Parameter(torch.zeros(8), requires_grad=False)),
    "places looked up in order": on_lines(lambda m, x: F.relu(x + m.e(torch.arange(5))), e=nn.Embedding(6, 8)),
    "places looked up twice": on_lines(
        lambda m, x: F.relu(x + m.e(torch.tensor([3, 3, 0, 1, 0]))), e=nn.Embedding(6, 8)
    ),
    "batch norm as a function": on_lines(
        lambda m, x: F.relu(F.batch_norm(x.mT, None, None, m.w, m.b, training=True)).mT, w=parameter(8), b=parameter(8)
    ),
    "batch norm as a function with fixed statistics": on_lines(
        lambda m, x: F.relu(F.batch_norm(x.mT, m.mean, m.var, m.w)).mT,
        w=parameter(8),
        mean=torch.randn(8).double(),
        var=torch.rand(8).double() + 1,
    ),
    "layer norm as a function": on_lines(
        lambda m, x: F.layer_norm(x, [8], m.w, m.b).relu(), w=parameter(8), b=parameter(8)
    ),
}

WHOLE = {
    "vit": (ViT(), IMAGES),
    "vit, norm last": (ViT(norm_first=False), IMAGES),
    "text, padded": (Text(), TOKENS),
    "text, nested tensors allowed": (Text(nested=True), TOKENS),
    "text, a row for padding": (Text(padding=0), TOKENS),
    "text, places by arange": (Text(places="arange", masked=False, first=True), TOKENS),
    "text, places by a buffer": (Text(places="buffer"), TOKENS),
    "text, no places": (Text(places="none", masked=False), TOKENS),
    **{f"{k.__name__}, last": (Recurrent(k, last=True), TOKENS) for k in (nn.LSTM, nn.GRU, nn.RNN)},
    **{f"{k.__name__}, ends": (Recurrent(k, last=False), TOKENS) for k in (nn.LSTM, nn.GRU, nn.RNN)},
    "lstm, one way": (Recurrent(nn.LSTM, last=True, layers=1, bidirectional=False), TOKENS),
    "table of two columns": (
        Net(lambda m, t: m.a(m.e(t[:, 0])) + m.b(m.f(t[:, 1])), e=nn.Embedding(3, 4), f=nn.Embedding(20, 5),
            a=nn.Linear(4, 8), b=nn.Linear(5, 8)),
        torch.zeros(1, 2, dtype=torch.int64),
    ),
    "shared table": (
        Net(lambda m, t: (m.e(t) + m.e(t.flip(1))).relu().mean(1), e=nn.Embedding(11, 8)), TOKENS
    ),
    "gradients scaled by frequency": (
        Net(lambda m, t: m.e(t).relu().mean(1), e=nn.Embedding(5, 8, scale_grad_by_freq=True)), TOKENS
    ),
    "numbers of tokens": (
        Net(lambda m, t: m.a(m.e(t).mean(1)) * (t != 0).sum(1, keepdim=True).double(), e=nn.Embedding(5, 8),
            a=nn.Linear(8, 8)),
        TOKENS,
    ),
}  # fmt: skip
CASES = {
    **{name: (model, LINES) for group in (ATTENTION, GATES, BARE) for name, model in group.items()},
    **WHOLE,
}


@pytest.mark.parametrize("name", CASES)
def test_recovery_and_export_are_exact(name):
    gradient, export = recovery_errors(*CASES[name])
    assert gradient < EXACT
    assert export < EXACT


@pytest.mark.parametrize("name", ["one fused projection", "a learned bias of each head", "a bilinear gate", "swiglu"])
@pytest.mark.parametrize(("loss", "noise"), [("mse", "activation"), ("mse", "offset"), ("ce", "offset")])
def test_recovery_is_exact_for_every_loss_and_noise(name, loss, noise):
    gradient, _ = recovery_errors(*CASES[name], loss, noise, seed=2)
    assert gradient < EXACT


@pytest.mark.parametrize("name", ATTENTION)
def test_the_function_is_kept_with_extreme_factors(name):
    """Over six orders of magnitude a factor in a wrong place would not hide."""
    model, example = CASES[name]
    model = randomised(copy.deepcopy(model).double(), 1)
    graph = ScaleGraph.of(model, example)
    inputs = batch(graph, example)[0]
    expected = copy.deepcopy(model)(inputs).detach()
    for seed in range(3):
        got = perturbed_copy(model, graph, *draw(graph, seed, (1e-3, 1e3)))(inputs).detach()
        assert relative_error(got, expected) < 1e-9


DROPPED = {
    "vit": (ViT(dropout=0.3), IMAGES),
    "multi-head attention": (
        on_lines(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, 0.3, batch_first=True)), LINES),
    "attention as a function": (
        on_lines(lambda m, x: F.scaled_dot_product_attention(x, x, x, None, 0.3 if m.training else 0.0)), LINES),
    "lstm": (on_lines(lambda m, x: m.r(x)[0], r=nn.LSTM(8, 8, 2, dropout=0.3, batch_first=True)), LINES),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_inside_a_layer_is_accepted_and_off_while_recovery_is_checked(name):
    with CheckArithmetic():
        gradient, export = recovery_errors(*DROPPED[name])
    assert gradient < EXACT
    assert export < EXACT


# --- what is hidden ---


def report(model, example):
    return {row.name: row for row in inspect(model, example).rows}


def test_channels_of_queries_and_keys_have_factors_and_move_also_from_one_projection():
    model, example = CASES["one fused projection"]
    row = report(model, example)["qkv.weight"]
    assert row.num_scaled == row.num_moved == row.num_elements


def test_heads_change_places():
    model, example = CASES["one fused projection"]
    graph = ScaleGraph.of(model, example)
    orders = set()
    for seed in range(20):
        source = graph.unflatten(graph.source(draw(graph, seed)[1]))["qkv.bias"]
        orders.add(tuple((source[:8:4] - graph.layout("qkv.bias").offset).div(4, rounding_mode="floor").tolist()))
    assert orders == {(0, 1), (1, 0)}


def test_a_bias_that_tells_heads_apart_keeps_them_in_place_and_lets_channels_move_inside():
    model, example = CASES["a constant bias of each head"]
    graph = ScaleGraph.of(copy.deepcopy(model).double(), example)
    moved = set()
    for seed in range(20):
        source = graph.unflatten(graph.source(draw(graph, seed)[1]))["q.bias"] - graph.layout("q.bias").offset
        assert set(source[:4].tolist()) == {0, 1, 2, 3}
        moved.add(tuple(source.tolist()))
    assert len(moved) > 5


def test_all_channels_of_a_vit_move_and_its_class_token_and_places_with_them():
    found = report(ViT(), IMAGES)
    assert all(row.num_moved == row.num_elements for name, row in found.items() if name not in ("head.bias",))
    assert found["encoder.layers.0.self_attn.in_proj_weight"].num_scaled == 48 * 16


def test_a_product_of_activations_has_the_product_of_their_factors():
    model, example = CASES["a bilinear gate"]
    graph = ScaleGraph.of(model, example)
    factors = draw(graph, 0)[0]
    ratio = graph.unflatten(graph.ratio(factors))
    assert torch.allclose(1 / ratio["c.weight"][0], ratio["a.bias"] * ratio["b.bias"] / ratio["c.bias"][0])
    assert not torch.allclose(ratio["a.bias"], torch.ones(8).double())


def test_the_reports_number_of_factors_is_what_is_drawn():
    model, example = CASES["three projections"]
    graph = ScaleGraph.of(model, example)
    assert coverage(graph).num_scale_factors == graph.num_scale_classes - 1 - 8  # the keys' follow from the queries'


# --- refusals ---

REFUSED = {
    "attention over the samples": (
        on_lines(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2)), LINES, "mixes the samples"),
    "attention over unbatched values": (
        Net(lambda m, x: m.a(x[:, 0], x[:, 0], x[:, 0])[0], a=nn.MultiheadAttention(8, 2, batch_first=True)),
        LINES, "mixes the samples|number of samples"),
    "a product over the samples": (
        on_lines(lambda m, x: torch.einsum("bic,bjd->ijcd", x, x).sum((1, 2))), LINES, "mixes the samples"),
    "attention weights that are used": (
        on_lines(lambda m, x: m.a(x, x, x)[1] @ x, a=nn.MultiheadAttention(8, 2, batch_first=True)), LINES,
        "returned_weights.*no rule"),
    "biases of keys and values": (
        on_lines(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)),
        LINES, "add_bias_kv"),
    "grouped queries": (
        on_lines(lambda m, x: F.scaled_dot_product_attention(x, x, x, enable_gqa=True)), LINES, "grouped queries"),
    "a table with max_norm": (
        Net(lambda m, t: m.e(t).mean(1), e=nn.Embedding(5, 8, max_norm=1.0)), TOKENS, "max_norm"),
    "a table with sparse gradients": (
        Net(lambda m, t: m.e(t).mean(1), e=nn.Embedding(5, 8, sparse=True)), TOKENS, "sparse"),
    "a bag of rows": (Net(lambda m, t: m.e(t), e=nn.EmbeddingBag(5, 8)), TOKENS, "EmbeddingBag.*no rule"),
    "a head tied to a table": (None, TOKENS, "shared"),
    "running statistics of a function": (
        on_lines(lambda m, x: F.batch_norm(x.mT, m.mean, m.var, training=True).mT, mean=torch.zeros(8),
                 var=torch.ones(8)), LINES, "running statistics|each time"),
    "an initial state": (
        on_lines(lambda m, x: m.r(x, x[:, 0].unsqueeze(0))[0], r=nn.GRU(8, 8, batch_first=True)), LINES,
        "initial state"),
    "projected states": (
        on_lines(lambda m, x: m.r(x)[0], 4, r=nn.LSTM(8, 8, proj_size=4, batch_first=True)), LINES, "proj_size"),
    "a parameter that is summed over the samples": (
        on_lines(lambda m, x: x + m.p.expand(x.size(0), -1).sum(0), p=parameter(1, 8)), LINES, "mixes the samples"),
    "a recurrent layer over the samples": (
        on_lines(lambda m, x: m.r(x)[0], r=nn.GRU(8, 8)), LINES, "along the samples"),
    "a comparison of activations": (
        on_lines(lambda m, x: x * (x > 0)), LINES, "no rule for it on an activation"),
    "a mask with parameters in it": (
        on_lines(lambda m, x: m.a(x, x, x, attn_mask=m.p)[0], a=nn.MultiheadAttention(8, 2, batch_first=True),
                 p=parameter(5, 5)), LINES, "mask|bare parameter|computed with parameters"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_true_reason(name):
    model, example, reason = REFUSED[name]
    if model is None:
        model = Net(lambda m, t: m.a(m.e(t).mean(1)), e=nn.Embedding(3, 8), a=nn.Linear(8, 8))
        model.head.weight = model.e.weight
    with pytest.raises(ModelError, match=reason) as refusal:
        ScaleGraph.of(model, example)
    assert refusal.value.remedy


# --- torch's composite layers, written out ---


def composites():
    mask = torch.ones(5, 5).triu(1).bool()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    options = {"batch_first": True, "dropout": 0.3}
    yield nn.MultiheadAttention(8, 2, **options), 3, {"need_weights": False}
    yield nn.MultiheadAttention(8, 2, **options), 3, {"attn_mask": mask, "key_padding_mask": padding}
    yield nn.MultiheadAttention(8, 2, **options), 3, {"attn_mask": torch.randn(4, 5, 5), "need_weights": False}
    yield nn.MultiheadAttention(8, 4, dropout=0.3), 3, {"attn_mask": mask}
    yield nn.MultiheadAttention(8, 2, kdim=8, vdim=8, bias=False, **options), 3, {"is_causal": True, "attn_mask": mask}
    yield nn.TransformerEncoderLayer(8, 2, 12, **options), 1, {"src_mask": mask, "src_key_padding_mask": padding}
    yield nn.TransformerEncoderLayer(8, 2, 12, norm_first=True, activation=F.gelu, **options), 1, {}
    yield nn.TransformerDecoderLayer(8, 2, 12, **options), 2, {"tgt_mask": mask, "memory_key_padding_mask": padding}
    yield nn.TransformerDecoderLayer(8, 2, 12, norm_first=True, **options), 2, {"tgt_key_padding_mask": padding}


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize("training", [True, False])
def test_what_is_written_out_computes_what_torchs_layer_computes(number, training):
    layer, operands, options = list(composites())[number]
    layer = randomised(layer.double(), number).train(training)
    values = [torch.randn(2, 5, 8, dtype=torch.float64) for _ in range(operands)]
    if isinstance(layer, nn.MultiheadAttention) and not layer.batch_first:
        values = [v.transpose(0, 1) for v in values]
    torch.manual_seed(0)
    expected = layer(*values, **options)
    torch.manual_seed(0)
    got = SPELLED_OUT[type(layer)](layer, *values, **options)
    first = (found[0] if isinstance(found, tuple) else found for found in (got, expected))
    assert relative_error(*(f.detach() for f in first)) < 1e-12


# --- inputs of integers ---


def halves(model):
    graph = ScaleGraph.of(model, TOKENS)
    settings = PerturbationSettings("ce")
    return PerturbServer(model, graph, settings), PerturbClient("a", model, graph, settings)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers_of_any_width_are_looked_up(dtype):
    server, client = halves(Text())
    upload = client.train(server.start_round(0), torch.randint(11, (4, 7)).to(dtype), torch.tensor([0, 1, 2, 0]), 4)
    assert upload.terms.shape[0] == 1


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (torch.full((2, 7), 11), "has the number 11.*rows 0 to 10"),
        (torch.full((2, 7), -1), "has the number -1"),
        (torch.zeros(2, 7), "expected integers"),
        (torch.zeros(2, 7, dtype=torch.bool), "expected integers"),
        (torch.zeros(2, 6, dtype=torch.int64), "shape"),
    ],
)
def test_inputs_that_the_table_has_no_row_for_are_refused_before_torch_sees_them(inputs, reason):
    server, client = halves(Text())
    with pytest.raises(DataError, match=reason):
        client.train(server.start_round(0), inputs, torch.tensor([0, 1]), 2)


def test_every_input_has_the_limit_of_its_own_table():
    graph = ScaleGraph.of(*WHOLE["table of two columns"])
    assert graph.vocabulary.tolist() == [3, 20]


def test_integers_for_a_model_of_real_numbers_are_refused():
    with pytest.raises(ModelError):
        ScaleGraph.of(on_lines(lambda m, x: x), LINES.long())


def test_attention_with_an_unsupported_layer_inside_names_it():
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    layer.norm1 = nn.InstanceNorm1d(8)
    with pytest.raises(UnsupportedLayerError, match=r"InstanceNorm1d `e\.norm1`"):
        ScaleGraph.of(on_lines(lambda m, x: m.e(x), e=layer), LINES)
