"""Runs in which two clients' batches are dealt by the toss of a coin, round by round, and nothing else changes.

Of the two batches one has the samples with the lowest classes (or target values), the other those with the highest: as
different as the plan's data are. Places in a share are dealt to rounds by the plan's own schedule, which is asked (by
the real client, over a share of numbered places) and not guessed. Under Poisson sampling some places are in several
rounds or in none; they hold one sample that is the same in both worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bilateral.audit.experiment import Context
from bilateral.audit.recording import Recording, record
from bilateral.audit.topics.membership.attacks.lira import joined
from bilateral.audit.topics.swapped.attacks.swapped_worlds import Notes, Suspicion
from bilateral.data import Split
from bilateral.engine.federation import Federation
from bilateral.engine.plan import RunPlan
from bilateral.engine.secrets import SimulatedSecrets
from bilateral.engine.setup import make_blueprint
from bilateral.learning.problem import Member, Share
from bilateral.protocols.mask.keys import KeyRing
from bilateral.protocols.mask.messages import Roster
from bilateral.protocols.messages import Message

MAX_CLIENTS = 5
MAX_BATCH, MIN_POISSON_BATCH = 16, 8
LEARNING_RATE = 1e-4
"""So small that all rounds have, in effect, one model: a round is a trial."""
Worlds = Mapping[int, int]


@dataclass(frozen=True, eq=False)
class Table:
    """Who plays, and for which batches: the first two clients are suspected, the others may be the adversary."""

    plan: RunPlan
    """With the noise of the plan's own rounds, whatever the number of rounds here."""
    federation: Federation
    names: tuple[str, ...]
    x: Split = field(repr=False)
    y: Split = field(repr=False)

    @property
    def others(self) -> tuple[str, ...]:
        return self.names[2:]


@dataclass(frozen=True, eq=False)
class Match:
    """A recorded run, and what the coin said of each round that is a trial."""

    recording: Recording
    worlds: Worlds
    table: Table
    notes: Notes = field(default_factory=Notes, repr=False)
    """Shared by all adversaries: what they find about public batches is the same."""

    def suspicion(self, colluding: Sequence[str], left_out: tuple[type[Message], ...]) -> Suspicion:
        """What an adversary knows that is, among others, these clients."""
        table = self.table
        weight = len(self.recording.shares[table.names[0]])
        rings = self._rings(colluding)
        return Suspicion(table.names[0], table.names[1], table.x, table.y, weight, rings, left_out, self.notes)

    def _rings(self, colluding: Sequence[str]) -> dict[str, KeyRing]:
        """The keys of these clients, as the run drew them."""
        messages = (entry.message for entry in self.recording.transcript.entries)
        roster = next((message for message in messages if isinstance(message, Roster)), None)
        if roster is None:
            return {}
        secrets = SimulatedSecrets(self.recording.plan.seed, self.table.names)
        rings = {name: secrets.key_ring(name) for name in colluding}
        for ring in rings.values():
            ring.accept(roster)
        return rings


def num_players(plan: RunPlan, num_clients: int) -> int:
    """As many clients as the plan's rounds have, but no more than the game needs."""
    return min(plan.federation.num_participants(num_clients), max(MAX_CLIENTS, 2 * plan.noise.colluders + 3))


