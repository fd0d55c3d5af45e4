"""Sizes from refusals."""

from __future__ import annotations

import math

import pytest

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.masks.attacks.range_probe import sizes_told
from bilateral.audit.topics.masks.sizes_and_presence import _probed, _true_sizes
from bilateral.engine.plan import RunPlan
from bilateral.errors import ProtocolError
from bilateral.protocols.mask.messages import RangeRefusal

SMALL = {"model.name": "mlp-3", "training.loss": "mse", "training.batch_size": 8, "federation.clients": 4}


def context(**settings):
    return Context(RunPlan().with_settings({**SMALL, **settings}), EFFORTS["smoke"])


def test_a_refusal_tells_a_size_to_a_factor_of_two():
    told = sizes_told(RangeRefusal(0, 0, (0, 2), (5, -3)))
    assert told == {0: pytest.approx(math.sqrt(16 * 32)), 2: pytest.approx(math.sqrt(2**-3 * 2**-4))}


def test_a_server_that_announces_tiny_ranges_learns_every_size_of_every_client():
    found = context()
    names = found.federation().names
    told, truth = _probed(found, names, 2), _true_sizes(found, names, 2)
    assert set(told) == set(truth)
    assert len(truth) == 2 * len(names) * 3
    assert all(abs(math.log2(told[key] / truth[key])) <= 0.5 + 1e-9 for key in truth)


def test_clients_with_fixed_ranges_refuse_to_take_part():
    found = context(**{"noise.mechanism": "sound", "noise.noise_multiplier": 1.0, "training.rounds": 2})
    with pytest.raises(ProtocolError, match="bounds of this run are fixed"):
        _probed(found, found.federation().names, 1)
