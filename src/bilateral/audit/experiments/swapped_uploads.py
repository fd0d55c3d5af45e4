"""Two clients' batches, swapped or not: whoever tells the worlds apart has read single uploads, not their sum.

Tests "single uploads" (hidden from the server, also with as many colluding clients as the claim allows) and "other
clients' uploads" (hidden from clients, alone and pooled, and from an eavesdropper). Where uploads are not claimed to be
hidden, ledger lines 0, 3 or 6, by the server.

Every attacker learns from a run that it plays by itself. Positive control: the same attacker where uploads are bare;
clients, who see nobody's upload, are given the wire. Negative control: a run in which the batches stay where they are,
against coins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bilateral.audit.attacks.swapped_worlds import (
    ADAPTIVE_READING,
    NAIVE_READING,
    Figures,
    describe,
    rounds_of,
    tell_worlds,
)
from bilateral.audit.evidence import Condition, Evidence, Gate
from bilateral.audit.experiment import Context, Experiment, has_subject, undefended
from bilateral.audit.experiments.swapped_rounds import Match, Table, num_players, play, table_of
from bilateral.audit.recording import Recording
from bilateral.audit.scores import Metric, Scores
from bilateral.audit.threat import AdversaryName, View, client_view, eavesdropper_view, server_view
from bilateral.engine.plan import RunPlan
from bilateral.protocols.guarantee import Guarantee, Subject
from bilateral.protocols.messages import Message
from bilateral.protocols.perturb.messages import SoftmaxQuery, SoftmaxReply
from bilateral.randomness import Randomness

READ = Metric("worlds told by reading", "high", is_rate=True, digits=2)
LEARNED = Metric("worlds told by learning", "high", is_rate=True, digits=2)
SUCCESS: Final = 0.9
NUM_TRIALS: Final = {"smoke": 20, "standard": 40, "thorough": 120}
NUM_OWN: Final = 3
"""Runs that the attacker plays by itself: what differs from model to model must not be taken for the world."""
FEWEST_OWN: Final = 8
BARE_IS_FASTER: Final = 6
COINS_A_VIEW: Final = 10
"""In the negative control: each is a fair guess of its own, and more of them sharpen the comparison."""


@dataclass(frozen=True)
class Runs:
    """All that was played: the plan, the attacker's own runs of it, and a run without swaps; and FedAvg."""

    real: Match
    own: tuple[Match, ...]
    same: Match
    bare: Match
    own_bare: tuple[Match, ...]


@dataclass(frozen=True)
class Attacker:
    """An adversary of this game, the claim (or line) it attacks, and how its view is cut."""

    adversary: AdversaryName
    tests: Subject | int
    clients: tuple[str, ...]
    view: Callable[[Recording], View]
    sees_uploads: bool
    naive: bool = True


def run(context: Context) -> list[Evidence]:
    """Play the plan and its controls, and let every adversary guess."""
    table, guarantee = table_of(context), context.guarantee()
    attackers = attackers_of(context, table, guarantee)
    runs = _play_all(context, table)
    left_out = _left_out(context)
    evidence: list[Evidence] = []
    for number, attacker in enumerate(attackers):
        context.on_progress(0.8 + 0.2 * number / len(attackers), f"swapped uploads: {attacker.adversary}")
        evidence += _attack(context, attacker, runs, left_out)
    context.on_progress(1.0, "swapped uploads: done")
    return evidence


def attackers_of(context: Context, table: Table, guarantee: Guarantee) -> list[Attacker]:
    """Everybody from whom the plan says that single uploads are hidden; the server in any case."""
    found: list[Attacker] = []
    others = table.others
    if has_subject(guarantee, "other clients' uploads"):
        pooled = others[: _most_pooled(context.plan, table)]
        if others:
            found.append(_clients("curious client", others[:1]))
        if len(pooled) > 1:
            found.append(_clients("colluding clients", pooled))
        found.append(Attacker("eavesdropper", "other clients' uploads", (), eavesdropper_view, sees_uploads=True))
    tests = _tests(context, guarantee, len(table.names))
    found.append(Attacker("curious server", tests, (), server_view, sees_uploads=True))
    colluding = others[: _most_colluding(context.plan, len(table.names))]
    if tests == "single uploads" and colluding:
        found.append(
            Attacker(
                "server with colluding clients",
                tests,
                colluding,
                lambda recording: server_view(recording, colluding),
                sees_uploads=True,
                naive=False,
            )
        )
    return found


