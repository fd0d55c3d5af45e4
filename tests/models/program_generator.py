"""Networks as programs: a seed gives the source text of a module, statement by statement.

Unlike random_graphs.py this is no strategy over layers but over Python: registers that are read again later, in-place
statements, slices, weights shared or tied, layers called twice, functions on bare parameters, buffers, constants made
in `forward`, layers kept in evaluation mode, frozen parameters. A statement is tried on real numbers before it is kept.

Some programs get one statement of `FORBIDDEN`, of which the reason that a refusal must give is known. Statements that
may be refused elsewhere leave a quirk behind, and no refusal may name what the program does not have.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from tests.reference.harness import randomised
from torch import nn
from torch.nn.utils import parametrizations

NORM_EPS = 1e-5
SHAPES = ((3, 6, 6), (4, 5, 7), (2, 8), (6, 4), (5,), (12,), (2, 3, 4, 4))
MAX_ELEMENTS = 600

QUIRKS = {
    "norm twice": "is called more than once",
    "shared": "is shared|shared with another layer",
    "in place": "in-place|overwritten in place",
    "one value": "normalises a single value",
}
"""What a program may have, and how a refusal of it reads."""


class SignedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 1.0 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sign()


def _hook(model):
    model.stem.register_full_backward_hook(lambda m, i, o: tuple(None if g is None else g.sign() for g in i))


def _forward_hook(model):
    model.register_forward_hook(lambda m, a, out: out + 1)


def _parameter_hook(model):
    next(model.stem.parameters()).register_hook(torch.sign)


FORBIDDEN = {
    "gradient of its own": ("SignedGradient.apply({x})", "SignedGradient", None),
    "backward hook": ("{x}", "backward hook", _hook),
    "forward hook of the root": ("{x}", "forward hook", _forward_hook),
    "hook of a parameter": ("{x}", "gradient hook", _parameter_hook),
    "parametrization": ("{x}", "parametrization", lambda model: parametrizations.weight_norm(model.stem)),
    "number of samples in a sum": ("{x} + ({x}.size(0) - 2)", "number of samples", None),
    "number of samples in a product": ("{x} * ({x}.shape[0] - 1.5)", "number of samples", None),
    "random constant": ("{x} + torch.randn(1, dtype=torch.float64)", "each time", None),
    "random function": ("{x} * torch.rand_like({x})", "rand_like.*no rule", None),
    "switch by the mode": ("({x} * 2 if self.training else {x} * 3)", "training than in evaluation", None),
    "comparison of activations": ("{x} * ({x} > 0)", "no rule for it on an activation", None),
    "mean over samples": ("{x} - {x}.mean(0, keepdim=True)", "mixes the samples", None),
    "joined samples": ("torch.cat([{x}, {x}], 0)[: {x}.size(0)]", "batch dimension", None),
    "sum with a parameter": ("{x} + self.stem.weight.sum()", "parameter", None),
    "rounded": ("{x}.float().double()", "rounds", None),
    "sorted": ("torch.sort({x}, dim=1)[0]", "sort.*no rule", None),
    "matrix product": ("{x}.flatten(1).matmul({x}.flatten(1).t())", "mixes the samples", None),
    "attention over samples": (
        "F.scaled_dot_product_attention({x}.flatten(1), {x}.flatten(1), {x}.flatten(1))",
        "mixes the samples",
        None,
    ),
    "table with max_norm": (
        "{x} + F.embedding(torch.arange(1), self.stem.weight.flatten(1)[:, :1], max_norm=1.0).sum()",
        "max_norm",
        None,
    ),
    "padded with ones": ("F.pad({x}, (1, 0), value=1.0)", "pads with", None),
}


@dataclass
class Program:
    """The text, what of it may be refused, and the module that it makes (float64, random parameters)."""

    seed: int
    input_shape: tuple
    model: nn.Module
    source: str
    quirks: set
    forbidden: str

    def may_say(self, message):
        """Whether a refusal with this message tells the truth about the program."""
        allowed = [QUIRKS[quirk] for quirk in self.quirks]
        if self.forbidden:
            allowed.append(FORBIDDEN[self.forbidden][1])
        return any(re.search(pattern, message, re.DOTALL) for pattern in allowed)


class _DoesNotFitError(Exception):
    """A statement that does not fit here."""


@dataclass
class _Writer:
    rng: random.Random
    input_shape: tuple
    root: nn.Module = field(default_factory=nn.Module)
    lines: list = field(default_factory=list)
    making: list = field(default_factory=list)
    values: dict = field(default_factory=dict)
    layers: dict = field(default_factory=dict)
    quirks: set = field(default_factory=set)
    count: int = 0

    # --- writing ---

    def name(self, letter):
        self.count += 1
        return f"{letter}{self.count}"

    def run(self, expression):
        scope = {"torch": torch, "F": F, "nn": nn, "self": self.root, "SignedGradient": SignedGradient, **self.values}
        return eval(expression, scope)  # our own text

    def set(self, expression):
        """A new register."""
        with torch.no_grad():
            result = self.run(expression)
        if not isinstance(result, torch.Tensor) or result.shape[:1] != (2,) or result.numel() > 2 * MAX_ELEMENTS:
            raise _DoesNotFitError
        if result.numel() == 0 or result.dim() < 2 or result.dtype != torch.float64:
            raise _DoesNotFitError
        name = self.name("v")
        self.values[name] = result
        self.lines.append(f"{name} = {expression}")
        return name

    def layer(self, expression, value=None):
        """A module or parameter as an attribute of the program's module."""
        name = self.name("m")
        made = self.run(expression) if value is None else value
        if isinstance(made, torch.Tensor) and not isinstance(made, nn.Parameter):
            self.root.register_buffer(name, made)
        else:
            setattr(self.root, name, made.double() if isinstance(made, nn.Module) else made)
        self.making.append(f"self.{name} = {expression}")
        return name

    def weights(self, *sizes):
        return self.layer(f"nn.Parameter(torch.zeros{sizes}.double())")

    def buffer(self, *sizes):
        return self.layer(
            f"buffer {sizes}", value=0.5 + torch.tensor(_uniform(self.rng, sizes), dtype=torch.float64).reshape(sizes)
        )

    # --- choosing ---

    def any(self, *dims):
        """A register, mostly the last one, with that many dimensions (batch included)."""
        names = [n for n, v in self.values.items() if not dims or v.dim() in dims]
        if not names:
            raise _DoesNotFitError
        return names[-1] if self.rng.random() < 0.6 else self.rng.choice(names)

    def shape(self, name):
        return tuple(self.values[name].shape)

    def flag(self, chance=0.5):
        return self.rng.random() < chance

    def pick(self, *options):
        return self.rng.choice(options)

    def divisor(self, number):
        return self.rng.choice([d for d in range(1, number + 1) if number % d == 0])


