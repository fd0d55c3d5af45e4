"""Ledger lines 2, 8 and 10: what cross entropy shows the client, and its exchange the server and an eavesdropper.

Without an exchange (`softmax = "local"`) a client computes the softmax from what comes with the model: line 2 alone.

A trial is a round: fresh secrets and a fresh batch of one client. Truth is the true model of that round, in float64, on
that batch. Negative control: what belongs to another sample, of the batch or (with batches of one) of another round.
Positive control: the true model computed in the plan's own precision, which is what a FedSGD client has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.audit.evidence import Condition, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line
from bilateral.audit.recording import Recording
from bilateral.audit.scores import SOFTMAX_ERROR, Metric, Scores
from bilateral.audit.threat import client_view, eavesdropper_view, facts_of, server_view
from bilateral.audit.topics.model.attacks import softmax_exchange as attacks
from bilateral.audit.views import AdversaryName, View
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee

MEAN_SOFTMAX_ERROR = Metric("mean softmax error", "low", digits=2)
"""Half the sum of absolute differences (total variation), a mean over the samples of a round."""
SUM_ERROR = Metric("relative error of the activation sum", "low", digits=2)
READ = 1e-5
"""A float32 model computes a softmax to about 1e-6 itself."""
NUM_ROUNDS = 12


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:
    if not has_line(guarantee, 2, 8, 10):
        return "the loss is not cross entropy under perturbation"
    return "a client's batch is augmented before it is used, and not kept" if plan.training.augment else ""


@dataclass(frozen=True)
class _Round:
    """The truth about one client's batch in one round."""

    client: str
    index: int
    softmax: Tensor
    in_own_precision: Tensor
    activation_sum: Tensor
    sum_in_own_precision: Tensor


def _run(context: Context) -> Sequence[Evidence]:
    plan = context.plan.with_settings({"training.rounds": NUM_ROUNDS, "aggregation.masks": "none"})
    context.on_progress(0.0, "recording an exchange")
    recording = context.record(plan)
    context.on_progress(0.5, "true softmax values")
    present = {kept.round_index: _first_present(recording, kept.round_index) for kept in recording.server_rounds}
    rounds = [_truth(recording, client, index) for index, client in present.items()]
    context.on_progress(0.7, "reading the exchange")
    if not facts_of(recording).perturbation.has_exchange:
        return _by_client_alone(recording, rounds)
    rows = [*_by_client(recording, rounds), *_by_server(recording, rounds)]
    if recording.problem.num_outputs > 2:
        rows.append(_by_eavesdropper(recording, rounds))
    if plan.perturbation.noise == "activation":
        rows.append(_activation_sums(recording, rounds))
    context.on_progress(1.0, "done")
    return rows


def _by_client(recording: Recording, rounds: Sequence[_Round]) -> list[Evidence]:
    views = {name: client_view(recording, name) for name in recording.shares}
    view = views[rounds[0].client]
    seen = "its query, the reply, the partition"
    return [
        _row(2, view, "the blinded softmax as it comes", seen, rounds, adaptive=False,
             read=lambda r: attacks.naive_softmax_of_reply(views[r.client], r.index, r.client)),
        _row(2, view, "a linear system for the group blinders", seen, rounds,
             read=lambda r: attacks.softmax_of_reply(views[r.client], r.index, r.client)[r.client]),
    ]  # fmt: skip


def _by_client_alone(recording: Recording, rounds: Sequence[_Round]) -> list[Evidence]:
    views = {name: client_view(recording, name) for name in recording.shares}
    view = views[rounds[0].client]

    def read(r: _Round, *, told: bool) -> Tensor:
        return attacks.softmax_of_own_pass(views[r.client], r.index, r.client, told=told)

    return [
        _row(2, view, "the softmax of noisy outputs", "the model", rounds, adaptive=False,
             read=lambda r: read(r, told=False)),
        _row(2, view, "the softmax, without the noise that comes with the model", "the model and its noise", rounds,
             read=lambda r: read(r, told=True)),
    ]  # fmt: skip


def _by_server(recording: Recording, rounds: Sequence[_Round]) -> list[Evidence]:
    view = server_view(recording)
    two = recording.problem.num_outputs == 2
    return [
        _row(8, view, "a row of the query, normalised", "the query", rounds, adaptive=False,
             read=lambda r: attacks.naive_softmax_of_query(view, r.index, r.client)),
        _row(8, view, "bounds from both numbers of the query" if two else "differences of the query's rows",
             "the query, its own secrets", rounds,
             read=lambda r: attacks.softmax_of_query(view, r.index, r.client)),
    ]  # fmt: skip


def _by_eavesdropper(recording: Recording, rounds: Sequence[_Round]) -> Evidence:
    view = eavesdropper_view(recording)

    def read(r: _Round) -> Tensor:
        asked = [name for name, round_index in recording.batches if round_index == r.index]
        return attacks.softmax_of_reply(view, r.index, *asked)[r.client]

    seen = "all queries and replies, where there is no TLS"
    return _row(2, view, "differences of the query's rows, then the linear system", seen, rounds, read=read)


