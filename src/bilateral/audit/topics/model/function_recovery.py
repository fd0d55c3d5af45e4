"""Ledger line 1: how much of the true model's function an adversary owns that has seen a perturbed model.

A trial is a round: fresh secrets, a fresh draw of labelled samples, and the share of unseen samples for which the
adversary predicts what the true model predicts (regression: the relative error of its predictions).

Negative control: the same knowledge without the model that was sent. Who has k labelled samples trains the architecture
on them from scratch; who has none has an untrained network. Whatever is better than that came from the message.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.audit.evidence import Condition, Curve, Evidence, Gate, with_controls
from bilateral.audit.experiment import Context, Experiment, has_line, undefended
from bilateral.audit.recording import Recording
from bilateral.audit.scores import AGREEMENT, Metric, Scores, mean_interval
from bilateral.audit.threat import client_view, eavesdropper_view, facts_of
from bilateral.audit.topics.model.attacks.group_secrets import (
    Outputs,
    fit_outputs,
    guess_outputs,
    naive_outputs,
    told_outputs,
)
from bilateral.audit.topics.model.attacks.softmax_exchange import outputs_from_exchange
from bilateral.audit.topics.model.trained_runs import NUM_TRIALS, recorded, trained_plan
from bilateral.audit.views import AdversaryName, View
from bilateral.data import Split
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import initial_model
from bilateral.protocols.guarantee import Guarantee

PREDICTION_ERROR = Metric("relative error of predictions", "low")
NUM_LABELS = 100
CURVE_LABELS = (1, 3, 10, 30, 100, 300)
_POOLED = 300
_UNSEEN = 400
_CONTROL_STEPS = 200


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    return "" if has_line(guarantee, 0, 1) else "clients are sent no model that computes the true function"


@dataclass(frozen=True)
class _Truth:
    """The true model of a round on unseen samples, to score against."""

    inputs: Tensor
    outputs: Tensor

    def score(self, predict: Outputs, metric: Metric) -> float:
        with torch.no_grad():
            guessed = predict(self.inputs).double()
        if metric == AGREEMENT:
            return float((guessed.argmax(1) == self.outputs.argmax(1)).double().mean())
        centred = self.outputs - self.outputs.mean(0)
        return float((guessed - self.outputs).norm() / centred.norm().clamp_min(1e-12))


@dataclass(frozen=True)
class _Bench:
    """One trained run (the plan's, or the control's), and the rounds and draws of all trials."""

    context: Context
    recording: Recording
    metric: Metric
    rounds: tuple[int, ...]
    truths: tuple[_Truth, ...]
    public: Split
    """Labelled samples that are nobody's secret."""

    @staticmethod
    def of(context: Context, plan: RunPlan) -> _Bench:
        recording = recorded(context, plan, "with protection" if plan.traits.hides_model else "without protection")
        last = plan.training.rounds
        rounds = tuple(range(max(0, last - NUM_TRIALS), last))
        test = recording.test
        half = len(test) // 2
        unseen = test.inputs[half : half + _UNSEEN]
        truths = tuple(_Truth(unseen, _true_outputs(recording, index, unseen)) for index in rounds)
        metric = AGREEMENT if recording.problem.task == "classification" else PREDICTION_ERROR
        return _Bench(context, recording, metric, rounds, truths, test.subset(torch.arange(half)))

    def draw(self, pool: Split, count: int, trial: int, label: str) -> Split:
        order = self.context.randomness("function", label, count, trial).permutation(len(pool))
        return pool.subset(order[:count])

    def scores(self, attack: Callable[[int, int], Outputs]) -> Scores:
        """`attack` is called with (trial, round)."""
        found = [
            truth.score(attack(trial, index), self.metric)
            for trial, (index, truth) in enumerate(zip(self.rounds, self.truths, strict=True))
        ]
        return Scores(self.metric, tuple(found))


