"""The sensitivity of clipped sums: a sample's terms are its own to the last bit, whatever its place and company."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from tests.reference.harness import randomised
from torch import nn

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
    "state in a buffer": ((13,), lambda: nn.Sequential(nn.Linear(13, 11), WithState()), 11),
}
PROTECTIONS = ("mse", "activation")


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
        plan = PerturbationSettings("mse", "activation")
        message = PerturbServer(model, graph, plan, shape, SeededRandomness(seed)).start_round(0)
        client = PerturbClient("c", model, graph, plan, clip=clip)
    kept = []
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(40, *shape, generator=generator)
    targets = torch.randn(40, OUTPUTS, generator=generator)
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
        for threads in (1, 3)
        for batch in batches
        for sample, row in zip(batch, rows(batch, threads), strict=True)
        if sample in alone and not torch.equal(row, alone[sample])
    ]


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_terms_of_a_sample_depend_on_neither_place_nor_company_nor_threads(name, protection):
    assert dependent(name, protection) == []


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
