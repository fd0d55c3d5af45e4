"""The script that measures steps on large networks, on a small one."""

from __future__ import annotations

from torch import nn

import large_steps


def test_a_perturbed_step_is_compared_with_both_others():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, large_steps.NUM_OUTPUTS))
    calls = []
    steps = {
        name: (lambda name=name, step=step: (calls.append(name), step()))
        for name, step in large_steps.steps_of(model, 8, 4).items()
    }
    found = large_steps.ratios(steps, 2)
    assert set(found) == {"plain", "torch"}
    assert all(len(ratios) == 2 for ratios in found.values())
    assert calls == ["perturbed", "plain", "torch"] * 3
