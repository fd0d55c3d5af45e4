"""A kernel is taken only where the processor and the system have what it needs, and may be forced."""

import os
import subprocess
import sys

import pytest
import torch
from tests.protocols.share.ring.test_ring import elements

from bilateral.errors import PlanError
from bilateral.protocols.share.ring import arithmetic as ring
from bilateral.protocols.share.ring import cpu, cpu_features
from bilateral.protocols.share.ring.amx import AmxConv2d, AmxLinear
from bilateral.protocols.share.ring.window import Window

PLAIN = Window((3, 3), (1, 1), (1, 1), (1, 1), 1)
AVX512 = frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl"))
AMX = AVX512 | {"amx-tile", "amx-int8", "avx512vbmi"}


@pytest.fixture
def machine(monkeypatch):
    """A machine with these features, whose system grants tiles or does not."""

    def pretend(features, permitted=True):
        monkeypatch.delenv(cpu_features.VARIABLE, raising=False)
        monkeypatch.setattr(cpu_features, "compiled_features", lambda: frozenset(features))
        monkeypatch.setattr(cpu_features, "tiles_are_permitted", lambda: permitted)
        cpu_features._fastest.cache_clear()

    yield pretend
    cpu_features._fastest.cache_clear()


@pytest.mark.parametrize(
    ("features", "permitted", "chosen"),
    [
        (AMX, True, "amx"),
        (AMX, False, "avx512"),
        (AMX - {"amx-int8"}, True, "avx512"),
        (AMX - {"avx512vbmi"}, True, "avx512"),
        (AVX512, True, "avx512"),
        (AVX512 - {"avx512dq"}, True, "vector"),
        ({"avx2"}, True, "vector"),
        ((), False, "vector"),
    ],
)
def test_the_fastest_kernel_whose_needs_are_met_is_chosen(machine, features, permitted, chosen):
    machine(features, permitted)
    assert cpu_features.choose() == chosen
    assert cpu_features.choose("auto") == chosen


def test_a_processor_without_the_instructions_takes_the_portable_kernels_with_the_same_result(machine):
    x, weight = elements((2, 40, 9, 11), 64, 1), elements((20, 40, 3, 3), 23, 2)
    samples, matrix = elements((30, 360), 64, 3), weight.flatten(1)

    def results():
        convolve = ring.prepare_conv2d(weight, stride=(1, 1), padding=(1, 1), weight_bits=23)
        return convolve(x), ring.prepare_linear(matrix, weight_bits=23)(samples)

    here = results()
    for features in (AVX512, AVX512 | {"sse4a"}, ()):
        machine(features)
        assert not isinstance(cpu.linear(matrix, 23, cpu_features.choose()), AmxLinear)
        assert not isinstance(cpu.conv2d(weight, PLAIN, 23, cpu_features.choose()), AmxConv2d)
        assert all(torch.equal(a, b) for a, b in zip(results(), here, strict=True))


def test_small_weights_are_words_where_words_multiply_at_once(machine):
    """A matter of time alone: results are the same (above)."""
    for features, at_once in ((AVX512, False), (AVX512 | {"sse4a"}, True), ({"sse4a"}, False)):
        machine(features)
        assert cpu_features.multiplies_words_at_once() is at_once
        kinds = [cpu._kind("avx512", bits) for bits in (23, 64)]
        assert kinds == [cpu.kernels.WIDE if at_once else cpu.kernels.NARROW, cpu.kernels.WIDE]
        assert cpu._kind("vector", 23) == cpu.kernels.NARROW


def test_what_cannot_be_found_out_counts_as_missing(machine, monkeypatch):
    machine(AMX)

    def fails():
        raise AttributeError("numba has no such function")

    monkeypatch.setattr(cpu_features, "compiled_features", fails)
    assert cpu_features.choose() == "vector"


def test_a_kernel_may_be_forced_by_argument_or_variable_but_not_without_its_instructions(machine, monkeypatch):
    machine(AVX512)
    assert cpu_features.choose("vector") == "vector"
    monkeypatch.setenv(cpu_features.VARIABLE, "vector")
    assert cpu_features.choose() == "vector"
    assert cpu_features.choose("avx512") == "avx512"
    monkeypatch.setenv(cpu_features.VARIABLE, "amx")
    with pytest.raises(PlanError, match="by 'amx'") as refused:
        ring.prepare_linear(torch.ones((8, 64), dtype=torch.int64))
    assert cpu_features.VARIABLE in refused.value.remedy
    monkeypatch.setenv(cpu_features.VARIABLE, "mmx")
    with pytest.raises(PlanError, match="got 'mmx'"):
        cpu_features.choose()


@pytest.mark.parametrize(
    ("shape", "groups"), [((4, 64, 3, 3), 1), ((64, 1, 3, 3), 64), ((64, 32, 3, 3), 2), ((64, 3, 3, 3), 1)]
)
def test_shapes_that_would_leave_tiles_empty_are_for_the_other_kernels(machine, shape, groups):
    machine(AMX)
    window = Window(shape[2:], (1, 1), (1, 1), (1, 1), groups)
    assert isinstance(cpu.conv2d(torch.ones(shape, dtype=torch.int64), window, 64, "amx"), cpu.KernelConv2d)


def test_numba_told_of_a_smaller_processor_makes_no_code_for_tiles():
    """And the result is the same: `NUMBA_CPU_NAME` is how numba's users make code for other machines."""
    script = (
        "import torch; from bilateral.protocols.share.ring import arithmetic as ring, cpu_features\n"
        "assert cpu_features.choose() == 'vector', cpu_features.choose()\n"
        "weight = torch.full((9, 70), -(2**63) + 3)\n"
        "x = torch.full((2, 70), 5)\n"
        "assert torch.equal(ring.prepare_linear(weight)(x), x @ weight.T)\n"
    )
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    environment.pop(cpu_features.VARIABLE, None)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_machine_code_is_kept_under_the_features_that_it_was_made_for():
    """A home directory that machines share: another machine finds code of its own, or makes it."""
    from numba.core.registry import cpu_target

    kept_under = cpu_target.target_context.codegen().magic_tuple()
    named = {feature[1:] for feature in kept_under[2].split(",") if feature.startswith("+")}
    assert cpu_features.compiled_features() <= named