def table_of(context: Context) -> Table:
    """The first clients of the plan, and two batches of the samples of all of them."""
    federation, plan = context.federation(), context.plan
    names = tuple(federation.names[: num_players(plan, len(federation.names))])
    pool = joined(*(federation.shares[name] for name in names))
    wanted = min(plan.training.batch_size or MAX_BATCH, MAX_BATCH)
    if _is_poisson(plan):
        wanted = max(wanted, MIN_POISSON_BATCH)
    size = min(wanted, len(pool) // 2)
    order = _sort_key(pool, federation.problem.task).argsort(stable=True)
    return Table(_with_own_noise(context), federation, names, pool.subset(order[:size]), pool.subset(order[-size:]))


def _with_own_noise(context: Context) -> RunPlan:
    """The plan with its noise as a number, so that other rounds and batches do not change it (nor account for it)."""
    plan = context.plan
    if not plan.traits.spends_budget or plan.noise.epsilon is None:
        return plan
    privacy = make_blueprint(plan, context.federation()).privacy
    assert privacy is not None
    return plan.with_settings({"noise.epsilon": None, "noise.noise_multiplier": privacy.deviations["noise multiplier"]})


def game_plan(plan: RunPlan, table: Table, num_rounds: int) -> RunPlan:
    """The plan's protections over so many rounds with batches of this size, everyone present."""
    return plan.with_settings(
        {
            "training.batch_size": len(table.x),
            "training.rounds": num_rounds,
            "training.learning_rate": LEARNING_RATE,
            "training.optimiser": "sgd",
            "training.momentum": 0.0,
            "training.schedule": "constant",
            "training.warmup_rounds": 0,
            "training.augment": False,
            "federation.dropout": 0.0,
            "federation.participation": 1.0,
            "federation.min_sites": None,
        }
    )


def play(
    plan: RunPlan,
    table: Table,
    coins: Sequence[int],
    on_round: Callable[[int, int], None],
    *,
    swap: bool,
    before_round: Callable[[int, nn.Module], None] = lambda _round_index, _model: None,
) -> Match:
    """A run with one trial a coin, and one more round, whose model shows the last trial's sum.

    Without `swap` the first client has x in every round, whatever the coin says: both worlds are the same.
    `before_round`: as in `record`.
    """
    plan = game_plan(plan, table, len(coins) + 1)
    federation = _numbered(plan, table)
    blueprint = make_blueprint(plan, federation)
    places = [_places(blueprint.client(name).batch, plan.training.rounds) for name in table.names[:2]]
    bank, size = joined(table.x, table.y), len(table.x)
    chosen = [torch.zeros(len(federation.shares[name]), dtype=torch.long) for name in table.names[:2]]
    worlds: dict[int, int] = {}
    for number, coin in enumerate((*coins, 0)):
        count = min(size, *(len(of_client[number]) for of_client in places))
        for client in (0, 1):
            has_y = client ^ coin if swap else client
            chosen[client][places[client][number][:count]] = has_y * size + torch.arange(count)
        if count and number < len(coins):
            worlds[number] = coin
    shares = {name: _share(bank.subset(rows), federation) for name, rows in zip(table.names, chosen, strict=False)}
    dealt = replace(federation, shares={**federation.shares, **shares})
    return Match(record(plan, dealt, on_round=on_round, before_round=before_round), worlds, table)


def _is_poisson(plan: RunPlan) -> bool:
    return plan.traits.samples_by_chance


def _sort_key(pool: Split, task: str) -> Tensor:
    targets = pool.targets
    if targets.dim() == 1:
        return targets
    return targets.argmax(1) if task == "classification" and targets.shape[1] > 1 else targets[:, 0]


def _numbered(plan: RunPlan, table: Table) -> Federation:
    """The players; the inputs of the two suspected are the numbers of their places."""
    length = plan.training.rounds * len(table.x)
    shares: dict[str, Share] = {name: table.federation.shares[name] for name in table.names}
    first = table.x.subset(torch.zeros(length, dtype=torch.long))
    shape = (length, *(1 for _ in first.inputs.shape[1:]))
    numbers = torch.arange(length, dtype=first.inputs.dtype).view(shape).expand_as(first.inputs)
    for name in table.names[:2]:
        shares[name] = _share(Split(numbers, first.targets), table.federation)
    members = tuple(Member(name, len(share)) for name, share in shares.items())
    return replace(table.federation, members=members, shares=shares)


def _places(batch: Callable[[int], Split], num_rounds: int) -> list[Tensor]:
    """Which places of a share are used in each round, and in no other."""
    used = [batch(number).inputs.flatten(1)[:, 0].long() for number in range(num_rounds)]
    counts = torch.bincount(torch.cat(used))
    return [places[counts[places] == 1] for places in used]


def _share(data: Split, federation: Federation) -> Share:
    problem = federation.problem
    return Share(data.inputs, data.targets, task=problem.task, num_outputs=problem.num_outputs)