def _row(
    line: int,
    view: View,
    attack: str,
    seen: str,
    rounds: Sequence[_Round],
    *,
    read: Callable[[_Round], Tensor],
    adaptive: bool = True,
) -> Evidence:
    return _evidence(
        line,
        view.adversary,
        attack,
        seen,
        Condition("a round of this plan", _softmax_scores(rounds, read)),
        Condition("the true model in the plan's precision", _softmax_scores(rounds, lambda r: r.in_own_precision)),
        Condition("the softmax of another sample", _softmax_scores(rounds, _of_another(rounds, lambda r: r.softmax))),
        Gate(SOFTMAX_ERROR, READ, "median"),
        adaptive=adaptive,
    )


def _activation_sums(recording: Recording, rounds: Sequence[_Round]) -> Evidence:
    """The server knows the factors, so a scaled sum is as good as a plain one: it is scored in the round's scale."""
    view = server_view(recording)

    everything = torch.cat([r.activation_sum for r in rounds])

    def scores(read: Callable[[_Round], Tensor]) -> tuple[Scores]:
        errors = [(read(r) - r.activation_sum).norm() / _spread(r.activation_sum, everything) for r in rounds]
        return (Scores(SUM_ERROR, tuple(map(float, errors))),)

    return _evidence(
        10,
        view.adversary,
        "the sum that the query states",
        "the query",
        Condition("the query of a round", scores(lambda r: attacks.activation_sums(view, r.index, r.client))),
        Condition("the true model in the plan's precision", scores(lambda r: r.sum_in_own_precision)),
        Condition("the sum of another sample", scores(_of_another(rounds, lambda r: r.activation_sum))),
        Gate(SUM_ERROR, 1e-3),
        adaptive=True,
    )


def _of_another(rounds: Sequence[_Round], values: Callable[[_Round], Tensor]) -> Callable[[_Round], Tensor]:
    """For every sample of a batch the next one's; for a batch of one that of the next round."""
    following = {r.index: after for r, after in zip(rounds, [*rounds[1:], *rounds[:1]], strict=True)}

    def of_another(r: _Round) -> Tensor:
        own = values(r)
        return own.roll(1, 0) if len(own) > 1 else values(following[r.index])[:1]

    return of_another


def _evidence(
    line: int,
    adversary: AdversaryName,
    attack: str,
    seen: str,
    target: Condition,
    positive: Condition,
    negative: Condition,
    gate: Gate,
    *,
    adaptive: bool,
) -> Evidence:
    remark = "a trial is the batch of one client in one round, at the beginning of training"
    return with_controls(
        line,
        adversary,
        attack,
        seen,
        gate,
        target=target,
        positive=positive,
        negative=negative,
        adaptive=adaptive,
        remark=remark,
    )


def _softmax_scores(rounds: Sequence[_Round], read: Callable[[_Round], Tensor]) -> tuple[Scores, Scores]:
    errors = [(read(r) - r.softmax).abs() for r in rounds]
    return (
        Scores(SOFTMAX_ERROR, tuple(float(e.max()) for e in errors)),
        Scores(MEAN_SOFTMAX_ERROR, tuple(float(e.sum(1).mean() / 2) for e in errors)),
    )


def _first_present(recording: Recording, round_index: int) -> str:
    return next(name for name, index in recording.batches if index == round_index)


def _truth(recording: Recording, client: str, round_index: int) -> _Round:
    parameters, inputs = recording.server_round(round_index).parameters, recording.batches[client, round_index].inputs
    facts, secrets = facts_of(recording), recording.server_round(round_index).secrets
    assert secrets is not None
    factors = secrets.scale_factors[recording.graph.head_input_classes]
    exact, own = (
        _head_pass(facts.network(parameters.to(dtype)), recording.graph.head, inputs.to(dtype))
        for dtype in (torch.float64, inputs.dtype)
    )
    return _Round(
        client, round_index, torch.softmax(exact[1], 1), torch.softmax(own[1], 1), exact[0] @ factors, own[0] @ factors
    )


def _head_pass(network: nn.Module, head: str, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Head inputs and outputs in float64, of a pass as clients make it (BatchNorm over the batch)."""
    captured: list[Tensor] = []
    network.get_submodule(head).register_forward_pre_hook(lambda _, args: captured.append(args[0]))
    with torch.no_grad():
        outputs = network.train()(inputs).double()
    return captured[0].double(), outputs


def _spread(values: Tensor, everything: Tensor) -> Tensor:
    """How much the sums of a batch differ; a batch of one has no spread of its own, and takes that of all rounds."""
    size: Tensor = (values - values.mean()).norm() if len(values) > 1 else everything.std()
    return size.clamp_min(1e-12)


EXPERIMENT = Experiment(
    "softmax-recovery",
    "softmax values and activation sums, from the cross-entropy exchange",
    (2, 8, 10),
    _applies,
    _run,
    weight=2.0,
)
