"""Swapped batches, told by reading uploads and by learning from runs of one's own: raw figures by adversary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bilateral.audit.evidence import Evidence, Gate, with_controls
from bilateral.audit.experiment import Context
from bilateral.audit.recording import Recording
from bilateral.audit.scores import Metric
from bilateral.audit.threat import eavesdropper_view
from bilateral.audit.topics.swapped.attacks.swapped_worlds import (
    ADAPTIVE_READING,
    NAIVE_READING,
    Figures,
    describe,
    rounds_of,
    tell_worlds,
)
from bilateral.audit.topics.swapped.swapped_attackers import Attacker, left_out_of
from bilateral.audit.topics.swapped.swapped_rounds import Match
from bilateral.audit.topics.swapped.swapped_runs import SUCCESS, Runs, condition_of, more_coins
from bilateral.audit.views import View
from bilateral.protocols.messages import Message

READ: Final = Metric("worlds told by reading", "high", is_rate=True, digits=2)
LEARNED: Final = Metric("worlds told by learning", "high", is_rate=True, digits=2)


def evidence_of(context: Context, attacker: Attacker, runs: Runs) -> list[Evidence]:
    """What this adversary reads and learns in the plan's run and in its controls."""
    left_out = left_out_of(context)
    wired = not attacker.sees_uploads
    what = "FedSGD, uploads read on the wire" if wired else "FedSGD, the same batches"
    seen = "every message of a round"
    if attacker.sees_uploads:
        seen += ", masks taken off as far as they are known"
    if left_out:
        seen += "; not the question of cross entropy, which tells by itself (line 8)"
    if attacker.sees_uploads and isinstance(attacker.tests, str) and not context.plan.traits.spends_budget:
        seen += "; not who refused a range (line 11)"
    evidence = []
    for adaptive in (False, True) if attacker.naive else (True,):
        metrics = _metrics(attacker, adaptive=adaptive)
        taught = _Pupil(attacker.clients, attacker.view, runs.own, left_out, adaptive=adaptive)
        wire = eavesdropper_view if wired else attacker.view
        taught_bare = _Pupil(attacker.clients, wire, runs.own_bare, left_out, adaptive=adaptive)
        naive_seen = "the uploads as numbers" if attacker.sees_uploads else "the mean of every kind of number"
        evidence.append(
            with_controls(
                attacker.tests,
                attacker.adversary,
                "swapped worlds",
                seen if adaptive else naive_seen,
                tuple(Gate(metric, SUCCESS) for metric in metrics),
                target=condition_of(
                    f"batches of {len(runs.real.table.x)} of two of {len(runs.real.table.names)} clients",
                    taught.right(runs.real, metrics),
                ),
                positive=condition_of(what, taught_bare.right(runs.bare, metrics)),
                negative=condition_of(
                    "batches that stay where they are, against coins",
                    taught.right(runs.same, metrics, more_coins(context, runs.same)),
                ),
                adaptive=adaptive,
                paired=False,
                remark="the attacker knows both batches; but for drawn last bits the sum is the same in both worlds",
            )
        )
    return evidence


def _metrics(attacker: Attacker, *, adaptive: bool) -> tuple[Metric, ...]:
    if not attacker.sees_uploads:
        return (LEARNED,)
    return (READ, LEARNED) if adaptive else (READ,)


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
