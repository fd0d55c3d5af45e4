"""What an audit asks of a protection's server, and that it does not go on without an answer."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from bilateral.audit import recording
from bilateral.audit.audited_half import audited
from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import Blueprint
from bilateral.errors import NotAuditableError
from bilateral.protocols.messages import Aggregate, RecoveredUpdate
from bilateral.randomness import SecureRandomness, SeededRandomness

PLAN = RunPlan().with_settings({"data.name": "breast-cancer", "model.name": "mlp-3", "training.rounds": 1})
NOISE = {"training.loss": "mse", "noise.epsilon": 3.0}
STACKS = {
    "FedSGD": {"protection": "fedavg"},
    "perturbation": {},
    "sound noise": {**NOISE, "noise.mechanism": "sound"},
    "P2's scheme": {**NOISE, "noise.mechanism": "published"},
    "MP-CDP": {**NOISE, "noise.mechanism": "mp-cdp"},
    "MP-DP-Naive": {**NOISE, "noise.mechanism": "mp-dp-naive"},
}


class Untold:
    """A protection of tomorrow, which trains, and tells an audit nothing."""

    def __init__(self, inner):
        self._inner = inner

    def start_round(self, round_index):
        return self._inner.start_round(round_index)

    def answer(self, sender, message):
        return self._inner.answer(sender, message)

    def recover(self, total):
        return self._inner.recover(total)

    def state_tensors(self):
        return {}

    def load_state_tensors(self, tensors):
        pass


class Told(Untold):
    """The same, with an answer; and with streams wherever one can be kept."""

    def __init__(self, inner):
        super().__init__(inner)
        stream = SeededRandomness(7, "told")
        self.streams = {"in a dict": [stream.child("in a list")], "bound": stream.child("bound").normal}
        self.draw = partial(torch.add, stream.child("in a partial"))

    @property
    def secrets(self):
        return None

    def recover_one(self, total):
        return self._inner.recover(total)


@pytest.mark.parametrize("settings", STACKS.values(), ids=STACKS)
def test_every_protection_answers_what_an_audit_asks(settings):
    context = Context(PLAN.with_settings(settings), EFFORTS["smoke"])
    kept = context.record(context.plan).server_rounds[0]
    assert (kept.secrets is None) == (settings == STACKS["FedSGD"])
    assert torch.isfinite(kept.recovered()).all()


def with_server(monkeypatch, kind):
    make = Blueprint.server

    def server(self):
        training = make(self)
        training.server = kind(training.server)
        return training

    monkeypatch.setattr(Blueprint, "server", server)


def test_a_half_that_does_not_answer_is_refused_by_name(monkeypatch):
    with_server(monkeypatch, Untold)
    with pytest.raises(NotAuditableError, match=r"test_audited_half\.Untold .* no `secrets` and no `recover_one`"):
        Context(PLAN, EFFORTS["smoke"]).record(PLAN)


def test_a_half_without_secrets_must_say_that_it_has_none():
    class HalfTold(Untold):
        def recover_one(self, total: Aggregate) -> RecoveredUpdate:
            return self._inner.recover(total)

    with pytest.raises(NotAuditableError, match=r"no `secrets`\."):
        audited(HalfTold(None))


def test_no_stream_of_a_half_from_outside_the_package_is_kept(monkeypatch):
    """In a simulation a stream holds the seed, from which everybody's secrets follow."""
    with_server(monkeypatch, Told)
    half = Context(PLAN, EFFORTS["smoke"]).record(PLAN).server_rounds[0].half
    found = list(recording._streams_of(half))
    assert len(found) >= 3
    assert all(isinstance(stream, SecureRandomness) for stream in found)
