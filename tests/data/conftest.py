"""Tests of the data layer must not depend on the machine's own data directory."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def no_data_variable(monkeypatch):
    monkeypatch.delenv("BILATERAL_DATA", raising=False)


@pytest.fixture
def rng():
    return np.random.default_rng(7)