def _run(context: Context) -> Sequence[Evidence]:
    plan = trained_plan(context)
    target = _Bench.of(context, plan)
    positive = _Bench.of(context, undefended(plan)) if plan.traits.hides_model else target
    client, *rest = target.recording.shares
    context.on_progress(0.6, "outputs as they come")
    rows = _without_labels(target, positive, client)
    if not plan.traits.hides_model:
        return rows[:1]  # there is nothing to fit
    context.on_progress(0.7, "fitting with labels")
    rows.append(_with_own_labels(target, positive, client))
    context.on_progress(0.8, "colluding clients")
    if rest:
        rows.append(_pooled(target, positive, (client, rest[0])))
    context.on_progress(0.9, "eavesdropper")
    rows.append(_eavesdropper(target, positive))
    context.on_progress(1.0, "done")
    return rows


def _without_labels(target: _Bench, positive: _Bench, client: str) -> list[Evidence]:
    """Outputs as they come; the projection on the directions; and what cross entropy gives."""

    def attacks(bench: _Bench) -> dict[str, Callable[[int, int], Outputs]]:
        view = client_view(bench.recording, client)
        inputs = bench.recording.shares[client].inputs
        return {
            "outputs as they come": lambda _, index: naive_outputs(view, index),
            "outputs without their noisy direction": lambda _, index: guess_outputs(view, index, inputs),
        }

    untrained = target.scores(lambda trial, _: _predictor(_fresh(target, trial).eval()))
    ours, theirs = attacks(target), attacks(positive)
    rows = [(name, ours[name], positive.scores(theirs[name]), name != "outputs as they come") for name in ours]
    solved = _without_fitting(target.recording, client)
    if solved is not None:
        name, attack = solved
        rows.append((name, lambda _, index: attack(index), rows[0][2], True))
    negative = Condition("an untrained network of the architecture", (untrained,))
    return [
        _evidence(target, "curious client", name, "the model of a round, no labels", target.scores(attack), positively,
                  negative, adaptive=adaptive)
        for name, attack, positively, adaptive in rows
    ]  # fmt: skip


def _with_own_labels(target: _Bench, positive: _Bench, client: str) -> Evidence:
    pool = target.recording.shares[client]
    count = min(NUM_LABELS, len(pool))
    view = client_view(target.recording, client)

    def attack(view: View, samples: int) -> Callable[[int, int], Outputs]:
        return lambda trial, index: fit_outputs(view, index, target.draw(pool, samples, trial, client))

    labels = sorted({min(k, len(pool)) for k in CURVE_LABELS})
    curve = [(k, target.scores(attack(view, k))) for k in labels]
    return _evidence(
        target,
        "curious client",
        f"group secrets fitted to {count} labelled samples of its own",
        "the model of a round",
        target.scores(attack(view, count)),
        positive.scores(attack(client_view(positive.recording, client), count)),
        _trained_alone(target, lambda trial: target.draw(pool, count, trial, client), count),
        curves=(
            Curve(
                "What labelled samples are worth to a client",
                "labelled samples",
                target.metric.name,
                {"fitted group secrets": tuple((k, s.mean, *mean_interval(s.values)) for k, s in curve)},
            ),
        ),
    )


def _pooled(target: _Bench, positive: _Bench, clients: tuple[str, str]) -> Evidence:
    pool = _joined([target.recording.shares[name] for name in clients])
    count = min(_POOLED, len(pool))

    def attack(view: View) -> Callable[[int, int], Outputs]:
        return lambda trial, index: fit_outputs(view, index, target.draw(pool, count, trial, "pool"))

    return _evidence(
        target,
        "colluding clients",
        f"group secrets fitted to {count} labelled samples of two clients",
        "the model of a round",
        target.scores(attack(client_view(target.recording, *clients))),
        positive.scores(attack(client_view(positive.recording, *clients))),
        _trained_alone(target, lambda trial: target.draw(pool, count, trial, "pool"), count),
    )


def _eavesdropper(target: _Bench, positive: _Bench) -> Evidence:
    count = min(NUM_LABELS, len(target.public))

    def attack(bench: _Bench) -> Callable[[int, int], Outputs]:
        view = eavesdropper_view(bench.recording)
        return lambda trial, index: fit_outputs(view, index, target.draw(bench.public, count, trial, "public"))

    return _evidence(
        target,
        "eavesdropper",
        f"group secrets fitted to {count} public labelled samples",
        "the model of a round, where there is no TLS",
        target.scores(attack(target)),
        positive.scores(attack(positive)),
        _trained_alone(target, lambda trial: target.draw(target.public, count, trial, "public"), count),
    )


