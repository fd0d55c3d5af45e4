"""The sensitivity of clipped sums: a sample's terms are its own to the last bit, whatever its place and company."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.models.test_blind_spots import stochastic_depth
from tests.reference.harness import randomised
from torch import fx, nn
from torch.nn import functional as F

from bilateral.errors import UnsoundPlanError
from bilateral.models.layout import ModelLayout
from bilateral.models.rules import MODULE_RULES
from bilateral.models.scale_graph import ScaleGraph
from bilateral.protections.fedavg.halves import FedAvgClient, FedAvgServer
from bilateral.protocols.noise.clipping import ClipSettings, clip_samples
from bilateral.protocols.perturb.client import PerturbClient
from bilateral.protocols.perturb.server import PerturbServer
from bilateral.protocols.perturb.settings import PerturbationSettings
from bilateral.randomness import SeededRandomness

FEATURES, OUTPUTS = 96, 4


def network_at_its_kinks(inputs):
    """Unit j is 0 for sample j up to rounding, and far below 0 for every other; it carries almost all the gradient."""
    model = nn.Sequential(nn.Linear(FEATURES, len(inputs)), nn.ReLU(), nn.Linear(len(inputs), 3), nn.ReLU())
    model.add_module("head", nn.Linear(3, OUTPUTS))
    with torch.no_grad():
        model[0].weight.copy_(inputs)
        model[0].bias.copy_(-inputs.double().square().sum(1))
        model[2].weight.fill_(100.0)
        model[2].bias.fill_(1.0)
        model.head.weight.fill_(0.1)
        model.head.bias.zero_()
    return model


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_neighbouring_batches_differ_by_one_sensitivity_also_where_activations_are_at_their_kink(loss):
    count = 24
    inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))
    targets = torch.zeros(count, dtype=torch.int64) if loss == "ce" else torch.ones(count, OUTPUTS)
    model = network_at_its_kinks(inputs)
    graph = ScaleGraph.of(model, torch.zeros(1, FEATURES))
    clip = ClipSettings(1.0, "sample", 8.0)
    client = FedAvgClient("c", model, graph, loss, clip=clip)
    message = FedAvgServer(model, graph).start_round(0)
    worst = 0.0
    for size in range(1, count + 1):
        whole = client.train(message, inputs[:size], targets[:size], 1).terms
        for left_out in {0, size // 2, size - 1}:
            kept = [i for i in range(size) if i != left_out]
            without = client.train(message, inputs[kept], targets[kept], 1).terms
            worst = max(worst, float((whole - without).norm()))
    assert worst <= clip.sensitivity


class WithState(nn.ReLU):
    """Looks like a ReLU to the scale graph, and grows with every call: only a buffer that is put back hides it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


class Functions(nn.Module):
    """What is no layer: sums, products, joins, cuts, moves, and a parameter that multiplies channels."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.last, self.factor = nn.Conv2d(10, 6, 1), nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        a, b = self.left(x).relu(), self.right(x).abs() * self.factor
        first, second = torch.chunk(a + b, 2, dim=1)
        c = F.pad(torch.cat([first - second, a.flip(1), second.roll(1, 2)], 1) / 3, (0, 0, 0, 0, 1, 1))
        c = F.interpolate(self.last(c), scale_factor=1.5)
        d = F.leaky_relu(c.transpose(2, 3), 0.1).clamp(max=2.0)
        both = torch.stack([c, d], 1).mean((1, 2, 3))
        return torch.cat([d.mean((2, 3)), c.amax((2, 3)), d.sum(3).flatten(1), both], 1)


fx.wrap("stochastic_depth")


class StochasticDepth(nn.Module):
    """Whole samples are dropped, each by its own draw."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(13, 11), nn.Linear(11, 11)

    def forward(self, x):
        h = self.first(x).relu()
        return h + stochastic_depth(self.second(h), 0.5, "row", self.training)


