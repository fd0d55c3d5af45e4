"""Rounds, as the table of kinds names them."""

from __future__ import annotations

from bilateral.engine.kind import ROUNDS
from bilateral.runs.rounds.hosted import HostedRounds


class RoundsKind(HostedRounds):
    """Clients train one model together, round by round."""

    name: str = ROUNDS
    command: str = "run"
    deployable: bool = True


KIND = RoundsKind()
