"""The script that measures torchvision's networks, without torchvision."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest
import torch
from torch import nn

import torchvision_families as families

needs_torchvision = pytest.mark.skipif(  # asks without importing: a wheel without its operators fails only then
    importlib.util.find_spec("torchvision") is None,
    reason="torchvision is not installed: `benchmarks/torchvision_families.py`",
)


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


@needs_torchvision
def test_every_family_that_torchvision_has_is_right_or_refused():
    models = families.import_models()
    for name in ("mobilenet_v3_small", "shufflenet_v2_x0_5"):
        assert families.measure(name, *families.build(models, name)).relative_error < 1e-9


@needs_torchvision
def test_a_family_can_be_trained_by_its_name_and_without_dropout():
    model = families.mobilenet_v3_small(num_outputs=3)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    assert all(module.p == 0 for module in model.modules() if isinstance(module, nn.Dropout))
