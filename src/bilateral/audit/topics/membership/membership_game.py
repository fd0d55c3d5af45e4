"""The setting of the membership game: who trains on what, which samples are asked about, and which are canaries.

A pool of candidates is dealt anew in every run: a third to the other clients (members), two thirds to nobody. The first
client is the attacker; it has samples of its own, some of which it does not train on.

    attacker trains on      `natural` + `known.members`
    others train on         `others_natural` + the run's members
    attacker also has       `known.strangers`, `spare_natural` (for its shadow models)

Natural samples of an easy set are not memorised, and no attack finds them. Then the candidates (and the attacker's
known samples) are canaries: real inputs with labels drawn at random, which only a model that was trained on them knows.
Whether natural samples do is tried on two plain models first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from bilateral.audit.effort import MemorisingEffort
from bilateral.audit.experiment import Context
from bilateral.audit.membership_metrics import as_values, auc
from bilateral.audit.topics.membership.attacks.lira import joined, train_plainly
from bilateral.audit.topics.membership.attacks.membership import Known, confidence
from bilateral.audit.views import HIDDEN_SEED, Facts
from bilateral.data import Split
from bilateral.engine.federation import Federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.setup import analyse, initial_model
from bilateral.errors import DataError
from bilateral.learning.problem import Share
from bilateral.randomness import Randomness

NUM_CLIENTS = 3
MEMORISED = 0.85
"""The AUC of a plain loss threshold from which natural samples count as memorised."""
NUM_NULL_SPLITS = 60
SMALLEST_POOL = 8


@dataclass(frozen=True, eq=False)
class Game:
    """What is the same in all runs of the game."""

    plan: RunPlan
    """The plan's protection with a training that is long enough to memorise."""
    federation: Federation
    names: tuple[str, ...]
    canaries: bool
    natural: Split = field(repr=False)
    others_natural: Split = field(repr=False)
    spare_natural: Split = field(repr=False)
    known: Known = field(repr=False)
    pool: Split = field(repr=False)

    @property
    def attacker(self) -> str:
        return self.names[0]

    @property
    def own_labelled(self) -> Split:
        """What the attacker trains on."""
        return joined(self.natural, self.known.members)

    @property
    def for_shadows(self) -> Split:
        """What the attacker trains each shadow on, besides candidates: as much as a run has of each kind."""
        return joined(self.own_labelled, self.spare_natural)

    def deal(self, randomness: Randomness) -> Dealt:
        """One run's members, and as many strangers twice."""
        order = randomness.permutation(len(self.pool))
        third = len(self.pool) // 3
        return Dealt(order[:third], order[third : 2 * third], order[2 * third : 3 * third])

    def federation_of(self, dealt: Dealt) -> Federation:
        """The clients of one run with their samples."""
        others = joined(self.others_natural, self.pool.subset(dealt.members))
        spread = torch.arange(len(others))
        parts = [others.subset(spread[spread % (len(self.names) - 1) == k]) for k in range(len(self.names) - 1)]
        task, outputs = self.federation.problem.task, self.federation.problem.num_outputs
        shares = {
            name: Share(part.inputs, part.targets, task=task, num_outputs=outputs)
            for name, part in zip(self.names, [self.own_labelled, *parts], strict=True)
        }
        return replace(self.federation.with_members({n: len(s) for n, s in shares.items()}), shares=shares)

    @property
    def kind(self) -> str:
        """The candidates, in words."""
        each = len(self.pool) // 3
        what = "canaries (real samples with random labels)" if self.canaries else "natural samples"
        return f"{each} members and {each} strangers a run, {what}, {self.plan.training.rounds} rounds"


@dataclass(frozen=True, eq=False)
class Dealt:
    """Places in the pool: what others train on, and two lots that nobody trains on."""

    members: Tensor
    strangers: Tensor
    spare: Tensor

    def null_split(self, randomness: Randomness) -> tuple[Tensor, Tensor]:
        """Two lots of strangers, one of which is said to be members: all that is found there is chance."""
        unseen = torch.cat([self.strangers, self.spare])
        order = unseen[randomness.permutation(len(unseen))]
        return order[: len(self.strangers)], order[len(self.strangers) :]