def _uniform(rng, sizes):
    return [1.5 * rng.random() for _ in range(int(torch.Size(sizes).numel()))]


# --- layers ---


def _convolution(w):
    x = w.any(3, 4, 5)
    channels, dims = w.shape(x)[1], w.values[x].dim() - 2
    groups = w.divisor(channels)
    out = groups * w.pick(1, 2, 3)
    kernel, stride, dilation = w.pick(1, 2, 3), w.pick(1, 1, 2), w.pick(1, 1, 2)
    mode = w.pick("zeros", "zeros", "reflect", "replicate", "circular")
    padding = w.pick(0, 1, 1, 2)
    if w.flag(0.25):
        weight = w.weights(out, channels // groups, *[kernel] * dims)
        bias = f"self.{w.weights(out)}" if w.flag() else "None"
        return w.set(f"F.conv{dims}d({x}, self.{weight}, {bias}, {stride}, {padding}, {dilation}, {groups})")
    name = w.layer(
        f"nn.Conv{dims}d({channels}, {out}, {kernel}, {stride}, {padding}, {dilation}, {groups}, {w.flag()}, '{mode}')"
    )
    w.layers[name] = (dims + 2, channels)
    return w.set(f"self.{name}({x})")


def _transposed(w):
    x = w.any(3, 4, 5)
    channels, dims = w.shape(x)[1], w.values[x].dim() - 2
    groups = w.divisor(channels)
    stride = w.pick(1, 2)
    extra = w.pick(0, stride - 1)
    name = w.layer(
        f"nn.ConvTranspose{dims}d({channels}, {groups * w.pick(1, 2)}, {w.pick(1, 2, 3)}, {stride}, {w.pick(0, 1)}, "
        f"{extra}, {groups}, {w.flag()}, {w.pick(1, 2)})"
    )
    return w.set(f"self.{name}({x})")


def _linear(w):
    x = w.any()
    features, out = w.shape(x)[-1], w.pick(3, 4, 6)
    if w.flag(0.3):
        weight = w.weights(out, features)
        bias = f", self.{w.weights(out)}" if w.flag() else ""
        return w.set(f"F.linear({x}, self.{weight}{bias})")
    name = w.layer(f"nn.Linear({features}, {out}, bias={w.flag()})")
    w.layers[name] = (None, features)
    return w.set(f"self.{name}({x})")


def _batch_norm(w):
    x = w.any(2, 3, 4)
    dims, channels = max(1, w.values[x].dim() - 2), w.shape(x)[1]
    tracked = w.flag(0.85)
    name = w.layer(
        f"nn.BatchNorm{dims}d({channels}, eps={NORM_EPS}, affine={w.flag(0.7)}, track_running_stats={tracked})"
    )
    if w.flag(0.35):
        w.root.get_submodule(name).eval()
        w.making.append(f"self.{name}.eval()")
    result = w.set(f"self.{name}({x})")
    if w.flag(0.1):
        w.quirks.add("norm twice")
        result = w.set(f"self.{name}({result})")
    return result


def _other_norm(w):
    x = w.any()
    shape = w.shape(x)
    if w.flag() and len(shape) > 2:
        groups = w.divisor(shape[1])
        if torch.Size(shape[1:]).numel() // groups < 2:
            raise _DoesNotFitError
        if w.flag(0.3):
            weight = f"self.{w.weights(shape[1])}" if w.flag() else "None"
            return w.set(f"F.group_norm({x}.contiguous(), {groups}, {weight}, None, {NORM_EPS})")
        name = w.layer(f"nn.GroupNorm({groups}, {shape[1]}, eps={NORM_EPS}, affine={w.flag(0.7)})")
        # torch's own backward pass crashes on inputs without a gradient that do not lie in order (decision 7).
        return w.set(f"self.{name}({x}.contiguous())")
    size = list(shape[w.rng.randrange(1, len(shape)) :])
    if torch.Size(size).numel() == 1:
        w.quirks.add("one value")
    if w.flag(0.3):
        return w.set(f"F.layer_norm({x}, {size}, self.{w.weights(*size)}, None, {NORM_EPS})")
    affine = w.flag(0.7)
    name = w.layer(f"nn.LayerNorm({size}, eps={NORM_EPS}, elementwise_affine={affine}, bias={w.flag()})")
    return w.set(f"self.{name}({x})")


def _again(w):
    """A layer called once more, or another layer that holds its weights."""
    if not w.layers:
        raise _DoesNotFitError
    name, (dims, size) = w.rng.choice(list(w.layers.items()))
    fitting = [
        n
        for n, v in w.values.items()
        if (v.dim() == dims and v.shape[1] == size) or (dims is None and v.shape[-1] == size)
    ]
    if not fitting:
        raise _DoesNotFitError
    x = w.rng.choice(fitting)
    w.quirks.add("shared")
    if w.flag(0.3) and dims is None:
        twin = w.layer(f"nn.Linear({size}, {w.root.get_submodule(name).out_features})")
        w.root.get_submodule(twin).weight = w.root.get_submodule(name).weight
        w.making.append(f"self.{twin}.weight = self.{name}.weight")
        return w.set(f"self.{twin}({x})")
    return w.set(f"self.{name}({x})")


def _block(w):
    x = w.any(4)
    c = w.shape(x)[1]
    inner = w.pick(2, 4)
    name = w.layer(
        f"nn.Sequential(nn.Conv2d({c}, {inner}, 3, padding=1, bias=False), nn.BatchNorm2d({inner}, eps={NORM_EPS}), "
        f"nn.ReLU(inplace=True), nn.Conv2d({inner}, {c}, 1))"
    )
    return w.set(
        w.pick("{x} + self.{n}({x})", "self.{n}({x}).add_({x})", "F.relu(self.{n}({x})) + {x}").format(x=x, n=name)
    )


# --- elements ---

_HOMOGENEOUS = (
    "F.relu({x})", "torch.relu({x})", "{x}.relu()", "F.leaky_relu({x}, 0.2)", "{x}.abs()", "-{x}", "torch.neg({x})",
    "{x} * -0.7", "1.3 * {x}", "{x} / 3", "nn.functional.dropout({x}, 0.5, training=False)", "0 + {x}", "{x} - 0",
)  # fmt: skip
_PINNING = (
    "torch.sigmoid({x})", "{x}.tanh()", "F.gelu({x})", "F.silu({x})", "F.elu({x})", "F.softplus({x})", "F.relu6({x})",
    "F.hardswish({x})", "F.hardsigmoid({x})", "F.mish({x})", "torch.clamp({x}, -0.6, 0.8)", "{x}.clamp(min=0.1)",
    "({x} * 0.2).exp()", "torch.square({x} * 0.5)", "({x}.abs() + 0.5).sqrt()", "({x}.abs() + 1).log()", "{x} + 0.3",
    "1 - {x}", "({x}.abs() + 0.2) ** 1.5", "torch.softmax({x}, dim=1)", "F.log_softmax({x}, dim=-1)", "{x}.softmax(1)",
)  # fmt: skip
_ACTIVATION_LAYERS = (
    "nn.ReLU()", "nn.LeakyReLU(0.1)", "nn.PReLU()", "nn.PReLU({c})", "nn.GELU()", "nn.Hardtanh()", "nn.SELU()",
    "nn.Dropout(0.0)", "nn.Identity()", "nn.Softsign()", "nn.LogSigmoid()", "nn.Softmax(dim=1)", "nn.CELU(0.7)",
)  # fmt: skip


def _function(w):
    return w.set(w.pick(*_HOMOGENEOUS).format(x=w.any()))


def _pinning(w):
    return w.set(w.pick(*_PINNING).format(x=w.any()))


def _activation_layer(w):
    x = w.any()
    name = w.layer(w.pick(*_ACTIVATION_LAYERS).format(c=w.shape(x)[1]))
    return w.set(f"self.{name}({x})")


def _dropout_kept_off(w):
    x = w.any()
    name = w.layer(w.pick("nn.Dropout(0.5)", "nn.Dropout1d(0.4)" if len(w.shape(x)) == 3 else "nn.Dropout(0.3)"))
    w.root.get_submodule(name).eval()
    w.making.append(f"self.{name}.eval()")
    return w.set(f"self.{name}({x})")


def _in_place(w):
    x = w.any()
    fresh = w.set(f"{x} * 1.0")
    change = w.pick(
        "{f}.relu_()", "{f}.mul_(0.5)", "{f}.add_({x})", "F.relu({f}, inplace=True)", "{f}.sub_(0.2)"
    ).format(f=fresh, x=x)
    result = w.set(change)
    if w.flag(0.15):
        w.quirks.add("in place")
        return w.set(f"{result} + {fresh}")
    del w.values[fresh]
    return result


def _augmented(w):
    x, y = w.any(), w.any()
    fresh = w.set(f"{x}.clone()")
    w.lines.append(
        f"{fresh} {w.pick('+=', '-=', '*=')} {w.pick(y, '2.0', '0.5') if w.shape(x) == w.shape(y) else '1.5'}"
    )
    operator, operand = w.lines[-1].split()[1:]
    w.values[fresh] = w.run(f"{fresh} {operator[0]} {operand}")
    return fresh


def _constant(w):
    x = w.any()
    shape = w.shape(x)
    sizes = [1] * len(shape)
    for dim in range(1, len(shape)):
        if w.flag(0.6):
            sizes[dim] = shape[dim]
    if w.flag(0.25):
        listed = [round(0.5 + value, 3) for value in _uniform(w.rng, sizes)]
        k = f"torch.tensor({listed}, dtype=torch.float64).reshape({sizes})"
    else:
        k = f"self.{w.buffer(*sizes)}"
    text = w.pick(
        "{x} + {k}", "{k} * {x}", "{x} / {k}", "{k} - {x}", "torch.clamp({x}, min={k})", "{x}.clamp(max={k})",
        "({x}.abs() + 0.1) ** {k}", "torch.pow({x}.abs() + 0.1, {k})", "torch.add({x}, {k}, alpha=0.5)", "{x}.mul({k})",
    )  # fmt: skip
    return w.set(text.format(x=x, k=k))


def _channel_factor(w):
    x = w.any()
    shape = w.shape(x)
    dim = w.rng.randrange(1, len(shape))
    sizes = [shape[dim]] + [1] * (len(shape) - dim - 1)
    return w.set(f"{x} * self.{w.weights(*sizes)}")


# --- several values ---


def _met(w):
    x = w.any()
    same = [n for n in w.values if w.shape(n) == w.shape(x)]
    y = w.rng.choice(same)
    text = w.pick(
        "{x} + {y}", "{x} - {y}", "torch.add({x}, {y}, alpha=-0.5)", "{x} * torch.sigmoid({y})", "{x} * {y}",
        "torch.cat([{x}, {y}], 1)", "torch.cat(({y}, {x}), dim=-1)", "torch.stack([{x}, {y}], 1).flatten(1, 2)",
        "torch.stack(({x}, {y}), -1).sum(-1)", "sum([{x}, {y}])", "{x}.mul({y}.tanh())",
    )  # fmt: skip
    return w.set(text.format(x=x, y=y))


def _tokens(w):
    """A value as (batch, tokens, channels), and its sizes."""
    x = w.any(3, 4, 5)
    text = w.pick("{x}.flatten(2).transpose(1, 2)", "{x}.flatten(2)", "{x}.flatten(1, -2)").format(x=x)
    name = w.set(text)
    return name, *w.shape(name)[1:]


def _heads(w, size):
    return w.pick(*[h for h in (1, 2, 3, 4) if size % h == 0])


def _attention(w):
    """Written out, in the usual ways: one projection or three, heads by view, einsum or chunks."""
    x, tokens, size = _tokens(w)
    y = w.rng.choice([n for n, v in w.values.items() if v.dim() == 3] or [x]) if w.flag(0.3) else x
    inner = w.pick(2, 3, 4, 6)
    heads = _heads(w, inner)
    if w.flag(0.4) and y == x:
        qkv = w.layer(f"nn.Linear({size}, {3 * inner}, bias={w.flag()})")
        if w.flag():
            part = w.set(f"self.{qkv}({x}).reshape({x}.size(0), {tokens}, 3, {heads}, {inner // heads})")
            order = w.set(f"{part}.permute(0, 2, 3, 1, 4)")
            q, k, v = (w.set(f"{order}[:, {i}]") for i in range(3))
        else:
            line = w.set(f"self.{qkv}({x})")
            q, k, v = (
                w.set(f"{line}.chunk(3, -1)[{i}].unflatten(-1, ({heads}, -1)).transpose(1, 2)") for i in range(3)
            )
    else:
        made = [w.layer(f"nn.Linear({w.shape(s)[-1]}, {inner}, bias={w.flag()})") for s in (x, y, y)]
        q, k, v = (
            w.set(f"self.{m}({s}).view({s}.shape[0], -1, {heads}, {inner // heads}).transpose(1, 2)")
            for m, s in zip(made, (x, y, y), strict=True)
        )
    square = w.shape(q)[2] == w.shape(k)[2]
    mask = f"self.{w.buffer(w.shape(q)[2], w.shape(k)[2])}" if w.flag(0.3) else "None"
    way = w.rng.randrange(5)
    if way == 0:
        out = w.set(f"F.scaled_dot_product_attention({q}, {k}, {v}, {mask}, is_causal={square and mask == 'None'})")
    elif way == 1:
        scores = w.set(f"{q} @ {k}.transpose(-2, -1) / {inner**0.5}")
        if mask != "None":
            scores = w.set(f"{scores} + {mask}")
        if w.flag(0.3):
            scores = w.set(f"{scores}.masked_fill(self.{w.buffer(*w.shape(scores)[2:])} < 1, float('-inf'))")
        out = w.set(f"{scores}.softmax(-1) @ {v}")
    elif way == 2:
        weights = w.set(f"torch.softmax(torch.einsum('bhic,bhjc->bhij', {q}, {k}), dim=-1)")
        out = w.set(f"torch.einsum('bhij,bhjc->bhic', {weights}, {v})")
    elif way == 3:  # without a softmax: factors multiply
        out = w.set(f"({q} @ {k}.mT) @ {v}")
    else:
        scores = w.set(
            f"torch.matmul({q}, {k}.transpose(2, 3)).flatten(0, 1).view(-1, {heads}, {w.shape(q)[2]}, {w.shape(k)[2]})"
        )
        out = w.set(f"torch.matmul(F.softmax({scores}, 3), {v})")
    return w.set(f"{out}.transpose(1, 2).flatten(2)")


def _torch_attention(w):
    x, _, size = _tokens(w)
    heads = _heads(w, size)
    options = f"batch_first={w.flag(0.7)}, bias={w.flag(0.8)}"
    other = [n for n, v in w.values.items() if v.dim() == 3 and v.shape[1] <= 12]
    y = w.rng.choice(other) if w.flag(0.3) and other else x
    kind = w.rng.randrange(3)
    if kind == 0:
        sizes = f", kdim={w.shape(y)[-1]}, vdim={w.shape(y)[-1]}" if w.shape(y)[-1] != size else ""
        name = w.layer(f"nn.MultiheadAttention({size}, {heads}{sizes}, {options})")
    else:
        y = x
        if size == 1:
            w.quirks.add("one value")
        name = w.layer(
            f"nn.TransformerEncoderLayer({size}, {heads}, {w.pick(3, 5)}, 0.0, '{w.pick('relu', 'gelu')}', "
            f"norm_first={w.flag()}, {options})"
        )
    first = w.root.get_submodule(name)
    seq = not getattr(first, "batch_first", getattr(getattr(first, "self_attn", None), "batch_first", True))
    a, b = (f"{n}.transpose(0, 1)" if seq else n for n in (x, y))
    call = f"self.{name}({a}, {b}, {b})[0]" if kind == 0 else f"self.{name}({a})"
    return w.set(f"{call}.transpose(0, 1)" if seq else call)


def _recurrent(w):
    x, _, size = _tokens(w)
    name = w.layer(
        f"nn.{w.pick('LSTM', 'GRU', 'RNN')}({size}, {w.pick(2, 3)}, {w.pick(1, 2)}, bias={w.flag()}, batch_first=True, "
        f"bidirectional={w.flag()})"
    )
    return w.set(w.pick("self.{n}({x})[0]", "self.{n}({x})[0][:, -1]").format(n=name, x=x))


def _product(w):
    """Two values that fit, summed over an index: channels, places, or both."""
    x = w.any(3, 4)
    shape = w.shape(x)
    fitting = [n for n, v in w.values.items() if v.shape[:-2] == shape[:-2] and v.dim() == len(shape)]
    y = w.rng.choice(fitting)
    text = w.pick("{x} @ {y}", "{x} @ {y}.transpose(-1, -2)", "{x}.mT.matmul({y})", "torch.bmm({x}, {y}.mT)")
    return w.set(text.format(x=x, y=y))


def _matrix(w):
    """A product with a parameter or a constant."""
    x = w.any()
    size = w.shape(x)[-1]
    if w.flag():
        return w.set(f"{x} @ self.{w.weights(size, w.pick(2, 4))}")
    if w.flag() or len(w.shape(x)) < 3:
        return w.set(f"torch.matmul({x}, self.{w.buffer(size, 3)})")
    return w.set(f"self.{w.buffer(3, w.shape(x)[-2])} @ {x}")


def _bare(w):
    """A parameter that is added, joined, multiplied or looked up."""
    x = w.any(3, 4)
    shape = w.shape(x)
    sizes = [1, *(n if w.flag(0.7) else 1 for n in shape[1:])]
    way = w.rng.randrange(6)
    if way == 0:
        return w.set(f"{x} + self.{w.weights(*sizes)}")
    if way == 1:
        return w.set(f"self.{w.weights(*sizes[1:])} * {x}")
    if way == 2:
        token = w.weights(1, 1, *shape[2:])
        return w.set(f"torch.cat([self.{token}.expand({x}.size(0), *[-1] * {len(shape) - 1}), {x}], 1)")
    if way == 3:
        table = w.layer(f"nn.Embedding({shape[-2] + 1}, {shape[-1]})")
        return w.set(f"{x} + self.{table}(torch.arange({x}.size(-2)))")
    if way == 4:
        table = w.weights(5, shape[-1])
        return w.set(f"{x} - self.{table}[torch.tensor({[w.rng.randrange(5) for _ in range(shape[-2])]})]")
    return w.set(f"{x} * torch.sigmoid(self.{w.weights(*sizes)})")


def _quotient(w):
    x = w.any()
    y = w.rng.choice([n for n in w.values if w.shape(n) == w.shape(x)])
    return w.set(
        w.pick(
            "{x} / ({y}.abs() + 1)", "1 / ({x}.sigmoid() + 0.5)", "{x} / (F.relu({y}).mean(1, keepdim=True) + 1)"
        ).format(x=x, y=y)
    )


def _glu(w):
    x = w.any()
    dim = w.pick(1, -1)
    if w.shape(x)[dim] % 2:
        raise _DoesNotFitError
    text = w.pick(
        "F.glu({x}, {d})",
        "{x}.chunk(2, {d})[0] * {x}.chunk(2, {d})[1]",
        "{x}.chunk(2, {d})[0] * F.silu({x}.chunk(2, {d})[1])",
    )
    return w.set(text.format(x=x, d=dim))


def _function_norm(w):
    x = w.any(3, 4)
    channels = w.shape(x)[1]
    weight = f"self.{w.weights(channels)}" if w.flag() else "None"
    if w.flag():
        return w.set(f"F.batch_norm({x}, None, None, {weight}, training=True)")
    mean, variance = w.buffer(channels), w.buffer(channels)
    return w.set(f"F.batch_norm({x}, self.{mean}, self.{variance}, {weight}, None, False)")


def _broadcast(w):
    x = w.any(3, 4, 5)
    dim = w.rng.randrange(1, len(w.shape(x)))
    text = w.pick(
        "{x} - {x}.mean({d}, keepdim=True)", "{x} * torch.sigmoid({x}.amax({d}, keepdim=True))",
        "{x} + {x}.sum(dim={d}, keepdim=True)", "torch.mean({x}, {d})", "{x}.amax(dim={d})", "torch.sum({x}, dim={d})",
    )  # fmt: skip
    return w.set(text.format(x=x, d=w.pick(dim, dim - len(w.shape(x)))))


def _gate(w):
    x = w.any(4)
    c = w.shape(x)[1]
    down, up = w.layer(f"nn.Conv2d({c}, 2, 1)"), w.layer(f"nn.Conv2d(2, {c}, 1)")
    act = w.pick("torch.sigmoid", "F.hardsigmoid")
    return w.set(f"{x} * {act}(self.{up}(F.relu(self.{down}(F.adaptive_avg_pool2d({x}, 1)))))")


# --- space ---


def _pool(w):
    x = w.any(3, 4, 5)
    d = w.values[x].dim() - 2
    k, s, p = w.pick(2, 3), w.pick(1, 2), w.pick(0, 1)
    text = w.pick(
        f"nn.MaxPool{d}d({k}, {s}, {p}, ceil_mode={w.flag()})",
        f"nn.AvgPool{d}d({k}, {s}, {p}, {w.flag()}, {w.flag()})",
        f"nn.AdaptiveAvgPool{d}d({w.pick(1, 2, 3)})", f"nn.AdaptiveMaxPool{d}d({w.pick(1, 2)})",
        f"F.max_pool{d}d|{k}, {s}", f"F.avg_pool{d}d|{k}, stride={s}", f"F.adaptive_avg_pool{d}d|{w.pick(1, 2)}",
    )  # fmt: skip
    if "|" in text:
        function, settings = text.split("|")
        return w.set(f"{function}({x}, {settings})")
    return w.set(f"self.{w.layer(text)}({x})")


def _resize(w):
    x = w.any(3, 4)
    d = w.values[x].dim() - 2
    text = w.pick(
        "F.interpolate({x}, scale_factor=2)", "F.interpolate({x}, scale_factor=1.5, mode='{smooth}')",
        "F.interpolate({x}, size=3)", "F.pad({x}, (1, 2))",
        "F.pad({x}, (1, 1), mode='replicate')", "F.pad({x}, (-1, 1))",
        "F.pad({x}, ({zeros}1, 2))", "nn.ReflectionPad{d}d(1)({x})",
        "nn.ZeroPad{d}d(1)({x})", "nn.CircularPad{d}d(1)({x})",
        "nn.Upsample(scale_factor=2, mode='nearest')({x})",
    ).format(x=x, d=d, smooth="linear" if d == 1 else "bilinear", zeros="0, 0, " * d)  # fmt: skip
    if text.startswith("nn."):
        text = f"self.{w.layer(text.rsplit('(', 1)[0])}({x})"
    return w.set(text)


# --- places ---

_MOVES = (
    "{x}.flatten(1)", "torch.flatten({x}, 1, 2)", "{x}.view({x}.size(0), -1)", "{x}.reshape({x}.shape[0], {c}, -1)",
    "{x}.transpose(1, -1)", "{x}.movedim(-1, 1)", "{x}.permute({order})", "{x}.chunk(2, 1)[{i}]", "{x}.flip(1)",
    "torch.split({x}, {half}, 1)[0]", "{x}[:, ::2]", "{x}[:, {half}:]",
    "{x}[:, -1:]", "{x}[:, [0, {last}, 0]]", "{x}[..., 1:]",
    "torch.roll({x}, 1, 1)", "torch.roll({x}, (1, 2), (1, -1))", "{x}.narrow(1, 0, {half})", "{x}.unsqueeze(1)",
    "{x}.unsqueeze(-1)", "{x}.squeeze(-1)",
    "{x}.unbind(1)[{i}]", "{x}.select(1, {last})", "{x}.repeat_interleave(2, 1)",
    "{x}.repeat(1, 2{ones})", "{x}.unflatten(1, (-1, {half}))", "torch.stack({x}.unbind(1)[::-1], 1)", "{x}.clone()",
    "{x}.contiguous()", "{x}.double()", "{x}.to(torch.float64)", "{x}.swapaxes(1, -1)", "{x}.view(-1, {size})",
    "{x}.detach() + {x}", "{x}.unsqueeze(1).expand(-1, 2{minus}).flatten(1, 2)",
    "{x}.view_as({x} * 1.0)", "{x}[:, torch.tensor([{last}, 0])]",
)  # fmt: skip


def _move(w):
    x = w.any()
    shape = w.shape(x)
    order = [0, *w.rng.sample(range(1, len(shape)), len(shape) - 1)]
    text = w.pick(*_MOVES).format(
        x=x,
        c=shape[1],
        i=w.pick(0, -1),
        half=max(1, shape[1] // 2),
        last=shape[1] - 1,
        order=", ".join(map(str, order)),
        ones=", 1" * (len(shape) - 2),
        minus=", -1" * (len(shape) - 1),
        size=torch.Size(shape[1:]).numel(),
    )
    return w.set(text)


def _shuffle(w):
    x = w.any(4)
    c = w.shape(x)[1]
    text = w.pick(f"nn.ChannelShuffle({w.divisor(c)})", "nn.PixelShuffle(2)", "nn.PixelUnshuffle(2)", "nn.Flatten(2)")
    return w.set(f"self.{w.layer(text)}({x})")


STATEMENTS = (
    *(_convolution, _convolution, _convolution, _transposed, _linear, _linear, _batch_norm, _batch_norm, _other_norm),
    *(_other_norm, _again, _again, _block, _function, _function, _pinning, _activation_layer, _dropout_kept_off),
    *(_in_place, _augmented, _constant, _constant, _channel_factor, _met, _met, _met, _broadcast, _gate, _pool, _pool),
    *(_resize, _move, _move, _move, _move, _shuffle),
)
MEETINGS = (
    *(_attention, _attention, _attention, _torch_attention, _torch_attention, _recurrent, _product, _product, _matrix),
    *(_bare, _bare, _bare, _quotient, _glu, _function_norm),
)
"""Statements in which activations are multiplied, and parameters are values."""


def program(seed, forbidden=None, *, meetings=False):
    """The program of a seed; it has a statement of FORBIDDEN by chance, or the one that is asked for.

    `meetings`: half of its statements are of MEETINGS.
    """
    rng = random.Random(seed)
    w = _Writer(rng, rng.choice(SHAPES))
    w.values["x"] = torch.randn(2, *w.input_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    w.root.train()
    by_chance = rng.choice(list(FORBIDDEN)) if rng.random() < 0.2 else ""
    forbidden = by_chance if forbidden is None else forbidden
    _stem(w)
    length, place = rng.randint(2, 14), rng.randint(0, 2)
    used = []
    for number in range(length):
        if forbidden and number == min(place, length - 1):
            try:
                used = [w.set(FORBIDDEN[forbidden][0].format(x=w.pick("s", *(n for n in w.values if n != "x"))))]
            except Exception:  # whatever torch says of it, it does not fit
                forbidden = ""
        _try(w, rng.choice(MEETINGS if meetings and rng.random() < 0.5 else STATEMENTS))
    last = _ending(w, used)
    return _finished(seed, w, last, forbidden)


def _stem(w):
    """A first layer under a name that hooks can use."""
    shape = w.input_shape
    layer = (
        nn.Linear(shape[0], 4) if len(shape) == 1 else (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(shape) - 2](shape[0], 4, 1)
    )
    w.root.stem = layer.double()
    w.making.append(f"self.stem = nn.{layer}")
    del w.values[w.set("self.stem(x)")]
    w.values["s"] = w.run("self.stem(x)").detach()
    w.lines[-1] = "s = self.stem(x)"


def _try(w, statement):
    lines, making, values = len(w.lines), len(w.making), dict(w.values)
    try:
        with torch.no_grad():
            statement(w)
    except Exception:  # a statement that does not fit the shapes at hand
        del w.lines[lines:], w.making[making:]
        w.values = values


def _ending(w, used):
    """Some values side by side, among them what is forbidden, if anything is."""
    names = [n for n in w.values if n != "x"]
    chosen = [names[-1], *w.rng.sample(names, min(len(names), w.pick(0, 1, 2))), *used]
    if sum(w.values[n].numel() for n in chosen) > 2 * MAX_ELEMENTS:
        chosen = used or chosen[:1]
    parts = [w.pick("{x}.flatten(1)", "{x}.reshape({x}.size(0), -1)", "{x}.flatten(1)").format(x=n) for n in chosen]
    return w.set(f"torch.cat([{', '.join(parts)}], 1)" if used or w.flag(0.5) else parts[0])


def _finished(seed, w, last, forbidden):
    w.root.head = nn.Linear(w.shape(last)[1], 3).double()
    text = "\n".join(["def forward(self, x):", *(f"    {line}" for line in w.lines), f"    return self.head({last})"])
    scope = {"torch": torch, "F": F, "nn": nn, "SignedGradient": SignedGradient}
    exec(text, scope)  # our own text
    kind = type("Program", (nn.Module,), {"forward": scope["forward"]})
    w.root.__class__ = kind
    used = set(re.findall(r"self\.(m\d+)", text))
    for name in [n for n, _ in (*w.root.named_children(), *w.root.named_parameters(recurse=False))]:
        if name.startswith("m") and name not in used:
            delattr(w.root, name)
    model = randomised(w.root, seed)
    for name, parameter in model.named_parameters():
        if w.rng.random() < 0.05 and not name.startswith(("head", "stem")):
            parameter.requires_grad_(False)
    if forbidden and FORBIDDEN[forbidden][2] is not None:
        FORBIDDEN[forbidden][2](model)
    return Program(seed, w.input_shape, model, "\n".join([*w.making, text]), w.quirks, forbidden)
