"""The script that measures torchvision's networks, without torchvision."""

from __future__ import annotations

import importlib
import sys

import pytest
from torch import nn

import torchvision_families as families


def small(*layers):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, families.NUM_OUTPUTS)).double()


def test_an_accepted_network_is_measured_against_plain_autograd():
    row = families.measure("small", small(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), 8)
    assert row.verdict == "accepted"
    assert row.relative_error < 1e-9
    assert 0 <= row.fraction_clear < 1


def test_a_refused_network_has_its_reason():
    row = families.measure("small", small(nn.Conv2d(3, 4, 3), nn.LocalResponseNorm(2)), 8)
    assert row.verdict == "refused (a layer)"
    assert "LocalResponseNorm" in row.reason


def test_without_torchvision_nothing_is_measured_and_the_script_says_so(monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setattr(sys, "argv", ["torchvision_families.py"])
    assert families.main() == 2
    assert "not installed" in capsys.readouterr().err


def test_every_family_that_torchvision_has_is_right_or_refused():
    pytest.importorskip("torchvision", reason="torchvision is not installed: `benchmarks/torchvision_families.py`")
    models = families.import_models()
    for name in ("mobilenet_v3_small", "shufflenet_v2_x0_5"):
        assert families.measure(name, *families.build(models, name)).relative_error < 1e-9