def make_game(context: Context) -> Game:
    """The game for a plan, with canaries if natural samples are not memorised."""
    federation = context.federation()
    chosen = context.effort.memorising[federation.problem.plain_loss]
    plan = audit_sized(context.plan, chosen)
    names = _players(plan, federation)
    drawn = context.randomness("membership", "deal")
    available = _shuffled(list(federation.shares.values()), drawn)
    size = _fold_size(len(available), chosen)
    natural = Game(plan, federation, names, False, *_dealt_out(available, size, 0))
    if _is_memorised(natural, context):
        return natural
    game = Game(plan, federation, names, True, *_dealt_out(available, size, size // 3))
    relabel = context.randomness("membership", "canaries")
    members, strangers, pool = (
        with_random_targets(part, federation.problem.num_outputs, relabel)
        for part in (game.known.members, game.known.strangers, game.pool)
    )
    return replace(game, known=Known(members, strangers), pool=pool)


def audit_sized(plan: RunPlan, size: MemorisingEffort) -> RunPlan:
    """The same protection, trained on few samples until they are memorised: all of them in every round."""
    return plan.with_settings(
        {
            "training.rounds": size.rounds,
            "training.batch_size": 0,
            "training.optimiser": "adam",
            "training.learning_rate": size.learning_rate,
            "training.weight_decay": 0.0,
            "training.schedule": "cosine",
            "training.warmup_rounds": 0,
            "training.augment": False,
            "federation.participation": 1.0,
        }
    )


def public_facts(game: Game) -> Facts:
    """What everybody knows before a run."""
    problem = game.federation.problem
    model = initial_model(game.plan, problem, HIDDEN_SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return Facts(
        game.plan.with_settings({"seed": HIDDEN_SEED}),
        problem.plain_loss,
        problem.input_shape,
        problem.num_outputs,
        game.names,
        analyse(model, problem, game.plan.perturbation.norm_inputs),
        model,
    )


def with_random_targets(samples: Split, num_outputs: int, randomness: Randomness) -> Split:
    """Canaries: a class drawn at random (one-hot where it was), or another sample's target vector.

    Of three classes or more it is a wrong one: a right label would be known without training on it. Of two it may be
    right, or all canaries would have one rule in common.
    """
    targets = samples.targets
    is_one_hot = targets.is_floating_point() and num_outputs > 1 and bool(((targets == 0) | (targets == 1)).all())
    if targets.is_floating_point() and not is_one_hot:
        return Split(samples.inputs, targets[randomness.permutation(len(samples))])
    right = targets.argmax(1) if is_one_hot else targets
    spared = int(num_outputs > 2)
    moved = torch.tensor([spared + randomness.integer_below(num_outputs - spared) for _ in range(len(samples))])
    drawn = (right + moved) % num_outputs
    return Split(samples.inputs, torch.eye(num_outputs, dtype=targets.dtype)[drawn] if is_one_hot else drawn)


def _players(plan: RunPlan, federation: Federation) -> tuple[str, ...]:
    """Three clients, or all of them where the protection depends on how many there are."""
    chosen = plan.aggregation
    fixed = plan.traits.adds_noise or chosen.neighbours is not None or chosen.graph != "auto"
    return tuple(federation.names if fixed else federation.names[:NUM_CLIENTS])


def _shuffled(shares: Sequence[Split], randomness: Randomness) -> Split:
    everything = joined(*shares)
    return everything.subset(randomness.permutation(len(everything)))


def _fold_size(num_available: int, chosen: MemorisingEffort) -> int:
    size = min(chosen.fold, num_available // 6)
    if size < SMALLEST_POOL:
        raise DataError(
            f"The membership game needs {6 * SMALLEST_POOL} samples or more, and the clients have {num_available}.",
            remedy="Audit with a larger dataset.",
        )
    return size


def _dealt_out(available: Split, size: int, num_natural: int) -> tuple[Split, Split, Split, Known, Split]:
    """Disjoint parts: natural samples three times, known members and strangers, and the pool."""
    sizes = [num_natural] * 3 + [size, size, 3 * size]
    ends = np.cumsum(sizes).tolist()
    parts = [available.subset(torch.arange(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    return parts[0], parts[1], parts[2], Known(parts[3], parts[4]), parts[5]


def _is_memorised(game: Game, context: Context) -> bool:
    """Whether a loss threshold finds natural samples in two plain models of the attacker's."""
    facts, draws = public_facts(game), context.randomness("membership", "pilot")
    found = []
    for number in range(2):
        context.on_progress(0.01 * number, "membership: are natural samples memorised?")
        dealt = game.deal(draws.child("deal", number))
        trained = joined(game.for_shadows, game.pool.subset(dealt.members))
        network = train_plainly(facts, trained, draws.child("model", number).integer_below(2**31))
        with torch.no_grad():
            scores = confidence(network(game.pool.inputs), game.pool.targets)
        found.append(auc(as_values(scores[dealt.members]), as_values(scores[dealt.strangers])))
    return float(np.mean(found)) >= MEMORISED
