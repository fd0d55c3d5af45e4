"""A small plan of a baseline, and what its runs leave."""

from __future__ import annotations

import json

import torch

from bilateral.engine.plan import RunPlan

SMALL = {
    "data.name": "breast-cancer",
    "model.name": "mlp-3",
    "model.options": {"width": 4},
    "federation.clients": 3,
    "training.rounds": 3,
    "training.batch_size": 16,
}


def plan_of(protection, **settings):
    return RunPlan(protection=protection).with_settings({**SMALL, **settings})


def weights(result):
    return torch.cat([value.flatten() for value in result.model.state_dict().values()])


def digests(path):
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    return [line["gradient_digest"] for line in lines if line["event"] == "round_done"]