class Rows(nn.Module):
    """Rows of a table, by the inputs' signs."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(2, 3)

    def forward(self, x):
        return self.table((x > 0).long()).flatten(1)


class Recurrent(nn.Module):
    """All three kinds, one after the other."""

    def __init__(self):
        super().__init__()
        options = {"batch_first": True}
        self.first, self.second = nn.LSTM(7, 5, 2, dropout=0.2, **options), nn.GRU(5, 4, **options)
        self.third = nn.RNN(4, 3, bidirectional=True, **options)

    def forward(self, x):
        return self.third(self.second(self.first(x)[0])[0])[0][:, -1]


def images(*layers, channels, side):
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side * side, 9), nn.ReLU())


LAYERS = {
    # name: (shape of a sample, layers below the head, their outputs)
    "Linear": ((67,), lambda: nn.Sequential(nn.Linear(67, 51), nn.ReLU(), nn.Linear(51, 9), nn.ReLU()), 9),
    "wide Linear": ((1031,), lambda: nn.Sequential(nn.Linear(1031, 33), nn.LeakyReLU()), 33),
    "Linear on sequences": (
        (5, 13),
        lambda: nn.Sequential(nn.Linear(13, 17), nn.LayerNorm(17), nn.ReLU(), nn.Flatten()),
        85,
    ),
    "Conv1d": (
        (3, 29),
        lambda: nn.Sequential(nn.Conv1d(3, 7, 5, stride=2), nn.PReLU(7), nn.MaxPool1d(2), nn.Flatten()),
        42,
    ),
    "Conv2d": ((3, 12, 12), lambda: images(nn.Conv2d(3, 11, 3), nn.ReLU(), nn.MaxPool2d(2), channels=11, side=5), 9),
    "many channels": (
        (16, 8, 8),
        lambda: images(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 1), channels=16, side=8),
        9,
    ),
    "strided and dilated": (
        (3, 13, 13),
        lambda: images(
            nn.Conv2d(3, 8, 3, stride=2), nn.PReLU(), nn.Conv2d(8, 6, 3, dilation=2, padding=1), channels=6, side=4
        ),
        9,
    ),
    "grouped and depthwise": (
        (4, 9, 9),
        lambda: images(
            nn.Conv2d(4, 8, 3, groups=2), nn.ReLU6(), nn.Conv2d(8, 8, 3, groups=8, padding=1), channels=8, side=7
        ),
        9,
    ),
    "transposed": (
        (3, 6, 6),
        lambda: images(nn.ConvTranspose2d(3, 5, 3, stride=2, output_padding=1), nn.ReLU(), channels=5, side=14),
        9,
    ),
    "Conv3d": (
        (2, 6, 6, 6),
        lambda: nn.Sequential(nn.Conv3d(2, 5, 3), nn.ReLU(), nn.AvgPool3d(2), nn.Flatten()),
        40,
    ),
    "transposed 1d and 3d": (
        (2, 4, 4, 4),
        lambda: nn.Sequential(
            nn.ConvTranspose3d(2, 3, 2),
            nn.ReLU(),
            nn.Flatten(2),
            nn.ConvTranspose1d(3, 4, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(3),
            nn.Flatten(),
        ),
        12,
    ),
    "GroupNorm": (
        (3, 9, 9),
        lambda: images(nn.Conv2d(3, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), channels=6, side=7),
        9,
    ),
    "upsampling": (
        (3, 6, 6),
        lambda: images(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear"), channels=4, side=8),
        9,
    ),
    "average and adaptive pooling": (
        (3, 11, 11),
        lambda: images(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3), channels=5, side=3),
        9,
    ),
    "smooth activations": (
        (19,),
        lambda: nn.Sequential(
            nn.Linear(19, 13), nn.Sigmoid(), nn.Linear(13, 11), nn.Tanh(), nn.Linear(11, 7), nn.GELU(), nn.Linear(7, 5)
        ),
        5,
    ),
    "exponential activations": (
        (19,),
        lambda: nn.Sequential(nn.Linear(19, 13), nn.ELU(), nn.Linear(13, 11), nn.CELU(), nn.Linear(11, 7)),
        7,
    ),
    "Softmax": ((19,), lambda: nn.Sequential(nn.Linear(19, 13), nn.Softmax(1), nn.Linear(13, 7)), 7),
    "dropout": (
        (3, 9, 9),
        lambda: images(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Dropout2d(0.3), nn.Dropout(0.4), channels=6, side=7),
        9,
    ),
    "smooth activations of today": (
        (19,),
        lambda: nn.Sequential(
            *(nn.Linear(19, 13), nn.SiLU(), nn.Linear(13, 11), nn.Mish(), nn.Linear(11, 9), nn.Softplus()),
            *(nn.Linear(9, 8), nn.SELU(), nn.Linear(8, 7), nn.Softsign(), nn.Linear(7, 7), nn.Identity()),
        ),
        7,
    ),
    "activations in pieces": (
        (19,),
        lambda: nn.Sequential(
            *(nn.Linear(19, 13), nn.Hardswish(), nn.Linear(13, 11), nn.Hardsigmoid(), nn.Linear(11, 9), nn.Hardtanh()),
            *(nn.Linear(9, 8), nn.LogSigmoid(), nn.Linear(8, 7), nn.LogSoftmax(1), nn.Linear(7, 6)),
        ),
        6,
    ),
    "padded sequences": (
        (3, 16),
        lambda: nn.Sequential(
            *(nn.Conv1d(3, 4, 3), nn.ReflectionPad1d(1), nn.ReplicationPad1d(1), nn.CircularPad1d(1), nn.ZeroPad1d(1)),
            *(nn.ConstantPad1d(1, 0.0), nn.AvgPool1d(2), nn.Dropout1d(0.2), nn.AdaptiveMaxPool1d(5), nn.Flatten()),
        ),
        20,
    ),
    "padded images": (
        (3, 8, 8),
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 4, 3), nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.CircularPad2d(1), nn.ZeroPad2d(1)),
            *(nn.ConstantPad2d(1, 0.0), nn.UpsamplingNearest2d(scale_factor=2), nn.UpsamplingBilinear2d(size=9)),
            *(nn.ReLU(), nn.AdaptiveMaxPool2d(4), nn.Flatten()),
        ),
        64,
    ),
    "padded volumes": (
        (2, 5, 5, 5),
        lambda: nn.Sequential(
            *(nn.Conv3d(2, 3, 2), nn.ZeroPad3d(1), nn.ConstantPad3d(1, 0.0), nn.MaxPool3d(2), nn.Dropout3d(0.2)),
            *(nn.AdaptiveMaxPool3d(3), nn.AdaptiveAvgPool3d(2), nn.Flatten()),
        ),
        24,
    ),
    "shuffles": (
        (4, 6, 6),
        lambda: nn.Sequential(
            *(nn.Conv2d(4, 8, 3, padding=1), nn.ChannelShuffle(2), nn.PixelShuffle(2), nn.ReLU(), nn.PixelUnshuffle(2)),
            *(nn.Flatten(), nn.Unflatten(1, (8, 36)), nn.Flatten()),
        ),
        288,
    ),
    "stochastic depth": ((13,), lambda: nn.Sequential(StochasticDepth(), nn.ReLU()), 11),
    "functions": ((3, 6, 6), lambda: nn.Sequential(Functions(), nn.Linear(75, 9), nn.ReLU()), 9),
    "attention": (
        (6, 8),
        lambda: nn.Sequential(
            nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 12, 0.2, batch_first=True), nn.GLU(), nn.Flatten()
        ),
        24,
    ),
    "table": ((12,), lambda: nn.Sequential(Rows(), nn.Linear(36, 9), nn.ReLU()), 9),
    "recurrent layers": ((5, 7), lambda: nn.Sequential(Recurrent(), nn.Linear(6, 9), nn.ReLU()), 9),
    "state in a buffer": ((13,), lambda: nn.Sequential(nn.Linear(13, 11), WithState()), 11),
    "BatchNorm1d that stays as it is": (
        (13,),
        lambda: nn.Sequential(nn.Linear(13, 11), nn.BatchNorm1d(11).eval(), nn.ReLU()),
        11,
    ),
    "BatchNorm2d that stays as it is": (
        (3, 9, 9),
        lambda: images(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6).eval(), nn.ReLU(), channels=6, side=7),
        9,
    ),
    "BatchNorm3d that stays as it is": (
        (2, 5, 5, 5),
        lambda: nn.Sequential(nn.Conv3d(2, 3, 3), nn.BatchNorm3d(3).eval(), nn.ReLU(), nn.Flatten()),
        81,
    ),
}
MIXING = {nn.BatchNorm1d: (), nn.BatchNorm2d: (3, 3), nn.BatchNorm3d: (3, 3, 3)}
"""Layers that no clipping can be true for unless they stay in evaluation mode, and the space of a channel."""
PROTECTIONS = ("mse", "activation")
"""FedSGD with the squared error, and perturbation with all terms of activation noise."""
SOME = ("Linear", "Conv2d", "attention", "table", "dropout")
"""Layers that are tried with cross entropy too, whose one term takes the same way."""


def test_every_layer_that_has_a_rule_is_tried_here_or_refused():
    """Those that mix samples are tried in evaluation mode, in which they do not, and refused in any other."""
    modules = [module for _, make, _ in LAYERS.values() for module in make().modules()]
    assert set(MODULE_RULES) <= {type(module) for module in modules}
    assert {type(module) for module in modules if not module.training} == set(MIXING)


def mixing(kind, *, is_trained, tracked=True, whole=True):
    """A model that begins with such a layer. `whole`: the mode that the model comes in itself."""
    first = kind(4, track_running_stats=tracked)
    model = nn.Sequential(first, nn.Flatten(), nn.Linear(4 * math.prod(MIXING[kind]), OUTPUTS)).train(whole)
    first.train(is_trained)
    return model


@pytest.mark.parametrize("unit", ["sample", "client"])
@pytest.mark.parametrize(
    "modes",
    [
        {"is_trained": True},
        {"is_trained": False, "tracked": False},  # normalises by its batch in either mode
        {"is_trained": False, "whole": False},  # a model that comes in evaluation mode is trained as `train` sets it
    ],
    ids=["trains", "without statistics", "all in evaluation mode"],
)
@pytest.mark.parametrize("kind", MIXING)
def test_layers_that_mix_samples_are_refused(kind, modes, unit):
    model = mixing(kind, **modes)
    layout = ModelLayout.of_module(model, torch.zeros(2, 4, *MIXING[kind]))
    size = 4.0 if unit == "sample" else 1.0
    with pytest.raises(UnsoundPlanError, match="BatchNorm"):
        FedAvgClient("c", model, layout, "mse", clip=ClipSettings(1.0, unit, size))


@pytest.mark.parametrize("kind", MIXING)
def test_those_that_stay_in_evaluation_mode_see_no_batch_and_upload_no_statistics(kind):
    """That its samples do not mix is tried with all other layers."""
    shape = (4, *MIXING[kind])
    model = randomised(mixing(kind, is_trained=False), 0)
    graph = ScaleGraph.of(model, torch.zeros(2, *shape))
    client = FedAvgClient("c", model, graph, "mse", clip=ClipSettings(1.0, "sample", 4.0))
    inputs = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    upload = client.train(FedAvgServer(model, graph).start_round(0), inputs, torch.ones(8, OUTPUTS), 1)
    assert upload.statistics.numel() == 0
    own = client._model.module[0]
    assert not own.training
    assert torch.equal(own.running_mean, model[0].running_mean)
    assert torch.equal(own.running_var, model[0].running_var)
    assert int(own.num_batches_tracked) == 0


def rows_of(name, protection, seed=3):
    """A function from a batch (indices into one set of samples) to the bits of every sample's terms."""
    shape, make, features = LAYERS[name]
    model = make()
    model.add_module("head", nn.Linear(features, OUTPUTS))
    randomised(model, seed)
    graph = ScaleGraph.of(model, torch.zeros(1, *shape))
    clip = ClipSettings(1.0, "sample", 4.0)
    client: FedAvgClient | PerturbClient
    if protection == "mse":
        message = FedAvgServer(model, graph).start_round(0)
        client = FedAvgClient("c", model, graph, "mse", clip=clip)
    else:
        plan = PerturbationSettings("ce" if protection == "ce" else "mse", "activation")
        message = PerturbServer(model, graph, plan, SeededRandomness(seed)).start_round(0)
        client = PerturbClient("c", model, graph, plan, clip=clip)
    kept = []
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(40, *shape, generator=generator)
    targets = torch.randn(40, OUTPUTS, generator=generator)
    if protection == "ce":
        targets = targets.argmax(1)
    inputs[38], inputs[39] = math.nan, 1e38  # company that overflows
    computed = client._samples.chunks

    def recorded(*arguments):
        for chunk in computed(*arguments):
            kept.extend(row.clone() for row in chunk)
            yield chunk

    client._samples.chunks = recorded

    def rows(indices, threads=1):
        kept.clear()
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            torch.default_generator.manual_seed(7)  # as the client does for the round
            client.train(message, inputs[indices], targets[indices], 1)
        finally:
            torch.set_num_threads(before)
        return [row.view(torch.int32) for row in kept]

    return rows