def _clients(adversary: AdversaryName, names: tuple[str, ...]) -> Attacker:
    return Attacker(
        adversary,
        "other clients' uploads",
        names,
        lambda recording: client_view(recording, *names),
        sees_uploads=False,
        naive=len(names) == 1,
    )


def _tests(context: Context, guarantee: Guarantee, num_clients: int) -> Subject | int:
    if has_subject(guarantee, "single uploads"):
        return "single uploads"
    if context.plan.masks(num_clients) == "float":
        return 6
    return 3 if context.plan.protection == "perturbation" else 0


def _most_colluding(plan: RunPlan, num_clients: int) -> int:
    """With the server: two honest uploads must remain in every sum, and no secret may be reconstructed."""
    settings = plan.aggregation.settings()
    floor, threshold = settings.floor_of(num_clients), settings.threshold_of(num_clients)
    return max(0, min(floor - 2, threshold - 1, num_clients - 2))


def _most_pooled(plan: RunPlan, table: Table) -> int:
    """Without the server: all but the two suspected, unless successive models tell clients the sums."""
    count = len(table.names)
    if plan.protection == "perturbation":
        return count - 2
    return max(0, min(count - 2, plan.aggregation.settings().floor_of(count) - 2))


def _play_all(context: Context, table: Table) -> Runs:
    """All runs, each of the plan with a seed (and so with a model and keys) and coins of its own."""
    trials = NUM_TRIALS[context.effort.name]
    few = max(FEWEST_OWN, trials // (2 * NUM_OWN))
    bare = undefended(table.plan)
    jobs = [
        (table.plan, trials, True),
        *[(table.plan, few, True)] * NUM_OWN,
        (table.plan, few, False),
        (bare, trials, True),
        *[(bare, few, True)] * NUM_OWN,
    ]
    found: list[Match] = []
    work = [count * (1 if plan == bare else BARE_IS_FASTER) for plan, count, _ in jobs]
    for number, (plan, count, swap) in enumerate(jobs):
        done, share = 0.8 * sum(work[:number]) / sum(work), 0.8 * work[number] / sum(work)

        def tell(finished: int, total: int, done: float = done, share: float = share) -> None:
            context.on_progress(done + share * finished / total, "swapped uploads: playing")

        role = number % (NUM_OWN + 2)  # FedAvg has the seeds and the coins of the plan's own runs
        seeded = plan.with_settings({"seed": (plan.seed + 1 + role) % 2**63})
        coins = _coins(context.randomness("swapped uploads", role), count)
        found.append(play(seeded, table, coins, tell, swap=swap))
    real, *own, same = found[: NUM_OWN + 2]
    played, *own_bare = found[NUM_OWN + 2 :]
    return Runs(real, tuple(own), same, played, tuple(own_bare))


def _coins(randomness: Randomness, count: int) -> list[int]:
    return [int(value) for value in randomness.uniform(count) < 0.5]


def _left_out(context: Context) -> tuple[type[Message], ...]:
    asks = context.plan.protection == "perturbation" and context.federation().problem.loss == "ce"
    return (SoftmaxQuery, SoftmaxReply) if asks else ()


def _attack(context: Context, attacker: Attacker, runs: Runs, left_out: tuple[type[Message], ...]) -> list[Evidence]:
    wired = not attacker.sees_uploads
    what = "FedAvg, uploads read on the wire" if wired else "FedAvg, the same batches"
    seen = "every message of a round"
    if attacker.sees_uploads:
        seen += ", masks taken off as far as they are known"
    if left_out:
        seen += "; not the question of cross entropy, which tells by itself (line 8)"
    if attacker.sees_uploads and isinstance(attacker.tests, str) and context.plan.noise.mechanism != "sound":
        seen += "; not who refused a range (line 11)"
    evidence = []
    for adaptive in (False, True) if attacker.naive else (True,):
        metrics = _metrics(attacker, adaptive=adaptive)
        taught = _Pupil(attacker.clients, attacker.view, runs.own, left_out, adaptive=adaptive)
        wire = eavesdropper_view if wired else attacker.view
        taught_bare = _Pupil(attacker.clients, wire, runs.own_bare, left_out, adaptive=adaptive)
        naive_seen = "the uploads as numbers" if attacker.sees_uploads else "the mean of every kind of number"
        evidence.append(
            Evidence(
                tests=attacker.tests,
                adversary=attacker.adversary,
                attack="swapped worlds",
                adaptive=adaptive,
                seen=seen if adaptive else naive_seen,
                target=_condition(
                    f"batches of {len(runs.real.table.x)} of two of {len(runs.real.table.names)} clients",
                    taught.right(runs.real, metrics),
                ),
                positive=_condition(what, taught_bare.right(runs.bare, metrics)),
                negative=_condition(
                    "batches that stay where they are, against coins",
                    taught.right(runs.same, metrics, _more_coins(context, runs.same)),
                ),
                gates=tuple(Gate(metric, SUCCESS) for metric in metrics),
                remark="the attacker knows both batches, and the sum is the same in both worlds",
            )
        )
    return evidence


def _metrics(attacker: Attacker, *, adaptive: bool) -> tuple[Metric, ...]:
    if not attacker.sees_uploads:
        return (LEARNED,)
    return (READ, LEARNED) if adaptive else (READ,)


def _more_coins(context: Context, match: Match) -> list[dict[int, int]]:
    draws = context.randomness("swapped uploads", "coins")
    rounds = list(match.worlds)
    return [dict(zip(rounds, _coins(draws.child(number), len(rounds)), strict=True)) for number in range(COINS_A_VIEW)]


class _Pupil:
    """An attacker that has played by itself (`own`), and is then shown other runs."""

    def __init__(
        self,
        clients: tuple[str, ...],
        view: Callable[[Recording], View],
        own: Sequence[Match],
        left_out: tuple[type[Message], ...],
        *,
        adaptive: bool,
    ) -> None:
        self._clients = clients
        self._view = view
        self._left_out = left_out
        self._adaptive = adaptive
        self._own = own
        self._found: dict[int, list[Figures]] = {}

    def right(
        self, match: Match, metrics: Sequence[Metric], coins: Sequence[Mapping[int, int]] = ()
    ) -> dict[Metric, list[float]]:
        """Per metric, 1 for each right guess of the match's worlds, or of what other coins say in their place."""
        guessed = {READ: self._read, LEARNED: self._learned}
        found = {}
        for metric in metrics:
            guesses = dict(zip(match.worlds, guessed[metric](match), strict=True))
            worlds = coins or [match.worlds]
            found[metric] = [float(guesses[number] == world[number]) for world in worlds for number in guesses]
        return found

    def _learned(self, match: Match) -> list[int]:
        examples = [self._described(own) for own in self._own]
        worlds = [list(own.worlds.values()) for own in self._own]
        return tell_worlds(examples, worlds, self._described(match))

    def _read(self, match: Match) -> list[int]:
        reading = ADAPTIVE_READING if self._adaptive else NAIVE_READING
        return [int(figures[reading][0] <= 0) for figures in self._described(match)]

    def _described(self, match: Match) -> list[Figures]:
        """Its rounds in figures, found once."""
        if id(match) not in self._found:
            known = match.suspicion(self._clients, self._left_out)
            views = rounds_of(self._view(match.recording), self._left_out)
            self._found[id(match)] = [
                describe(views[number], number, known, adaptive=self._adaptive) for number in match.worlds
            ]
        return self._found[id(match)]


def _condition(what: str, right: dict[Metric, list[float]]) -> Condition:
    return Condition(what, tuple(Scores(metric, tuple(values)) for metric, values in right.items()))


def _applies(plan: RunPlan, guarantee: Guarantee) -> str:  # noqa: ARG001
    if plan.noise.mechanism not in ("none", "sound"):
        return "P2's scheme does not claim to hide single uploads; lines 3 and 4 have attacks of their own"
    count = len(plan.data.sites) or plan.federation.num_clients
    if count is not None and num_players(plan, count) < 2:
        return "a round with a single client has no batches to swap"
    return ""


EXPERIMENT: Final = Experiment(
    "swapped-uploads", "Two clients' batches, swapped or not: told apart by single uploads", _applies, run, weight=15.0
)
