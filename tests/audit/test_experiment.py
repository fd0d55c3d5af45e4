"""What experiments ask of a plan's guarantee."""

from __future__ import annotations

import pytest

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import ON_UPLOADS, Context, said_of_uploads, subject_of_uploads
from bilateral.engine.plan import RunPlan
from bilateral.errors import NotAuditableError
from bilateral.protocols.guarantee import Guarantee, Leak

NOISE = {"data.name": "breast-cancer", "training.loss": "mse", "noise.epsilon": 3.0}
SAID = {
    "ring masks": ({}, "single uploads"),
    "ring masks without perturbation": ({"protection": "fedavg", "aggregation.masks": "ring"}, "single uploads"),
    "FedSGD": ({"protection": "fedavg"}, 0),
    "perturbation alone": ({"aggregation.masks": "none"}, 3),
    "real-valued masks": ({"aggregation.masks": "float"}, 6),
    "real-valued masks without perturbation": ({"protection": "fedavg", "aggregation.masks": "float"}, 6),
    "sound noise": ({**NOISE, "noise.mechanism": "sound"}, "single uploads"),
    "P2's scheme": ({**NOISE, "noise.mechanism": "published"}, 3),
    "MP-CDP": ({**NOISE, "noise.mechanism": "mp-cdp"}, 3),
    "MP-DP-Naive": ({**NOISE, "noise.mechanism": "mp-dp-naive"}, 3),
}


@pytest.mark.parametrize(("settings", "expected"), SAID.values(), ids=SAID)
def test_every_kind_of_plan_names_what_it_says_about_uploads(settings, expected):
    guarantee = Context(RunPlan().with_settings({"model.name": "mlp-3", **settings}), EFFORTS["smoke"]).guarantee()
    assert subject_of_uploads(guarantee) == expected
    assert expected in ON_UPLOADS


def test_a_model_that_clients_are_sent_says_nothing_about_uploads():
    guarantee = Guarantee("a new one", (), (Leak("the whole model", "clients", 0),))
    assert said_of_uploads(guarantee) is None
    with pytest.raises(NotAuditableError, match="a new one says nothing about what the server learns"):
        subject_of_uploads(guarantee)
