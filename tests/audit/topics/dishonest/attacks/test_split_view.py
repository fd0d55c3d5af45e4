"""Strategies of a dishonest server, against clients that check, that check nothing, and that forget."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch

from bilateral.audit.effort import EFFORTS
from bilateral.audit.experiment import Context
from bilateral.audit.topics.dishonest.attacks import split_view
from bilateral.audit.topics.dishonest.attacks.split_view import StagedRound
from bilateral.audit.topics.dishonest.staged_rounds import Cast, _answer, _unrecorded
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import make_blueprint
from bilateral.protocols.mask.messages import SurvivorList, UnmaskRequest
from bilateral.protocols.messages import aggregate

PLAN = RunPlan().with_settings(
    {"model.name": "mlp-3", "training.loss": "mse", "training.batch_size": 8, "federation.clients": 4}
)
CONTEXT = Context(PLAN, EFFORTS["smoke"])


@cache
def cast(masks):
    return Cast(CONTEXT, PLAN.with_settings({"aggregation.masks": masks}))


def plain_uploads():
    stage = cast("none").stage(0)
    return stage.send(dict.fromkeys(stage.names, (stage.model,)))


def off(read, truth):
    return float((read - truth).norm() / truth.norm())


class Forgetful:
    """Clients that remember neither a list nor a sum: a second set of them, in the same state, answers the second."""

    def __init__(self, num_clients):
        blueprint = make_blueprint(PLAN, CONTEXT.federation())
        self._first, self._second = (blueprint.local_exchange(_unrecorded) for _ in range(2))
        self._num_clients = num_clients

    def __call__(self, round_index, packets, respond=None):
        message = next(iter(packets.values()))[-1]
        names = getattr(message, "survivors", getattr(message, "signers", None))
        if getattr(message, "attempt", 0) or (names is not None and len(names) < self._num_clients):
            return self._second(round_index, packets, respond)
        replies = self._first(round_index, packets, respond)
        if not isinstance(message, SurvivorList | UnmaskRequest):
            self._second(round_index, packets, respond)
        return replies


def test_an_honest_round_gives_the_sum_of_the_plain_uploads_but_for_its_last_bits():
    total, plain = split_view.honest_sum(cast("ring").stage(0)), aggregate(plain_uploads(), 0)
    assert total.total_weight == plain.total_weight
    assert off(total.terms, plain.terms) < 2.0**-21


@pytest.mark.parametrize(
    ("strategy", "refusal"),
    [
        (split_view.different_models, "no weights give"),
        (split_view.different_openings, "ShareComplaint"),
        (split_view.two_lists, "second, different list"),
        (split_view.another_attempt, "already signed"),
    ],
)
def test_clients_under_ring_masks_let_no_strategy_through(strategy, refusal):
    outcome = split_view.attempt(strategy, cast("ring").stage(0), "client-2")
    assert outcome.guess is None
    assert refusal in outcome.refusal


@pytest.mark.parametrize("strategy", [split_view.two_lists, split_view.another_attempt])
def test_clients_that_forget_lose_their_upload_to_two_sums(strategy):
    honest = cast("ring").stage(0)
    stage = StagedRound(**{**vars(honest), "exchange": Forgetful(len(honest.names))})
    outcome = split_view.attempt(strategy, stage, "client-2")
    assert outcome.refusal == ""
    assert off(outcome.guess, plain_uploads()["client-2"].terms.double()) < 1e-6


def test_clients_under_real_valued_masks_lose_their_upload_to_two_models():
    stage = cast("float").stage(0)
    outcome = split_view.attempt(split_view.different_models_without_checks, stage, "client-2")
    assert off(outcome.guess, plain_uploads()["client-2"].terms.double()) < 0.05


def test_clients_under_ring_masks_do_not_even_talk_to_a_server_of_real_valued_ones():
    outcome = split_view.attempt(split_view.different_models_without_checks, cast("ring").stage(0), "client-2")
    assert outcome.guess is None


def test_a_question_is_answered_by_the_servers_half_and_nothing_else_is():
    assert partial(_answer, None)("anna", plain_uploads()["client-1"]) == ()
    assert torch.equal(cast("ring").stage(0).zeros.parameters, torch.zeros_like(cast("ring").stage(0).model.parameters))
