"""Global generators draw the same for a test, and for a fixture, whatever ran before and whatever seed was drawn."""

from __future__ import annotations

import os
import random
from zlib import crc32

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") == "search", reason="there pytest-randomly's seed decides"
)


def draws():
    return random.random(), float(np.random.random()), float(torch.rand(()))


def draws_of(name):
    seed = crc32(f"0 {name}".encode())
    random.seed(seed)
    np.random.seed(seed)
    return (
        random.random(),
        float(np.random.random()),
        float(torch.rand((), generator=torch.Generator().manual_seed(seed))),
    )


@pytest.fixture(scope="module")
def shared():
    return draws()


@pytest.fixture(scope="module", params=["one", "two"])
def of_two(request):
    return request.param, draws()


@pytest.mark.parametrize("number", range(2))
def test_a_test_draws_what_its_name_says(request, number):
    assert draws() == draws_of(request.node.nodeid)


@pytest.mark.parametrize("number", range(2))
def test_a_shared_fixture_draws_what_its_name_says(shared, number):
    draws()
    assert shared == draws_of("tests/test_repeatable.py::shared[0]")


def test_a_fixture_of_several_kinds_draws_for_each(of_two):
    kind, drawn = of_two
    assert drawn == draws_of(f"tests/test_repeatable.py::of_two[{['one', 'two'].index(kind)}]")