def _evidence(
    target: _Bench,
    adversary: AdversaryName,
    attack: str,
    seen: str,
    scores: Scores,
    positive: Scores,
    negative: Condition,
    *,
    adaptive: bool = True,
    curves: tuple[Curve, ...] = (),
) -> Evidence:
    recording = target.recording
    rounds = f"the models of rounds {target.rounds[0] + 1} to {target.rounds[-1] + 1}"
    return with_controls(
        recording.plan.traits.model_line,
        adversary,
        attack,
        seen,
        Gate(AGREEMENT, 0.95) if target.metric == AGREEMENT else Gate(PREDICTION_ERROR, 0.1),
        target=(f"{rounds} under {recording.protection}", scores),
        positive=(f"{rounds} under FedSGD", positive),
        negative=negative,
        adaptive=adaptive,
        remark=f"a trial is a round; {len(target.truths[0].inputs)} unseen samples each",
        curves=curves,
    )


def _trained_alone(target: _Bench, samples: Callable[[int], Split], count: int) -> Condition:
    """What the same labels teach without the message."""

    def predictor(trial: int) -> Outputs:
        network, known = _fresh(target, trial), samples(trial)
        optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
        draws = target.context.randomness("function", "alone", trial)
        network.train()
        for _ in range(_CONTROL_STEPS):
            batch = known.subset(draws.permutation(len(known))[:32])
            optimiser.zero_grad()
            _loss(network(batch.inputs), batch.targets, target.recording.problem.loss).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return _predictor(network.eval())

    scores = target.scores(lambda trial, _: predictor(trial))
    return Condition(f"a network trained from scratch on the same {count} samples", (scores,))


def _fresh(target: _Bench, trial: int) -> nn.Module:
    seed = target.context.randomness("function", "fresh", trial).integer_below(2**31)
    return initial_model(target.recording.plan, target.recording.problem, seed)


def _predictor(network: nn.Module) -> Outputs:
    dtype = next(network.parameters()).dtype

    def outputs(inputs: Tensor) -> Tensor:
        found: Tensor = network(inputs.to(dtype))
        return found

    return outputs


def _loss(outputs: Tensor, targets: Tensor, loss: str) -> Tensor:
    if loss == "ce":
        return F.cross_entropy(outputs, targets)
    if not targets.is_floating_point():
        targets = F.one_hot(targets, outputs.shape[1])
    return F.mse_loss(outputs, targets.to(outputs.dtype))


def _true_outputs(recording: Recording, round_index: int, inputs: Tensor) -> Tensor:
    """Of the model that was sent in that round. Running statistics are those of the end."""
    network = _with_parameters(recording, recording.server_round(round_index).parameters)
    with torch.no_grad():
        return _predictor(network.eval())(inputs).double()


def _with_parameters(recording: Recording, parameters: Tensor) -> nn.Module:
    network = copy.deepcopy(recording.model)
    values = recording.graph.unflatten(parameters)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(values[name])
    return network


def _without_fitting(recording: Recording, client: str) -> tuple[str, Callable[[int], Outputs]] | None:
    """Where cross entropy tells the noise, in so many words or by its exchange: an attack on a round, by its name."""
    view, settings = client_view(recording, client), facts_of(recording).perturbation
    if not recording.plan.traits.hides_model:
        return None
    if settings.tells_noise:
        inputs = recording.shares[client].inputs
        return "noise that comes with the model", lambda index: told_outputs(view, index, inputs)
    if settings.has_exchange and recording.problem.num_outputs > 2:
        return "group secrets from the softmax exchange", lambda index: outputs_from_exchange(view, index, client)
    return None


def _joined(splits: Sequence[Split]) -> Split:
    return Split(torch.cat([s.inputs for s in splits]), torch.cat([s.targets for s in splits]))


EXPERIMENT = Experiment(
    "function-recovery", "the model's function, by clients and eavesdroppers", (0, 1), _applies, _run, weight=20.0
)
