"""Several sessions side by side.

The server's programs yield requests; `run_together` hands them to a transport and goes on with whichever program has
its reply first, so that one party works on one batch while another works on the next.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from bilateral.protocols.messages import Message
from bilateral.protocols.share.prediction.helping import Program
from bilateral.protocols.share.prediction.messages import PHASES, Phase, phase_of
from bilateral.protocols.transport import SERVER, Traffic, Transport

_T = TypeVar("_T")
_TICKETS: Final = itertools.count()
"""Never the same twice, so that no reply is taken for another."""


def run_together(programs: Sequence[Program[_T]], transport: Transport, traffic: Traffic) -> list[_T]:
    """Run all programs to their ends; return their results in order."""
    together = _Together(programs, transport, traffic)
    try:
        return together.run()
    except BaseException:
        transport.forget()
        raise


class _Together:
    def __init__(self, programs: Sequence[Program[Any]], transport: Transport, traffic: Traffic) -> None:
        self._programs, self._transport, self._traffic = programs, transport, traffic
        self._results: list[Any] = [None] * len(programs)
        self._rounds: list[Counter[Phase]] = [Counter() for _ in programs]
        self._waits_for: dict[int, tuple[int, str, Phase]] = {}

    def run(self) -> list[Any]:
        for position in range(len(self._programs)):
            self._advance(position, None)
        while self._waits_for:
            ticket, reply = self._transport.next_reply()
            if ticket in self._waits_for:  # another is of a run that failed
                position, party, phase = self._waits_for.pop(ticket)
                self._traffic.record(phase, party, SERVER, reply)
                self._advance(position, reply)
        for phase in PHASES:
            self._traffic.rounds[phase] += max((counted[phase] for counted in self._rounds), default=0)
        return self._results

    def _advance(self, position: int, reply: Message | None) -> None:
        try:
            party, message, meanwhile = self._programs[position].send(reply)  # type: ignore[arg-type]
        except StopIteration as end:
            self._results[position] = end.value
            return
        phase, ticket = phase_of(message), next(_TICKETS)
        self._traffic.record(phase, SERVER, party, message)
        self._rounds[position][phase] += 1
        self._waits_for[ticket] = position, party, phase
        self._transport.submit(ticket, party, message)
        if meanwhile is not None:
            meanwhile()
