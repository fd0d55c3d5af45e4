"""Rounds, as the table of kinds names them."""

from __future__ import annotations

from typing import Final

from bilateral.engine.kind import ROUNDS
from bilateral.runs.rounds.hosted import HostedRounds


class RoundsKind(HostedRounds):
    """Clients train one model together, round by round."""

    name: Final = ROUNDS
    command: Final = "run"
    deployable: Final = True


KIND = RoundsKind()