def dependent(name, protection):
    """(batch, threads, sample) wherever a sample's bits are not those that it has alone."""
    rows, samples = rows_of(name, protection), [0, 1, 2]
    alone = {i: rows([i])[0] for i in samples}
    batches = [
        [0, 1, 2],
        [2, 0, 1],
        [5, 0, 1],
        [38, 1, 39, 0, 2],
        [*range(3, 20), 1, 2, 0],
        [0, *range(4, 34), 2, 1],
    ]
    return [
        (len(batch), threads, sample)
        for threads, chosen in ((1, batches), (3, batches[:4]))
        for batch in chosen
        for sample, row in zip(batch, rows(batch, threads), strict=True)
        if sample in alone and not torch.equal(row, alone[sample])
    ]


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_terms_of_a_sample_depend_on_neither_place_nor_company_nor_threads(name, protection):
    assert dependent(name, protection) == []


@pytest.mark.parametrize("name", SOME)
def test_the_one_term_of_cross_entropy_under_perturbation_depends_on_its_sample_alone(name):
    assert dependent(name, "ce") == []


@pytest.mark.parametrize("noise", ["activation", "offset"])
def test_neighbouring_batches_under_perturbation_differ_by_one_sensitivity_with_cross_entropy(noise):
    """Whatever factors, noise and model a server chooses: the bound is on what is sent."""
    count = 16
    inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(count) % OUTPUTS
    model = network_at_its_kinks(inputs)
    graph = ScaleGraph.of(model, torch.zeros(1, FEATURES))
    clip, plan = ClipSettings(1.0, "sample", 8.0), PerturbationSettings("ce", noise, num_partitions=2)
    worst = 0.0
    for seed, size in ((0, 1.0), (1, 1e3), (2, 1e-3)):
        client = PerturbClient("c", model, graph, plan, clip=clip)
        message = PerturbServer(model, graph, plan, SeededRandomness(seed)).start_round(0)
        message = replace(message, group_secrets=size * message.group_secrets)
        for number in (1, 2, 7, count):
            whole = client.train(message, inputs[:number], targets[:number], 1).terms
            for left_out in {0, number // 2, number - 1}:
                kept = [i for i in range(number) if i != left_out]
                without = client.train(message, inputs[kept], targets[kept], 1).terms
                worst = max(worst, float((whole - without).norm()))
    assert 0.5 * clip.sensitivity < worst <= clip.sensitivity


@pytest.mark.parametrize(
    "instructions",
    [
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    ],
    ids=["SSE", "AVX2"],
)
def test_the_same_holds_with_the_kernels_of_other_processors(instructions):
    code = (
        "from tests.protocols.noise.test_sample_independence import *\n"
        "for name in LAYERS:\n"
        "    for protection in PROTECTIONS:\n"
        "        assert dependent(name, protection) == [], (name, protection)\n"
        "print('independent')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **instructions, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip().endswith("independent"), done.stderr[-2000:]


def test_removing_one_of_two_equal_samples_with_dropout_removes_one_term():
    rows = rows_of("dropout", "mse")
    two, three = rows([0, 1, 1]), rows([0, 1, 1, 1])
    assert all(torch.equal(a, b) for a, b in zip(two, three[:3], strict=True))
    assert not torch.equal(three[2], three[3])


def test_a_sample_whose_terms_vanish_or_overflow_changes_nothing_about_another():
    samples = torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(0))
    samples[1, 0], samples[2, 1, 3] = 0.0, math.inf
    clip = ClipSettings(float(samples[0].double().norm()) / 3, "sample", 1.0)
    alone = clip_samples([samples[:1]], (2, 50), clip)
    zeros = torch.zeros(1, 2, 50)
    for company in (zeros, samples[2:]):
        assert torch.equal(clip_samples([torch.cat([samples[:1], company])], (2, 50), clip).terms, alone.terms)


def test_many_equal_samples_of_the_largest_norm_stay_within_what_the_margin_pays_for():
    terms = torch.full((1, 1, 3), 1 / 3)
    clip = ClipSettings(float(terms.double().norm()), "sample", 1.0)
    with_it = clip_samples([terms.expand(20_001, 1, 3)], (1, 3), clip)
    without = clip_samples([terms.expand(20_000, 1, 3)], (1, 3), clip)
    assert float((with_it.terms - without.terms).norm()) <= clip.sensitivity
