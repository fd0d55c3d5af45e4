"""Runs in which every client trains on one sample a round: the case that gradient inversion is best at.

The plan's protections and its initial model, tiny steps; the same seed deals the same samples to the plan and to its
undefended control. With sound noise batches are drawn by chance, and only those with one sample are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bilateral.audit.experiment import Context
from bilateral.audit.image_metrics import Ruler, ValueRange
from bilateral.audit.recording import Recording
from bilateral.audit.threat import facts_of
from bilateral.audit.topics.inversion.attacks.gradient_matching import GradientModel
from bilateral.audit.topics.inversion.inversion_methods import NUM_PUBLIC, InversionTools, Observed
from bilateral.data import Split
from bilateral.engine.plan import RunPlan
from bilateral.errors import DataError

LEARNING_RATE = 1e-4
MIN_ROUNDS = 2
"""Sums of one round are the controls of another's."""
MIN_TRIALS = 12
"""Five metrics in a paired test need 12."""
POISSON_FACTOR = 3
"""A Poisson batch of one expected sample has exactly one in 37 % of rounds."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One client's sample of one round."""

    client: str
    round_index: int
    sample: Tensor = field(repr=False)
    label: int
    """-1 where samples have no class."""
    others: tuple[Trial, ...] = field(default=(), repr=False)
    """The other participants' of the same round, the next one first: a guess that is nobody's fits them as well."""

    def honest_other(self, parties: Sequence[str]) -> Trial | None:
        """The first of the others that is not among the adversary's parties."""
        return next((other for other in self.others if other.client not in parties), None)


@dataclass(frozen=True, eq=False)
class Rounds:
    """A recorded run with its trials, in the order of rounds and clients."""

    recording: Recording
    trials: tuple[Trial, ...]

    @property
    def round_indices(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(trial.round_index for trial in self.trials))


def num_colluders(plan: RunPlan, num_clients: int) -> int:
    """As many clients as the claim on masks lets collude with the server; 0 without ring masks.

    Also 0 under sound noise: its clients clip and add noise, and the recording keeps neither for colluders to take out.
    """
    if plan.masks(num_clients) != "ring" or plan.traits.spends_budget:
        return 0
    participants = plan.federation.num_participants(num_clients)
    threshold = plan.aggregation.settings().threshold_of(participants)
    return max(0, min(max(2, threshold) - 2, threshold - 1, participants - 2))


def one_sample_plan(plan: RunPlan, num_clients: int, num_trials: int) -> RunPlan:
    """The plan with a batch of one, and as many rounds as the trials need."""
    participants = plan.federation.num_participants(num_clients)
    honest = participants - num_colluders(plan, num_clients)
    rounds = max(MIN_ROUNDS, math.ceil(num_trials / participants), math.ceil(MIN_TRIALS / honest))
    if plan.traits.spends_budget:
        rounds *= POISSON_FACTOR
    return plan.with_settings(
        {
            "training.batch_size": 1,
            "training.rounds": rounds,
            "training.learning_rate": LEARNING_RATE,
            "training.optimiser": "sgd",
            "training.momentum": 0.0,
            "training.schedule": "constant",
            "training.warmup_rounds": 0,
            "training.augment": False,
            "federation.dropout": 0.0,
        }
    )


def record_rounds(context: Context, plan: RunPlan) -> Rounds:
    """Run a plan with a batch of one, and find its trials: as many in every round, together what the effort asks for.

    They are of the first clients; those that collude with the server, if any do, are the last (`colluding`).
    """
    recording = context.record(plan)
    one_sample = {key: batch for key, batch in recording.batches.items() if len(batch) == 1}
    quota = math.ceil(max(context.effort.images, MIN_TRIALS) / plan.training.rounds)
    if plan.traits.spends_budget:
        quota *= POISSON_FACTOR
    trials: list[Trial] = []
    for round_index in sorted({index for _, index in one_sample}):
        here = [_trial(name, index, batch) for (name, index), batch in one_sample.items() if index == round_index]
        trials.extend(_with_others(here)[:quota])
    if not trials:
        raise DataError(
            "No client trained on exactly one sample in any round of the audit.",
            remedy="Use more clients, or audit the plan without noise.mechanism = 'sound'.",
        )
    return Rounds(recording, tuple(trials))


def colluding(recording: Recording) -> tuple[str, ...]:
    """The last clients, as many as may collude: data are dealt at random, so it makes no difference which."""
    names = tuple(recording.shares)
    count = num_colluders(recording.plan, len(names))
    return names[len(names) - count :] if count else ()


def _trial(name: str, round_index: int, batch: Split) -> Trial:
    return Trial(name, round_index, batch.inputs[0].float(), _label(batch.targets[0].reshape(-1)))


def _label(target: Tensor) -> int:
    if not target.is_floating_point():
        return int(target[0])
    return int(target.argmax()) if len(target) > 1 else -1  # one-hot, or a real number


def _with_others(trials: list[Trial]) -> list[Trial]:
    """Each with those after it and then those before it."""
    return [replace(trial, others=(*trials[i + 1 :], *trials[:i])) for i, trial in enumerate(trials)]


def tools_of(context: Context, recording: Recording, *labels: str) -> InversionTools:
    """An attacker of this run: the server's test data are its public samples."""
    return tools_from(context, recording.test, *labels)


def tools_from(context: Context, test: Split, *labels: str) -> InversionTools:
    """An attacker with these public samples."""
    public = Split(test.inputs[:NUM_PUBLIC].float(), test.targets[:NUM_PUBLIC])
    return InversionTools(
        public, ValueRange.of(test.inputs.float()), context.effort, context.randomness("inversion", *labels)
    )


def ruler_of(recording: Recording, tools: InversionTools) -> Ruler:
    """Features are those of the run's true network in its first round."""
    network = facts_of(recording).network(recording.server_rounds[0].parameters.float())
    return Ruler.of(tools.bounds, network, recording.graph.head, tools.public.inputs)


def observe(
    model: GradientModel,
    keys: list[tuple[int, str]],
    parameters: Callable[[int], Tensor],
    gradient: Callable[[int, str], Tensor | None],
) -> Observed:
    """One gradient a (round, client), in single precision; what is missing counts as zeros."""
    rows, places = [], []
    for round_index, client in keys:
        place = parameters(round_index).float()
        found = gradient(round_index, client)
        places.append(place)
        rows.append(torch.zeros_like(place) if found is None else found.float())
    return Observed(model, torch.stack(places), torch.stack(rows))


def random_gradients(observed: Observed, tools: InversionTools) -> Observed:
    """The numbers of each gradient in random order: the negative control of an attack on it.

    Normal numbers of the same norm would not do: an attack that is given words of a mask, which are uniform, ends with
    slightly other images than one that is given normal numbers, and that would pass for a success.
    """
    draws = tools.randomness.child("random gradients")
    rows = [row[draws.child(number).permutation(len(row))] for number, row in enumerate(observed.gradients)]
    return replace(observed, gradients=torch.stack(rows))
